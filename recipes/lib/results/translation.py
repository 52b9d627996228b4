"""The tables of translation models: all columns, the layout of Voita et al. 2019, and a sweep with its Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from fairseq_headgates.drawing.sweep import Panel, sweep_panels
from fairseq_headgates.drawing.tables import text_table
from fairseq_headgates.heads import TYPES
from results import columns
from results.columns import COMPARED, LEVEL, PUBLISHED, Column, Value, lines_of_tsv, speed, with_range
from results.papers import VOITA, VOITA_HEADS, Published
from results.rows import Row, by_model

DECIMALS = 6


def bleu(row: Row) -> float:
    return round(row.evaluation.scores["BLEU"].score, DECIMALS)


def chrf(row: Row) -> float:
    return round(row.evaluation.scores["chrF2"].score, DECIMALS)


def diff(row: Row) -> float:
    return bleu(row) - round(row.control.scores["BLEU"].score, DECIMALS)


def nll(row: Row) -> float:
    return row.evaluation.losses["valid"].mean


def of_type(attention_type: str) -> Column:
    """Return the column of the heads of an attention type."""
    heads = {attention_type: lambda row: sum(row.evaluation.layers[attention_type])}
    return Column(attention_type, lambda row: row.evaluation.heads[attention_type], columns.heads, heads)


def signature(name: str) -> Value:
    return lambda row: row.evaluation.scores[name].signature


def p(name: str) -> Value:
    return lambda row: row.p(name)


COMPARISON = {"control": lambda row: row.run.control, "diff": lambda row: round(diff(row), DECIMALS)}
TESTS = {"p BLEU": p("BLEU"), "p chrF2": p("chrF2")}
TESTS |= {"p signature": lambda row: row.differences["BLEU"].signature if row.differences else None}
CHRF = {"chrF2": chrf, "BLEU signature": signature("BLEU"), "chrF2 signature": signature("chrF2")}
COLUMNS = [
    *map(of_type, TYPES),
    columns.total("total", "total"),
    columns.PARAMETERS,
    Column("BLEU", bleu, with_range(".2f")),
    Column("diff", diff, with_range("+.2f"), COMPARISON, COMPARED),
    Column("p", p("BLEU"), columns.p_values, TESTS, COMPARED, f"p<{LEVEL}"),
    Column("chrF", chrf, lambda values: f"{mean(values):.2f}", CHRF),
    Column("nll", nll, with_range(".3f")),
]


def legend(seeds: Sequence[Sequence[Row]], paper: str, bpe: int) -> str:
    rows = [row for of_seed in seeds for row in of_seed]
    controls = ", ".join(dict.fromkeys(row.run.control for row in rows))
    lines = [
        f"diff, p: BLEU against the control ({controls}), paired bootstrap",
        "nll: bits per token on the validation set (lower is better)",
        *(f"{name}: {rows[-1].evaluation.scores[name].signature}" for name in ("BLEU", "chrF2")),
    ]
    for of_seed in seeds if paper else []:
        seed = f", seed {of_seed[0].seed}" if len(seeds) > 1 else ""
        lines += [f"\nBLEU as in table 2 of Voita et al. 2019 ({paper}{seed}):", as_published(of_seed, paper)]
    return "\n".join(lines)


# --- the paper --------------------------------------------------------------------------------------------------------


def published(paper: str) -> Column:
    """Return the columns of the TSV with the row of the paper."""

    def heads(row: Row) -> str | None:
        found = nearest(row, paper)
        return found and slashed(found.heads)

    def score(row: Row) -> str | None:
        found = nearest(row, paper)
        return found and (found.scratch if row.run.method == "scratch" else found.trained)

    return Column("", heads, tsv={"paper heads": heads, "paper BLEU": score}, order=PUBLISHED)


PAPERS = {paper: published(paper) for paper in VOITA}


def as_published(rows: Sequence[Row], paper: str) -> str:
    """Return the table with the layout of the paper: a run and the same heads trained from scratch in one line."""
    scratch = {row.run.value: f"{bleu(row):.2f}" for row in rows if row.run.method == "scratch"}
    lines = []
    for row in rows:
        if row.run.method != "scratch":
            found = nearest(row, paper)
            kept = slashed(row.evaluation.heads[attention_type][0] for attention_type in TYPES)
            line = [row.run.name, kept, f"{bleu(row):.2f}", scratch.get(row.run.name, "-")]
            lines.append([*line, *((slashed(found.heads), found.trained, found.scratch) if found else "---")])
    header = ["model", "heads e/d/d-e", "trained", "scratch", "| paper: heads", "trained", "scratch"]
    return text_table(header, lines)


def nearest(row: Row, paper: str) -> Published | None:
    """Return the row of the paper that keeps the most similar fraction of heads."""
    kept, heads = row.heads
    rows = VOITA[paper].get(row.run.types or row.run.name, [])
    return min(rows, key=lambda found: abs(sum(found.heads) / VOITA_HEADS - kept / heads), default=None)


def slashed(numbers: Iterable[int]) -> str:
    return "/".join(map(str, numbers))


# --- sweeps -----------------------------------------------------------------------------------------------------------

SWEEP_FORMAT = "headgates.sweep/1"
SWEEP_LEGEND = "*: on the Pareto front, no model has at most as many parameters and higher BLEU"
SWEPT: dict[str, Value] = {
    "BLEU": bleu,
    "diff": diff,
    "chrF2": chrf,
    "nll": nll,
    "parameters": lambda row: float(row.evaluation.parameters),
    "words_per_second": speed,
}
# Columns of the table: score, and format of its mean.
PRINTED = {
    "params": ("parameters", lambda value: f"{value / 1e6:.2f}M"),
    "BLEU": ("BLEU", "{:.2f}".format),
    "diff": ("diff", "{:+.2f}".format),
    "chrF": ("chrF2", "{:.2f}".format),
    "nll": ("nll", "{:.3f}".format),
    "words/s": ("words_per_second", "{:.0f}".format),
}
Model = Mapping[str, Any]


def models(seeds: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Return the models of a sweep file: mean heads, and the scores of every seed."""
    found = [_model(rows) for rows in by_model(seeds)]
    for model in found:
        model["front"] = not any(_dominates(other, model) for other in found)
    return found


def _model(rows: Sequence[Row]) -> dict[str, Any]:
    run, heads, layers = rows[0].run, [row.evaluation.heads for row in rows], [row.evaluation.layers for row in rows]
    return {
        "name": run.name,
        "types": run.types or None,
        "method": run.method or None,
        "front": False,
        "heads": {each: mean(kept[each][0] for kept in heads) for each in (*TYPES, "total")},
        "layers": {each: [*map(mean, zip(*(kept[each] for kept in layers), strict=True))] for each in TYPES},
        **{name: [value(row) for row in rows] for name, value in SWEPT.items()},
    }


def _dominates(other: Model, model: Model) -> bool:
    """Return whether another model has at most as many parameters and at least the BLEU, and not the same of both."""
    (size, score), (smaller, higher) = ((mean(each["parameters"]), mean(each["BLEU"])) for each in (model, other))
    return smaller <= size and higher >= score and (smaller, higher) != (size, score)


def sweep_table(found: Sequence[Model]) -> str:
    """Return the table: most heads first, a star for models on the front."""
    rows = [
        [
            model["name"] + " *" * model["front"],
            *(f"{kept:g}" for kept in model["heads"].values()),
            *(form(mean(_numbers(model[score]))) for score, form in PRINTED.values()),
        ]
        for model in sorted(found, key=lambda model: (-model["heads"]["total"], -mean(model["BLEU"])))
    ]
    return text_table(["model", *found[0]["heads"], *PRINTED], rows)


def sweep_tsv(found: Sequence[Model]) -> str:
    """Return a line for each model: means, lowest and highest values."""
    scores = [f"{score}{part}" for score in SWEPT for part in ("", " min", " max")]
    lines: list[list[Any]] = [["model", "method", *found[0]["heads"], "seeds", "front", *scores]]
    for model in found:
        values = [_numbers(model[score]) for score in SWEPT]
        cells = [round(number, 6) for each in values for number in (mean(each), min(each), max(each))]
        line = [model["name"], model["method"] or "-", *model["heads"].values(), len(model["BLEU"])]
        lines.append([*line, int(model["front"]), *cells])
    return lines_of_tsv(lines)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def panels(seeds: Sequence[Sequence[Row]]) -> list[Panel]:
    return sweep_panels(models(seeds))
