"""Explanations of predictions as figures (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fairseq_headgates.drawing.result import Plot, Result, checkpoint_name
from fairseq_headgates.extensions.explain.drawing import FORMAT, explanation_figure
from fairseq_headgates.heads import Contributions

FIELDS = ("positions", "predicted", "source", "prefix", "contributions", "instead_of")


def results(contents: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
    """Yield the contributions in files of `headgates explain`."""
    for each in contents:
        found = {
            number: Contributions(*(sentence.get(name) for name in FIELDS))
            for number, sentence in zip(each["lines"], each["sentences"], strict=True)
        }
        for sentence in found.values():
            if {*map(len, sentence.shares)} != {len(sentence.tokens)} or len(sentence.shares) != len(
                sentence.predicted
            ):
                raise ValueError("no row of contributions for each prediction, with one for each token")
        yield Result(
            kind="Explanations",
            title=checkpoint_name(each["signature"]),
            signature=each["signature"],
            note="Rows are predictions, columns the tokens that contribute to them. The source share is the sum of the "
            "absolute contributions of the source tokens.",
            figures=[Plot(f"sentence {n}", partial(explanation_figure, {n: found[n]})) for n in found],
        )


RESULTS = {FORMAT: results}
