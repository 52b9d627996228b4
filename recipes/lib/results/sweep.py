"""The models of a sweep over all seeds: BLEU over the number of heads, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from fairseq_headgates.heads import TYPES
from fairseq_headgates.report import text_table
from results.columns import Value
from results.rows import Row
from results.translation import bleu, chrf, diff, nll

FORMAT = "headgates.sweep/1"
LEGEND = "*: on the Pareto front, no model has at most as many heads and higher BLEU"
SCORES: dict[str, Value] = {
    "BLEU": bleu,
    "diff": diff,
    "chrF2": chrf,
    "nll": nll,
    "parameters": lambda row: float(row.evaluation.parameters),
    "words_per_second": Row.speed,
}
# Columns of the table: score, divisor and format.
PRINTED = {
    "params": ("parameters", 1e6, "{:.2f}M"),
    "BLEU": ("BLEU", 1, "{:.2f}"),
    "diff": ("diff", 1, "{:+.2f}"),
    "chrF": ("chrF2", 1, "{:.2f}"),
    "nll": ("nll", 1, "{:.3f}"),
    "words/s": ("words_per_second", 1, "{:.0f}"),
}
Model = Mapping[str, Any]


def models(seeds: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Return the models of a sweep file: mean heads, and the scores of every seed."""
    found = [_model(rows) for rows in zip(*seeds, strict=True)]
    for model in found:
        model["front"] = not any(_dominates(other, model) for other in found)
    return found


def _model(rows: Sequence[Row]) -> dict[str, Any]:
    run, evaluations = rows[0].run, [row.evaluation for row in rows]
    kinds = [kind for kind in TYPES if kind in evaluations[0].heads]
    return {
        "name": run.name,
        "types": run.types or None,
        "method": run.method or None,
        "front": False,
        "heads": {kind: mean(each.heads[kind][0] for each in evaluations) for kind in (*kinds, "total")},
        "layers": {
            kind: [mean(layer) for layer in zip(*(each.layers[kind] for each in evaluations), strict=True)]
            for kind in kinds
        },
        **{name: [value(row) for row in rows] for name, value in SCORES.items()},
    }


def _dominates(other: Model, model: Model) -> bool:
    """Return whether another model has at most as many heads and at least the BLEU, and not the same of both."""
    (heads, bleu), (others, higher) = ((each["heads"]["total"], mean(each["BLEU"])) for each in (model, other))
    return others <= heads and higher >= bleu and (others, higher) != (heads, bleu)


def table(found: Sequence[Model]) -> str:
    """Return the table: most heads first, a star for models on the front."""
    rows = [
        [
            model["name"] + (" *" if model["front"] else ""),
            *(f"{kept:g}" for kept in model["heads"].values()),
            *(form.format(_mean(model[score]) / divisor) for score, divisor, form in PRINTED.values()),
        ]
        for model in sorted(found, key=lambda model: (-model["heads"]["total"], -mean(model["BLEU"])))
    ]
    return text_table(["model", *found[0]["heads"], *PRINTED], rows)


def tsv(found: Sequence[Model]) -> str:
    """Return a line for each model: means, lowest and highest values."""
    header = ["model", "method", *found[0]["heads"], "seeds", "front"]
    lines = [[*header, *(f"{score}{part}" for score in SCORES for part in ("", " min", " max"))]]
    for model in found:
        cells = [model["name"], model["method"] or "-", *model["heads"].values()]
        cells += [len(model["BLEU"]), int(model["front"])]
        for score in SCORES:
            values = _numbers(model[score])
            cells += [round(value, 6) for value in (mean(values), min(values), max(values))]
        lines.append(list(map(str, cells)))
    return "".join("\t".join(line) + "\n" for line in lines)


def _mean(values: Sequence[float | None]) -> float:
    return mean(_numbers(values))


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
