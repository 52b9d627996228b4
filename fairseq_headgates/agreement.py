"""How far two ways to score heads agree. No torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from fairseq_headgates.heads import HeadTable


@dataclass(frozen=True)
class Agreement:
    """Of the scores of the `heads` that both models have.

    Pearson's r and Spearman's rho with their p-values (two-sided; NaN where one side is constant), and the share of the
    `top` best heads of one that are among those of the other (NaN where it is not clear which they are).
    """

    heads: int
    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float
    top: int
    shared: float


def agreement(a: HeadTable, b: HeadTable, types: Sequence[str] = (), top: int | None = None) -> Agreement:
    """Compares two tables over all heads of `types` (default: those of both); `top` is a quarter of them if not given.

    Raises ValueError for tables of other shapes.
    """
    chosen = tuple(types) or tuple(kind for kind in a.types if kind in b.values)
    check_comparable(a, b, chosen)
    values = zip(*([value for kind in chosen for value in table.heads(kind)] for table in (a, b)), strict=True)
    both = [pair for pair in values if not any(map(math.isnan, pair))]  # heads that are in both models
    if not both:
        raise ValueError(f"{a.name} and {b.name} have no head of {', '.join(chosen)} in common")
    x, y = (list(column) for column in zip(*both, strict=True))
    k = max(1, len(x) // 4) if top is None else top
    if not 1 <= k <= len(x):
        raise ValueError(f"the best {k} heads are to be compared: there are {len(x)} of {', '.join(chosen)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant scores: NaN says it
        r, r_p = stats.pearsonr(_scaled(x), _scaled(y)) if len(x) > 1 else (math.nan, math.nan)
        rho, rho_p = stats.spearmanr(x, y) if len(x) > 1 else (math.nan, math.nan)
    best_x, best_y = _best(x, k), _best(y, k)
    shared = math.nan if best_x is None or best_y is None else len(best_x & best_y) / k
    return Agreement(len(x), float(r), float(r_p), float(rho), float(rho_p), k, shared)


def check_comparable(a: HeadTable, b: HeadTable, types: Sequence[str]) -> None:
    """Raises ValueError, with every reason, unless both tables have the same heads of `types`."""
    if not types:
        raise ValueError(f"{a.name} scores {', '.join(a.types)}, {b.name} {', '.join(b.types)}: no type in common")
    reasons = [f"{t.name} has no {kind}" for t in (a, b) for kind in types if kind not in t.values]
    for kind in (kind for kind in types if not reasons):
        shapes = [[len(row) for row in table.values.get(kind, [])] for table in (a, b)]
        if shapes[0] != shapes[1]:
            reasons.append(f"{kind} has {' and '.join(_shape(shape) for shape in shapes)} heads")
    if reasons:
        raise ValueError(f"{a.name} and {b.name} are scores of different heads: {'; '.join(reasons)}")


def _shape(rows: list[int]) -> str:
    return f"{len(rows)} x {rows[0]}" if rows and len(set(rows)) == 1 else str(rows)


def _scaled(values: list[float]) -> list[float]:
    """Multiply by a power of 2 so that the largest is about 1: Pearson's r of huge or tiny numbers would be NaN."""
    exponent = math.frexp(max(map(abs, values)))[1]
    return [math.ldexp(value, -exponent) for value in values]


def _best(values: list[float], k: int) -> set[int] | None:
    """The indices of the k highest values, None where a tie leaves open which they are."""
    ranked = sorted(range(len(values)), key=lambda i: -values[i])
    tied = k < len(values) and values[ranked[k - 1]] == values[ranked[k]]
    return None if tied else set(ranked[:k])
