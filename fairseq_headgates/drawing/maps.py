"""Heat maps of tokens by tokens, and the templates of web pages (no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_headgates.drawing.tables import rounded
from fairseq_headgates.drawing.text import columns, escaped, visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOKEN, CHARACTER = 0.22, 0.065  # inches for a token, and for one of its characters
LEAST = (9, 2)  # columns and rows of the smallest map, which leave room for the title and labels
LARGEST = 250_000  # cells of a picture or page


class Heat(NamedTuple):
    """A map to draw.

    Attributes:
        title: title of the map
        labels: what rows and columns are
        rows: tokens of the rows
        columns: tokens of the columns
        values: numbers that choose the colour of a cell, [rows][columns]; NaN for none
        texts: texts of the cells
        colours: name of the colour map
        range: values with the first and the last colour
        parts: names of parts of the columns, with their first column and the one after their last
    """

    title: str
    labels: tuple[str, str]
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    texts: Sequence[Sequence[str]]
    colours: str
    range: tuple[float, float]
    parts: Sequence[tuple[str, int, int]] = ()


def heat_figure(rows: Sequence[Sequence[Heat]]) -> Figure:
    """Draw maps in rows, with cells of one size."""
    from matplotlib.figure import Figure

    side_by_side = max(len(row) for row in rows)
    every = [heat for row in rows for heat in row]
    width = max(LEAST[0], *(len(heat.columns) for heat in every))
    heights = [max(LEAST[1], *(len(heat.rows) for heat in row), 0) for row in rows]
    inches = [
        TOKEN * height + max(1.0, _longest(heat.columns for heat in row)) + (0.6 if row[0].parts else 0.4)
        for row, height in zip(rows, heights, strict=True)
    ]
    size = (side_by_side * (TOKEN * width + max(1.0, 0.2 + _longest(heat.rows for heat in every))), sum(inches))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(rows), side_by_side, squeeze=False, height_ratios=inches)
    for row, line, height in zip(rows, grid, heights, strict=True):
        for i, axes in enumerate(line):
            if i < len(row):
                _draw(axes, row[i])
                axes.set(xlim=(0, width), ylim=(height, 0))
            else:
                axes.set_axis_off()
    return figure


def _draw(axes: Axes, heat: Heat) -> None:
    from numpy import array, ndenumerate

    axes.set_title(heat.title, fontsize=8, loc="left")
    if not heat.values:
        axes.set(xticks=[], yticks=[])
        return
    values = array(heat.values)
    mesh = axes.pcolormesh(values, vmin=heat.range[0], vmax=heat.range[1], cmap=heat.colours)
    columns, rows = (list(map(visible, tokens)) for tokens in (heat.columns, heat.rows))
    axes.set_xticks([i + 0.5 for i in range(len(columns))], columns, rotation=90, fontsize=7, parse_math=False)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows, fontsize=7, parse_math=False)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    axes.set_ylabel(heat.labels[0], fontsize=7, loc="top")
    axes.set_xlabel(heat.labels[1], fontsize=7, loc="left", labelpad=16 if heat.parts else 4)
    colours = mesh.to_rgba(values)
    for (y, x), text in ndenumerate(heat.texts):
        if text:
            red, green, blue, opacity = colours[y, x]  # opacity 0 where there is no value
            is_dark = opacity and 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": "white" if is_dark else "black"}
            axes.text(x + 0.5, y + 0.5, text, fontsize=6, **style)
    for name, start, end in heat.parts:
        axes.plot([start + 0.1, end - 0.1], [len(rows) + 0.1] * 2, color="black", linewidth=1, clip_on=False)
        style = {"textcoords": "offset points", "ha": "center", "va": "top", "fontsize": 8}
        axes.annotate(name, ((start + end) / 2, len(rows)), (0, -4), annotation_clip=False, **style)


def percent_or_nothing(share: float) -> str:
    """Return a share in percent, without a sign of percent; nothing if it rounds to 0."""
    text = rounded(100 * share, ".0f")
    return "" if text == "0" else text


def _longest(tokens: Iterable[Sequence[str]]) -> float:
    """Return the inches of the longest token in the size of `_draw`."""
    return max((CHARACTER * columns(visible(token)) for found in tokens for token in found), default=0.0) + 0.2


@cache
def templates(extension: str) -> Environment:
    """Return the environment of the templates of an extension, and of shared ones. It escapes whatever is inserted."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    own = PackageLoader(f"fairseq_headgates.extensions.{extension}", "templates")
    found = Environment(
        autoescape=True,
        loader=ChoiceLoader([own, PackageLoader("fairseq_headgates.drawing", "templates")]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"escaped": escaped, "visible": visible, "percent": percent_or_nothing}
    return found
