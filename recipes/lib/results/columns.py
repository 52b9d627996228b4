"""Columns of the tables: the value of a row, how one or several seeds are shown, and the names in the TSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from fairseq_headgates.drawing.tables import rounded, text_table
from fairseq_headgates.files import read_text
from results.rows import REPEAT, Row, by_model

LEVEL = 0.05
Value = Callable[[Row], Any]
Form = Callable[[Sequence[Any]], str]
COMPARED, METRIC, PUBLISHED = 1, 2, 3  # order in the TSV


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: the title in the table; "" for a column of the TSV alone
        value: the value of a row; None is shown as "-"
        form: format of the value of one seed, and of the values of several seeds
        tsv: names and values in the TSV; None for the title and the value
        order: columns with a higher one come later in the TSV
        of_seeds: the title in the table of several seeds, if it is another one
        optional: not in the table if no row has a value
    """

    title: str
    value: Value
    form: Form = lambda values: str(values[0])
    tsv: Mapping[str, Value] | None = None
    order: int = 0
    of_seeds: str = ""
    optional: bool = False

    @property
    def values(self) -> Mapping[str, Value]:
        """Names and values in the TSV."""
        return {self.title: self.value} if self.tsv is None else self.tsv


def table(seeds: Sequence[Sequence[Row]], columns: Sequence[Column]) -> str:
    """Return the table with a line for each model; each seed has the same models."""
    lines: dict[str, dict[str, str]] = {row.run.name: {} for row in seeds[0]}
    for column in columns:
        values = {rows[0].run.name: [column.value(row) for row in rows] for rows in by_model(seeds)}
        if column.title and not (column.optional and all(None in found for found in values.values())):
            title = column.of_seeds if column.of_seeds and len(seeds) > 1 else column.title
            for name, found in values.items():
                lines[name][title] = "-" if None in found else column.form(found)
    titles = next(iter(lines.values()))
    return text_table(["model", *titles], [[name, *cells.values()] for name, cells in lines.items()])


def tsv(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return a line for each model and seed, with all decimals."""
    values: dict[str, Value] = {"model": lambda row: row.run.name, "seed": lambda row: row.seed}
    for column in sorted(columns, key=lambda column: column.order):
        values |= column.values
    cells = [["-" if (found := value(row)) is None else str(found) for value in values.values()] for row in rows]
    return lines_of_tsv([list(values), *cells])


def lines_of_tsv(lines: Sequence[Sequence[Any]]) -> str:
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)


# --- formats ----------------------------------------------------------------------------------------------------------


def with_range(form: str, one: Callable[[float, str], str] = format) -> Form:
    """Return the format for a mean with the lowest and the highest value: 37.45 (37.20..37.70).

    Args:
        form: a format specification
        one: how a single value is formatted
    """

    def cell(values: Sequence[float]) -> str:
        middle, low, high = (rounded(value, form) for value in (mean(values), min(values), max(values)))
        return f"{middle} ({low}..{high})" if len(values) > 1 else one(values[0], form)

    return cell


def heads(values: Sequence[tuple[int, int]]) -> str:
    """Format the mean number of heads kept, of all heads, with a decimal where the seeds differ."""
    kept = [value[0] for value in values]
    return f"{mean(kept):.{int(len(set(kept)) > 1)}f}/{values[0][1]}"


def p_values(values: Sequence[float]) -> str:
    """Format a p-value; for several seeds, how many are significant."""
    return f"{sum(p < LEVEL for p in values)}/{len(values)}" if len(values) > 1 else f"{values[0]:.3f}"


# --- columns of several families --------------------------------------------------------------------------------------


def total(title: str, tsv: str, form: Form = heads) -> Column:
    """Return the column of the heads of all types."""
    return Column(title, lambda row: row.heads, form, {tsv: lambda row: row.heads[0], "of": lambda row: row.heads[1]})


def parameters(row: Row) -> int:
    return row.evaluation.parameters


PARAMETERS = Column("params", parameters, lambda values: f"{mean(values) / 1e6:.2f}M", {"parameters": parameters})


def speed(row: Row) -> float | None:
    return row.evaluation.speed.per_second if row.evaluation.speed else None


def metric(name: str) -> Column:
    """Return the column of a metric of the user, whose score is in metric.NAME.json."""

    def score(row: Row) -> float:
        text = read_text(str(row.folder / f"metric.{name}.json"), "the user's metric", REPEAT)
        return float(json.loads(text)["score"])

    return Column(name, score, with_range(".4g"), order=METRIC)
