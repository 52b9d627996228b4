"""The loss of a model on a corpus, over the data of all workers."""

from __future__ import annotations

import math

import torch
from torch import nn

from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.workers import all_reduce
from fairseq_headgates.messages import Progress


@torch.no_grad()
def mean_loss(model: nn.Module, corpus: Corpus, progress: Progress = iter) -> float:
    """Return the loss of a corpus in bits per target token, or per sentence of a classifier."""
    sums = torch.zeros(2, dtype=torch.double)
    for sample in progress(corpus.batches):
        losses = corpus.losses(model, sample)
        sums += torch.stack([losses.double().sum(), corpus.counted(sample).sum().double()]).cpu()
    return finite(*all_reduce(sums).tolist())


@torch.no_grad()
def sentence_losses(model: nn.Module, corpus: Corpus, progress: Progress = iter) -> tuple[list[float], list[int]]:
    """Return the loss of each sentence or block of text, in bits, and how many targets count in it.

    Both are in the order of the corpus. Raise ValueError if the sum is not finite.
    """
    batches = progress(corpus.batches)
    losses = corpus.in_order(corpus.losses(model, sample).double().sum(-1).tolist() for sample in batches)
    counts = corpus.in_order(corpus.counted(sample).sum(-1).tolist() for sample in corpus.batches)
    finite(sum(losses), sum(counts))
    return losses, counts


def occurrences(corpus: Corpus, symbol: int) -> int:
    """Return how often a symbol is among the targets that count."""
    numbers = [(sample["target"].eq(symbol) & corpus.counted(sample)).sum().cpu() for sample in corpus.batches]
    return int(all_reduce(sum(numbers, torch.tensor(0))))


def finite(loss: float, tokens: float) -> float:
    """Return the mean of a loss. Raise ValueError if the sum is not finite."""
    if not math.isfinite(loss):
        raise ValueError(
            f"the loss is {loss}: it must be finite, check the weights for inf and NaN, or leave out --fp16"
        )
    if not tokens:
        raise ValueError("the data have nothing to predict: give more --sentences, or, with masked_lm, --mask-prob")
    return loss / tokens
