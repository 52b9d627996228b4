"""Figures of head tables and pruning curves, and results that have such figures (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import inf, isnan
from typing import TYPE_CHECKING, Any

from fairseq_headgates.drawing.panels import curve_panels, row_of
from fairseq_headgates.drawing.result import Plot, Result, checkpoint_name, short_names
from fairseq_headgates.drawing.tables import (
    best_head_table,
    curve_tables,
    layer_tables,
    overlap_table,
    score_tables,
    short,
)
from fairseq_headgates.drawing.text import escaped
from fairseq_headgates.heads import HeadId, HeadTable, scores_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL = (0.42, 0.3)  # width and height of a cell in inches; its value fits into it
LARGEST_WITH_VALUES = 24  # heads or layers of a heat map whose cells show their values


def curve_plot(points: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot pruning curves: bits per token and other metrics over the percent of heads removed."""
    return row_of(curve_panels(points))


def heat_map(table: HeadTable) -> Figure:
    """Plot a heat map of numbers from 0 to 1 per attention type, layers (the first on top) by heads."""
    return heat_maps([table], (0.0, 1.0))


def heat_maps(tables: Sequence[HeadTable], limits: tuple[float, float] | None = None) -> Figure:
    """Plot heat maps of several tables below each other.

    Cells are rectangles, which are sharp at any size. They show their values, except in very large tables. The colours
    are from the lowest to the highest value of each table if there are no `limits`.
    """
    from matplotlib.figure import Figure

    types = list(dict.fromkeys(attention_type for table in tables for attention_type in table.types))
    heads = max(len(row) for table in tables for rows in table.layers.values() for row in rows)
    layers = max(len(rows) for table in tables for rows in table.layers.values())
    size = (1.5 + (0.8 + max(6, heads) * CELL[0]) * len(types), (0.9 + max(4, layers) * CELL[1]) * len(tables))
    figure = Figure(figsize=size, layout="constrained")
    for line, table in zip(figure.subplots(len(tables), len(types), squeeze=False), tables, strict=True):
        values = [value for each in table.types for value in table.heads(each) if not isnan(value)] or [0.0]
        low, high = limits or (min(values), max(values))
        for axes, attention_type in zip(line, types, strict=True):
            if attention_type in table.layers:
                rows = table.layers[attention_type]
                width = max(map(len, rows))
                below = inf if max(width, len(rows)) <= LARGEST_WITH_VALUES else -inf
                mesh = _cells(axes, rows, width, (low, high), "viridis", below)
                axes.set(title=attention_type, xlabel="head", ylabel="layer")
            else:
                axes.set_axis_off()
        figure.colorbar(mesh, ax=list(line), label=table.name)
    return figure


def kept_heads(gates: Mapping[str, HeadTable]) -> Figure:
    """Draw the gates of models by name below each other: blue cells are open heads, NaN is a removed head."""
    from matplotlib.figure import Figure

    types = list(dict.fromkeys(each for table in gates.values() for each in table.types))
    widest = {each: max(len(row) for g in gates.values() for row in g.layers.get(each, [[]])) for each in types}
    tallest = [max(map(len, table.layers.values())) for table in gates.values()]
    size = (
        1.2 + sum(0.7 + CELL[1] * width for width in widest.values()),
        0.2 + sum(0.75 + CELL[1] * rows for rows in tallest),
    )
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(
        len(gates),
        len(types),
        squeeze=False,
        width_ratios=[*widest.values()],
        height_ratios=[1 + rows for rows in tallest],
    )
    for (name, table), line in zip(gates.items(), grid, strict=True):
        line[0].set_title(escaped(name), loc="left", fontsize="medium", fontweight="bold")
        for axes, each in zip(line, types, strict=True):
            if rows := table.layers.get(each):
                _cells(axes, rows, widest[each], (0, 1.6), "Blues", 1)
                axes.set_aspect("equal", anchor="NW")
                axes.set(facecolor="gainsboro", xlabel=f"{each}, head", ylabel="layer")
                axes.tick_params(labelsize="x-small")
                axes.spines[:].set_visible(False)
            else:
                axes.set_axis_off()
    return figure


def _cells(
    axes: Axes,
    rows: Sequence[Sequence[float]],
    width: int,
    limits: tuple[float, float],
    colours: str,
    below: float,
) -> Any:
    """Draw a rectangle for every number, none for NaN, the first row on top. Numbers `below` this are written in it."""
    from numpy import array

    padded = [[*row, *[float("nan")] * (width - len(row))] for row in rows]
    mesh = axes.pcolormesh(padded, vmin=limits[0], vmax=limits[1], cmap=colours, edgecolors="white", linewidth=0.5)
    axes.set_xticks([i + 0.5 for i in range(width)], map(str, range(width)))
    axes.set_yticks([i + 0.5 for i in range(len(rows))], map(str, range(len(rows))))
    axes.tick_params(length=0)
    axes.invert_yaxis()
    rgba = mesh.to_rgba(array(padded))
    for layer, row in enumerate(rows):
        for head, value in enumerate(row):
            if value < below:
                red, green, blue, _ = rgba[layer, head]
                colour = "white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "black"
                axes.text(head + 0.5, layer + 0.5, short(value), fontsize=7, ha="center", va="center", color=colour)
    return mesh


def score_results(contents: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
    """Yield what files of `headgates score` say, by method."""
    for table in (table for each in contents for table in scores_of(each, "the scores")):
        yield Result(
            kind="Importance of heads",
            title=" of ".join(filter(None, [table.name, checkpoint_name(table.signature)])),
            signature=table.signature,
            note="A higher score means a more important head.",
            tables=score_tables(table),
            figures=[Plot("", partial(heat_maps, [table]))],
        )


def ablation_results(contents: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
    """Yield what files of `headgates ablate` say."""
    for each in contents:
        loss = HeadTable(each["nll_difference"]).map(
            lambda value: float("nan") if value is None else value, "increase of bits"
        )
        tables, single = score_tables(loss), each["mode"] == "single"
        masked = "masked" if single else "as the only one of its layer"
        for metric in (name for name in ("bleu", "accuracy") if name in each):
            change, p = (
                {HeadId.parse(head): value for head, value in each[key].items()}
                for key in (f"{metric}_difference", "p_value")
            )
            tables += layer_tables(change, p, metric) if single else [best_head_table(change, p)]
        yield Result(
            kind="Ablation",
            title=f"{checkpoint_name(each['signature'])}: each head {masked}",
            signature=each["signature"],
            note="Increase of the loss, and change of the metric: * p < 0.05, ** p < 0.01.",
            tables=tables,
            figures=[Plot("increase of the loss", partial(heat_maps, [loss]))],
        )


def curve_results(contents: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
    """Yield what files of `headgates curve` say; those of the same checkpoints and data are drawn together."""
    together: dict[tuple, list[Mapping[str, Any]]] = {}
    for each in contents:
        measured = dict.fromkeys((point["checkpoint"], point.get("measured")) for point in each["points"])
        together.setdefault(tuple(measured), []).extend(each["points"])
    for points in together.values():
        origins = dict.fromkeys(
            str(point[key]) for key in ("signature", "measured") for point in points if key in point
        )
        yield Result(
            kind="Fewer and fewer heads",
            title=", ".join(short_names(list(dict.fromkeys(point["checkpoint"] for point in points)))),
            signature="; ".join(origins),
            tables=curve_tables(points),
            figures=[Plot("", partial(curve_plot, points))],
        )


def overlap_results(contents: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
    """Yield what files of `headgates compare` say."""
    for each in contents:
        note = "By chance: random masks that keep as many heads. Jaccard: common heads among those that either keeps."
        yield Result(kind="Heads in common", note=note, tables=[overlap_table(each["pairs"])])
