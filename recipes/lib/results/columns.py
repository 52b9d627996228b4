"""Columns of the tables: the value of a row, how one or several seeds are shown, and the names in the TSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from fairseq_headgates.report import results_table, rounded
from results.rows import Row

LEVEL = 0.05
Value = Callable[[Row], Any]
Form = Callable[[Sequence[Any]], str]
# Order of columns in the TSV.
COMPARED, METRIC, PUBLISHED = 1, 2, 3


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: the title in the table; "" for a column of the TSV alone
        value: the value of a row; None is shown as "-"
        form: format of the value of one seed, and of the values of several seeds
        tsv: names and values in the TSV; None for the title and the value
        order: columns with a higher one come later in the TSV
        title_of_several: the title in the table of several seeds, if it is another one
        optional: leave it out of the table if no row has a value
    """

    title: str
    value: Value
    form: Form = lambda values: str(values[0])
    tsv: Mapping[str, Value] | None = None
    order: int = 0
    title_of_several: str = ""
    optional: bool = False


def table(seeds: Sequence[Sequence[Row]], columns: Sequence[Column]) -> str:
    """Return the table with a line for each model; each seed has the same models."""
    models = list(zip(*seeds, strict=True))
    shown = [column for column in columns if column.title and not (column.optional and _is_empty(column, models))]
    if len(seeds) > 1:
        shown = [replace(column, title=column.title_of_several or column.title) for column in shown]
    return results_table({rows[0].run.name: {column.title: _cell(column, rows) for column in shown} for rows in models})


def _is_empty(column: Column, models: Sequence[Sequence[Row]]) -> bool:
    return all(column.value(row) is None for rows in models for row in rows)


def _cell(column: Column, rows: Sequence[Row]) -> str:
    values = [column.value(row) for row in rows]
    return "-" if None in values else column.form(values)


def tsv(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return a line for each model and seed, with all decimals."""
    values: dict[str, Value] = {"model": lambda row: row.run.name, "seed": lambda row: row.seed}
    for column in sorted(columns, key=lambda column: column.order):
        values |= {column.title: column.value} if column.tsv is None else column.tsv
    cells = [["-" if (found := value(row)) is None else str(found) for value in values.values()] for row in rows]
    return "".join("\t".join(line) + "\n" for line in [list(values), *cells])


# --- formats --------------------------------------------------------------------------------------------------------


def with_range(form: str) -> Form:
    """Return the format for a mean with the lowest and the highest value: 37.45 (37.20..37.70)."""

    def cell(values: Sequence[float]) -> str:
        middle, low, high = (rounded(value, form) for value in (mean(values), min(values), max(values)))
        return f"{middle} ({low}..{high})" if len(values) > 1 else middle

    return cell


def averaged(form: str) -> Form:
    """Return the format for a mean."""
    return lambda values: rounded(mean(values), form)


def millions(values: Sequence[int]) -> str:
    return f"{mean(values) / 1e6:.2f}M"


def heads(values: Sequence[tuple[int, int]]) -> str:
    """Format the mean number of heads kept of all heads, with a decimal where the seeds differ."""
    kept = [value[0] for value in values]
    return f"{mean(kept):.{int(len(set(kept)) > 1)}f}/{values[0][1]}"


def heads_with_range(values: Sequence[tuple[int, int]]) -> str:
    kept = [value[0] for value in values]
    return heads(values) + (f" ({min(kept)}..{max(kept)})" if len(set(kept)) > 1 else "")


def p_values(values: Sequence[float]) -> str:
    """Format a p-value; for several seeds, how many are significant."""
    return f"{sum(p < LEVEL for p in values)}/{len(values)}" if len(values) > 1 else f"{values[0]:.3f}"


# --- columns of several families --------------------------------------------------------------------------------------


def total(title: str, form: Form, tsv: str) -> Column:
    """Return the column of the heads of all types."""
    counts = {tsv: lambda row: row.kept, "of": lambda row: row.evaluation.heads["total"][1]}
    return Column(title, lambda row: row.evaluation.heads["total"], form, counts)


def parameters(row: Row) -> int:
    return row.evaluation.parameters


PARAMETERS = Column("params", parameters, millions, {"parameters": parameters})


def metric(name: str) -> Column:
    """Return the column of a metric of the user."""
    return Column(name, lambda row: row.metrics[name], with_range(".4g"), order=METRIC)
