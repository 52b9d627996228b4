"""Importance scores: a number for every head of a model; a higher score means a more important head.

A score is a function, here or elsewhere in the package, and an entry of `scores.options.SCORES` that names it.

Shapes: B batch, T target length, S source length, L layers, H heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import AttentionModule, attention_modules
from fairseq_headgates.attention.hooks import hooked
from fairseq_headgates.attention.modules import (
    evaluating,
    head_counts,
    module_table,
    open_probabilities,
    use_head_attention,
)
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.losses import Sample, outputs
from fairseq_headgates.data.workers import all_reduce
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.messages import check_finite
from fairseq_headgates.scores.ablation import ablation_losses
from fairseq_headgates.scores.derivatives import differentiable, gradients
from fairseq_headgates.scores.options import SCORES, ScoreOptions
from fairseq_headgates.scores.relevance.explaining import head_relevance


def score(
    model: nn.Module, task: Any, batches: Sequence[Sample], method: str, options: ScoreOptions | None = None
) -> HeadTable:
    """Compute the importance scores of all heads.

    Args:
        model: a fairseq transformer; its attention modules become `HeadAttention`
        task: the fairseq task of the model, which holds the dictionaries
        batches: samples of the task, those of this worker if several share the data
        method: a name in `scores.options.SCORES`; "magnitude", "gate" and "random" do not use `task`
            and `batches`
        options: options of the scores (default: `ScoreOptions()`)

    Returns:
        A score for every head, NaN for removed heads

    Raises:
        ValueError: if scores are not finite
    """
    corpus = Corpus(task, batches)
    use_head_attention(model)
    with evaluating(model):
        path, _, function = SCORES[method].function.rpartition(".")
        table = getattr(import_module(f"fairseq_headgates.{path}"), function)(model, corpus, options or ScoreOptions())
    for module in attention_modules(model):
        row = torch.tensor(table.layers[module.attention_type][module.layer], dtype=torch.float64)
        where = f"{module.attention_type} layer {module.layer}"
        check_finite(f"the scores of {method} in {where}", row[list(module.attention.kept)])
    return HeadTable(table.layers, method)


def confidence(model: nn.Module, corpus: Corpus, options: ScoreOptions) -> HeadTable:
    """Mean over tokens of a head's largest attention weight, without end of sentence (Voita et al. 2019, section 4).

    EOS, <s> and language tags are excluded from keys and queries. The queries of a decoder are the tokens of the
    prefix, whose first is EOS.
    """
    sums = _Sums(model)

    def see(module: AttentionModule, weights: Tensor | None, _: Tensor) -> None:
        assert weights is not None
        keys, queries = words[module.attention_type]
        if weights.size(-1) > keys.size(1):  # --cross-self-attention: a decoder layer looks at the source, too
            keys = torch.cat([words["enc-self"][0], keys], 1)
        largest = weights.masked_fill(~keys[:, None, None, :], 0.0).amax(-1)  # [B, H, T]
        sums.add(module, (largest * queries[:, None, :]).sum((0, 2)), queries.sum())

    with torch.no_grad(), hooked(model, see, weights=True):
        for sample in options.progress(corpus.batches):
            net_input = sample["net_input"]
            source = corpus.words(net_input["src_tokens"], "source")
            target = corpus.words(net_input.get("prev_output_tokens", net_input["src_tokens"]), "target")
            # Keys [B, S] and queries [B, T] of each attention type
            words = {"enc-self": (source, source), "dec-self": (target, target), "dec-enc": (source, target)}
            outputs(model, sample)
    return sums.means()


def gradient(model: nn.Module, corpus: Corpus, options: ScoreOptions) -> HeadTable:
    """Gradient score: I_h = E_x |Att_h(x)^T dL(x)/dAtt_h(x)| (Michel et al. 2019, eq. 2), L(x) a sentence's loss.

    The product is the derivative with respect to a gate on the head, so one backward pass gives it for all heads: with
    a gate per sentence, or (`gradient_unit` "token") per sentence and position, whose absolute values are averaged.
    """
    per_token = {"sentence": False, "token": True}[options.gradient_unit]
    by_layer = {"none": False, "layer": True}[options.normalize]
    sums = _Sums(model)
    gates: dict[AttentionModule, Tensor] = {}

    def insert(module: AttentionModule, _: Tensor | None, context: Tensor) -> Tensor:
        batch, heads, length, _size = context.shape
        gates[module] = context.new_ones(batch, heads, length if per_token else 1, 1, requires_grad=True)
        return context * gates[module]

    with differentiable(model), hooked(model, insert):
        for sample in options.progress(corpus.batches):
            gates.clear()
            losses = corpus.losses(model, sample)
            if not gates:  # no head is left
                break
            units = _units(sample, corpus, per_token)
            for module, gradient in zip(gates, gradients(losses, list(gates.values())), strict=True):
                sums.add(module, gradient.abs().sum((0, 2, 3)), units[module.attention_type])
    means = sums.means()
    return _normalized(means) if by_layer else means


def _units(sample: Sample, corpus: Corpus, per_token: bool) -> dict[str, int]:
    """Return the number of sentences, or of tokens, that each attention type is averaged over."""
    if not per_token:
        return dict.fromkeys(("enc-self", "dec-self", "dec-enc"), len(sample["target"]))
    target = int(corpus.counted(sample).sum())
    source = int(sample["net_input"]["src_tokens"].ne(corpus.pad).sum())
    return {"enc-self": source, "dec-self": target, "dec-enc": target}


def _normalized(table: HeadTable) -> HeadTable:
    """Divide each layer by its l2 norm, as Michel et al. do after Molchanov et al. 2017."""

    def unit(row: list[float]) -> list[float]:
        norm = math.hypot(*(value for value in row if not math.isnan(value)))
        return [value / norm for value in row] if norm else row

    return HeadTable({each: [unit(row) for row in rows] for each, rows in table.layers.items()}, table.name)


def relevance(model: nn.Module, corpus: Corpus, options: ScoreOptions) -> HeadTable:
    """Mean share of a head in the relevance of its layer for the top-1 logit (Voita et al. 2019, section 4)."""
    sums = _Sums(model)
    modules = {(module.attention_type, module.layer): module for module in attention_modules(model)}
    corpus.objective.check_relevance()
    head = corpus.objective.classification_head
    for sample in options.progress(corpus.batches):
        real = corpus.counted(sample)
        for attention_type, values in head_relevance(model, sample["net_input"], options.rule, head).items():
            shares = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
            for layer, row in enumerate((shares * real[:, :, None, None]).sum((0, 1))):
                module = modules[attention_type, layer]
                sums.add(module, row[list(module.attention.kept)], real.sum())
    return sums.means()


def ablation(model: nn.Module, corpus: Corpus, options: ScoreOptions) -> HeadTable:
    """Increase of the loss, in bits per target token, with the head masked (Michel et al. 2019, section 3.2)."""
    loss, without = ablation_losses(model, corpus, progress=options.progress)
    return without.map(lambda value: value - loss)


def magnitude(model: nn.Module, corpus: Corpus, options: ScoreOptions) -> HeadTable:
    """L2 norm of a head's weights: its rows of W_Q, W_K and W_V, its columns of W_O times its gate, and further ones.

    Those of the all-attention model are its rows of W_R, its persistent vectors and the biases of its queries.
    """
    norms = {}
    with torch.no_grad():
        for module in attention_modules(model):
            attention = module.attention
            if attention.num_heads:
                scale = attention.head_scale()
                out = attention.out_proj.weight.T
                out = out if scale is None else out * scale.repeat_interleave(attention.head_dim)[:, None]
                parts = [p for name in attention.INPUTS for p in getattr(attention, name).parameters() if p.dim() > 1]
                squares = [part.double().square().reshape(attention.num_heads, -1).sum(1) for part in (*parts, out)]
                norms[module] = torch.stack(squares).sum(0).sqrt()
    return module_table(model, norms)


def gate(model: nn.Module, corpus: Corpus, options: ScoreOptions) -> HeadTable:
    """P(open) of a head's gate, 1 without a gate (Voita et al. 2019, section 6)."""
    return _of_kept(model, open_probabilities(model))


def random(model: nn.Module, corpus: Corpus, options: ScoreOptions) -> HeadTable:
    """Random numbers from 0 to 1, for comparison."""
    generator = torch.Generator().manual_seed(options.seed)
    # For removed heads too, so that those of others do not change.
    return _of_kept(model, {each: torch.rand(size, generator=generator) for each, size in head_counts(model).items()})


def _of_kept(model: nn.Module, values: Mapping[str, Tensor]) -> HeadTable:
    """Return {type: [L, H]} without the values of removed heads."""
    modules = attention_modules(model)
    return module_table(model, {s: values[s.attention_type][s.layer, list(s.attention.kept)] for s in modules})


class _Sums:
    """Sums and counts for every remaining head, in double precision."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.sums = {module: torch.zeros(module.attention.num_heads).double() for module in attention_modules(model)}
        self.counts = dict.fromkeys(self.sums, 0.0)

    def add(self, module: AttentionModule, values: Tensor, count: float | Tensor) -> None:
        self.sums[module] += values.detach().double().cpu()
        self.counts[module] += float(count)

    def means(self) -> HeadTable:
        """Return sums divided by counts, over the data of all workers."""
        flat = all_reduce(torch.cat([*self.sums.values(), torch.tensor(list(self.counts.values())).double()]))
        *rows, counts = flat.split([*map(len, self.sums.values()), len(self.counts)])
        means = (row / count.clamp(min=1) for row, count in zip(rows, counts, strict=True))
        return module_table(self.model, dict(zip(self.sums, means, strict=True)))
