"""Heat maps of tokens by tokens, and the templates of web pages (no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from fairseq_headgates.heads import AttentionMap
from fairseq_headgates.report.tables import TITLES, named
from fairseq_headgates.report.text import columns, escaped, visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Sentences = Mapping[int, Sequence[AttentionMap]]  # by the number of the sentence, from 1
TOKEN, CHARACTER = 0.18, 0.065  # inches for a token, and for one of its characters
LARGEST = 250_000  # cells of a picture or page


def title_of(head_map: AttentionMap) -> str:
    """Return the title of a map: the head, and its gate unless that is 1."""
    name = named(head_map.head)
    if head_map.gate is None:
        return f"{name} (removed)"
    return name if head_map.gate == 1 else f"{name} (gate {head_map.gate:.2f}{'' if head_map.gate > 0 else ', closed'})"


def check_size(sentences: Iterable[Sequence[AttentionMap]], largest: int = LARGEST) -> None:
    """Raise ValueError if the maps have more than `largest` cells."""
    cells = sum(
        len(head_map.queries) * len(head_map.keys) for maps in sentences for head_map in maps if head_map.weights
    )
    if cells > largest:
        raise ValueError(
            f"the maps have {cells:,} cells, and at most {largest:,} are drawn: choose fewer heads with --heads, or "
            "fewer sentences"
        )


class Heat(NamedTuple):
    """A map to draw: title, tokens of rows and columns, values, their colours and range."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    colours: str
    range: tuple[float, float]


def heat_figure(rows: Sequence[Sequence[Heat]]) -> Figure:
    """Draw maps in rows."""
    from matplotlib.figure import Figure

    side_by_side = max(len(row) for row in rows)
    every = [heat for row in rows for heat in row]
    widths = max(2.0, *(TOKEN * len(heat.columns) for heat in every)) + max(1.0, _longest(s.rows for s in every))
    heights = [
        max(1.5, *(TOKEN * len(heat.rows) for heat in row), 0) + max(1.0, _longest(s.columns for s in row)) + 0.2
        for row in rows
    ]
    figure = Figure(figsize=(widths * side_by_side, sum(heights)), layout="constrained")
    grid = figure.subplots(len(rows), side_by_side, squeeze=False, height_ratios=heights)
    for row, line in zip(rows, grid, strict=True):
        for i, axes in enumerate(line):
            if i < len(row):
                _draw(axes, row[i])
            else:
                axes.set_axis_off()
    return figure


def _draw(axes: Axes, heat: Heat) -> None:
    axes.set_title(heat.title, fontsize=8)
    if not heat.values:
        axes.set(xticks=[], yticks=[])
        return
    axes.pcolormesh(heat.values, vmin=heat.range[0], vmax=heat.range[1], cmap=heat.colours)
    columns, rows = (list(map(visible, tokens)) for tokens in (heat.columns, heat.rows))
    axes.set_xticks([i + 0.5 for i in range(len(columns))], columns, rotation=90, fontsize=7, parse_math=False)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows, fontsize=7, parse_math=False)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    axes.invert_yaxis()


def _longest(tokens: Iterable[Sequence[str]]) -> float:
    """Return the inches of the longest token in the size of `_draw`."""
    return max((CHARACTER * columns(visible(token)) for found in tokens for token in found), default=0.0) + 0.2


def by_type(maps: Sequence[AttentionMap]) -> list[tuple[str, str, list[AttentionMap]]]:
    """Return type, title and maps of each attention type, for the templates."""
    groups = groupby(maps, key=lambda head_map: head_map.head.attention_type)
    return [(attention_type, TITLES[attention_type], list(group)) for attention_type, group in groups]


@cache
def templates(extension: str) -> Environment:
    """Return the environment of the templates of an extension, and of shared ones. It escapes whatever is inserted."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    own = PackageLoader(f"fairseq_headgates.extensions.{extension}", "templates")
    found = Environment(
        autoescape=True,
        loader=ChoiceLoader([own, PackageLoader("fairseq_headgates.report", "templates")]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["title_of"] = title_of
    found.filters |= {"escaped": escaped, "visible": visible}
    return found
