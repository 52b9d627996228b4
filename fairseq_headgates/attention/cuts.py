"""Remove heads: cut the weights of a model to the heads that a mask keeps.

A head is rows of the query, key and value projections and columns of the output projection. Without them, a smaller
layer computes the other heads exactly as before. A gate between 0 and 1 is folded into the columns of its head. Layers
keep different numbers of heads; a layer that keeps none becomes the bias of its output projection. In the same way, a
neuron of a feed-forward block is a row of `fc1` and a column of `fc2`.

Shapes: H heads of a layer, H' heads to keep, D head size, E model size.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fairseq_headgates.attention.anatomy import attention_modules, under_all_names
from fairseq_headgates.attention.gating import leave_method
from fairseq_headgates.attention.head_attention import HeadAttention
from fairseq_headgates.attention.modules import (
    gate_values,
    head_counts,
    head_factors,
    number_of_parameters,
    open_probabilities,
    refuse_shared,
    to_table,
    use_head_attention,
)
from fairseq_headgates.heads import HeadTable, Mask, as_mask, check_shape

LAST = ("out_proj.weight", "fc2.weight")  # whose columns are those of heads or neurons


@dataclass(frozen=True)
class Cut:
    """Description of what pruning does to one attention layer, or to the neurons of one layer.

    Attributes:
        heads: H
        keep: the heads to keep [H'], by their position among the H heads
        factor: the factor [H'] that is folded into the weights of each, its gate
        head_dim: D; 1 for neurons
        parts: the names of the linear layers that are cut, all of an attention layer if it is empty
    """

    heads: int
    keep: tuple[int, ...]
    factor: Tensor
    head_dim: int
    parts: tuple[str, ...] = ()

    @classmethod
    def of_neurons(cls, neurons: int, keep: Sequence[int]) -> Cut:
        """Return the cut of a feed-forward block with so many neurons."""
        return cls(neurons, tuple(keep), torch.ones(len(keep)), 1, ("fc1", "fc2"))

    @property
    def changes_weights(self) -> bool:
        """Whether a head is removed or a gate is folded."""
        return len(self.keep) < self.heads or bool((self.factor != 1).any())

    def __call__(self, parameter: str, tensor: Tensor, power: int = 1) -> Tensor:
        """Cut a parameter of the layer, e.g. 'q_proj.weight' [H D, E], or a tensor of the same shape.

        The first dimension of a parameter, except of the output projection, is a multiple of H.

        Args:
            parameter: name of the parameter within the layer
            tensor: its value, or a tensor of the same shape
            power: how the tensor scales with the folded factor: 1 for weights, -1 for gradients (a weight g times as
                large has a gradient 1/g times as large), -2 for squared gradients, 0 for steps
        """
        if parameter in ("out_proj.bias", "fc2.bias"):
            return tensor
        positions = head_positions(self.keep, self.head_dim)
        if parameter not in LAST:
            return tensor.index_select(0, head_positions(self.keep, tensor.size(0) // self.heads))
        columns = self.factor.to(torch.float32).repeat_interleave(self.head_dim)
        cut = tensor.index_select(1, positions)
        return (cut.to(torch.promote_types(cut.dtype, torch.float32)) * columns**power).to(cut.dtype)


def head_positions(heads: Iterable[int], head_dim: int) -> Tensor:
    """Return the rows (or columns) of heads, one after another: [H' D]."""
    first = torch.tensor(tuple(heads), dtype=torch.long) * head_dim
    return (first[:, None] + torch.arange(head_dim)).view(-1)


def open_mask(model: nn.Module, threshold: float | None = None) -> HeadTable:
    """Return the mask of the open heads of a model.

    Args:
        model: a fairseq model
        threshold: keep heads with P(open) >= `threshold`; by default, those with an evaluation gate above 0

    Raises:
        ValueError: if `threshold` is not in [0, 1]
    """
    gates = to_table(gate_values(model), "gate")
    if threshold is None:
        return gates.map(lambda g: int(g > 0), "alive")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold:g}: it must be a probability, from 0 to 1")
    probabilities = to_table(open_probabilities(model), "P(open)")
    return probabilities.map(lambda p: int(p >= threshold), "alive")


def prune(
    model: nn.Module, mask: Mask | None = None, neurons: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> nn.Module:
    """Return a copy of a fairseq model without the heads that `mask` removes.

    The copy computes what the masked model computes. A head whose evaluation gate is 0 is always removed, because it
    contributes nothing. Gates between 0 and 1 are folded into the output projection. The options in `model.args` stay
    as they are; `checkpoints.prune_checkpoint` changes those of a checkpoint.

    Args:
        model: a fairseq model, with or without gates; it is not changed
        mask: a `HeadTable`, a dict such as ``{"enc-self": [[1, 0, 1, 1], ...]}`` (1 keep, 0 remove; all heads of a
            missing type are kept), the path of a mask file, or the same JSON as text (default: the open heads)
        neurons: the neurons that feed-forward blocks keep, by the name of the layer (default: all)

    Raises:
        ValueError: if the mask has another shape than the model, or the model has no heads to remove
        TypeError: if the mask has another type
    """
    return cut_copy(model, mask, neurons).model


@dataclass(frozen=True)
class Pruned:
    """A copy of a model without some heads and neurons.

    Attributes:
        model: the copy
        cuts: what was cut from each layer, {module name: `Cut`}
    """

    model: nn.Module
    cuts: Mapping[str, Cut]


def cut_copy(
    model: nn.Module, mask: Mask | None = None, neurons: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> Pruned:
    """Return what `prune` returns, with its cuts."""
    mask = None if mask is None else as_mask(mask)
    copied = use_head_attention(_copy(model))
    layer_cuts = cuts(copied, open_mask(copied) if mask is None else mask) | neuron_cuts(copied, neurons)
    return Pruned(apply_cuts(copied, layer_cuts), layer_cuts)


def _copy(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model that may have been trained.

    `torch.nn.utils.weight_norm`, which the speech models use, stores a weight with its graph, and tensors with a graph
    cannot be copied: these are copied without it. The next forward pass computes them again.
    """
    computed = (value for module in model.modules() for value in vars(module).values() if torch.is_tensor(value))
    return copy.deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in computed if not tensor.is_leaf})


def remove_heads(model: nn.Module, mask: Mask) -> nn.Module:
    """Remove the heads with 0 in `mask` from a model, in place; see `prune` for the mask.

    Returns:
        `model`
    """
    mask = as_mask(mask)
    use_head_attention(model)
    return apply_cuts(model, cuts(model, mask))


def cuts(model: nn.Module, mask: Mask) -> dict[str, Cut]:
    """Return the cut of every attention layer, {module name: `Cut`}, for a model of `HeadAttention`."""
    mask = as_mask(mask)
    check_shape(mask, head_counts(model))
    values = head_factors(model)
    layer_cuts, computed = {}, dict[str, None]()
    for module in attention_modules(model):
        attention = module.attention
        rows = mask.layers.get(module.attention_type)
        alive = rows[module.layer] if rows is not None else [1] * attention.heads
        gates = values[module.attention_type][module.layer].cpu()[list(attention.kept)]
        keep = tuple(i for i, head in enumerate(attention.kept) if alive[head] and gates[i] > 0)
        layer_cuts[module.name] = Cut(attention.num_heads, keep, gates[list(keep)], attention.head_dim)
        if layer_cuts[module.name].changes_weights:
            computed |= dict.fromkeys(_computed_weights(attention))
    if computed:
        raise ValueError(
            f"heads cannot be removed from {', '.join(computed)}, whose weights are computed or quantised: remove "
            "weight norm and parametrisations first (torch.nn.utils.remove_weight_norm, "
            "torch.nn.utils.parametrize.remove_parametrizations), or prune before you quantise"
        )
    return layer_cuts


def neuron_cuts(model: nn.Module, neurons: Mapping[str, Sequence[int]]) -> dict[str, Cut]:
    """Return the cuts that keep these neurons of feed-forward blocks, {layer name: `Cut`}."""
    layers: dict[str, Any] = {name: model.get_submodule(name) for name in neurons}
    return {name: Cut.of_neurons(layer.fc1.out_features, neurons[name]) for name, layer in layers.items()}


def _computed_weights(attention: HeadAttention) -> Iterator[str]:
    """Return the projections of a layer whose weight is not a parameter, 'q_proj (ParametrizedLinear)'."""
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        projection = getattr(attention, name)
        if projection is not None and not {key for key, _ in projection.named_parameters()} >= {"weight"}:
            yield f"{name} ({type(projection).__name__})"


def with_gates_of(layer_cuts: Mapping[str, Cut], model: nn.Module) -> dict[str, Cut]:
    """Return cuts that keep the same heads and fold the gates of another `model` of the same shape."""
    values = head_factors(model)
    changed = dict(layer_cuts)
    for module in attention_modules(model):
        gates = values[module.attention_type][module.layer].cpu()[list(module.attention.kept)]
        cut = layer_cuts[module.name]
        changed[module.name] = replace(cut, factor=gates[list(cut.keep)])
    return under_all_names(changed, model)


def apply_cuts(model: nn.Module, layer_cuts: Mapping[str, Cut]) -> nn.Module:
    """Apply the cuts to the attention layers and feed-forward blocks of a model, in place."""
    changed = [(name, cut.parts) for name, cut in layer_cuts.items() if cut.changes_weights]
    refuse_shared(model, [f"{name}.{part}" if part else name for name, parts in changed for part in parts or ("",)])
    for name, cut in layer_cuts.items():
        module = model.get_submodule(name)
        if isinstance(module, HeadAttention):
            _cut_attention(module, cut)
        else:
            _cut_linears(module, cut.parts, cut)
    leave_method(model)
    for module in model.modules():
        if hasattr(module, "reset_memory"):  # of a language model: it has the keys and values of all heads
            module.reset_memory()  # type: ignore[operator]
    return model


def _cut_attention(attention: HeadAttention, cut: Cut) -> None:
    attention.gate = attention.head_mask = None
    if not cut.changes_weights:
        return
    _cut_linears(attention, (*attention.INPUTS, "out_proj"), cut)
    attention.kept = tuple(attention.kept[i] for i in cut.keep)
    attention.num_heads = len(attention.kept)
    if attention.num_heads == 0:
        for name in attention.INPUTS:
            setattr(attention, name, None)
        if type(attention.out_proj) is nn.Linear:  # torch cannot quantise a matrix without numbers
            attention.out_proj.__class__ = NonDynamicallyQuantizableLinear


def _cut_linears(module: nn.Module, names: Sequence[str], cut: Cut) -> None:
    """Cut the parameters of the linear layers `names` of a module, in place."""
    for name in names:
        linear = getattr(module, name)
        if linear is None:
            continue
        for parameter, tensor in list(linear.named_parameters()):
            smaller = cut(f"{name}.{parameter}", tensor.detach().cpu()).to(tensor.device)
            setattr(linear, parameter, nn.Parameter(smaller, tensor.requires_grad))
        if isinstance(linear, nn.Linear):
            linear.out_features, linear.in_features = linear.weight.shape


def cut_tensors(tensors: Mapping[str, Tensor], layer_cuts: Mapping[str, Cut], power: int = 1) -> dict[str, Tensor]:
    """Cut tensors named like parameters: a state dict, or moments of an optimiser; see `Cut` for `power`."""
    result = {}
    for name, tensor in tensors.items():
        attention, parameter = module_and_parameter(name, layer_cuts)
        if name.startswith("gate_method."):
            continue
        if attention is None:
            result[name] = tensor
            continue
        cut = layer_cuts[attention]
        is_left = cut.keep or cut.parts or parameter.startswith("out_proj.")  # all that a layer without heads has
        if is_left and not parameter.startswith("gate."):
            result[name] = cut(parameter, tensor, power) if cut.changes_weights else tensor
    return result


def module_and_parameter(name: str, layer_cuts: Mapping[str, Cut]) -> tuple[str | None, str]:
    """Split a name: 'decoder.layers.0.self_attn.q_proj.weight' -> ('decoder.layers.0.self_attn', 'q_proj.weight')."""
    attention, _, parameter = name.rpartition(".")
    attention, _, projection = attention.rpartition(".")
    cut = layer_cuts.get(attention)
    is_cut = cut is not None and (not cut.parts or projection in cut.parts)
    return (attention, f"{projection}.{parameter}") if is_cut else (None, name)


def kept_mask(model: nn.Module) -> HeadTable:
    """Return the mask of the heads that have weights in a model of `HeadAttention`."""
    rows: dict[str, list[list[float]]] = {}
    for module in attention_modules(model):
        kept = set(module.attention.kept)
        rows.setdefault(module.attention_type, []).append([int(head in kept) for head in range(module.attention.heads)])
    return HeadTable(rows, "alive")


def as_state_dict(tensors: Mapping[str, Tensor], pruned: nn.Module) -> dict[str, Tensor]:
    """Return tensors as the state dict of a pruned model, with its metadata, which names the heads it has."""
    result = OrderedDict(tensors)
    result._metadata = pruned.state_dict()._metadata  # type: ignore[attr-defined]
    return result


def removal_plan(model: nn.Module, pruned: nn.Module, written: nn.Module | None = None) -> dict[str, Any]:
    """Describe what pruning did to a model, as plain values; pairs are [before, after].

    Sizes are those of the `written` model (default: `pruned`), which may have zeros in the place of removed heads.
    """
    sized = (model, written or pruned)
    before, after = kept_mask(model), kept_mask(pruned)
    gates = to_table(gate_values(model), "gate")
    pairs = [pair for each in gates.types for pair in zip(gates.heads(each), after.heads(each), strict=True)]
    return {
        "heads": {each: [before.count(each)[0], after.count(each)[0]] for each in after.types},
        "parameters": [number_of_parameters(m) for m in sized],
        "cache_bytes_per_token": {each: [cache_bytes(m, each) for m in sized] for each in after.types},
        "removed_with_open_gate": sum(gate > 0 and not kept for gate, kept in pairs),
        "folded_gates": sum(0 < gate < 1 and bool(kept) for gate, kept in pairs),
        "mask": dict(after.layers),
    }


def cache_bytes(model: nn.Module, attention_type: str) -> int:
    """Return the size of the key/value cache of an attention type, in bytes per token over all layers."""
    attentions = [module.attention for module in attention_modules(model) if module.attention_type == attention_type]
    return sum(2 * a.num_heads * a.head_dim * a.out_proj.weight.element_size() for a in attentions)


def pad_heads(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of a pruned model in the shapes of the stock model, with zeros for removed heads."""
    filled = dict(tensors)
    attentions: dict[str, Any] = {module.name: module.attention for module in attention_modules(model)}
    for site_name, attention in under_all_names(attentions, model).items():
        positions = head_positions(attention.kept, attention.head_dim)
        size = attention.heads * attention.head_dim
        out = tensors[f"{site_name}.out_proj.weight"]
        filled[f"{site_name}.out_proj.weight"] = out.new_zeros(out.size(0), size).index_copy(1, positions, out)
        for name in HeadAttention.INPUTS:
            width = attention.embed_dim if name == "q_proj" else getattr(attention, f"{name[0]}dim")
            for parameter, shape in (("weight", (size, width)), ("bias", (size,))):
                key = f"{site_name}.{name}.{parameter}"
                kept = tensors.get(key, out.new_zeros(0, *shape[1:]))
                filled[key] = kept.new_zeros(shape).index_copy(0, positions, kept)
    return filled
