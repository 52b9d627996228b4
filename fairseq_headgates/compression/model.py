"""Compress a model to a number of parameters: choose, remove, repair, measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from fairseq_headgates.analysis.options import UNITS
from fairseq_headgates.compression.moments import Progress
from fairseq_headgates.compression.plan import Plan, Units, plan_of, units_of
from fairseq_headgates.compression.repair import refit_to
from fairseq_headgates.evaluation import Corpus, Sample, mean_loss
from fairseq_headgates.surgery import kept_mask, prune
from fairseq_headgates.surgery.neurons import ffn_dims


def compress(
    model: nn.Module,
    task: Any,
    batches: Sequence[Sample],
    params: float,
    units: Collection[str] = UNITS,
    progress: Progress = iter,
) -> nn.Module:
    """Return a copy of a model with fewer heads and feed-forward neurons, repaired by least squares.

    Nothing is trained. Use training data, not evaluation data.

    Args:
        model: a fairseq model; it does not change
        task: the fairseq task of the model
        batches: samples of the task, those of this worker if several share the data
        params: parameters to keep: a share (float) or a number (int)
        units: "heads", "neurons", or both
        progress: wraps lists of layers and batches, e.g. `tqdm`

    Raises:
        ValueError: if the model cannot be compressed so far, or there are too few tokens to fit
    """
    corpus = Corpus(task, batches)
    return Compressor(model, corpus, corpus, units, lambda _: progress).compress(params).model


@dataclass(frozen=True)
class Compressed:
    """A compressed model.

    Attributes:
        whole: the model before, without gates and closed heads
        model: the compressed model
        plan: what is removed
        values: the parameters that the repair changed, by name
        losses: loss before and after, in bits
        unit: what the loss is a mean over
        units: what could be removed: "heads", "neurons", or both
    """

    whole: nn.Module
    model: nn.Module
    plan: Plan
    values: Mapping[str, Tensor]
    losses: tuple[float, float]
    unit: str
    units: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what was removed and what it costs, as plain values; pairs are [before, after]."""
        models = (self.whole, self.model)
        return {
            "format": "headgates.compressed/1",
            "units": list(self.units),
            "parameters": [sum(p.numel() for p in model.parameters()) for model in models],
            "heads": [dict(kept_mask(model).values) for model in models],
            "ffn_dims": [ffn_dims(model) for model in models],
            "loss": list(self.losses),
            "unit": self.unit,
            "estimate": self.plan.cost,
        }


class Compressor:
    """Compresses one model to several sizes; the costs of its units are computed once.

    Args:
        model: a fairseq model; it does not change
        fit: the data that units are chosen and layers repaired on
        measured: the data that the loss is measured on
        kinds: the units that may be removed: "heads", "neurons", or both
        progress: makes a function that wraps an iterable, e.g. a progress bar, from its title
    """

    def __init__(
        self,
        model: nn.Module,
        fit: Corpus,
        measured: Corpus,
        kinds: Collection[str],
        progress: Callable[[str], Progress],
    ):
        self.whole, self.fit, self.measured = prune(model), fit, measured
        self.kinds, self.progress = tuple(kinds), progress
        self.parameters = sum(parameter.numel() for parameter in self.whole.parameters())

    @cached_property
    def units(self) -> list[Units]:
        """The units that can be removed, and what it costs."""
        return units_of(self.whole, self.fit, self.kinds, progress=self.progress("costs"))

    @cached_property
    def loss(self) -> float:
        """The loss of the whole model."""
        return mean_loss(self.whole, self.measured)

    def smallest(self, kinds: Collection[str]) -> int:
        """Return the number of parameters without any of these units."""
        return self.parameters - sum(u.parameters * len(u.curve.order) for u in self.units if u.kind in kinds)

    def can(self, params: float, kinds: Collection[str]) -> bool:
        """Return whether a budget is in reach; see `compress`."""
        return self.smallest(kinds) <= self._number(params) <= self.parameters

    def _number(self, params: float) -> int:
        return math.floor(params * self.parameters) if isinstance(params, float) else params

    def compress(self, params: float, kinds: Collection[str] = ()) -> Compressed:
        """Compress to a share (float) or a number (int) of all parameters.

        Args:
            params: parameters to keep
            kinds: the units that may be removed (default: those of the compressor)

        Raises:
            ValueError: if this number is out of reach
        """
        kinds = tuple(kinds) or self.kinds
        if not self.can(params, kinds):
            smallest = self.smallest(kinds)
            raise ValueError(
                f"--params is {params}: it must be from {smallest:,} ({smallest / self.parameters:.1%}), without any "
                f"{' and '.join(kinds)}, to {self.parameters:,}"
            )
        plan = plan_of(
            self.whole, [each for each in self.units if each.kind in kinds], self.parameters - self._number(params)
        )
        small = prune(self.whole, plan.mask, plan.neurons)
        values = refit_to(self.whole, small, self.fit, self.progress("repair"), plan.neurons)
        losses = self.loss, mean_loss(small, self.measured)
        return Compressed(self.whole, small, plan, values, losses, self.fit.objective.unit, kinds)
