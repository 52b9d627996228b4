"""Ablation: the loss and the translations of a model with single heads masked (Michel et al. 2019).

Masking heads of one layer does not change the layers below. So the outputs of the encoder and of the layers below are
computed once, and several variants of a layer are computed in one batch.

Shapes: B batch, T target length, H remaining heads of a layer, V variants of a layer, E model size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import AttentionModule, attention_modules
from fairseq_headgates.attention.gating import masked
from fairseq_headgates.attention.hooks import hooked, recorded, replaced_forward
from fairseq_headgates.attention.modules import head_counts, module_table, use_head_attention
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import finite, mean_loss
from fairseq_headgates.data.losses import Sample
from fairseq_headgates.data.metrics import Metric
from fairseq_headgates.data.workers import all_reduce
from fairseq_headgates.files.journal import ResumeJournal
from fairseq_headgates.heads import HeadId, HeadTable
from fairseq_headgates.messages import Progress

TOKENS = 2048  # in one batch, padding included: more would not be faster


# --- losses ----------------------------------------------------------------------------------------------------------


def ablation_losses(
    model: nn.Module, corpus: Corpus, mode: str = "single", progress: Progress = iter
) -> tuple[float, HeadTable]:
    """Compute the loss of a model, and its loss with every single head masked ("single") or kept alone in its layer.

    Returns:
        The loss of the whole model, and the loss for each head (NaN for removed heads), in bits per target token

    Raises:
        ValueError: if the loss is not finite
    """
    use_head_attention(model)
    if getattr(getattr(model, "decoder", None), "mem_len", 0):
        return _losses_with_memory(model, corpus, mode, progress)
    variants = {}  # factors on the heads of a layer, [V, H]
    for module in attention_modules(model):
        if module.attention.num_heads:
            alone = torch.eye(module.attention.num_heads)
            variants[module] = {"all-but-one": alone, "single": 1 - alone}[mode]
    sums = {module: torch.zeros(len(rows), dtype=torch.double) for module, rows in variants.items()}
    whole = torch.zeros(2, dtype=torch.double)
    for sample in progress(corpus.batches):
        loss, of_variants = variant_losses(model, sample, corpus, variants)
        whole += torch.tensor([loss, corpus.counted(sample).sum()], dtype=torch.double)
        for module, losses in of_variants.items():
            sums[module] += losses
    flat = all_reduce(torch.cat([whole, *sums.values()]))
    loss, tokens = flat[:2].tolist()
    rows = flat[2:].div(tokens).split([len(row) for row in sums.values()])
    return finite(loss, tokens), module_table(model, dict(zip(sums, rows, strict=True)), f"nll|{mode}")


def _losses_with_memory(model: nn.Module, corpus: Corpus, mode: str, progress: Progress) -> tuple[float, HeadTable]:
    """Return the losses of `ablation_losses`, each in a pass of its own: masks change what a model remembers."""
    losses_of_modules = {}
    for module in progress(attention_modules(model)):
        losses = []
        for head in module.attention.kept:
            with masked(model, _mask(model, module, head, mode)):
                losses.append(mean_loss(model, corpus))
        losses_of_modules[module] = torch.tensor(losses, dtype=torch.double)
    return mean_loss(model, corpus, progress), module_table(model, losses_of_modules, f"nll|{mode}")


@torch.no_grad()
def variant_losses(
    model: nn.Module, sample: Sample, corpus: Corpus, variants: Mapping[AttentionModule, Tensor]
) -> tuple[float, dict[AttentionModule, Tensor]]:
    """Return the loss of a batch in bits, and that of each variant of each layer: {module: [V]}.

    `variants[module]` [V, H] are factors on the heads of this layer.
    """
    with _recording(model) as outputs:
        loss = corpus.losses(model, sample).double().sum().item()
    return loss, {module: _losses_of(model, sample, corpus, module, rows, outputs) for module, rows in variants.items()}


def _losses_of(
    model: nn.Module, sample: Sample, corpus: Corpus, module: AttentionModule, rows: Tensor, outputs: Mapping[str, Any]
) -> Tensor:
    batch, length = corpus.counted(sample).shape
    longest = max(length, sample["net_input"]["src_tokens"].size(1)) if "src_tokens" in sample["net_input"] else length
    losses = []
    for chunk in rows.split(max(1, TOKENS // (batch * longest))):
        order = torch.arange(batch, device=sample["target"].device).repeat(len(chunk))
        factor = chunk.to(order.device).repeat_interleave(batch, 0)[:, :, None, None]
        inputs = {key: value.index_select(0, order) for key, value in sample["net_input"].items()}
        repeated = {"net_input": inputs, "target": sample["target"].index_select(0, order)}
        with _resuming(model, module, outputs, order, factor):
            of_chunk = corpus.losses(model, repeated)
        losses.append(of_chunk.view(len(chunk), -1).sum(1, dtype=torch.double))
    return torch.cat(losses).cpu()


@contextmanager
def _recording(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Within the context, record the outputs of encoder, layers and self-attention by name, and all contexts."""
    names = {name for module in attention_modules(model) for name in (*module.layer_names, module.name)}
    if hasattr(model, "encoder"):
        names.add("encoder")
    with recorded(outputs={name: model.get_submodule(name) for name in names}) as seen:

        def remember(module: AttentionModule, _: Tensor | None, context: Tensor) -> None:
            seen.outputs[f"{module.name}.heads"] = context

        with hooked(model, remember):
            yield seen.outputs


@contextmanager
def _resuming(
    model: Any, module: AttentionModule, outputs: Mapping[str, Any], order: Tensor, factor: Tensor
) -> Iterator[None]:
    """Within the context, the model computes from the heads of a layer on, times their `factor` [B, H, 1, 1].

    The recorded outputs of the modules before are repeated for the rows `order`.
    """
    layer, *below = module.layer_names
    replayed = {name: outputs[name] for name in below}
    if below:
        replayed[below[0]] = _repeated(outputs[below[0]], order)  # the only one that is read
    if f"{layer}.self_attn" in outputs and module.attention_type == "dec-enc":  # layers of convolutions have none
        replayed[f"{layer}.self_attn"] = _repeated(outputs[f"{layer}.self_attn"], order)
    if module.attention_type != "enc-self" and "encoder" in outputs:
        replayed["encoder"] = model.encoder.reorder_encoder_out(outputs["encoder"], order)
    context = outputs[f"{module.name}.heads"].index_select(0, order)
    replayed[module.name] = (module.attention.output_of(context * factor.to(context)), None)
    with ExitStack() as stack:
        for name, output in replayed.items():
            stack.enter_context(replaced_forward(model.get_submodule(name), lambda *_, output=output, **__: output))
        yield


def _repeated(output: Any, order: Tensor) -> Any:
    """Select rows of a layer's output, [T, B, E] or a tuple that starts with it."""
    if isinstance(output, tuple):
        return (output[0].index_select(1, order), *[None] * (len(output) - 1))
    return output.index_select(1, order)


# --- predictions ----------------------------------------------------------------------------------------------------


def ablation_masks(model: nn.Module, mode: str, losses: HeadTable) -> dict[HeadId, HeadTable]:
    """Return the masks to predict with, by the head that is masked ("single"), or kept alone in its layer.

    With "all-but-one", each layer keeps the head with the lowest of the `losses`.
    """
    masks = {}
    for module in attention_modules(model):
        row = losses.layers[module.attention_type][module.layer]
        heads = [head for head, loss in enumerate(row) if not math.isnan(loss)]
        if mode == "all-but-one" and heads:
            heads = [min(heads, key=lambda head: row[head])]
        for head in heads:
            masks[HeadId(module.attention_type, module.layer, head)] = _mask(model, module, head, mode)
    return masks


def _mask(model: nn.Module, module: AttentionModule, head: int, mode: str) -> HeadTable:
    """Return the mask of a head, or of all others of its layer."""
    layers, heads = head_counts(model)[module.attention_type]
    rows: list[list[float]] = [[1] * heads for _ in range(layers)]
    rows[module.layer] = [int((i == head) == (mode == "all-but-one")) for i in range(heads)]
    return HeadTable({module.attention_type: rows}, "alive")


def masked_predictions(
    model: nn.Module,
    metric: Metric,
    masks: Mapping[HeadId, HeadTable],
    journal: ResumeJournal,
    progress: Progress = iter,
) -> dict[str, list]:
    """Return what the metric scores, by the model ("full") and with each mask, by name ('dec-enc 5 0')."""
    model = metric.prepared(model)
    shared = any("enc-self" not in mask.layers for mask in masks.values())
    predictions: dict[str, list] = {}
    known: dict[Any, Any] = {}
    for name, mask in progress([("full", HeadTable({})), *((str(head), mask) for head, mask in masks.items())]):
        with masked(model, mask), ExitStack() as sharing:
            if shared and "enc-self" not in mask.layers:
                sharing.enter_context(_shared_encoder(model, known))
            predictions[name] = journal.get(name, lambda: metric.predict(model))
    return predictions


def _shared_encoder(model: Any, known: dict[Any, Any]) -> AbstractContextManager[None]:
    """Within the context, the encoder computes each batch only if its output is not `known`."""
    encode = model.encoder.forward

    def forward(src_tokens: Tensor, *rest: Any, **others: Any) -> Any:
        key = (src_tokens.data_ptr(), src_tokens.shape)
        if key not in known:  # the tokens are kept, too, so that their address is not used again
            known[key] = (src_tokens, encode(src_tokens, *rest, **others))
        return known[key][1]

    return replaced_forward(model.encoder, forward)
