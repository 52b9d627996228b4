"""Attention maps as text, JSON, figures and web pages (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fairseq_headgates.heads import AttentionMap
from fairseq_headgates.report.tables import TITLES, named, text_table

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = "headgates.attention/1"
COLUMNS = 4  # maps side by side
TOKEN = 0.18  # inches for a token
LARGEST = 250_000  # cells of a picture or page


def title_of(shown: AttentionMap) -> str:
    """Return the title of a map: the head, and its gate unless that is 1."""
    name = named(shown.head)
    if shown.gate is None:
        return f"{name} (removed)"
    return name if shown.gate == 1 else f"{name} (gate {shown.gate:.2f}{'' if shown.gate > 0 else ', closed'})"


def attention_json(sentences: Sequence[Sequence[AttentionMap]], signature: str) -> dict[str, Any]:
    """Return the maps of several sentences for JSON. Tokens are listed once for each attention type."""
    found = []
    for maps in sentences:
        types: dict[str, Any] = {}
        for shown in maps:
            of_type = types.setdefault(shown.head.kind, {"queries": shown.queries, "keys": shown.keys, "heads": []})
            number = {"layer": shown.head.layer, "head": shown.head.head, "gate": shown.gate}
            of_type["heads"].append({**number, "weights": shown.weights or None})
        found.append(types)
    return {"format": FORMAT, "signature": signature, "sentences": found}


def attention_tables(sentences: Sequence[Sequence[AttentionMap]]) -> str:
    """Format the maps as tables of attention weights: queries by keys."""
    blocks = []
    for number, maps in enumerate(sentences, start=1):
        for shown in maps:
            title = (f"sentence {number}, " if len(sentences) > 1 else "") + title_of(shown)
            rows = [[q, *(f"{w:.2f}" for w in row)] for q, row in zip(shown.queries, shown.weights, strict=False)]
            blocks.append(title + ("\n" + text_table(["", *shown.keys], rows) if rows else ""))
    return "\n\n".join(blocks)


def attention_figure(sentences: Sequence[Sequence[AttentionMap]]) -> Figure:
    """Draw the maps of each sentence in rows of up to `COLUMNS`; queries from top to bottom, keys to the right.

    Raise ValueError for more than `LARGEST` cells.
    """
    from matplotlib.figure import Figure

    check_size(sentences)
    rows = [list(maps[i : i + COLUMNS]) for maps in sentences for i in range(0, len(maps), COLUMNS)]
    columns = max(map(len, rows))
    widths = max(2.0, *(TOKEN * len(shown.keys) for row in rows for shown in row)) + 1
    heights = [max(1.5, *(TOKEN * len(shown.queries) for shown in row), 0) + 1.2 for row in rows]
    figure = Figure(figsize=(widths * columns, sum(heights)), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for row, line in zip(rows, grid, strict=True):
        for i, axes in enumerate(line):
            if i < len(row):
                _draw(axes, row[i])
            else:
                axes.set_axis_off()
    return figure


def check_size(sentences: Sequence[Sequence[AttentionMap]], largest: int = LARGEST) -> None:
    """Raise ValueError if the maps have more than `largest` cells."""
    cells = sum(len(shown.queries) * len(shown.keys) for maps in sentences for shown in maps if shown.weights)
    if cells > largest:
        raise ValueError(
            f"the maps have {cells:,} cells, and at most {largest:,} are drawn: choose fewer heads with --heads, or "
            "fewer sentences"
        )


def _draw(axes: Axes, shown: AttentionMap) -> None:
    axes.set_title(title_of(shown), fontsize=8)
    if not shown.weights:
        axes.set(xticks=[], yticks=[])
        return
    closed = shown.gate == 0
    axes.pcolormesh(shown.weights, vmin=0, vmax=1, cmap="Greys" if closed else "Blues")
    axes.set_xticks([i + 0.5 for i in range(len(shown.keys))], map(_plain, shown.keys), rotation=90, fontsize=7)
    axes.set_yticks([i + 0.5 for i in range(len(shown.queries))], map(_plain, shown.queries), fontsize=7)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    axes.invert_yaxis()


def _plain(token: str) -> str:
    r"""Return a token as matplotlib draws it, where $ would begin a formula."""
    return token.replace("$", r"\$")


def by_type(maps: Sequence[AttentionMap]) -> list[tuple[str, str, list[AttentionMap]]]:
    """Return type, title and maps of each attention type, for the templates."""
    return [(kind, TITLES[kind], list(found)) for kind, found in groupby(maps, key=lambda shown: shown.head.kind)]


def attention_page(sentences: Sequence[Sequence[AttentionMap]], signature: str) -> str:
    """Return a web page without links and scripts: every map is a table whose cells are coloured by their weights.

    Raise ValueError for more than `LARGEST` cells.
    """
    check_size(sentences)
    groups = [by_type(maps) for maps in sentences]
    return templates().get_template("attention.html").render(sentences=groups, signature=signature)


@cache
def templates() -> Environment:
    """Return the environment of the templates, which escapes whatever is inserted."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        autoescape=True,
        loader=PackageLoader("fairseq_headgates.report", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["title_of"] = title_of
    return found
