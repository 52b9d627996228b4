"""The score `refit`: what it costs to remove each head, when the model is repaired."""

from __future__ import annotations

import heapq

import torch
from torch import nn

from fairseq_headgates.analysis.options import ScoreOptions
from fairseq_headgates.attention.cuts import prune
from fairseq_headgates.attention.sites import head_sites, site_table
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
    open_heads = {site.name: site.attention.kept for site in head_sites(smaller)}
    rows = {site.name: torch.zeros(site.attention.num_heads).double() for site in head_sites(model)}
    places = {site.name: site.attention.kept for site in head_sites(model)}
    total, queue = 0.0, [(*_next(each, 0), number, 0) for number, each in enumerate(units)]
    heapq.heapify(queue)
    while queue:
        step, unit, number, removed = heapq.heappop(queue)
        name, total = units[number].block.name, total + step
        rows[name][places[name].index(open_heads[name][unit])] = total
        if removed + 1 < len(units[number].curve.order):
            heapq.heappush(queue, (*_next(units[number], removed + 1), number, removed + 1))
    sites = [site for site in head_sites(model) if site.attention.num_heads]
    return site_table(model, {site: rows[site.name] for site in sites})


def _next(units: Units, removed: int) -> tuple[float, int]:
    """Return what the next unit of a block costs, and this unit."""
    costs = units.curve.costs
    return costs[removed + 1] - costs[removed], units.curve.order[removed]
