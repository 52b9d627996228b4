"""Contributions of tokens to predictions as text, JSON, figures and web pages (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import TYPE_CHECKING, Any

from fairseq_headgates.drawing.maps import LARGEST, Heat, heat_figure, percent_or_nothing, templates
from fairseq_headgates.drawing.tables import rounded, text_table
from fairseq_headgates.drawing.text import visible
from fairseq_headgates.heads import Contributions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = "headgates.explanation/1"
Explained = Mapping[int, Contributions]  # by the number of the sentence, from 1


def explanation_json(sentences: Explained, signature: str) -> dict[str, Any]:
    """Return the contributions to the predictions of several sentences for JSON."""
    found = [
        {
            "positions": each.positions,
            "predicted": each.predicted,
            "instead_of": each.instead_of,
            "source": each.source,
            "prefix": each.prefix,
            "source_share": each.of_source(),
            "contributions": each.shares,
        }
        for each in sentences.values()
    ]
    return {"format": FORMAT, "signature": signature, "lines": list(sentences), "sentences": found}


def explanation_tables(sentences: Explained) -> str:
    """Format the contributions as tables in percent: predictions by source and prefix tokens."""
    blocks = []
    for number, each in sentences.items():
        header = ["", *(["source"] if _has_both(each) else []), *map(visible, each.source)]
        header += [*(["|"] if _has_both(each) else []), *map(visible, each.prefix)]
        rows = [
            [visible(token), *_cells(each, row, share)]
            for token, row, share in zip(each.predicted, each.shares, each.of_source(), strict=True)
        ]
        title = title_of(number, each, len(sentences))
        blocks.append((f"{title}\n" if title else "") + text_table(header, rows))
    return "\n\n".join(blocks)


def title_of(number: int, each: Contributions, sentences: int) -> str:
    """Return the title of a sentence among several: its number, and what its predictions are compared with."""
    parts = [f"sentence {number}"] if sentences > 1 else []
    return ", ".join([*parts, *([f"instead of {visible(each.instead_of)}"] if each.instead_of else [])])


def _has_both(each: Contributions) -> bool:
    return bool(each.source and each.prefix)


def _cells(each: Contributions, row: list[float], share: float) -> list[str]:
    cells = [rounded(100 * value, ".0f") for value in row]
    if not _has_both(each):
        return cells
    return [f"{100 * share:.0f}%", *cells[: len(each.source)], "|", *cells[len(each.source) :]]


def explanation_figure(sentences: Explained) -> Figure:
    """Draw the contributions of each sentence, negative ones in red; predictions from top to bottom.

    Raise ValueError for more than `LARGEST` cells.
    """
    check_cells(sentences)
    return heat_figure([[_heat(number, each, len(sentences))] for number, each in sentences.items()])


def _heat(number: int, each: Contributions, sentences: int) -> Heat:
    largest, columns, parts = each.largest, each.tokens, []
    values, texts = each.shares, [[percent_or_nothing(share) for share in row] for row in each.shares]
    if _has_both(each):  # the source share, a gap, the source, a gap, the prefix
        length = len(each.source)
        columns = ["source share", "", *each.source, "", *each.prefix]
        values = [[nan, nan, *row[:length], nan, *row[length:]] for row in each.shares]
        rows = zip(each.of_source(), texts, strict=True)
        texts = [[f"{100 * share:.0f}%", "", *row[:length], "", *row[length:]] for share, row in rows]
        parts = [("source", 2, 2 + length), ("target prefix", 3 + length, len(columns))]
    labels = ("prediction", "contributions in percent, negative ones in red")
    title = title_of(number, each, sentences)
    return Heat(title, labels, each.predicted, columns, values, texts, "RdBu", (-largest, largest), parts)


def check_cells(sentences: Explained) -> None:
    """Raise ValueError if there are more than `LARGEST` contributions."""
    cells = sum(len(each.predicted) * len(each.tokens) for each in sentences.values())
    if cells > LARGEST:
        raise ValueError(
            f"there are {cells:,} contributions, and at most {LARGEST:,} are drawn: choose fewer predictions with "
            "--positions, or fewer sentences"
        )


def explanation_page(sentences: Explained, signature: str) -> str:
    """Return a web page without links and scripts, with tables whose cells are coloured by the contributions.

    Raise ValueError for more than `LARGEST` cells.
    """
    check_cells(sentences)
    page = templates("explain").get_template("explanation.html")
    return page.render(sentences=sentences, title=title_of, signature=signature)
