"""Compress a model to a number of parameters or to a speed: choose, remove, repair, measure."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import Block, blocks_of
from fairseq_headgates.attention.cuts import kept_mask, prune
from fairseq_headgates.attention.modules import evaluating, number_of_parameters, refuse_shared
from fairseq_headgates.attention.neurons import ffn_dims
from fairseq_headgates.compression.plan import (
    Plan,
    Units,
    kind_of,
    number_and_parameters,
    parameters_saved,
    plan_of,
    plan_without,
    plan_without_blocks,
    removable,
    units_of,
)
from fairseq_headgates.compression.refit import refit_to
from fairseq_headgates.compression.timing import Work
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import mean_loss
from fairseq_headgates.data.metrics import Metric
from fairseq_headgates.data.speed import Rates
from fairseq_headgates.data.statistics import perplexity
from fairseq_headgates.drawing.tables import with_interval
from fairseq_headgates.messages import Progress

logger = logging.getLogger(__name__)

HELD_OUT = 0.1  # of the sentences, to measure what a repaired model costs
UNEXPECTED = 10  # times the estimate: the loss on these sentences contradicts it
NOTICEABLE = 0.01  # bits; smaller increases never do
MORE = (1.1, 4 / 3)  # times as many parameters are removed by plans that are then compared
TOLERANCE = 0.03  # of the measured speed, relative; beyond it the plan is corrected
CORRECTIONS = 3  # of a plan, at most
STEP = 1.5  # by which a correction changes the time to be saved, at most


class OutOfReach(ValueError):
    """The model cannot have this number of parameters, or this speed."""


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
        fit: the data that units are chosen and layers repaired on, but for `HELD_OUT` of them, which choose the plan
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
        self.whole, self.measured = prune(model), measured
        self.fit, self.held_out = fit.held_out(HELD_OUT)
        self.kinds, self.progress, self.timed, self.metric = tuple(kinds), progress, timed, metric
        self.parameters = number_of_parameters(self.whole)
        refuse_shared(self.whole, [block.linear for block in blocks_of(self.whole)])
        self.fastest: dict[tuple[str, ...], Rates] = {}  # the speed without any units of some kinds

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks whose units can be removed."""
        return removable(self.whole, self.kinds)

    @cached_property
    def units(self) -> list[Units]:
        """The units of these blocks, and what it costs to remove them."""
        return units_of(self.whole, self.fit, self.kinds, progress=self.progress("costs"))

    @cached_property
    def measures(self) -> dict[str, float]:
        """The loss of the whole model in bits, and its score by the name of the metric."""
        return self._measures_of(self.whole)

    def _measures_of(self, model: nn.Module) -> dict[str, float]:
        with evaluating(model):
            measures = {"loss": mean_loss(model, self.measured, self.progress("loss"))}
        if self.measured.objective.metric(None) == "ppl":  # a language model, which has no other score
            measures["ppl"] = perplexity(measures["loss"])
        if self.metric:
            found = self.metric.predict(self.metric.prepared(model), self.progress(self.metric.name))
            measures[self.metric.name] = self.metric.main.value(found)
        return measures

    @cached_property
    def work(self) -> Work | None:
        """The work whose speed is measured."""
        return Work(self.whole, self.measured, self.progress("work")) if self.timed else None

    @cached_property
    def times(self) -> tuple[float, list[dict[int, float]]]:
        """The spread of measurements of the same work, and the shares of the time that are saved; see `Work.times`."""
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
        plans = [self._plan_of_speed(speedup, kinds)] if params is None else self._plans_of_size(params, kinds)
        plan, small, values = self._best(plans)
        models = (self.whole, small)
        measured = zip(self.measures.items(), self._measures_of(small).values(), strict=True)
        pairs = {name: [before, after] for (name, before), after in measured}
        speed = self.work.speedups(*models, progress=self.progress("speed"))[0] if self.work else None
        results = {
            "format": "headgates.compressed/1",
            "units": list(kinds),
            "parameters": [*map(number_of_parameters, models)],
            "heads": [dict(kept_mask(model).layers) for model in models],
            "ffn_dims": [*map(ffn_dims, models)],
            "loss": pairs.pop("loss"),
            "unit": self.fit.objective.unit,
            "estimate": plan.cost,
            "speedup": median(speed.rounds) if speed else None,
            "speedup_interval": list(speed.interval) if speed else None,
            **pairs,
        }
        return Compressed(small, plan, values, results)

    def kept(self, params: float, kinds: Collection[str] = ()) -> int:
        """Return how many parameters a number or a share is. Raise OutOfReach if the model cannot have so few."""
        kinds = tuple(kinds) or self.kinds
        blocks = [block for block in self.blocks if kind_of(block) in kinds]
        units = (number_and_parameters(self.whole, block) for block in blocks)
        smallest = self.parameters - sum(number * parameters for number, parameters in units)
        kept = math.floor(params * self.parameters) if isinstance(params, float) else params
        if not smallest <= kept <= self.parameters:
            raise OutOfReach(
                f"--params is {params}: it must be from {smallest:,} ({smallest / self.parameters:.1%}), without any "
                f"{' and '.join(kinds)}, to {self.parameters:,}"
            )
        return kept

    def _plans_of_size(self, params: float, kinds: tuple[str, ...]) -> Iterator[Plan]:
        """Yield the cheapest plan by the estimate, one that removes no block whole, and plans that remove more."""
        least = self.parameters - self.kept(params, kinds)
        units = [each for each in self.units if each.kind in kinds]
        saved = parameters_saved(units)
        yield plan_of(self.whole, units, saved, least)
        some_left = [
            {number: amount for number, amount in of_block.items() if number < each.number}
            for each, of_block in zip(units, saved, strict=True)
        ]
        for savings, amount in ((some_left, least), *((saved, math.ceil(more * least)) for more in MORE)):
            if amount <= sum(max(of_block.values()) for of_block in savings):
                yield plan_of(self.whole, units, savings, amount)

    def _best(self, plans: Iterable[Plan]) -> tuple[Plan, nn.Module, Mapping[str, Tensor]]:
        """Repair the first plan and, as long as the loss contradicts the estimate, the others; return the best of them.

        The estimate, of second order, is far too low where the model is sure of its predictions: gradients vanish.
        """
        best, increase, expected, tried = None, math.inf, False, list[Plan]()
        for plan in plans:
            if plan in tried:
                continue
            tried.append(plan)
            small = prune(self.whole, plan.mask, plan.neurons)
            values = refit_to(self.whole, small, self.fit, self.progress("repair"), plan.neurons)
            found = self._held_out_loss(small) - self.held_out_loss
            if found < increase or best is None:
                best, increase = (plan, small, values), found
                expected = increase <= max(UNEXPECTED * plan.cost, NOTICEABLE)
            if expected:
                break
        assert best
        if not expected:
            logger.warning(
                f"the loss rises by {increase:.3f} bits on held-out sentences, {best[0].cost:.3g} were estimated: "
                "remove less, or train the result"
            )
        return best

    @cached_property
    def held_out_loss(self) -> float:
        """The loss of the whole model on the sentences that are held out."""
        return self._held_out_loss(self.whole)

    def _held_out_loss(self, model: nn.Module) -> float:
        with evaluating(model):
            return mean_loss(model, self.held_out, self.progress("held-out loss"))

    def _plan_of_speed(self, speedup: float | None, kinds: tuple[str, ...]) -> Plan:
        assert self.work and speedup
        if speedup == 1:
            return plan_without(self.whole, (), ())
        reachable = self._reachable(speedup, kinds)  # before the costs of units, which take longer
        units = [each for each in self.units if each.kind in kinds]
        spread, of_blocks = self.times
        _check_agreement(spread, speedup)
        saved = [shares for each, shares in zip(self.units, of_blocks, strict=True) if each.kind in kinds]
        most, saving = sum(max(shares.values()) for shares in saved), 1 - 1 / speedup
        least = most * saving / (1 - 1 / reachable)  # time is saved outside of the blocks, too
        plan = plan_of(self.whole, units, saved, least)
        (rates,) = self._speedups(plan)
        for _ in range(CORRECTIONS):
            if _distance(rates, speedup) <= TOLERANCE:
                break
            factor = saving / max(1 - 1 / median(rates.rounds), saving / STEP)
            corrected = min(least * max(factor, 1 / STEP), most)
            other = plan_of(self.whole, units, saved, corrected)
            if other == plan:
                break
            # Both are measured, because the first measurement may be wrong, not the plan.
            both = zip((plan, other), (least, corrected), self._speedups(plan, other), strict=True)
            plan, least, rates = min(both, key=lambda each: _distance(each[-1], speedup))
        return plan

    def _reachable(self, speedup: float, kinds: tuple[str, ...]) -> float:
        """Return the speed without any units of some kinds. Raise OutOfReach if it is lower than `speedup`."""
        if kinds not in self.fastest:
            blocks = [block for block in self.blocks if kind_of(block) in kinds]
            self.fastest[kinds] = self._speedups(plan_without_blocks(self.whole, blocks))[0]
        fastest = self.fastest[kinds]
        _check_agreement(fastest.spread, speedup)
        if speedup > (reachable := median(fastest.rounds)):
            raise OutOfReach(
                f"--speedup is {speedup:g}: at most {with_interval(reachable, fastest.interval, '.2f')}, the speed "
                f"without any {' and '.join(kinds)}: embeddings, search and what else is left take this time"
            )
        return reachable

    def _speedups(self, *plans: Plan) -> list[Rates]:
        assert self.work
        models = [prune(self.whole, plan.mask, plan.neurons) for plan in plans]
        return self.work.speedups(self.whole, *models, progress=self.progress("speed"))


def _distance(rates: Rates, speedup: float) -> float:
    return abs(median(rates.rounds) / speedup - 1)


def _check_agreement(spread: float, speedup: float) -> None:
    """Raise ValueError if measurements of the same work differ by more than the speed that is asked for."""
    if spread > speedup:
        raise ValueError(
            f"timings vary by {spread - 1:.0%}, --speedup is {speedup:g}: the machine is busy, repeat the command when "
            "it is idle, or pass --params"
        )
