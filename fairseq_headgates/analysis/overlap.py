"""Overlap of two masks: the heads that both keep, against chance (no torch)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from scipy import stats

from fairseq_headgates.analysis.agreement import check_comparable, common_types
from fairseq_headgates.heads import HeadTable


@dataclass(frozen=True)
class Overlap:
    """The heads that two masks keep.

    Attributes:
        heads: number of heads compared
        kept: how many each mask keeps
        common: how many both keep
        expected: mean of `common` for masks that keep random heads, as many of each attention type
        jaccard: `common` divided by the number of heads that at least one keeps, NaN if there is none
        p: probability that random masks have so many in common or more
    """

    heads: int
    kept: tuple[int, int]
    common: int
    expected: float
    jaccard: float
    p: float


def overlap(a: HeadTable, b: HeadTable, types: Sequence[str] = ()) -> Overlap:
    """Compare two masks.

    With K heads, of which the masks keep k and m, random masks have a hypergeometric number of heads in common; over
    several attention types it is a sum of independent ones.

    Args:
        a: mask, values above 0 are kept
        b: mask of the same heads
        types: attention types to compare (default: those of both masks)

    Raises:
        ValueError: with every reason, if the masks are of different heads
    """
    chosen = tuple(types) or common_types(a, b)
    check_comparable(a, b, chosen)
    counts = [(a.count(each)[0], b.count(each)[0], len(a.heads(each))) for each in chosen]
    pairs = [pair for each in chosen for pair in zip(a.heads(each), b.heads(each), strict=True)]
    common, either = sum(min(pair) > 0 for pair in pairs), sum(max(pair) > 0 for pair in pairs)
    chances = numpy.ones(1)
    for k, m, heads in counts:
        chances = numpy.convolve(chances, stats.hypergeom(heads, k, m).pmf(numpy.arange(min(k, m) + 1)))
    return Overlap(
        heads=len(pairs),
        kept=(sum(k for k, _, _ in counts), sum(m for _, m, _ in counts)),
        common=common,
        expected=sum(k * m / heads for k, m, heads in counts),
        jaccard=common / either if either else math.nan,
        p=min(1.0, float(chances[common:].sum())),
    )
