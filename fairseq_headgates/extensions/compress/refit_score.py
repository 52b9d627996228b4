"""The score `refit`: what it costs to remove each head, when the model is repaired."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import nn

from fairseq_headgates.analysis.options import ScoreOptions
from fairseq_headgates.attention.cuts import prune
from fairseq_headgates.attention.modules import attention_modules, module_table
from fairseq_headgates.evaluation.corpus import Corpus
from fairseq_headgates.extensions.compress.plan import Units, units_of
from fairseq_headgates.heads import HeadTable


def refit_scores(model: nn.Module, corpus: Corpus, options: ScoreOptions) -> HeadTable:
    """Remove the heads one after another, always the one that costs least after the repair, and score each by the cost.

    See `search` for the cost. Costs of layers are summed. The gradients are those of the targets of the data.

    Returns:
        For each head the estimated increase of the loss, in bits per target, when it and all heads with lower scores
        are removed; 0 for closed heads, NaN for removed heads
    """
    smaller = prune(model)
    units = units_of(smaller, corpus, ["heads"], sampled=False, progress=options.progress)
    open_heads = {module.name: module.attention.kept for module in attention_modules(smaller)}
    modules = {module.name: module for module in attention_modules(model) if module.attention.num_heads}
    scores = {name: torch.zeros(module.attention.num_heads).double() for name, module in modules.items()}
    total = 0.0
    for step, unit, name in heapq.merge(*map(_steps, units)):
        total += step
        scores[name][modules[name].attention.kept.index(open_heads[name][unit])] = total
    return module_table(model, {module: scores[name] for name, module in modules.items()})


def _steps(units: Units) -> Iterator[tuple[float, int, str]]:
    """Yield what each unit of a block costs in the order of their removal, the unit, and the name of the block."""
    for unit, (before, after) in zip(units.curve.order, pairwise(units.curve.costs), strict=True):
        yield after - before, unit, units.block.name
