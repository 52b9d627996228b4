"""The speed of predictions, and of losses where a task predicts nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from fairseq_headgates.evaluation.corpus import Corpus
from fairseq_headgates.evaluation.corpus_losses import mean_loss
from fairseq_headgates.evaluation.metrics import Metric


def run_once(model: nn.Module, corpus: Corpus, metric: Metric | None) -> int:
    """Predict a corpus, or compute its loss. Return the number of words translated, sentences classified, or tokens."""
    if metric is None:
        mean_loss(model, corpus)
        return sum(sample["ntokens"] for sample in corpus.batches)
    found = metric.predict(model)
    return sum(len(text.split()) for text in found) if metric.name == "bleu" else len(found)


def speeds(systems: Sequence[Callable[[], int]], device: torch.device, rounds: int) -> list[float]:
    """Measure how many units each system does per second, in its fastest round.

    The systems take turns, so that other work on the machine concerns all of them. The first round, in which memory is
    allocated, does not count. On a CPU with one thread processor time is measured, which other work does not change.

    Args:
        systems: do their work, and return the number of units
        device: the device of their models
        rounds: number of rounds that count
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    fastest = [0.0] * len(systems)
    for turn in range(rounds + 1):
        for number, system in enumerate(systems):
            begun = _now(clock, device)
            units = system()
            seconds = _now(clock, device) - begun
            if turn:
                fastest[number] = max(fastest[number], units / max(seconds, 1e-9))
    return fastest


def _now(clock: Callable[[], float], device: torch.device) -> float:
    """Return the time when all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()
