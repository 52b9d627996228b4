"""The attention layers of a model: found, swapped for ours, gated, fixed, masked, read.

Shapes: B batch, T target length, S source length, L layers, H heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_headgates.attention import HeadAttention, Watcher
from fairseq_headgates.gates import OPEN, HardConcrete, HeadGates
from fairseq_headgates.heads import TYPES, HeadTable, Mask, as_mask, check_shape, kind_and_layer

L0_REDUCTIONS = ("sum", "layer-mean")  # Voita et al. 2019: the paper; its released code


@dataclass(frozen=True)
class HeadSite:
    """One attention layer of a model: its type, its layer (from 0), its name, and the module."""

    kind: str
    layer: int
    name: str
    attention: MultiheadAttention


def head_sites(model: nn.Module) -> list[HeadSite]:
    """All attention layers of a fairseq model, stock or ours, ordered by type and layer."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, MultiheadAttention))
    sites = [HeadSite(*kind_and_layer(name), name, module) for name, module in found]
    return sorted(sites, key=lambda site: site_order((site.kind, site.layer)))


def site_order(site: tuple) -> tuple[int, int]:
    """Sorts (type, layer, ...) by type, in the order of `TYPES`, and layer."""
    return TYPES.index(site[0]), site[1]


def head_counts(model: nn.Module) -> dict[str, tuple[int, int]]:
    """{type: (layers, heads per layer)} of the attention types that the model has, removed heads included."""
    sites = head_sites(model)
    return {
        kind: (len(group), getattr(group[0].attention, "heads", group[0].attention.num_heads))
        for kind in TYPES
        if (group := [site for site in sites if site.kind == kind])
    }


def use_head_attention(model: nn.Module) -> nn.Module:
    """Swaps every fairseq attention of `model` for a `HeadAttention` with the same weights, in place.

    Raises ValueError, with every reason at once, for attention that cannot be expressed.
    """
    sites = [site for site in head_sites(model) if not isinstance(site.attention, HeadAttention)]
    reasons = sorted({reason for site in sites for reason in _unsupported(site.attention)})
    if reasons:
        raise ValueError("attention with " + ", ".join(reasons) + " cannot be gated: build the model without it")
    for site in sites:
        parent, _, child = site.name.rpartition(".")
        layer = model.get_submodule(parent)
        setattr(layer, child, HeadAttention(site.attention))
        if hasattr(layer, "can_use_fastpath"):  # fairseq 0.12.2: an inference shortcut around self_attn
            layer.can_use_fastpath = False
    return model


def _unsupported(attention: MultiheadAttention) -> Iterator[str]:
    if getattr(attention, "bias_k", None) is not None or getattr(attention, "add_zero_attn", False):
        yield "extra key/value positions (bias_k, add_zero_attn)"
    if getattr(attention, "use_xformers", False):
        yield "xFormers (--encoder-xformers-att-config)"
    if attention.out_proj._forward_pre_hooks:
        yield "quantisation noise (--quant-noise-pq)"


def insert_gates(
    model: nn.Module,
    types: Sequence[str],
    distribution: HardConcrete | None = None,
    init: float | str = OPEN,
    lr_scale: float = 1.0,
) -> nn.Module:
    """Gives every head of the attention `types` a stochastic gate, in place; see `gates.HeadGates`.

    Raises ValueError if the model has no attention of one of the types.
    """
    use_head_attention(model)
    sites = head_sites(model)
    present = {site.kind for site in sites}
    for kind in types:
        if kind not in present:
            raise ValueError(f"no {kind} attention to gate: this model has {', '.join(sorted(present)) or 'none'}")
    for site in sites:
        attention = site.attention
        if site.kind in types and attention.num_heads > 0:
            gates = HeadGates(attention.num_heads, distribution or HardConcrete(), init, lr_scale)
            attention.gate = gates.to(attention.out_proj.weight).train(attention.training)
    return model


def fix_heads(model: nn.Module, mask: Mask) -> nn.Module:
    """Multiplies each head by its value in `mask` (1 alive, 0 removed), in place; see `heads.as_mask` for its forms.

    Heads that were removed from the model stay removed, whatever the mask says of them. Raises ValueError for a mask
    of another shape.
    """
    mask = as_mask(mask)
    use_head_attention(model)
    check_shape(mask, head_counts(model))
    for site in head_sites(model):
        if site.kind in mask.values:
            weight = site.attention.out_proj.weight
            row = [mask.values[site.kind][site.layer][head] for head in site.attention.kept]
            site.attention.head_mask = torch.tensor(row, dtype=weight.dtype, device=weight.device)
    return model


@contextmanager
def masked(model: nn.Module, mask: Mask) -> Iterator[nn.Module]:
    """Within the context, heads with 0 in `mask` contribute nothing (on top of gates and fixed heads).

    See `heads.as_mask` for the forms of a mask.
    """
    mask = as_mask(mask)
    use_head_attention(model)
    attentions = [site.attention for site in head_sites(model)]
    before = [attention.head_mask for attention in attentions]
    try:
        fix_heads(model, mask)
        for attention, old in zip(attentions, before, strict=True):
            if old is not None and attention.head_mask is not old:
                attention.head_mask = attention.head_mask * old
        yield model
    finally:
        for attention, old in zip(attentions, before, strict=True):
            attention.head_mask = old


@contextmanager
def watching(
    model: nn.Module,
    call: Callable[[HeadSite, Tensor | None, Tensor], Tensor | None],
    weights: bool = False,
    types: Sequence[str] = TYPES,
) -> Iterator[nn.Module]:
    """Within the context, `call(site, weights, context)` sees every attention layer of `types` at work.

    See `attention.Watcher` for shapes and what it may return.
    """
    use_head_attention(model)
    sites = [site for site in head_sites(model) if site.kind in types]
    before = [site.attention.watcher for site in sites]
    try:
        for site in sites:
            site.attention.watcher = Watcher(partial(call, site), weights)
        yield model
    finally:
        for site, old in zip(sites, before, strict=True):
            site.attention.watcher = old


@dataclass(frozen=True)
class Observed:
    """What the heads of one attention layer did: weights [B, H, T, S] and contexts [B, H, T, D], before gates.

    H counts the heads that are there (`attention.kept` says which), T and S padding included.
    """

    weights: Tensor
    contexts: Tensor


@contextmanager
def observe(model: nn.Module) -> Iterator[dict[str, dict[int, Observed]]]:
    """Gives {type: {layer: `Observed`}} of the last forward pass within the context.

    A layer without heads has no entry. What is observed keeps its graph, if there is one, until it is dropped.
    """
    seen: dict[str, dict[int, Observed]] = {}

    def remember(site: HeadSite, weights: Tensor, context: Tensor) -> None:
        seen.setdefault(site.kind, {})[site.layer] = Observed(weights, context)

    with watching(model, remember, weights=True):
        yield seen


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the context, no module is in training mode; afterwards those are that were."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def gated_sites(model: nn.Module) -> list[HeadSite]:
    """The attention layers that have stochastic gates."""
    return [site for site in head_sites(model) if getattr(site.attention, "gate", None) is not None]


def gate_values(model: nn.Module) -> dict[str, Tensor]:
    """The evaluation gate of every head: {type: [L, H]} in [0, 1]; 1 for a head without a gate, 0 for a removed one.

    In single precision, whatever the precision of the model.
    """
    return _per_type(model, lambda gate: gate.distribution.evaluation_value(gate.log_alpha()))


def open_probabilities(model: nn.Module) -> dict[str, Tensor]:
    """P(gate != 0) of every head: {type: [L, H]} in [0, 1]; 1 for a head without a gate, 0 for a removed one.

    In single precision, whatever the precision of the model.
    """
    return _per_type(model, HeadGates.open_probability)


def _per_type(model: nn.Module, of_gate) -> dict[str, Tensor]:
    rows: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for site in head_sites(model):
            rows.setdefault(site.kind, []).append(_per_head(site.attention, of_gate))
    return {kind: torch.stack(group) for kind, group in rows.items()}


def _per_head(attention: MultiheadAttention, of_gate) -> Tensor:
    """A number for every head that the layer was trained with: 0 for one that was removed."""
    precise = {"dtype": torch.float32, "device": attention.out_proj.weight.device}
    if not isinstance(attention, HeadAttention):
        return torch.ones(attention.num_heads, **precise)
    row = torch.zeros(attention.heads, **precise)
    alive = torch.ones(attention.num_heads, **precise) if attention.gate is None else of_gate(attention.gate)
    kept = torch.tensor(attention.kept, dtype=torch.long, device=row.device)
    return row.index_put((kept,), alive if attention.head_mask is None else alive * attention.head_mask.float())


def head_table(model: nn.Module, rows: Mapping[HeadSite, Tensor], name: str = "") -> HeadTable:
    """A table of `rows` [H], values of the heads that each layer has; NaN for heads that are not there."""
    values = {kind: [[math.nan] * heads for _ in range(n)] for kind, (n, heads) in head_counts(model).items()}
    for site, row in rows.items():
        for head, value in zip(site.attention.kept, row.tolist(), strict=True):
            values[site.kind][site.layer][head] = value
    return HeadTable(values, name)


def to_tables(tensors: Mapping[str, Tensor], name: str, signature: str = "") -> HeadTable:
    """{type: [L, H]} as a `HeadTable`."""
    return HeadTable({kind: tensor.tolist() for kind, tensor in tensors.items()}, name, signature)


def l0_penalty(model: nn.Module, reduction: str = "sum") -> Tensor:
    """L_C = sum over gated heads of P(gate != 0) (Voita et al. 2019, eq. 7), with its gradient.

    `reduction="layer-mean"` divides by the number of gated attention layers, as the paper's released code does.
    Raises ValueError if the model has no gates.
    """
    return penalty_of([site.attention.gate for site in gated_sites(model)], reduction)


def penalty_of(gates: Sequence[HeadGates], reduction: str = "sum") -> Tensor:
    """`l0_penalty` of gates found before."""
    if not gates:
        raise ValueError("the model has no stochastic gates: train it with --gate-heads, e.g. --gate-heads enc-self")
    if reduction not in L0_REDUCTIONS:
        raise ValueError(f"unknown reduction {reduction!r}: choose from {', '.join(L0_REDUCTIONS)}")
    # One operation for the gates of all layers: many tiny ones would cost more than the gates themselves.
    groups: dict[HardConcrete, list[Tensor]] = {}
    for gate in gates:
        groups.setdefault(gate.distribution, []).append(gate.log_alpha())
    total = torch.stack([kind.open_probability(torch.cat(group)).sum() for kind, group in groups.items()]).sum()
    return total / len(gates) if reduction == "layer-mean" else total
