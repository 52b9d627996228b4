"""Compress a model to a number of parameters or to a speed: choose, remove, repair, measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from fairseq_headgates.analysis.blocks import Block
from fairseq_headgates.analysis.options import UNITS, Progress
from fairseq_headgates.analysis.refit import refit_to
from fairseq_headgates.attention.cuts import kept_mask, prune
from fairseq_headgates.attention.modules import attention_modules, evaluating, number_of_parameters
from fairseq_headgates.attention.neurons import ffn_dims
from fairseq_headgates.evaluation.corpus import Corpus
from fairseq_headgates.evaluation.corpus_losses import mean_loss
from fairseq_headgates.evaluation.losses import Sample
from fairseq_headgates.evaluation.metrics import Metric
from fairseq_headgates.extensions.compress.plan import (
    Plan,
    Units,
    blocks_with_units,
    number_and_parameters,
    parameters_saved,
    plan_of,
    units_of,
)
from fairseq_headgates.extensions.compress.timing import Work

TOLERANCE = 0.03  # of the measured speed, relative; beyond it the plan is corrected once


class OutOfReach(ValueError):
    """The model cannot have this number of parameters, or this speed."""


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
        model: the compressed model
        plan: what is removed
        values: the parameters that the repair changed, by name
        results: what was removed and what it costs, as plain values; pairs are [before, after]
    """

    model: nn.Module
    plan: Plan
    values: Mapping[str, Tensor]
    results: dict[str, Any]


class Compressor:
    """Compresses one model to several sizes or speeds; the costs and the times of its units are computed once.

    Args:
        model: a fairseq model; it does not change
        fit: the data that units are chosen and layers repaired on
        measured: the data that loss and speed are measured on
        kinds: the units that may be removed: "heads", "neurons", or both
        progress: makes a function that wraps an iterable, e.g. a progress bar, from its title
        timed: whether the speed is measured, in the precision of inference of the model
        metric: a metric on `measured`; None for the loss alone
    """

    def __init__(
        self,
        model: nn.Module,
        fit: Corpus,
        measured: Corpus,
        kinds: Collection[str],
        progress: Callable[[str], Progress],
        timed: bool = False,
        metric: Metric | None = None,
    ):
        self.whole, self.fit, self.measured = prune(model), fit, measured
        self.kinds, self.progress, self.timed, self.metric = tuple(kinds), progress, timed, metric
        self.parameters = number_of_parameters(self.whole)

    @cached_property
    def units(self) -> list[Units]:
        """The units that can be removed, and what it costs."""
        return units_of(self.whole, self.fit, self.blocks(self.kinds), progress=self.progress("costs"))

    def blocks(self, kinds: Collection[str]) -> list[Block]:
        """Return the blocks whose units can be removed. Alignment heads and the others of their layer stay."""
        aligned = {module.name for module in attention_modules(self.whole) if module.attention.aligned}
        return [block for block in blocks_with_units(self.whole, kinds) if block.name not in aligned]

    @cached_property
    def measures(self) -> dict[str, float]:
        """The loss of the whole model in bits, and its score by the name of the metric."""
        return self._measures_of(self.whole)

    def _measures_of(self, model: nn.Module) -> dict[str, float]:
        with evaluating(model):
            measures = {"loss": mean_loss(model, self.measured)}
        if self.metric:
            measures[self.metric.name] = self.metric.main.value(self.metric.predict(self.metric.prepared(model)))
        return measures

    @cached_property
    def work(self) -> Work | None:
        """The work whose speed is measured."""
        return Work(self.whole, self.measured) if self.timed else None

    @cached_property
    def times(self) -> tuple[float, list[dict[int, float]]]:
        """The seconds of the whole model, and those that are saved without units of each block."""
        assert self.work
        return self.work.times(self.whole, self.units, self.progress("times"))

    def compress(
        self, params: float | None = None, speedup: float | None = None, kinds: Collection[str] = ()
    ) -> Compressed:
        """Compress to a number of parameters or to a speed.

        Args:
            params: parameters to keep, a share (float) or a number (int)
            speedup: how many times as fast the model must be
            kinds: the units that may be removed (default: those of the compressor)

        Raises:
            OutOfReach: if that is not possible
        """
        kinds = tuple(kinds) or self.kinds
        plan = self._plan_of_speed(speedup, kinds) if params is None else self._plan_of_size(params, kinds)
        small = prune(self.whole, plan.mask, plan.neurons)
        values = refit_to(self.whole, small, self.fit, self.progress("repair"), plan.neurons)
        models = (self.whole, small)
        measured = zip(self.measures.items(), self._measures_of(small).values(), strict=True)
        pairs = {name: [before, after] for (name, before), after in measured}
        results = {
            "format": "headgates.compressed/1",
            "units": list(kinds),
            "parameters": [*map(number_of_parameters, models)],
            "heads": [dict(kept_mask(model).values) for model in models],
            "ffn_dims": [*map(ffn_dims, models)],
            "loss": pairs.pop("loss"),
            "unit": self.fit.objective.unit,
            "estimate": plan.cost,
            "speedup": self.work.speedup(*models) if self.work else None,
            **pairs,
        }
        return Compressed(small, plan, values, results)

    def kept(self, params: float, kinds: Collection[str] = ()) -> int:
        """Return how many parameters a number or a share is. Raise OutOfReach if the model cannot have so few."""
        kinds = tuple(kinds) or self.kinds
        units = (number_and_parameters(self.whole, block) for block in self.blocks(kinds))
        smallest = self.parameters - sum(number * parameters for number, parameters in units)
        kept = math.floor(params * self.parameters) if isinstance(params, float) else params
        if not smallest <= kept <= self.parameters:
            raise OutOfReach(
                f"--params is {params}: it must be from {smallest:,} ({smallest / self.parameters:.1%}), without any "
                f"{' and '.join(kinds)}, to {self.parameters:,}"
            )
        return kept

    def _plan_of_size(self, params: float, kinds: tuple[str, ...]) -> Plan:
        least = self.parameters - self.kept(params, kinds)
        units = [each for each in self.units if each.kind in kinds]
        return plan_of(self.whole, units, parameters_saved(units), least)

    def _plan_of_speed(self, speedup: float | None, kinds: tuple[str, ...]) -> Plan:
        assert self.work and speedup
        total, of_blocks = self.times
        units = [each for each in self.units if each.kind in kinds]
        saved = [seconds for each, seconds in zip(self.units, of_blocks, strict=True) if each.kind in kinds]
        most = sum(max(seconds.values()) for seconds in saved)
        if not 1 <= speedup <= total / (total - most):
            raise OutOfReach(
                f"--speedup is {speedup:g}: it must be from 1 to {total / (total - most):.2f}, the estimate without "
                f"any {' and '.join(kinds)}"
            )
        seconds = total / speedup
        plan = plan_of(self.whole, units, saved, total - seconds)
        measured = self.work.speedup(self.whole, prune(self.whole, plan.mask, plan.neurons))
        if abs(measured / speedup - 1) <= TOLERANCE:
            return plan
        return plan_of(self.whole, units, saved, min(max(0.0, total - seconds * measured / speedup), most))
