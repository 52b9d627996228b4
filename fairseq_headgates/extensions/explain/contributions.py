"""Contributions of tokens to the predictions of single sentences, with the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import stacks_of
from fairseq_headgates.data.losses import Sample
from fairseq_headgates.data.objectives import objective_of
from fairseq_headgates.data.sentences import symbols_of
from fairseq_headgates.heads import Contributions
from fairseq_headgates.messages import quoted
from fairseq_headgates.scores.relevance.explaining import explain


def contributions(
    model: nn.Module,
    task: Any,
    sample: Sample,
    method: str,
    positions: Sequence[int] = (),
    instead_of: str | None = None,
) -> Contributions:
    """Return how much each token contributes to the predictions for a sample of one sentence without padding.

    Predictions are the target tokens of the sample; for a language model of a text without a target the next token at
    every position, and after the last one the token with the highest logit; for a classifier the class with the highest
    logit.

    Args:
        model: the model
        task: the fairseq task
        sample: the sentence
        method: see `relevance.explain`
        positions: numbers from 1 of the predictions to explain, by default all
        instead_of: explain them in comparison with this token, or class

    Raises:
        ValueError: for positions that do not exist, or a token that is unknown or itself predicted
    """
    objective = objective_of(task)
    objective.check_relevance()
    predicted = _targets(model, sample)
    names = _Names(task, classes=predicted is None)
    number = 1 if predicted is None else predicted.size(1)
    for position in positions:
        if not 1 <= position <= number:
            raise ValueError(f"--positions has {position}: the sentence has the predictions 1 to {number}")
    tokens = sample["net_input"]["src_tokens"]
    other = None if instead_of is None else tokens.new_full((1, number), names.index(instead_of))
    rows = [position - 1 for position in dict.fromkeys(positions)] or list(range(number))
    relevance = explain(model, sample["net_input"], method, predicted, other, objective.classification_head, rows)
    for row in rows if other is not None else ():
        if relevance.predicted[0, row] == other[0, row]:  # type: ignore[index]
            raise ValueError(
                f"prediction {row + 1} is {quoted(instead_of)} itself: choose other predictions with --positions, or "
                "another token"
            )
    shares = relevance.contributions()[0]
    sides = symbols_of(sample, task)
    source, prefix = (sides.get(attention_type, ([], []))[1] for attention_type in ("enc-self", "dec-self"))
    predictions = [names.name(each) for each in relevance.predicted[0, rows].tolist()]
    return Contributions([row + 1 for row in rows], predictions, source, prefix, shares[rows].tolist(), instead_of)


def _targets(model: Any, sample: Sample) -> Tensor | None:
    """Return the tokens to explain, [1, T], None for a class."""
    stacks = stacks_of(model)
    if "decoder" not in stacks:
        return None
    if len(stacks) == 2:
        return sample["target"]
    tokens = sample["net_input"]["src_tokens"]
    if sample.get("target") is not None:
        return sample["target"]
    with torch.no_grad():
        following = model(**sample["net_input"])[0][:, -1:].argmax(-1)
    return torch.cat([tokens[:, 1:], following], 1)


class _Names:
    """Names of what is predicted: tokens of the target dictionary, or labels of classes."""

    def __init__(self, task: Any, classes: bool):
        self.dictionary = task.label_dictionary if classes else task.target_dictionary
        self.first = self.dictionary.nspecial if classes else 0

    def name(self, number: int) -> str:
        return self.dictionary[number + self.first]

    def index(self, name: str) -> int:
        symbols = self.dictionary.symbols[self.first :]  # as they are shown
        if name not in symbols:
            what = "a label" if self.first else "in the target dictionary"
            raise ValueError(f"--instead-of {quoted(name)} is not {what}: give one as it is spelled in the dictionary")
        return symbols.index(name)
