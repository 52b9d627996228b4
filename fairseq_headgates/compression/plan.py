"""Choose the heads and neurons to remove from a model so that enough parameters, or enough time, are saved."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fairseq_headgates.attention.anatomy import Block, attention_modules, blocks_of
from fairseq_headgates.attention.modules import module_table
from fairseq_headgates.compression.moments import Moments, moments, targets_of
from fairseq_headgates.compression.search import Curve, choose, removal_curve
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.inference.packed_linear import is_plain
from fairseq_headgates.messages import Progress
from fairseq_headgates.scores.options import UNITS

GRAIN = 8  # feed-forward blocks keep a multiple of so many neurons
STEPS = 20_000  # of the savings, in the search


@dataclass(frozen=True)
class Plan:
    """What to remove.

    Attributes:
        mask: the heads to keep
        neurons: the neurons that feed-forward blocks keep, by the name of the layer
        cost: estimated increase of the loss after the repair, in bits per target
    """

    mask: HeadTable
    neurons: Mapping[str, tuple[int, ...]]
    cost: float


@dataclass(frozen=True)
class Units:
    """The units of one block, "heads" or "neurons": the parameters of each, and what it costs to remove them."""

    block: Block
    kind: str
    parameters: int
    curve: Curve
    grain: int

    @property
    def number(self) -> int:
        """The number of units."""
        return len(self.curve.order)


def kind_of(block: Block) -> str:
    """Return what the units of a block are: "heads" or "neurons"."""
    return "heads" if block.is_attention else "neurons"


def units_of(
    model: nn.Module, corpus: Corpus, units: Collection[str] = UNITS, sampled: bool = True, progress: Progress = iter
) -> list[Units]:
    """Return the units of every block of a model without gates, with the cost of removing them.

    Args:
        model: a result of `attention.cuts.prune`
        corpus: the data
        units: "heads", "neurons", or both
        sampled: see `moments`
        progress: wraps the iterable of batches
    """
    blocks = removable(model, units)
    found = moments(model, corpus, blocks, sampled, progress)
    targets = targets_of(corpus)
    return [_units(model, block, found[block.linear], targets) for block in blocks]


def removable(model: nn.Module, units: Collection[str]) -> list[Block]:
    """Return the blocks with such units. Raise ValueError for feed-forward blocks whose neurons cannot be removed."""
    blocks = [block for block in blocks_of(model) if kind_of(block) in units]
    blocks = [block for block in blocks if model.get_submodule(block.linear).in_features]
    layers: list[Any] = [model.get_submodule(block.layer) for block in blocks if not block.is_attention]
    scaled = any(getattr(layer, "ffn_layernorm", None) is not None for layer in layers)
    if scaled or not all(is_plain(linear) for layer in layers for linear in (layer.fc1, layer.fc2)):
        raise ValueError(
            "neurons cannot be removed from feed-forward blocks with a LayerNorm between the linear layers "
            "(--scale-fc), quantisation noise or weight norm: pass --units heads"
        )
    return blocks


def number_and_parameters(model: nn.Module, block: Block) -> tuple[int, int]:
    """Return the number of units of a block, and the parameters of each."""
    linear: Any = model.get_submodule(block.linear)
    outputs, inputs = linear.weight.shape
    if block.is_attention:
        attention: Any = model.get_submodule(block.name)
        number, parts = inputs // attention.head_dim, [getattr(attention, name) for name in attention.INPUTS]
    else:
        number, parts = inputs, [model.get_submodule(f"{block.layer}.fc1")]
    return number, (sum(p.numel() for part in parts for p in part.parameters()) + outputs * inputs) // number


def _units(model: nn.Module, block: Block, found: Moments, targets: int) -> Units:
    linear: Any = model.get_submodule(block.linear)
    weight = linear.weight.detach().cpu().double()
    number, parameters = number_and_parameters(model, block)
    slopes = weight.T @ (found.gradients / max(1.0, found.positions)) @ weight
    scale = found.positions / targets / math.log(2)
    curve = removal_curve(found.covariance(linear.bias is not None), slopes, weight.size(1) // number, scale)
    return Units(block, kind_of(block), parameters, curve, 1 if block.is_attention else GRAIN)


def parameters_saved(units: Sequence[Units]) -> list[dict[int, int]]:
    """Return the parameters that are saved without some units of each block, {number of removed units: parameters}."""
    levels = [sorted({0, *range(each.number % each.grain, each.number + 1, each.grain)}) for each in units]
    return [
        {level: level * each.parameters for level in of_block} for each, of_block in zip(units, levels, strict=True)
    ]


def plan_of(model: nn.Module, units: Sequence[Units], savings: Sequence[Mapping[int, float]], least: float) -> Plan:
    """Choose what to remove so that at least `least` is saved at the smallest estimated cost.

    Args:
        model: the model that `units` are of
        units: the units of its blocks
        savings: what is saved without some units of each block, {number of removed units: parameters or time}
        least: what must be saved, at most what all savings together are
    """
    step = max(least / STEPS, 1e-12)
    costs = [[each.curve.costs[number] for number in saved] for each, saved in zip(units, savings, strict=True)]
    steps = [[math.floor(amount / step) for amount in saved.values()] for saved in savings]
    chosen = choose(costs, steps, math.ceil(least / step - 1e-6))
    if chosen is None:  # it is reached without rounding
        return plan_without(model, units, [max(saved, key=saved.__getitem__) for saved in savings])
    return plan_without(model, units, [list(saved)[i] for saved, i in zip(savings, chosen, strict=True)])


def plan_without(model: nn.Module, units: Sequence[Units], numbers: Sequence[int]) -> Plan:
    """Return the plan that removes the first so many units of each block."""
    kept = {each.block: sorted(each.curve.order[number:]) for each, number in zip(units, numbers, strict=True)}
    heads = {block.name: left for block, left in kept.items() if block.is_attention}
    rows = {
        module: torch.tensor([head in heads.get(module.name, [head]) for head in range(module.attention.num_heads)])
        for module in attention_modules(model)
    }
    neurons = {
        each.block.layer: tuple(kept[each.block])
        for each in units
        if not each.block.is_attention and len(kept[each.block]) < each.number
    }
    cost = sum(each.curve.costs[number] for each, number in zip(units, numbers, strict=True))
    return Plan(module_table(model, rows).map(lambda left: int(left > 0), "alive"), neurons, cost)


def plan_without_blocks(model: nn.Module, blocks: Sequence[Block]) -> Plan:
    """Return the plan that removes all units of some blocks, at an unknown cost."""
    units = [Units(block, kind_of(block), 0, Curve((0,), (0.0, math.nan)), 1) for block in blocks]  # one unit each
    return plan_without(model, units, [1] * len(units))
