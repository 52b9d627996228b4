"""Gate and mask the heads of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from fairseq.models import FairseqMultiModel
from torch import nn

from fairseq_headgates.attention.anatomy import attention_modules
from fairseq_headgates.attention.features import other_attention
from fairseq_headgates.attention.modules import gated_modules, head_counts, like, use_head_attention
from fairseq_headgates.gates import OPEN, GateMethod, HardConcrete, HeadGates, L0Gates
from fairseq_headgates.heads import Mask, as_mask, check_shape


def insert_gates(
    model: nn.Module,
    types: Sequence[str],
    distribution: HardConcrete | None = None,
    init: float | str = OPEN,
    lr_scale: float = 1.0,
    method: Callable[[Sequence[HeadGates], Sequence[str]], GateMethod] = L0Gates,
) -> nn.Module:
    """Give every head of the attention `types` a stochastic gate, in place.

    Args:
        model: a fairseq model; its attention modules become `HeadAttention`
        types: attention types, of "enc-self", "dec-self" and "dec-enc"
        distribution: temperature and stretch of the gates (default: `HardConcrete()`)
        init: initial log_alpha, or "glorot"; see `HeadGates`
        lr_scale: factor on the learning rate of the gates; see `HeadGates`
        method: makes the gating method from the gates and the attention type of each layer: a class of
            `gates.METHODS` (default: `L0Gates`), or a function that calls one with more arguments, such as `target`

    Returns:
        `model`

    Raises:
        ValueError: if the model has no attention of one of the types, or its attention cannot be gated, or if gates of
            other types have another distribution or `lr_scale`
    """
    use_head_attention(model)
    modules = attention_modules(model)
    present = {module.attention_type for module in modules}
    for attention_type in types:
        if attention_type not in present:
            others = ", ".join(other_attention(model))
            raise ValueError(
                f"no {attention_type} attention to gate: this model has {', '.join(sorted(present))}"
                + (f" (attention of class {others} cannot be gated)" if others else "")
            )
    settings = distribution or HardConcrete(), lr_scale
    for module in gated_modules(model):
        gate = module.attention.gate
        if module.attention_type not in types and (gate.distribution, gate.lr_scale) != settings:
            raise ValueError(
                f"the gates of {module.attention_type} have {gate.distribution} and lr_scale {gate.lr_scale:g}: give "
                "the same for all types, whose gates are drawn together"
            )
    for module in modules:
        attention = module.attention
        if module.attention_type in types and attention.num_heads > 0:
            gates = HeadGates(attention.num_heads, settings[0], init, lr_scale)
            attention.gate = gates.to(like(attention)).train(attention.training)
    gated = gated_modules(model)
    if gated:
        leave_method(model)
        gate_method = method([module.attention.gate for module in gated], [module.attention_type for module in gated])
        pairs = model.models.values() if isinstance(model, FairseqMultiModel) else ()  # trained one by one
        gate_method.to(like(gated[0].attention)).train(model.training).join(model, tuple(pairs))
    return model


def leave_method(model: nn.Module) -> None:
    """Remove the gating method of a model, in place."""
    method = getattr(model, "gate_method", None)
    if method is not None:
        method.leave(model)


def fix_heads(model: nn.Module, mask: Mask) -> nn.Module:
    """Multiply every head by its value in `mask` (1 keep, 0 mask), in place.

    Removed heads stay removed, whatever their value in the mask.

    Args:
        model: a fairseq model; its attention modules become `HeadAttention`
        mask: a mask in any form of `heads.as_mask`

    Returns:
        `model`

    Raises:
        ValueError: if the mask has another shape than the model
    """
    mask = as_mask(mask)
    use_head_attention(model)
    check_shape(mask, head_counts(model))
    for module in attention_modules(model):
        if module.attention_type in mask.layers:
            weight = like(module.attention)
            row = [mask.layers[module.attention_type][module.layer][head] for head in module.attention.kept]
            with torch.inference_mode(False):  # the model may be trained later
                module.attention.head_mask = torch.tensor(row, dtype=weight.dtype, device=weight.device)
    return model


@contextmanager
def masked(model: nn.Module, mask: Mask) -> Iterator[nn.Module]:
    """Context manager that masks the heads with 0 in `mask`, in addition to gates and existing masks.

    Args:
        model: a fairseq model; its attention modules become `HeadAttention`
        mask: a mask in any form of `heads.as_mask`

    Raises:
        ValueError: if the mask has another shape than the model
    """
    mask = as_mask(mask)
    use_head_attention(model)
    attentions = [module.attention for module in attention_modules(model)]
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
