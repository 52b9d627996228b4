"""The speed of a model at work on this machine, and the time of each of its blocks with every number of units.

The work is a sample of batches: translations, predictions of a classifier, or losses. All translations have the same
number of tokens, so that all models take the same number of steps.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from statistics import mean, median
from typing import Any

from torch import nn

from fairseq_headgates.attention.cuts import prune
from fairseq_headgates.compression.plan import Units, plan_without
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.metrics import Bleu, metric_of
from fairseq_headgates.data.speed import Rates, clock_of, run_once, speeds
from fairseq_headgates.inference.packed_linear import reduced_precision
from fairseq_headgates.messages import Progress

LEVELS = 16  # steps from all units of a block to none, all of them measured
PASSES = 3  # measurements of every step, in turns with the whole model
SECONDS = 0.5  # that the work takes at least; it is repeated if there are not enough batches
ROUNDS = 5  # of a comparison


class Work:
    """The work that is timed.

    Args:
        model: the whole model
        corpus: the data, of which batches of different lengths are taken
        progress: wraps the iterable of first measurements
    """

    def __init__(self, model: nn.Module, corpus: Corpus, progress: Progress = iter):
        self.device = next(model.parameters()).device
        self.clock = clock_of(self.device)
        self.repeats = 1
        corpus = _of_equal_length(corpus)
        self._take(model, corpus, 1)
        run = self.prepared(model)[1]
        seconds = min(self._seconds(run) for _ in progress(range(2)))
        number = max(1, math.ceil(SECONDS / max(seconds, 1e-9)))
        self._take(model, corpus, min(len(corpus.batches), number))
        self.repeats = math.ceil(number / len(self.corpus.batches))

    def _take(self, model: nn.Module, corpus: Corpus, number: int) -> None:
        """Take so many batches of a corpus, evenly."""
        batches = [corpus.batches[(2 * i + 1) * len(corpus.batches) // (2 * number)] for i in range(number)]
        self.corpus = replace(corpus, batches=batches)
        self.metric = metric_of(corpus.objective.metric(None), model, self.corpus)

    def prepared(self, model: Any) -> tuple[nn.Module, Callable[[], int]]:
        """Return a copy of a model, prepared for inference in its precision, and a function that does the work once."""
        ready: Any = self.metric.prepared(model) if self.metric else copy.deepcopy(model)
        if self.device.type == "cuda" and self.corpus.args.fp16:
            ready.half()
        if reduced_precision(model) and not isinstance(self.metric, Bleu):
            ready.make_generation_fast_()

        def run() -> int:
            for _ in range(self.repeats):
                run_once(ready, self.corpus, self.metric)
            return 1  # whatever the predictions are

        return ready, run

    def speedups(self, whole: nn.Module, *models: nn.Module, progress: Progress = iter) -> list[Rates]:
        """Return how many times as fast as `whole` models are, in rounds in which they take turns."""
        before, *after = speeds([self.prepared(each)[1] for each in (whole, *models)], self.device, ROUNDS, progress)
        return [rates.relative_to(before) for rates in after]

    def times(
        self, model: nn.Module, units: Sequence[Units], progress: Progress = iter
    ) -> tuple[float, list[dict[int, float]]]:
        """Measure the time of the blocks of a model with some of their units, in turns with those of the whole model.

        Blocks of the same kind and size are measured together: their mean counts.

        Args:
            model: the whole model
            units: the units of its blocks
            progress: wraps the iterable of measurements

        Returns:
            The spread of measurements of the same work (median), and for each block the share of the time of the whole
            model that is saved, by the number of removed units
        """
        spreads, found = list[float](), defaultdict[tuple, list[float]](list)
        whole, of_whole = self._observed(model, units)
        for level in progress(range(LEVELS)):
            plan = plan_without(model, units, [each.number - _kept(each, level) for each in units])
            smaller, of_smaller = self._observed(prune(model, plan.mask, plan.neurons), units)
            of_whole.clear()
            rates, others = speeds([whole, smaller], self.device, PASSES)
            spreads.append(others.relative_to(rates).spread)
            # The first round does not count, as in `speeds`.
            for kept, of_blocks in ((LEVELS, of_whole), (level, of_smaller)):
                for runs_per_second, seconds in zip(rates.rounds, of_blocks[1:], strict=True):
                    alike = defaultdict[tuple, list[float]](list)
                    for each in units:
                        alike[_key(each)].append(seconds[each.block.name] * runs_per_second)
                    for key, shares in alike.items():
                        found[key, kept].append(mean(shares))
        return median(spreads), [_saved(each, found) for each in units]

    def _observed(self, model: Any, units: Sequence[Units]) -> tuple[Callable[[], int], list[dict[str, float]]]:
        """Return the work of a model, and a list to which each run appends the seconds of the blocks."""
        ready, run = self.prepared(model)
        found = list[dict[str, float]]()

        def observed() -> int:
            with _timed(ready, units, self.clock) as seconds:
                done = run()
            found.append(seconds)
            return done

        return observed, found

    def _seconds(self, run: Callable[[], int]) -> float:
        begun = self.clock()
        run()
        return self.clock() - begun


def _of_equal_length(corpus: Corpus) -> Corpus:
    """Return a corpus whose translations all have the mean number of tokens of its targets."""
    if corpus.objective.metric(None) != "bleu":
        return corpus
    tokens = sum(int(sample["target"].ne(corpus.pad).sum()) for sample in corpus.batches)
    length = max(1, round(tokens / sum(len(sample["target"]) for sample in corpus.batches)) - 1)  # without </s>
    lengths = {"min_len": length, "max_len_a": 0.0, "max_len_b": length, "match_source_len": False}
    args = copy.copy(corpus.args)
    vars(args).update(lengths)
    return replace(corpus, args=args)


def _kept(units: Units, level: int) -> int:
    """Return how many units a block keeps at a level, from 0 to `LEVELS`."""
    number = units.number
    return number if level == LEVELS else number * level // (LEVELS * units.grain) * units.grain


def _key(units: Units) -> tuple:
    return units.kind, units.block.attention_type, units.number, units.parameters


def _saved(units: Units, shares: Mapping[tuple, Sequence[float]]) -> dict[int, float]:
    """Return the share of the time that is saved, by the number of units that are removed."""
    whole, found = median(shares[_key(units), LEVELS]), defaultdict[int, list[float]](list)
    for level in range(LEVELS + 1):
        found[units.number - _kept(units, level)] += shares[_key(units), level]
    return {removed: max(0.0, whole - median(of_levels)) for removed, of_levels in found.items()}


@contextmanager
def _timed(model: nn.Module, units: Sequence[Units], clock: Callable[[], float]) -> Iterator[dict[str, float]]:
    """Yield {name of a block: seconds}, to which every pass of the model adds."""
    seconds = {each.block.name: 0.0 for each in units}
    begun: dict[str, list[float]] = defaultdict(list)

    def begin(name: str, *_: Any) -> None:
        begun[name].append(clock())

    def end(name: str, *_: Any) -> None:
        start = begun[name].pop()
        if not begun[name]:  # not within another part of the block
            seconds[name] += clock() - start

    with ExitStack() as hooks:
        for block in (each.block for each in units):
            parts = [(block.name if block.is_attention else f"{block.layer}.fc1", block.name)]
            if block.attention_type == "dec-enc" and model.get_submodule(block.name).num_heads:
                parts += [(f"{block.name}.{each}",) * 2 for each in ("k_proj", "v_proj")]  # once in a search, before it
            for first, last in parts:
                before, after = partial(begin, block.name), partial(end, block.name)
                hooks.callback(model.get_submodule(first).register_forward_pre_hook(before).remove)
                hooks.callback(model.get_submodule(last).register_forward_hook(after).remove)
        yield seconds
