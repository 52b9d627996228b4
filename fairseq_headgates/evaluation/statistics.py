"""Statistics of evaluations: perplexity, and significance of differences between models (no torch)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

SEED, RESAMPLINGS = 12345, 1000  # of the paired bootstrap: the defaults of sacreBLEU
SEED_VARIABLE = "SACREBLEU_SEED"  # by which sacreBLEU is told another seed


def perplexity(bits: float) -> float:
    """Return the perplexity of a loss in bits: 2 to its power, infinity where that is too large."""
    return math.inf if bits >= 1024 else 2.0**bits


@dataclass(frozen=True)
class Comparison:
    """Scores of several systems, and tests of their differences from the first.

    Attributes:
        scores: score of each system
        p_values: two-sided p-value of the difference of each other system from the first
        signature: how both are computed
    """

    scores: dict[str, float]
    p_values: dict[str, float]
    signature: str


def paired_bootstrap(
    metrics: Mapping[str, Metric], systems: Mapping[str, Sequence[str]], references: Sequence[str]
) -> dict[str, Comparison]:
    """Test differences of sacreBLEU's metrics by paired bootstrap (Koehn 2004), with a fixed seed.

    A system with the score of the first has p = 1. sacreBLEU's p-value of identical translations is the smallest one,
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
    with _fixed_seed():
        signatures, found = PairedTest(named, metrics, [list(references)], "bs", RESAMPLINGS)()
    results: dict[str, Any] = {metric: dict(zip(systems, found[metric], strict=True)) for metric in signatures}
    return {metric: _comparison(of, signatures[metric].format()) for metric, of in results.items()}


def _comparison(results: Mapping[str, Any], signature: str) -> Comparison:
    first, *others = results
    scores = {name: float(result.score) for name, result in results.items()}
    p_values = {name: 1.0 if scores[name] == scores[first] else float(results[name].p_value) for name in others}
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
