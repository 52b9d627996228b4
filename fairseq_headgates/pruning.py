"""Taking heads out: which ones, and what becomes of the weights.

A head is rows of the query, key and value projections and columns of the output projection, so taking it out leaves a
smaller layer that computes the rest exactly as before; a gate that is neither 0 nor 1 goes into the columns of its
head. Layers keep different numbers of heads. A layer that keeps none is the bias of its output projection.

Shapes: H heads that a layer has, H' that stay, D head size, E model size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention import HeadAttention
from fairseq_headgates.heads import HeadTable, Mask, as_mask, check_shape, mask_to_json
from fairseq_headgates.sites import (
    gate_values,
    head_counts,
    head_sites,
    open_probabilities,
    to_tables,
    use_head_attention,
)

INPUTS = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True)
class Cut:
    """What pruning does to one attention layer.

    `stay` [H'] are the heads that stay, counted among those the layer has; `factor` [H'] is what each is multiplied
    by for good (its gate); `head_dim` is D.
    """

    stay: tuple[int, ...]
    factor: Tensor
    head_dim: int

    def __call__(self, parameter: str, tensor: Tensor, power: int = 1) -> Tensor:
        """What stays of a parameter of the layer, 'q_proj.weight' [H D, E] for instance, or of a tensor like it.

        `power` says how the tensor grows with the folded factor: 1 for weights, -1 for gradients (the loss changes as
        before if a weight is g times as large and its gradient 1/g times), -2 for squared gradients.
        """
        if parameter == "out_proj.bias":
            return tensor
        positions = _positions(self.stay, self.head_dim)
        if parameter != "out_proj.weight":
            return tensor.index_select(0, positions)
        columns = self.factor.to(torch.float32).repeat_interleave(self.head_dim)
        cut = tensor.index_select(1, positions)
        return (cut.to(torch.promote_types(cut.dtype, torch.float32)) * columns**power).to(cut.dtype)


def _positions(heads: Iterable[int], head_dim: int) -> Tensor:
    """Where the rows (or columns) of heads are, one after another: [H' D]."""
    first = torch.tensor(tuple(heads), dtype=torch.long) * head_dim
    return (first[:, None] + torch.arange(head_dim)).view(-1)


def open_heads(model: nn.Module, threshold: float | None = None) -> HeadTable:
    """The mask of the heads to keep by the model's own gates: evaluation gate above 0, or P(open) >= `threshold`."""
    gates = to_tables(gate_values(model), "gate")
    if threshold is None:
        return gates.map(lambda g: int(g > 0), "alive")
    if not 0 <= threshold <= 1:
        raise ValueError(f"the threshold on P(open) is {threshold:g}: it must be a probability, from 0 to 1")
    opened = to_tables(open_probabilities(model), "P(open)")
    return opened.map(lambda p: int(p >= threshold), "alive")


def best_heads(
    scores: HeadTable,
    keep: float,
    alive: HeadTable,
    types: Iterable[str] = (),
    min_per_layer: int = 0,
) -> HeadTable:
    """The mask that keeps the heads with the highest scores.

    `keep` is a number of heads if it is a whole number (int), else a share of them (float). It is of the heads that
    `alive` has of the attention `types` (default: all that are scored); other types stay as they are. The best
    `min_per_layer` heads of each layer stay in any case. Ties go to the earlier head. Raises ValueError.
    """
    if min_per_layer < 0:
        raise ValueError(f"{min_per_layer} heads are to stay in every layer: it must be 0 or more")
    chosen_types = tuple(types) or scores.types
    for kind in chosen_types:
        if kind not in scores.values:
            raise ValueError(f"there are no scores of {kind}: the score file has {', '.join(scores.types)}")
    check_shape(scores, {kind: (len(rows), len(rows[0])) for kind, rows in alive.values.items()}, "the score file")
    candidates = [
        (kind, layer, head)
        for kind in chosen_types
        for layer, row in enumerate(alive.values[kind])
        for head, present in enumerate(row)
        if present
    ]
    for kind, layer, head in candidates:
        if math.isnan(scores.values[kind][layer][head]):
            raise ValueError(
                f"{kind} layer {layer} head {head} has no score: the scores are of a model without it, take its own"
            )
    number = _number_to_keep(keep, len(candidates), chosen_types)
    # Sorting is stable: ties stay in order.
    ranked = sorted(candidates, key=lambda head: -scores.values[head[0]][head[1]][head[2]])
    reserved = [head for i, head in enumerate(ranked) if _earlier_in_layer(ranked, i) < min_per_layer]
    if len(reserved) > number:
        raise ValueError(
            f"{min_per_layer} heads in every layer are {len(reserved)}, more than the {number} to keep: "
            "lower --min-per-layer or raise --keep"
        )
    others = [head for head in ranked if head not in set(reserved)]
    kept = set(reserved + others[: number - len(reserved)])
    mask = {
        kind: [
            [int((kind, i, j) in kept) if kind in chosen_types else int(value) for j, value in enumerate(row)]
            for i, row in enumerate(rows)
        ]
        for kind, rows in alive.values.items()
    }
    return HeadTable(mask, "alive", scores.signature)


def _number_to_keep(keep: float, there_are: int, types: Iterable[str]) -> int:
    if isinstance(keep, float):
        if not 0 <= keep <= 1:
            raise ValueError(f"the share of heads to keep is {keep}: it must be from 0 to 1 (a number has no point)")
        return round(keep * there_are)
    if not 0 <= keep <= there_are:
        raise ValueError(f"{keep} heads are to be kept: there are {there_are} of {', '.join(types)}")
    return keep


def _earlier_in_layer(ranked: list[tuple[str, int, int]], i: int) -> int:
    return sum(other[:2] == ranked[i][:2] for other in ranked[:i])


def prune(model: nn.Module, mask: Mask | None = None) -> nn.Module:
    """Returns a copy of a fairseq model without the heads that `mask` removes; it computes what the masked model does.

    The mask is a `HeadTable`, a dict like `{"enc-self": [[1, 0, 1, 1], ...]}` (1 alive, 0 removed; a missing type is
    alive), the path of a mask file, or the same JSON as text; the default are the heads whose gate is open. A head
    whose gate is 0 is removed in any case, because it adds nothing. Gates between 0 and 1 are folded into the output
    projection. Raises ValueError for a mask of another shape, TypeError for one of another type.
    """
    mask = None if mask is None else as_mask(mask)
    pruned = use_head_attention(copy.deepcopy(model))
    apply_cuts(pruned, cuts(pruned, open_heads(pruned) if mask is None else mask))
    return pruned


def remove_heads(model: nn.Module, mask: Mask) -> nn.Module:
    """Removes the heads with 0 in `mask` from a model without gates, in place; the mask is as for `prune`."""
    mask = as_mask(mask)
    use_head_attention(model)
    return apply_cuts(model, cuts(model, mask))


def cuts(model: nn.Module, mask: Mask) -> dict[str, Cut]:
    """{name of an attention layer: what to do to it}, for a model of `HeadAttention` and the heads to keep."""
    mask = as_mask(mask)
    check_shape(mask, head_counts(model))
    values = gate_values(model)
    found = {}
    for site in head_sites(model):
        attention = site.attention
        alive = mask.values[site.kind][site.layer] if site.kind in mask.values else [1] * attention.heads
        gates = values[site.kind][site.layer].cpu()[list(attention.kept)]
        stay = tuple(i for i, head in enumerate(attention.kept) if alive[head] and gates[i] > 0)
        found[site.name] = Cut(stay, gates[list(stay)], attention.head_dim)
    return found


def refolded(found: Mapping[str, Cut], model: nn.Module) -> dict[str, Cut]:
    """The same heads stay, each with its gate in `model`, which has the shape of the model the cuts were made for."""
    values = gate_values(model)
    changed = {}
    for site in head_sites(model):
        gates = values[site.kind][site.layer].cpu()[list(site.attention.kept)]
        cut = found[site.name]
        changed[site.name] = replace(cut, factor=gates[list(cut.stay)])
    return changed


def apply_cuts(model: nn.Module, found: Mapping[str, Cut]) -> nn.Module:
    """Does to the model, in place, what was found, and notes it in the options of the model."""
    for name, cut in found.items():
        _cut_attention(model.get_submodule(name), cut)
    if getattr(model, "args", None) is not None:
        model.args = pruned_options(model.args, kept_heads(model))
    return model


def _cut_attention(attention: HeadAttention, cut: Cut) -> None:
    for name in (*INPUTS, "out_proj"):
        projection = getattr(attention, name)
        if projection is None:
            continue
        for parameter, tensor in list(projection.named_parameters()):
            smaller = cut(f"{name}.{parameter}", tensor.detach().cpu()).to(tensor.device)
            setattr(projection, parameter, nn.Parameter(smaller, tensor.requires_grad))
        projection.out_features, projection.in_features = projection.weight.shape
    attention.kept = tuple(attention.kept[i] for i in cut.stay)
    attention.num_heads = len(attention.kept)
    attention.gate = attention.head_mask = None
    if attention.num_heads == 0:
        attention.q_proj = attention.k_proj = attention.v_proj = None


def cut_tensors(tensors: Mapping[str, Tensor], found: Mapping[str, Cut], power: int = 1) -> dict[str, Tensor]:
    """The same for tensors by the names of parameters: a state dict, or moments of an optimiser (see `Cut`)."""
    result = {}
    for name, tensor in tensors.items():
        attention, parameter = site_and_parameter(name, found)
        if name.startswith(KEPT_HEADS):
            continue
        if attention is None:
            result[name] = tensor
        elif not parameter.startswith("gate.") and (found[attention].stay or parameter.startswith("out_proj.")):
            result[name] = found[attention](parameter, tensor, power)
    return result


def site_and_parameter(name: str, found: Mapping[str, Cut]) -> tuple[str | None, str]:
    """'decoder.layers.0.self_attn.q_proj.weight' -> ('decoder.layers.0.self_attn', 'q_proj.weight')."""
    attention, _, parameter = name.rpartition(".")
    attention, _, projection = attention.rpartition(".")
    return (attention, f"{projection}.{parameter}") if attention in found else (None, name)


def kept_heads(model: nn.Module) -> HeadTable:
    """The mask of the heads that have weights in a model of `HeadAttention`."""
    rows: dict[str, list[list[float]]] = {}
    for site in head_sites(model):
        kept = set(site.attention.kept)
        rows.setdefault(site.kind, []).append([int(head in kept) for head in range(site.attention.heads)])
    return HeadTable(rows, "alive")


# A state dict of a model with removed heads says which ones it has, {type: [L, H]} of 0 and 1: the numbers of rows and
# columns do not. In floating point, because the moving average of fairseq (--store-ema) multiplies every entry.
KEPT_HEADS = "kept_heads."


def kept_heads_entries(model: nn.Module) -> dict[str, Tensor]:
    """What the state dict of a model with removed heads says of them; nothing if it has all its heads."""
    kept = kept_heads(model)
    if all(value for kind in kept.types for value in kept.heads(kind)):
        return {}
    return {f"{KEPT_HEADS}{kind}": torch.tensor(rows, dtype=torch.float32) for kind, rows in kept.values.items()}


def check_kept_heads(model: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Raises ValueError if a state dict says that its weights are those of other heads than the model's."""
    for kind, rows in kept_heads(model).values.items():
        stored = state_dict.get(f"{KEPT_HEADS}{kind}")
        if stored is None:
            continue
        if stored.shape != (len(rows), len(rows[0])):
            raise ValueError(f"{KEPT_HEADS}{kind} has the shape {tuple(stored.shape)}: it must be layers, heads")
        for layer, (there, here) in enumerate(zip(stored.tolist(), rows, strict=True)):
            if [value > 0.5 for value in there] != [bool(value) for value in here]:
                names = [", ".join(str(i) for i, value in enumerate(row) if value > 0.5) for row in (there, here)]
                raise ValueError(
                    f"{kind} layer {layer} has heads {names[0]} in the checkpoint and heads {names[1]} in the model: "
                    "take the mask from the checkpoint, --alive-heads CKPT --remove-heads"
                )


def removal_plan(model: nn.Module, pruned: nn.Module) -> dict:
    """What pruning did to a model, as plain values; pairs are [before, after]."""
    before, after = kept_heads(model), kept_heads(pruned)
    gates = to_tables(gate_values(model), "gate")
    pairs = [pair for kind in gates.types for pair in zip(gates.heads(kind), after.heads(kind), strict=True)]
    return {
        "heads": {kind: [before.count(kind)[0], after.count(kind)[0]] for kind in after.types},
        "parameters": [sum(p.numel() for p in m.parameters()) for m in (model, pruned)],
        "cache_bytes_per_token": {kind: [cache_bytes(m, kind) for m in (model, pruned)] for kind in after.types},
        "removed_with_open_gate": sum(gate > 0 and not stays for gate, stays in pairs),
        "folded_gates": sum(0 < gate < 1 and bool(stays) for gate, stays in pairs),
        "mask": dict(after.values),
    }


def cache_bytes(model: nn.Module, kind: str) -> int:
    """Keys and values of one token in all layers of an attention type, in bytes (of the weights' precision)."""
    attentions = [site.attention for site in head_sites(model) if site.kind == kind]
    return sum(2 * a.num_heads * a.head_dim * a.out_proj.weight.element_size() for a in attentions)


def pruned_options(args, mask: HeadTable):
    """The options of a model, changed to those of one that has only the heads of `mask`."""
    changed = copy.copy(args)
    changed.gate_heads = ""
    changed.alive_heads = mask_to_json(mask, one_line=True)
    changed.remove_heads = True
    return changed


def fill_heads(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a pruned model at the size of the stock model: removed heads are zeros and add nothing."""
    filled = {name: tensor for name, tensor in tensors.items() if not name.startswith(KEPT_HEADS)}
    for site in head_sites(model):
        attention = site.attention
        positions = _positions(attention.kept, attention.head_dim)
        size = attention.heads * attention.head_dim
        out = tensors[f"{site.name}.out_proj.weight"]
        filled[f"{site.name}.out_proj.weight"] = out.new_zeros(out.size(0), size).index_copy(1, positions, out)
        for name in INPUTS:
            width = attention.embed_dim if name == "q_proj" else getattr(attention, f"{name[0]}dim")
            for parameter, shape in (("weight", (size, width)), ("bias", (size,))):
                key = f"{site.name}.{name}.{parameter}"
                kept = tensors.get(key, out.new_zeros(0, *shape[1:]))
                filled[key] = kept.new_zeros(shape).index_copy(0, positions, kept)
    return filled
