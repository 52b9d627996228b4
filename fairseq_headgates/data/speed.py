"""The speed of predictions, and of losses where a task predicts nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import mean_loss
from fairseq_headgates.data.metrics import Metric
from fairseq_headgates.messages import Progress


def run_once(model: nn.Module, corpus: Corpus, metric: Metric | None) -> int:
    """Predict a corpus, or compute its loss. Return the number of words translated, sentences classified, or tokens."""
    if metric is None:
        mean_loss(model, corpus)
        return sum(sample["ntokens"] for sample in corpus.batches)
    found = metric.predict(model)
    return sum(len(text.split()) for text in found) if metric.name == "bleu" else len(found)


@dataclass(frozen=True)
class Rates:
    """How many units a system does per second in each round, or how many times as many as another system."""

    rounds: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """The rates in the slowest and in the fastest round."""
        return min(self.rounds), max(self.rounds)

    @property
    def spread(self) -> float:
        """How many times as fast the fastest round is as the slowest, without a fifth of the rounds at both ends."""
        outer = len(self.rounds) // 5
        inner = sorted(self.rounds)[outer : len(self.rounds) - outer]
        return inner[-1] / inner[0]

    def relative_to(self, other: Rates) -> Rates:
        """Return the rates divided by those of another system in the same rounds."""
        return Rates(tuple(mine / others for mine, others in zip(self.rounds, other.rounds, strict=True)))


def speeds(
    systems: Sequence[Callable[[], int]],
    device: torch.device,
    rounds: int,
    progress: Progress = iter,
) -> list[Rates]:
    """Measure how many units each system does per second; it returns their number.

    The systems take turns, so that other work on the machine concerns all of them. The first round, in which memory is
    allocated, does not count. On a CPU with one thread processor time is measured, which other work does not change.
    """
    clock = clock_of(device)
    found: list[list[float]] = [[] for _ in systems]
    for turn in progress(range(rounds + 1)):
        for number, system in enumerate(systems):
            begun = clock()
            units = system()
            seconds = clock() - begun
            if turn:
                found[number].append(units / max(seconds, 1e-9))
    return [Rates(tuple(rounds)) for rounds in found]


def clock_of(device: torch.device) -> Callable[[], float]:
    """Return a clock, in seconds: processor time on a CPU with one thread, else the time when the device is done."""
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return time.process_time
    if device.type != "cuda":
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock
