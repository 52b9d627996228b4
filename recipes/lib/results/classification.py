"""The table of classifiers, and the points of curves without further training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_headgates.data.results import Difference
from fairseq_headgates.drawing.panels import Panel
from fairseq_headgates.drawing.tables import rounded
from fairseq_headgates.files import read_text
from results import columns
from results.columns import COMPARED, LEVEL, Column, with_range
from results.plots import over_heads
from results.rows import REPEAT, Row
from runs import BASELINE, Model

PAPERS: dict[str, Column] = {}


def accuracy(row: Row) -> float:
    return row.evaluation.scores["accuracy"].score


def diff(row: Row) -> float:
    return accuracy(row) - row.control.scores["accuracy"].score


COMPARISON = {"control": lambda row: row.run.control, "diff": diff}
COLUMNS = [
    columns.total("heads", "kept"),
    columns.PARAMETERS,
    Column("accuracy", accuracy, with_range(".2f")),
    Column("diff", diff, with_range("+.2f", rounded), COMPARISON, COMPARED),
    Column("p", lambda row: row.p("accuracy"), columns.p_values, None, COMPARED, f"p<{LEVEL}"),
]


def legend(seeds: Sequence[Sequence[Row]], paper: str, bpe: int) -> str:
    controls, evaluation = dict.fromkeys(row.run.control for row in seeds[0]), seeds[0][0].evaluation
    return (
        f"diff, p: accuracy against the control ({', '.join(controls)}), McNemar's exact test\n"
        f"{evaluation.scores['accuracy'].signature} of {evaluation.subset}"
    )


def curve(place: Path, method: str, baseline: Row) -> list[Row]:
    """Return the points of a curve of the baseline, but for that of the whole model."""
    text = read_text(str(place / "curves" / f"{method}.json"), "the curve", REPEAT)
    return [_point(point, method, baseline) for point in json.loads(text)["points"] if point["removed"]]


def _point(point: dict[str, Any], method: str, baseline: Row) -> Row:
    """Return the row of a point: the baseline with other heads, size and accuracy."""
    score = replace(baseline.evaluation.scores["accuracy"], score=float(point["accuracy"]))
    evaluation = replace(
        baseline.evaluation,
        heads={"total": (int(point["heads"]), baseline.heads[1])},
        parameters=int(point["parameters"]),
        scores={"accuracy": score},
    )
    p = None if point["p_value"] is None else float(point["p_value"])
    difference = Difference(score.score - accuracy(baseline), p, score.signature)
    run = Model(f"{method}-{point['removed']:g}%", method, BASELINE)
    return replace(baseline, run=run, evaluation=evaluation, differences={"accuracy": difference})


def panels(seeds: Sequence[Sequence[Row]]) -> list[Panel]:
    return [over_heads("accuracy (test)", seeds, accuracy)]
