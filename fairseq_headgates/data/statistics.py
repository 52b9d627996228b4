"""Statistics of evaluations: perplexity, confidence intervals, significance of differences (no torch)."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_headgates.messages import logging_only

if TYPE_CHECKING:
    from numpy import ndarray
    from sacrebleu.metrics.base import Metric

SEED, RESAMPLINGS = 12345, 1000  # of the bootstrap: the defaults of sacreBLEU
SEED_VARIABLE = "SACREBLEU_SEED"  # by which sacreBLEU is told another seed


def perplexity(bits: float) -> float:
    """Return the perplexity of a loss in bits: 2 to its power, infinity where that is too large."""
    return math.inf if bits >= 1024 else 2.0**bits


class Difference(NamedTuple):
    """A difference between two models, its two-sided p-value (None without variance), and how both are computed."""

    value: float
    p: float | None
    signature: str


def paired_bootstrap(
    metric: Metric, control: Sequence[str], others: Iterable[Sequence[str]], references: Sequence[str]
) -> list[Difference]:
    """Test differences of translations from those of a control by paired bootstrap (Koehn 2004), with a fixed seed.

    Translations with the score of the control have p = 1. There is no p-value if no score varies over the resamples, as
    on one sentence. sacreBLEU's p-value of identical translations is the smallest one, 1 / (RESAMPLINGS + 1), because
    none of their resampled differences is above the observed one.
    """
    from sacrebleu.significance import PairedTest

    named: Any = [(str(number), list(texts)) for number, texts in enumerate([control, *others])]
    with _fixed_seed(), logging_only(logging.WARNING, "sacrebleu"):  # which logs each step
        signatures, found = PairedTest(named, {"": metric}, [list(references)], "bs", RESAMPLINGS)()
    [(name, signature)] = signatures.items()
    results: list[Any] = list(found[name])
    first, *rest = results
    differences = []
    for each in rest:
        p = float(each.p_value) if first.ci > 0 or each.ci > 0 else None
        p = 1.0 if each.score == first.score else p
        differences.append(Difference(float(each.score - first.score), p, signature.format()))
    return differences


@contextmanager
def _fixed_seed() -> Iterator[None]:
    before = os.environ.get(SEED_VARIABLE)
    os.environ[SEED_VARIABLE] = str(SEED)
    try:
        yield
    finally:
        del os.environ[SEED_VARIABLE]
        if before is not None:
            os.environ[SEED_VARIABLE] = before


def mcnemar(a: Sequence[int], b: Sequence[int], labels: Sequence[int]) -> float:
    """Return the two-sided p-value of McNemar's exact test (McNemar 1947) for the predictions of two classifiers.

    Only sentences count that one of both classifies correctly and the other does not. If the classifiers are equally
    good, either one is right on such a sentence with probability 1/2.
    """
    from scipy.stats import binomtest  # which takes a second to import

    only_a = sum(x == label != y for x, y, label in zip(a, b, labels, strict=True))
    only_b = sum(y == label != x for x, y, label in zip(a, b, labels, strict=True))
    return float(binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def share_interval(correct: int, total: int) -> tuple[float, float]:
    """Return the 95% interval of a share of sentences, in percent (Wilson 1927)."""
    from scipy.stats import binomtest

    interval = binomtest(correct, total).proportion_ci(method="wilson")
    return 100 * float(interval.low), 100 * float(interval.high)


def confidence_interval(scores: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of bootstrap scores: the percentiles 2.5 and 97.5, chosen as in sacreBLEU."""
    ordered = sorted(map(float, scores))
    outside = len(ordered) // 40
    return ordered[outside], ordered[len(ordered) - outside - 1]


def score_interval(metric: Metric, predictions: Sequence[str], references: Sequence[str]) -> tuple[float, float]:
    """Return the 95% interval of a metric of sacreBLEU by its own bootstrap, with a fixed seed."""
    from sacrebleu.significance import _bootstrap_resample

    statistics = metric._extract_corpus_statistics(predictions, [references])
    with _fixed_seed():
        _, scores = _bootstrap_resample(statistics, metric, RESAMPLINGS)
    return confidence_interval([score.score for score in scores])


def mean_interval(sums: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of a mean, sum(sums) / sum(counts), over sentences or blocks of text."""
    return confidence_interval(_resampled_means([sums], counts)[0])


def mean_difference_test(a: Sequence[float], b: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the two-sided p-value of the difference of two means by paired bootstrap (Efron and Tibshirani 1993).

    It is the share of resamples whose difference is as far from the observed one as that is from 0; None if neither
    mean varies over the resamples, as with one sentence. `a` and `b` are the sums of two models in each sentence, or
    block of text, of as many summands as its count.
    """
    first, second = _resampled_means([a, b], counts)
    observed = (sum(a) - sum(b)) / sum(counts)
    if observed and not any(means.std() > 1e-9 * abs(means).max() for means in (first, second)):
        return None
    extreme = int((abs(first - second - observed) >= abs(observed)).sum())
    return (extreme + 1) / (len(first) + 1)


def _resampled_means(sums: Sequence[Sequence[float]], counts: Sequence[int]) -> ndarray:
    """Return the means [S, R] of S systems in R resamples of the sentences: those that sacreBLEU draws.

    Resamples in which nothing counts are left out.
    """
    import numpy

    random = numpy.random.default_rng(SEED)
    rows = numpy.array([*sums, counts], dtype=float).T
    number = len(rows)
    totals = numpy.stack([rows[random.integers(number, size=number)].sum(0) for _ in range(RESAMPLINGS)])
    totals = totals[totals[:, -1] > 0]
    return (totals[:, :-1] / totals[:, -1:]).T
