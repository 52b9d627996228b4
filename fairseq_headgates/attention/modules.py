"""Replace the attention layers of a fairseq model by `HeadAttention`, and read their gates.

Shapes: B batch, T target length, S source length, L layers, H heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import AttentionModule, attention_modules
from fairseq_headgates.attention.features import attention_features, other_attention
from fairseq_headgates.attention.head_attention import HeadAttention
from fairseq_headgates.attention.weights import average_open_heads
from fairseq_headgates.compat import without_shortcut
from fairseq_headgates.gates import GateMethod, HeadGates
from fairseq_headgates.heads import TYPES, HeadTable


def like(attention: MultiheadAttention) -> Tensor:
    """Return a tensor with the precision and device that factors on the heads of a layer need."""
    weight = attention.out_proj.weight
    return weight if torch.is_tensor(weight) else torch.empty(0)  # of a quantised layer it is a function


def _supported_modules(model: nn.Module) -> list[AttentionModule]:
    """Return `attention_modules(model)`. Raise ValueError if the model has no heads to gate or remove."""
    name = type(model).__name__
    if name == "PipelineParallelTransformerModel":
        raise ValueError(
            f"{name} cannot be gated or pruned, because its modules are stages of a pipeline, whose names do not say "
            "which layers are the encoder's and which the decoder's: choose --arch transformer"
        )
    modules = attention_modules(model)
    if not modules:
        others = ", ".join(other_attention(model))
        reason = (
            f"its attention is of class {others}, not fairseq's MultiheadAttention" if others else "it has no attention"
        )
        raise ValueError(
            f"{name} has no heads to gate or remove, because {reason}: choose a model with MultiheadAttention, e.g. "
            "--arch transformer"
        )
    return modules


def gated_modules(model: nn.Module) -> list[AttentionModule]:
    """Return the attention layers that have stochastic gates, ordered by type and layer."""
    return [module for module in attention_modules(model) if getattr(module.attention, "gate", None) is not None]


def head_counts(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return {type: (layers, heads per layer)} of a model, removed heads included."""
    modules = attention_modules(model)
    return {
        attention_type: (len(group), group[0].heads)
        for attention_type in TYPES
        if (group := [module for module in modules if module.attention_type == attention_type])
    }


def same_tensors(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the weights of a checkpoint that are one tensor with others, {name: name of the first of them}."""
    names: dict[Any, list[str]] = {}
    for name, weight in weights.items():
        if weight.numel():
            names.setdefault((weight.data_ptr(), weight.shape, weight.stride(), weight.dtype), []).append(name)
    return {name: group[0] for group in names.values() if len(group) > 1 for name in group}


def number_of_parameters(model: nn.Module) -> int:
    """Return the number of parameters of a model, once those that it or its checkpoint (`same_tensors`) shares."""
    same = getattr(model, "same_tensors", {})
    return sum({same.get(name, name): parameter.numel() for name, parameter in model.named_parameters()}.values())


def refuse_shared(model: nn.Module, changed: Collection[str]) -> None:
    """Raise ValueError if one of the modules that are `changed` shares parameters with another module."""
    same, owners = getattr(model, "same_tensors", {}), dict[Any, list[str]]()
    for name, module in model.named_modules():  # each once, whatever its number of names
        for child, layer in module._modules.items():
            for parameter, value in layer.named_parameters(recurse=False) if layer else ():
                full = f"{name}.{child}.{parameter}".lstrip(".")
                owners.setdefault(same.get(full, id(value)), []).append(full)
    shared = [name for names in owners.values() if len(names) > 1 for name in names]
    if torn := [each for each in changed if any(name.startswith(f"{each}.") for name in shared)]:
        raise ValueError(
            f"layers share the weights of {torn[0]} (the first of {len(torn)} such modules): their heads and neurons "
            "cannot be removed, and they cannot be refitted; training can mask their heads (--alive-heads)"
        )


def use_head_attention(model: nn.Module) -> nn.Module:
    """Replace every attention module of fairseq in `model` by a `HeadAttention` with the same weights, in place.

    Raises:
        ValueError: with every reason, if the model has no attention, or attention that `HeadAttention` cannot compute
    """
    modules = [module for module in _supported_modules(model) if not isinstance(module.attention, HeadAttention)]
    reasons = sorted({feature for module in modules for feature in attention_features(module.attention)})
    if reasons:
        raise ValueError("attention with " + ", ".join(reasons) + " cannot be gated: build the model without it")
    for module in modules:
        parent, _, child = module.name.rpartition(".")
        layer: Any = model.get_submodule(parent)
        setattr(layer, child, HeadAttention(module.attention))
        _remove_noise(getattr(layer, child))
        without_shortcut(layer)
    for layer in model.modules():
        hooks = layer._forward_hooks.values()
        if isinstance(getattr(layer, "encoder_attn", None), HeadAttention) and average_open_heads not in hooks:
            layer.register_forward_hook(average_open_heads)
    return model


def _remove_noise(attention: nn.Module) -> None:
    """Remove the hooks of `--quant-noise-pq` on the projections. The stock module does not call them in training."""
    for projection in attention.children():
        hooks = projection._forward_pre_hooks
        for number in [n for n, hook in hooks.items() if getattr(hook, "__module__", "") == quant_noise.__module__]:
            del hooks[number]


def gate_values(model: nn.Module) -> dict[str, Tensor]:
    """Return the evaluation gate of every head (Louizos et al. 2018, eq. 13).

    Returns:
        {type: [L, H]} in [0, 1], in single precision: 1 for a head without a gate, 0 for a masked or removed head

    Raises:
        ValueError: if the model has no heads to gate
    """
    return _per_type(model, HeadGates.evaluation_value)


def head_factors(model: nn.Module) -> dict[str, Tensor]:
    """Return the factor on every head in evaluation: the evaluation gate, times the output scale if there is one.

    Returns:
        {type: [L, H]}, in single precision: 1 for a head without a gate, 0 for a masked or removed head
    """
    return _per_type(model, HeadGates.factor)


def open_probabilities(model: nn.Module) -> dict[str, Tensor]:
    """Return P(gate != 0) of every head (Voita et al. 2019, eq. 6).

    Returns:
        {type: [L, H]} in [0, 1], in single precision: 1 for a head without a gate, 0 for a masked or removed head
    """
    return _per_type(model, HeadGates.open_probability)


def _per_type(model: nn.Module, of_gate: Callable[[HeadGates], Tensor]) -> dict[str, Tensor]:
    rows: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for module in _supported_modules(model):
            rows.setdefault(module.attention_type, []).append(_per_head(module.attention, of_gate))
    return {attention_type: torch.stack(group) for attention_type, group in rows.items()}


def _per_head(attention: MultiheadAttention, of_gate: Callable[[HeadGates], Tensor]) -> Tensor:
    """Return a number for every head that the layer was trained with, 0 for a removed one: [heads]."""
    precise: dict[str, Any] = {"dtype": torch.float32, "device": like(attention).device}
    if not isinstance(attention, HeadAttention):
        return torch.ones(attention.num_heads, **precise)
    row = torch.zeros(attention.heads, **precise)
    alive = torch.ones(attention.num_heads, **precise) if attention.gate is None else of_gate(attention.gate)
    kept = torch.tensor(attention.kept, dtype=torch.long, device=row.device)
    return row.index_put((kept,), alive if attention.head_mask is None else alive * attention.head_mask.float())


def gate_method(model: nn.Module) -> GateMethod:
    """Return the gating method of a model. Raise ValueError if the model has no gates."""
    method = getattr(model, "gate_method", None)
    if method is None:
        raise ValueError("the model has no stochastic gates: train it with --gate-heads, e.g. --gate-heads enc-self")
    return method


def l0_penalty(model: nn.Module, reduction: str = "sum") -> Tensor:
    """Return L_C = sum over gated heads of P(gate != 0) (Voita et al. 2019, eq. 7), a scalar with its gradient.

    Args:
        model: a gated model
        reduction: "sum", or "layer-mean": divided by the number of gated attention layers, as in the released code

    Raises:
        ValueError: if the model has no gates
    """
    method = gate_method(model)
    divisor = {"sum": 1, "layer-mean": len(method.layers)}[reduction]
    return method.open_probability(method.log_alpha()).sum() / divisor


def module_table(model: nn.Module, rows: Mapping[AttentionModule, Tensor], name: str = "") -> HeadTable:
    """Return `rows`, a number [H] for every remaining head of each layer, as a `HeadTable`; NaN for removed heads."""
    values = {each: [[math.nan] * heads for _ in range(n)] for each, (n, heads) in head_counts(model).items()}
    for module, row in rows.items():
        for head, value in zip(module.attention.kept, row.tolist(), strict=True):
            values[module.attention_type][module.layer][head] = value
    return HeadTable(values, name)


def to_table(tensors: Mapping[str, Tensor], name: str, signature: str = "") -> HeadTable:
    """Convert {type: [L, H]} to a `HeadTable`."""
    return HeadTable({attention_type: tensor.tolist() for attention_type, tensor in tensors.items()}, name, signature)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within the context, all modules are in evaluation mode; afterwards each has its previous mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
