"""Which units to remove: the cost of every number of units of a block, and the cheapest choice within a budget.

The units of a block are the columns, or groups of columns, of its last linear layer: the heads of an attention layer
(`out_proj`), the neurons of a feed-forward block (`fc2`). Without the units S, the inputs x_S of the layer are replaced
by their least-squares regression on the other inputs. The second-order estimate of the increase of the loss is

    1/2 E[(g^T W_S r_S)^2]  ~  1/2 trace(W_S^T G W_S  (P_SS)^-1),   G = E[g g^T],   P = Cov(x)^-1

with the gradient g of the loss with respect to the output of the layer, and the residual r_S of the regression, whose
covariance is (P_SS)^-1 (Hassibi & Stork 1993, optimal brain surgeon; Kurtic et al. 2023, ZipLM). The second step takes
gradients and residuals as independent (Martens & Grosse 2015, K-FAC).

Shapes: N inputs of a linear layer, in U units of D columns; E outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_headgates.attention.cuts import head_positions

BLOCK = 32  # columns that are removed before all of P and M are updated
CANDIDATES = 4  # times as many units are compared exactly within such a block


@dataclass(frozen=True)
class Curve:
    """The units of a block in the order of their removal, and what it costs to remove the first of them.

    Attributes:
        order: the units [U], first the one that costs least
        costs: estimated increase of the loss without the first 0, 1, ..., U units, in bits per target: [U + 1]
    """

    order: tuple[int, ...]
    costs: tuple[float, ...]


def removal_curve(covariance: Tensor, slopes: Tensor, size: int, scale: float = 1.0) -> Curve:
    """Remove all units of a block one after another, always the one that costs least, and return the costs.

    Eliminating a unit updates P and M = W^T G W, so that the costs of the steps add up to the cost of the set exactly.
    Within a block of `BLOCK` columns the next unit is chosen among the cheapest `CANDIDATES` x `BLOCK` columns.

    Args:
        covariance: Cov(x), positive definite, in double precision: [N, N]
        slopes: M = W^T G W: [N, N]
        size: D
        scale: factor on the costs

    Returns:
        The `Curve` of the U = N / D units
    """
    precision, slopes = torch.cholesky_inverse(torch.linalg.cholesky(covariance)), slopes.clone()
    units = torch.arange(len(slopes) // size)  # those with rows in P and M
    gone = torch.zeros(len(units), dtype=torch.bool)
    order, costs, number = list[int](), [0.0], max(1, BLOCK // size)
    while not gone.all():
        nearest = min(CANDIDATES * number, int((~gone).sum()))
        near = _unit_costs(precision, slopes, size, gone).argsort()[:nearest].sort().values
        columns = head_positions(near.tolist(), size)
        chosen, steps = _greedy(precision[columns][:, columns], slopes[columns][:, columns], size, number)
        removed = near[chosen]
        order += units[removed].tolist()
        for step in steps:
            costs.append(costs[-1] + max(0.0, step) * scale)
        _eliminate_(precision, slopes, removed.tolist(), size)
        gone[removed] = True
        if 2 * gone.sum() > len(gone):
            kept = ~gone
            columns = head_positions(kept.nonzero().flatten().tolist(), size)
            precision, slopes = precision[columns][:, columns], slopes[columns][:, columns]
            units, gone = units[kept], gone[kept]
    return Curve(tuple(order), tuple(costs))


def _unit_costs(precision: Tensor, slopes: Tensor, size: int, gone: Tensor) -> Tensor:
    """Return 1/2 trace(M_SS (P_SS)^-1) of every unit S, infinity for those that are gone: [U]."""
    if size == 1:
        return (slopes.diagonal() / precision.diagonal() / 2).masked_fill_(gone, math.inf)
    p, m = (
        x.unflatten(0, (-1, size)).unflatten(2, (-1, size)).diagonal(0, 0, 2).permute(2, 0, 1)
        for x in (precision, slopes)
    )
    return (torch.linalg.solve(p, m).diagonal(0, 1, 2).sum(-1) / 2).masked_fill_(gone, math.inf)


def _greedy(precision: Tensor, slopes: Tensor, size: int, number: int) -> tuple[list[int], list[float]]:
    """Choose up to `number` units one after another; return them and the cost of each step.

    The update of a part of P and M needs that part alone.
    """
    gone, chosen, steps = torch.zeros(len(slopes) // size, dtype=torch.bool), list[int](), list[float]()
    while len(chosen) < min(number, len(gone)):
        costs = _unit_costs(precision, slopes, size, gone)
        best = int(costs.argmin())
        steps.append(float(costs[best]))
        chosen.append(best)
        gone[best] = True
        _eliminate_(precision, slopes, [best], size)
    return chosen, steps


def _eliminate_(precision: Tensor, slopes: Tensor, units: Sequence[int], size: int) -> None:
    """Update P and M, in place, when the weights of units S are moved to the others: W - W_S (P_SS)^-1 P_S.

    With A = (P_SS)^-1 P_S and B = M_S - 1/2 M_SS A, P becomes P - P_S^T A, and M becomes M - A^T B - B^T A. The rows of
    the units themselves become those of the identity and of 0.
    """
    gone = head_positions(units, size)
    across = precision[gone]
    moved = torch.linalg.solve(across[:, gone], across)  # A: [|S|, N]
    half = slopes[gone]
    half = half - half[:, gone] @ moved / 2  # B
    precision.addmm_(across.T, moved, alpha=-1)
    slopes.addmm_(torch.cat([moved, half]).T, torch.cat([half, moved]), alpha=-1)
    for matrix in (precision, slopes):
        matrix[gone], matrix[:, gone] = 0.0, 0.0
    precision[gone, gone] = 1.0


def choose(costs: Sequence[Sequence[float]], savings: Sequence[Sequence[int]], least: int) -> list[int] | None:
    """Choose a level for each block so that the savings are at least `least` and the sum of the costs is smallest.

    Exact, by dynamic programming over the savings.

    Args:
        costs: the cost of every level of each block
        savings: what every level of each block saves, whole numbers from 0
        least: the savings to reach

    Returns:
        The level of each block, None if all levels together cannot save that much
    """
    need = torch.arange(least + 1)
    best = torch.where(need > 0, math.inf, 0.0).double()  # the smallest cost of savings of at least `need`
    levels = []
    for block_costs, block_savings in zip(costs, savings, strict=True):
        pairs = zip(block_costs, block_savings, strict=True)
        best, level = torch.stack([cost + best[(need - saved).clamp(min=0)] for cost, saved in pairs]).min(0)
        levels.append(level)
    if not math.isfinite(best[least]):
        return None
    chosen, left = list[int](), least
    for level, block_savings in zip(reversed(levels), reversed(savings), strict=True):
        chosen.append(int(level[left]))
        left = max(0, left - block_savings[chosen[-1]])
    return chosen[::-1]
