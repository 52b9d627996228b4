"""The gating methods: the L0 penalty, a Lagrangian constraint, and differentiable subsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.gates.layer import HeadGates
from fairseq_headgates.gates.method import GateMethod, groups_of, highest


class L0Gates(GateMethod):
    """Hard Concrete gates under lambda L_C (Voita et al. 2019, eq. 6 to 8): `--l0-weight` chooses the sparsity."""

    name = "l0"

    def __init__(self, layers: Sequence[HeadGates], layer_types: Sequence[str], **settings: Any):
        super().__init__(layers, layer_types, **settings)
        self.distribution = layers[0].distribution

    def sample(self, log_alpha: Tensor, uniform: Tensor) -> Tensor:
        """Return Hard Concrete gates."""
        return self.distribution.sample(log_alpha, uniform)

    def evaluate(self, log_alpha: Tensor) -> Tensor:
        """Return the evaluation gates of the Hard Concrete distribution."""
        return self.distribution.evaluation_value(log_alpha)

    def open_probability(self, log_alpha: Tensor) -> Tensor:
        """Return P(g != 0) (Voita et al. 2019, eq. 6)."""
        return self.distribution.open_probability(log_alpha)

    def penalty(self, log_alpha: Tensor, weight: Tensor) -> Tensor:
        """Return the sum of lambda P(g != 0) over all gates."""
        return (weight * self.open_probability(log_alpha)).sum()


class TargetGates(GateMethod):
    """Base of the methods that keep a given number of heads.

    In evaluation the gates with the highest log_alpha are 1, as many as the target says, and all others are 0.

    Args:
        target: {attention types: number of heads to keep}, as `Target.counts` returns it
        warmup: number of updates in which `progress` rises from 0 to 1; what it changes depends on the method
    """

    def __init__(
        self,
        layers: Sequence[HeadGates],
        layer_types: Sequence[str],
        target: Mapping[tuple[str, ...], int],
        warmup: int = 0,
        **settings: Any,
    ):
        super().__init__(layers, layer_types, **settings)
        self.distribution = layers[0].distribution
        self.warmup = warmup
        self.keep(target)

    def keep(self, target: Mapping[tuple[str, ...], int]) -> None:
        """Set the number of heads to keep, of the same groups of attention types."""
        self.groups = groups_of(self.head_types, target)

    def evaluate(self, log_alpha: Tensor) -> Tensor:
        """Return 1 for the gates with the highest log_alpha, as many as the target keeps."""
        return highest(log_alpha, self.groups)

    def schedule_ends(self) -> dict[str, int]:
        """Return {option: the update at which its schedule ends}."""
        return {**super().schedule_ends(), "--sparsity-warmup-updates": self.warmup}

    def progress(self) -> float:
        """Return the part of the warm-up that is done, from 0 to 1."""
        return min(1.0, self.num_updates / self.warmup) if self.warmup else 1.0


class LagrangianGates(TargetGates):
    """Hard Concrete gates whose expected number meets the target by learned Lagrange multipliers.

    The penalty of a target is l1 d + l2 d^2, where d is the expected fraction of open heads minus the target fraction.
    The multipliers l1 and l2 are learned by gradient ascent (Wang et al. 2020; Xia et al. 2022, section 3.2). The
    target falls linearly in the warm-up.
    """

    name = "lagrangian"

    def __init__(self, layers: Sequence[HeadGates], layer_types: Sequence[str], *args: Any, **settings: Any):
        super().__init__(layers, layer_types, *args, **settings)
        self.lr_scale = layers[0].lr_scale
        self.multipliers = nn.Parameter(torch.zeros(len(self.groups), 2))

    def sample(self, log_alpha: Tensor, uniform: Tensor) -> Tensor:
        """Return Hard Concrete gates."""
        return self.distribution.sample(log_alpha, uniform)

    def open_probability(self, log_alpha: Tensor) -> Tensor:
        """Return P(g != 0) of the Hard Concrete distribution."""
        return self.distribution.open_probability(log_alpha)

    def penalty(self, log_alpha: Tensor, weight: Tensor) -> Tensor:
        """Return the sum of l1 d + l2 d^2 over the targets."""
        if self.fixed:
            return 0 * (log_alpha.sum() + self.multipliers.sum())
        open_probability = self.open_probability(log_alpha)
        distances = []
        for positions, count in self.groups:
            fraction = 1 - self.progress() * (1 - count / len(positions))
            distances.append(open_probability[positions.to(log_alpha.device)].mean() - fraction)
        d = torch.stack(distances)
        # The value is lr_scale times the parameter. The gradient is reversed: an optimiser that descends ascends here.
        theta = self.multipliers.float()
        multipliers = self.lr_scale * theta.detach() - (theta - theta.detach())
        return (multipliers[:, 0] * d + multipliers[:, 1] * d**2).sum()


class SubsetGates(TargetGates):
    """Differentiable subsets of exactly N heads (Li et al. 2021).

    Gates are sums of N softmax draws without replacement from Gumbel-perturbed scores; the temperature falls linearly
    from 1 to `low_temperature` in the warm-up.
    """

    name = "subset"
    has_penalty = False
    low_temperature = 0.1

    def sample(self, log_alpha: Tensor, uniform: Tensor) -> Tensor:
        """Return relaxed draws without replacement, with Gumbel noise."""
        return self._relaxed(log_alpha - torch.log(-torch.log(uniform)))

    def open_probability(self, log_alpha: Tensor) -> Tensor:
        """Return the relaxed gates without noise, an estimate of the probability that a head is drawn."""
        return self._relaxed(log_alpha).clamp(0, 1)

    def rounded(self, gates: Tensor) -> Tensor:
        """Return 1 for the highest gates, as many as the target keeps."""
        return highest(gates, self.groups)

    def penalty(self, log_alpha: Tensor, weight: Tensor) -> Tensor:
        """Return 0: the number of heads is exact."""
        return 0 * log_alpha.sum()

    def temperature(self) -> float:
        """Return the temperature at this update."""
        return 1 - self.progress() * (1 - self.low_temperature)

    def _relaxed(self, scores: Tensor) -> Tensor:
        gates = torch.zeros_like(scores)
        for positions, count in self.groups:
            positions = positions.to(scores.device)
            gates = gates.index_put((positions,), relaxed_subset(scores[positions], count, self.temperature()))
        return gates


def relaxed_subset(scores: Tensor, count: int, temperature: float) -> Tensor:
    """Return a relaxed choice of the `count` highest of N scores, the sum of as many softmaxes: [N].

    With Gumbel noise in `scores` [N], it relaxes draws without replacement (Li et al. 2021, eq. 5 to 7). It is computed
    in double precision, because each softmax multiplies rounding errors by up to 1 / temperature, and on the CPU,
    because a GPU needs longer for so many small operations.
    """
    left = scores.double().cpu()
    total = torch.zeros_like(left)
    for draw in range(count):
        logits = left / temperature
        probabilities = torch.softmax(logits, 0)
        total = total + probabilities
        if draw + 1 < count:
            left = left + _log_of_the_others(logits, probabilities)
    return total.to(scores)


def _log_of_the_others(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Return log(1 - p) for p = softmax(logits), [N] with N > 1, also where a probability rounds to 1."""
    largest = torch.zeros_like(logits, dtype=torch.bool).index_fill(0, logits.argmax(), True)
    of_largest = logits.masked_fill(largest, -torch.inf).logsumexp(0) - logits.logsumexp(0)
    return torch.where(largest, of_largest, torch.log1p(-probabilities.masked_fill(largest, 0)))


METHODS: dict[str, type[GateMethod]] = {method.name: method for method in (L0Gates, LagrangianGates, SubsetGates)}
