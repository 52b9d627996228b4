"""What is lost without heads: one by one, all but one of a layer, and more and more of them (Michel et al. 2019).

Masking heads of one layer changes nothing below it, so a loss is computed from there: what the encoder gave and what
the layers below gave is computed once, and several variants of a layer ride in one batch.

Shapes: B batch, T target length, H heads that a layer has, V variants of a layer, E model size.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.evaluation import Corpus, Sample, finite, mean_loss, token_losses, total, translate
from fairseq_headgates.files import Journal
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.pruning import best_heads, prune
from fairseq_headgates.sites import HeadSite, head_counts, head_sites, head_table, masked, use_head_attention, watching

TOKENS = 2048  # so many, padding included, ride in one batch: more would not be faster
MODES = ("single", "all-but-one")  # Michel et al. 2019, tables 1 and 2: a layer without a head; with that head alone


# --- losses ----------------------------------------------------------------------------------------------------------


def ablation_losses(
    model: nn.Module, corpus: Corpus, mode: str = "single", progress: Callable[[Iterable], Iterable] = iter
) -> tuple[float, HeadTable]:
    """The loss of the model in bits per target token, and that without each head (or with it alone in its layer).

    A head that is not there has NaN.
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}: choose from {', '.join(MODES)}")
    use_head_attention(model)
    variants = {site: _factors(site, mode) for site in head_sites(model) if site.attention.num_heads}
    sums = {site: torch.zeros(len(rows), dtype=torch.double) for site, rows in variants.items()}
    whole = torch.zeros(2, dtype=torch.double)
    for sample in progress(corpus.batches):
        loss, found = variant_losses(model, sample, corpus.pad, variants)
        whole += torch.tensor([loss, sample["target"].ne(corpus.pad).sum()], dtype=torch.double)
        for site, losses in found.items():
            sums[site] += losses
    flat = total(torch.cat([whole, *sums.values()]))
    loss, tokens = flat[:2].tolist()
    rows = flat[2:].div(tokens).split([len(row) for row in sums.values()])
    return finite(loss, tokens), head_table(model, dict(zip(sums, rows, strict=True)), f"nll|{mode}")


def _factors(site: HeadSite, mode: str) -> Tensor:
    """What the heads of a layer are multiplied by in each variant: [V, H]."""
    one = torch.eye(site.attention.num_heads)
    return 1 - one if mode == "single" else one


@torch.no_grad()
def variant_losses(
    model: nn.Module, sample: Sample, pad: int, variants: Mapping[HeadSite, Tensor]
) -> tuple[float, dict[HeadSite, Tensor]]:
    """The loss of a batch in bits, and that of each variant of each layer: {site: [V]}.

    `variants[site]` [V, H] are the numbers that the heads of this layer are multiplied by.
    """
    with _recording(model) as outputs:
        loss = token_losses(model, sample, pad).double().sum().item()
    return loss, {site: _losses_of(model, sample, pad, site, rows, outputs) for site, rows in variants.items()}


def _losses_of(
    model: nn.Module, sample: Sample, pad: int, site: HeadSite, rows: Tensor, outputs: Mapping[str, Any]
) -> Tensor:
    batch, length = sample["target"].shape
    longest = max(length, sample["net_input"]["src_tokens"].size(1)) if "src_tokens" in sample["net_input"] else length
    losses = []
    for chunk in rows.split(max(1, TOKENS // (batch * longest))):
        order = torch.arange(batch, device=sample["target"].device).repeat(len(chunk))
        factor = chunk.to(order.device).repeat_interleave(batch, 0)[:, :, None, None]
        inputs = {key: value.index_select(0, order) for key, value in sample["net_input"].items()}
        repeated = {"net_input": inputs, "target": sample["target"].index_select(0, order)}
        with _resuming(model, site, outputs, order, factor):
            found = token_losses(model, repeated, pad)
        losses.append(found.view(len(chunk), -1).sum(1, dtype=torch.double))
    return torch.cat(losses).cpu()


@contextmanager
def _recording(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Keeps what the encoder, every layer and every self-attention give, by name, and the contexts of all heads."""
    outputs: dict[str, Any] = {}
    sites = head_sites(model)
    names = {name for site in sites for name in _layer_names(site)} | {site.name for site in sites} | {"encoder"}

    def remember(site: HeadSite, _: Tensor | None, context: Tensor) -> None:
        outputs[f"{site.name}.heads"] = context

    with ExitStack() as hooks, watching(model, remember):
        for name in names:
            module = _submodule(model, name)
            if module is not None:
                handle = module.register_forward_hook(lambda _, __, out, name=name: outputs.update({name: out}))
                hooks.callback(handle.remove)
        yield outputs


def _layer_names(site: HeadSite) -> list[str]:
    """The names of the layer that the attention is in, and of all below it: 'decoder.layers.1', 'decoder.layers.0'."""
    stack, _, rest = site.name.rpartition("layers.")
    return [f"{stack}layers.{i}" for i in range(int(rest.partition(".")[0]), -1, -1)]


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


@contextmanager
def _resuming(
    model: nn.Module, site: HeadSite, outputs: Mapping[str, Any], order: Tensor, factor: Tensor
) -> Iterator[None]:
    """The model computes from the heads of this layer on, each times its `factor` [B, H, 1, 1].

    What was recorded of all that comes before is repeated for the rows `order`.
    """
    layer, *below = _layer_names(site)
    replayed = {name: outputs[name] for name in below}
    if below:
        replayed[below[0]] = _repeated(outputs[below[0]], order)  # the only one that anything still reads
    if site.kind == "dec-enc":
        replayed[f"{layer}.self_attn"] = _repeated(outputs[f"{layer}.self_attn"], order)
    if site.kind != "enc-self" and "encoder" in outputs:
        replayed["encoder"] = model.encoder.reorder_encoder_out(outputs["encoder"], order)
    context = outputs[f"{site.name}.heads"].index_select(0, order)
    replayed[site.name] = (site.attention.output_of(context * factor.to(context)), None)
    with ExitStack() as stack:
        for name, output in replayed.items():
            stack.enter_context(_replaying(model.get_submodule(name), lambda *_, output=output, **__: output))
        yield


def _repeated(output: Any, order: Tensor) -> Any:
    """What a layer gave, [T, B, E] alone or as the first of several things, for other rows."""
    if isinstance(output, tuple):
        return (output[0].index_select(1, order), *[None] * (len(output) - 1))
    return output.index_select(1, order)


@contextmanager
def _replaying(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Puts `forward` in the place of a module's own."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


# --- translations ----------------------------------------------------------------------------------------------------


def ablation_masks(model: nn.Module, mode: str, losses: HeadTable) -> dict[str, HeadTable]:
    """Masks by name: without each head ('dec-enc 5 0', type, layer, head), or each layer with its best head alone."""
    masks = {}
    for site in head_sites(model):
        row = losses.values[site.kind][site.layer]
        heads = [head for head, loss in enumerate(row) if not math.isnan(loss)]
        if mode == "all-but-one" and heads:
            heads = [min(heads, key=lambda head: row[head])]
        for head in heads:
            alone = [int(i == head) if mode == "all-but-one" else int(i != head) for i in range(len(row))]
            masks[f"{site.kind} {site.layer} {head}"] = _mask_of_layer(model, site, alone)
    return masks


def _mask_of_layer(model: nn.Module, site: HeadSite, row: Sequence[int]) -> HeadTable:
    layers, heads = head_counts(model)[site.kind]
    return HeadTable({site.kind: [list(row) if i == site.layer else [1] * heads for i in range(layers)]}, "alive")


def prepared(model: nn.Module, corpus: Corpus) -> nn.Module:
    """A copy made ready for generation, as fairseq-generate does."""
    model = use_head_attention(copy.deepcopy(model))
    model.prepare_for_inference_(corpus.cfg)
    return model


def masked_translations(
    model: nn.Module,
    corpus: Corpus,
    masks: Mapping[str, HeadTable],
    journal: Journal,
    progress: Callable[[Iterable], Iterable] = iter,
) -> dict[str, list[str]]:
    """The translations of a corpus by the model ('full') and by the model with each mask, by name."""
    model = prepared(model, corpus)
    found = {}
    with _sharing_encoder(model) as sharing:
        for name, mask in progress([("full", None), *masks.items()]):
            sharing.on = mask is None or "enc-self" not in mask.values
            with masked(model, mask or HeadTable({})):
                found[name] = journal.get(name, lambda: translate(model, corpus))
    return found


@dataclass
class _Sharing:
    on: bool = True


@contextmanager
def _sharing_encoder(model: nn.Module) -> Iterator[_Sharing]:
    """While `on`, the encoder computes each batch once."""
    encode, known, sharing = model.encoder.forward, {}, _Sharing()

    def forward(src_tokens: Tensor, **others: Any) -> Any:
        if not sharing.on:
            return encode(src_tokens, **others)
        key = (src_tokens.data_ptr(), src_tokens.shape)
        if key not in known:
            known[key] = (src_tokens, encode(src_tokens, **others))  # the tokens too, so that their place stays theirs
        return known[key][1]

    with _replaying(model.encoder, forward):
        yield sharing


# --- curves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A step of a pruning curve: percent of the heads removed, heads that stay, bits per target token, translations."""

    removed: float
    heads: int
    mask: HeadTable
    nll: float
    translations: list[str] | None


def pruning_curve(
    model: nn.Module,
    corpus: Corpus,
    scores: HeadTable,
    alive: HeadTable,
    steps: Sequence[float],
    types: Sequence[str] = (),
    rescore: Callable[[nn.Module], HeadTable] | None = None,
    translations: bool = True,
    journal: Journal | None = None,
) -> Iterator[Point]:
    """Removes the heads of `types` with the lowest scores step by step (`steps` in percent of those `alive` has).

    With `rescore`, the heads that are left are scored anew after each step, and what is removed stays removed.
    """
    journal = journal or Journal(None, "")
    chosen = tuple(types) or scores.types
    there_are = sum(alive.count(kind)[0] for kind in chosen)
    mask, smaller = alive, None
    for step in sorted(set(steps)):
        if rescore and smaller is not None:
            scores = rescore(smaller)
        keep = there_are - round(step / 100 * there_are)
        mask = best_heads(scores, keep, mask if rescore else alive, chosen)
        smaller = prune(model, mask)
        key = json.dumps(dict(mask.values))
        nll = journal.get(f"nll {key}", lambda m=smaller: mean_loss(m, corpus))
        texts = None
        if translations:
            texts = journal.get(f"text {key}", lambda m=smaller: translate(prepared(m, corpus), corpus))
        yield Point(step, keep, mask, nll, texts)
