"""Pruning curves: remove the heads with the lowest scores step by step, and measure (Michel et al. 2019, section 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from fairseq_headgates.analysis.ablation import prepared
from fairseq_headgates.evaluation import Corpus, mean_loss, translate
from fairseq_headgates.files import ResumeJournal
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.surgery import best_heads, prune


@dataclass(frozen=True)
class Point:
    """A step of a pruning curve.

    Attributes:
        removed: percent of the heads removed
        heads: number of heads kept, of the types of the curve
        mask: the heads kept
        nll: loss in bits per target token
        translations: of the corpus, in its order, or None
    """

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
    journal: ResumeJournal | None = None,
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
        translations: translate the corpus, too
        journal: keeps results, so that the same command resumes
    """
    journal = journal or ResumeJournal(None, "")
    chosen = tuple(types) or scores.types
    available = sum(alive.count(kind)[0] for kind in chosen)
    mask, smaller = alive, None
    for step in sorted(set(steps)):
        if rescore and smaller is not None:
            scores = rescore(smaller)
        keep = available - round(step / 100 * available)
        mask = best_heads(scores, keep, mask if rescore else alive, chosen)
        smaller = prune(model, mask)
        key = json.dumps(dict(mask.values))
        nll = journal.get(f"nll {key}", partial(mean_loss, smaller, corpus))
        texts = None
        if translations:
            texts = journal.get(f"text {key}", partial(_translate, smaller, corpus))
        yield Point(step, keep, mask, nll, texts)


def _translate(model: nn.Module, corpus: Corpus) -> list[str]:
    return translate(prepared(model, corpus), corpus)
