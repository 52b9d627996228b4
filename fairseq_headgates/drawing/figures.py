"""Figures of head tables and pruning curves; each function needs matplotlib (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from fairseq_headgates.drawing.panels import curve_panels, row_of
from fairseq_headgates.drawing.tables import short
from fairseq_headgates.heads import HeadTable

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
                mesh = _cells(axes, table.layers[attention_type], low, high)
                axes.set(title=attention_type, xlabel="head", ylabel="layer")
                axes.invert_yaxis()
            else:
                axes.set_axis_off()
        figure.colorbar(mesh, ax=list(line), label=table.name)
    return figure


def _cells(axes: Axes, rows: Sequence[Sequence[float]], low: float, high: float) -> Any:
    """Draw a rectangle for every number, with its value if there is room."""
    width = max(len(row) for row in rows)
    padded = [[*row, *[float("nan")] * (width - len(row))] for row in rows]
    mesh = axes.pcolormesh(padded, vmin=low, vmax=high, cmap="viridis", edgecolors="white", linewidth=0.5)
    axes.set_xticks([i + 0.5 for i in range(width)], map(str, range(width)))
    axes.set_yticks([i + 0.5 for i in range(len(rows))], map(str, range(len(rows))))
    axes.tick_params(length=0)
    if max(width, len(rows)) <= LARGEST_WITH_VALUES:
        for layer, row in enumerate(rows):
            for head, value in enumerate(row):
                if not isnan(value):
                    dark = (value - low) < 0.6 * (high - low)
                    style: dict[str, Any] = {"ha": "center", "va": "center", "color": "white" if dark else "black"}
                    axes.text(head + 0.5, layer + 0.5, short(value), fontsize=7, **style)
    return mesh
