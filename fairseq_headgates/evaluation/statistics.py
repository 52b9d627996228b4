"""Statistics of evaluations: perplexity, confidence intervals, significance of differences (no torch)."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairseq_headgates.messages import logging_only

if TYPE_CHECKING:
    from numpy import ndarray
    from sacrebleu.metrics.base import Metric

SEED, RESAMPLINGS = 12345, 1000  # of the bootstrap: the defaults of sacreBLEU
SEED_VARIABLE = "SACREBLEU_SEED"  # by which sacreBLEU is told another seed


def perplexity(bits: float) -> float:
    """Return the perplexity of a loss in bits: 2 to its power, infinity where that is too large."""
    return math.inf if bits >= 1024 else 2.0**bits


@dataclass(frozen=True)
class Comparison:
    """Scores of several systems, and tests of their differences from the first.

    Attributes:
        scores: score of each system
        p_values: two-sided p-value of the difference of each other system from the first; None without variance
        signature: how both are computed
    """

    scores: dict[str, float]
    p_values: dict[str, float | None]
    signature: str


def paired_bootstrap(
    metrics: Mapping[str, Metric], systems: Mapping[str, Sequence[str]], references: Sequence[str]
) -> dict[str, Comparison]:
    """Test differences of sacreBLEU's metrics by paired bootstrap (Koehn 2004), with a fixed seed.

    A system with the score of the first has p = 1. There is no p-value if no score varies over the resamples, as on one
    sentence. sacreBLEU's p-value of identical translations is the smallest one,
    1 / (RESAMPLINGS + 1), because none of their resampled differences is above the observed one.

    Args:
        metrics: sacreBLEU's metrics
        systems: the translations of each system, in the order of the references
        references: one reference for each sentence

    Returns:
        The comparison by each metric, by the name of its scores ("BLEU", "chrF2")
    """
    from sacrebleu.significance import PairedTest

    named: Any = [(name, list(texts)) for name, texts in systems.items()]
    with _fixed_seed(), logging_only(logging.WARNING, "sacrebleu"):  # which logs each step
        signatures, found = PairedTest(named, metrics, [list(references)], "bs", RESAMPLINGS)()
    results: dict[str, Any] = {metric: dict(zip(systems, found[metric], strict=True)) for metric in signatures}
    return {metric: _comparison(of, signatures[metric].format()) for metric, of in results.items()}


def _comparison(results: Mapping[str, Any], signature: str) -> Comparison:
    first, *others = results
    scores = {name: float(result.score) for name, result in results.items()}
    p_values: dict[str, float | None] = {}
    for name in others:
        varies = results[first].ci > 0 or results[name].ci > 0
        p_values[name] = 1.0 if scores[name] == scores[first] else float(results[name].p_value) if varies else None
    return Comparison(scores, p_values, signature)


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
    """Return the 95% bootstrap interval of a mean, sum(sums) / sum(counts).

    Args:
        sums: the sum in each sentence, or block of text; these are resampled
        counts: the number of summands of each
    """
    return confidence_interval(_resampled_means([sums], counts)[0])


def mean_difference_test(a: Sequence[float], b: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the two-sided p-value of the difference of two means by paired bootstrap (Efron and Tibshirani 1993).

    It is the share of resamples whose difference is as far from the observed one as that is from 0; None if neither
    mean varies over the resamples, as with one sentence.

    Args:
        a: the sum in each sentence, or block of text, of one model
        b: those of another
        counts: the number of summands of each
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
