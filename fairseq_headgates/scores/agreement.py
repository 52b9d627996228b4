"""Agreement of two head tables: correlation of scores, and overlap of masks against chance (no torch)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from scipy import stats

from fairseq_headgates.heads import HeadTable


@dataclass(frozen=True)
class Agreement:
    """Agreement of two tables over the heads that both have.

    Attributes:
        heads: number of heads compared
        pearson: Pearson's r, NaN if one table is constant
        pearson_p: its two-sided p-value
        spearman: Spearman's rho, NaN if one table is constant
        spearman_p: its two-sided p-value
        top: K
        shared: share of the best K heads of one table among the best K of the other, NaN if ties leave them open
    """

    heads: int
    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float
    top: int
    shared: float


def agreement(a: HeadTable, b: HeadTable, types: Sequence[str] = (), top: int | None = None) -> Agreement:
    """Compare two tables of scores.

    Args:
        a: scores
        b: scores of the same heads
        types: attention types to compare (default: those of both tables)
        top: how many of the best heads to compare (default: a quarter)

    Raises:
        ValueError: if the tables have different heads
    """
    chosen = tuple(types) or common_types(a, b)
    check_comparable(a, b, chosen)
    values = zip(*([value for each in chosen for value in table.heads(each)] for table in (a, b)), strict=True)
    both = [pair for pair in values if not any(map(math.isnan, pair))]  # heads that are in both models
    x, y = (list(column) for column in zip(*both, strict=True))
    k = max(1, len(x) // 4) if top is None else top
    if not 1 <= k <= len(x):
        raise ValueError(f"top is {k}: it must be from 1 to {len(x)}, the number of heads compared")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about constant scores, whose correlation is NaN
        r, r_p = stats.pearsonr(_scaled(x), _scaled(y)) if len(x) > 1 else (math.nan, math.nan)
        rho, rho_p = stats.spearmanr(x, y) if len(x) > 1 else (math.nan, math.nan)
    best_x, best_y = _best(x, k), _best(y, k)
    shared = math.nan if best_x is None or best_y is None else len(best_x & best_y) / k
    return Agreement(len(x), float(r), float(r_p), float(rho), float(rho_p), k, shared)


def common_types(a: HeadTable, b: HeadTable) -> tuple[str, ...]:
    """Return the attention types that both tables have."""
    return tuple(attention_type for attention_type in a.types if attention_type in b.layers)


def check_comparable(a: HeadTable, b: HeadTable, types: Sequence[str]) -> None:
    """Raise ValueError unless both tables have the same heads of `types`."""
    if not types:
        raise ValueError(
            f"{a.name} is of {', '.join(a.types)}, {b.name} of {', '.join(b.types)}: they have no attention type in "
            "common, choose files of the same types"
        )
    for each in types:
        x, y = ([len(row) for row in table.layers.get(each, [])] for table in (a, b))
        if x != y:
            raise ValueError(
                f"{a.name} and {b.name} are of different heads: {x} and {y} in the layers of {each}; choose files of "
                "one model"
            )


def _scaled(values: list[float]) -> list[float]:
    """Multiply by a power of 2 so that the largest is about 1: Pearson's r of huge or tiny numbers would be NaN."""
    exponent = math.frexp(max(map(abs, values)))[1]
    return [math.ldexp(value, -exponent) for value in values]


def _best(values: list[float], k: int) -> set[int] | None:
    """Return the indices of the k highest values, None if a tie leaves them open."""
    ranked = sorted(range(len(values)), key=lambda i: -values[i])
    tied = k < len(values) and values[ranked[k - 1]] == values[ranked[k]]
    return None if tied else set(ranked[:k])


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
        ValueError: if the masks are of different heads
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
