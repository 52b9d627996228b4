"""Pruning curves: remove the heads with the lowest scores step by step, and measure (Michel et al. 2019, section 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from torch import nn

from fairseq_headgates.attention.choice import best_heads, check_scored
from fairseq_headgates.attention.cuts import prune
from fairseq_headgates.attention.modules import number_of_parameters
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import mean_loss
from fairseq_headgates.data.metrics import Metric
from fairseq_headgates.files.journal import ResumeJournal
from fairseq_headgates.heads import HeadTable, number_of_heads
from fairseq_headgates.messages import Progress


@dataclass(frozen=True)
class Point:
    """A step of a pruning curve.

    Attributes:
        removed: percent of the heads removed
        heads: number of heads kept, of the types of the curve
        parameters: number of parameters of the pruned model
        mask: the heads kept
        nll: loss in bits per target token, or per sentence of a classifier
        predictions: those that the metric scores, in the order of the corpus; None without a metric
    """

    removed: float
    heads: int
    parameters: int
    mask: HeadTable
    nll: float
    predictions: list[Any] | None


def pruning_curve(
    model: nn.Module,
    corpus: Corpus,
    scores: HeadTable,
    alive: HeadTable,
    steps: Sequence[float],
    types: Sequence[str] = (),
    rescore: Callable[[nn.Module], HeadTable] | None = None,
    metric: Metric | None = None,
    journal: ResumeJournal | None = None,
    remove: Callable[[HeadTable], nn.Module] | None = None,
    progress: Progress = iter,
) -> Iterator[Point]:
    """Remove the heads with the lowest scores step by step, and measure the model after each step.

    Args:
        model: a fairseq transformer; it is not changed
        corpus: the data, in batches
        scores: a score for every head
        alive: the heads that the model has
        steps: percent of the heads of `types` to remove
        types: attention types to prune (default: all that have scores)
        rescore: computes new scores of a pruned model, after each step; removed heads stay removed
        metric: predict what this metric scores, too
        journal: keeps results, so that the same command resumes
        remove: returns the model without the heads that a mask removes (default: `prune`)
        progress: wraps the iterable of steps
    """
    journal = journal or ResumeJournal(None, "")
    remove = remove or partial(prune, model)
    chosen = tuple(types) or scores.types
    available = len(check_scored(scores, alive, chosen))
    mask, smaller = alive, None
    for step in progress(sorted(set(steps))):
        if rescore and smaller is not None:
            scores = rescore(smaller)
        keep = number_of_heads(1 - Decimal(str(step)) / 100, available)
        mask = best_heads(scores, keep, mask if rescore else alive, chosen)
        smaller = remove(mask)
        key = json.dumps(dict(mask.layers))
        nll = journal.get(f"nll {key}", partial(mean_loss, smaller, corpus))
        predictions = None
        if metric is not None:
            predictions = journal.get(f"{metric.name} {key}", partial(_predictions, metric, smaller))
        yield Point(step, keep, number_of_parameters(smaller), mask, nll, predictions)


def _predictions(metric: Metric, model: nn.Module) -> list[Any]:
    return metric.predict(metric.prepared(model))
