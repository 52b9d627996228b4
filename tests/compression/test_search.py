"""Costs of units against regressions on explicit matrices, and the choice among levels against all choices."""

import itertools
import random

import pytest
import torch

from fairseq_headgates.compression.search import choose, removal_curve


def cost(covariance, gradients, weight, removed):
    """1/2 trace(W_S^T G W_S Cov(r_S)) by a regression of the inputs S on the others."""
    left = [i for i in range(len(covariance)) if i not in removed]
    residual = covariance[removed][:, removed]
    if left:
        known = covariance[left][:, removed]
        residual = residual - known.T @ torch.linalg.solve(covariance[left][:, left], known)
    return (weight[:, removed].T @ gradients @ weight[:, removed] @ residual).trace().item() / 2


def layer(inputs, outputs=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows, weight, slopes = (
        torch.randn(*shape, generator=generator).double()
        for shape in ((inputs + 9, inputs), (outputs, inputs), (outputs, outputs))
    )
    return rows.T @ rows / len(rows) + 0.01 * torch.eye(inputs), slopes @ slopes.T, weight


@pytest.mark.parametrize(("size", "inputs"), [(1, 7), (3, 12), (4, 32), (1, 200)])
def test_steps_add_up_to_the_cost_of_all_removed_units(size, inputs):
    """Also of more neurons than are removed at a time."""
    covariance, gradients, weight = layer(inputs)
    curve = removal_curve(covariance, weight.T @ gradients @ weight, size)
    assert sorted(curve.order) == list(range(inputs // size)) and curve.costs[0] == 0
    for number in {1, 2, inputs // size // 2, inputs // size}:
        removed = [unit * size + i for unit in curve.order[:number] for i in range(size)]
        expected = cost(covariance, gradients, weight, removed)
        assert curve.costs[number] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("size", "inputs"), [(1, 9), (2, 12)])
def test_the_next_unit_is_the_cheapest(size, inputs):
    covariance, gradients, weight = layer(inputs, seed=1)
    curve, removed = removal_curve(covariance, weight.T @ gradients @ weight, size), []
    for unit in curve.order:
        costs = {
            each: cost(covariance, gradients, weight, [*removed, *range(each * size, (each + 1) * size)])
            for each in range(inputs // size)
            if each * size not in removed
        }
        assert unit == min(costs, key=costs.get)
        removed += range(unit * size, (unit + 1) * size)


def test_the_choice_is_the_cheapest_of_all():
    rng = random.Random(3)
    for _ in range(100):
        costs = [[0.0, *sorted(rng.random() for _ in range(3))] for _ in range(3)]
        savings = [[0, *sorted(rng.randint(0, 9) for _ in range(3))] for _ in range(3)]
        least = rng.randint(0, 24)
        sums = [
            sum(cost[level] for cost, level in zip(costs, levels, strict=True))
            for levels in itertools.product(range(4), repeat=3)
            if sum(saved[level] for saved, level in zip(savings, levels, strict=True)) >= least
        ]
        found = choose(costs, savings, least)
        assert (found is None) == (not sums)
        if found is not None:
            assert sum(saved[level] for saved, level in zip(savings, found, strict=True)) >= least
            assert sum(cost[level] for cost, level in zip(costs, found, strict=True)) == pytest.approx(min(sums))
