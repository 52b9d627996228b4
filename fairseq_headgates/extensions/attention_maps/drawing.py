"""Attention maps as text, JSON, figures and web pages (no torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairseq_headgates.heads import AttentionMap
from fairseq_headgates.report.maps import Heat, Sentences, by_type, check_size, heat_figure, templates, title_of
from fairseq_headgates.report.tables import text_table
from fairseq_headgates.report.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = "headgates.attention/1"


COLUMNS = 4  # maps side by side


def _title(shown: AttentionMap, number: int, sentences: int) -> str:
    return (f"sentence {number}, " if sentences > 1 else "") + title_of(shown)


def attention_json(sentences: Sentences, signature: str) -> dict[str, Any]:
    """Return the maps of several sentences for JSON. Tokens are listed once for each attention type."""
    found = []
    for maps in sentences.values():
        types: dict[str, Any] = {}
        for shown in maps:
            empty = {"queries": shown.queries, "keys": shown.keys, "heads": []}
            of_type = types.setdefault(shown.head.attention_type, empty)
            number = {"layer": shown.head.layer, "head": shown.head.head, "gate": shown.gate}
            of_type["heads"].append({**number, "weights": shown.weights or None})
        found.append(types)
    return {"format": FORMAT, "signature": signature, "lines": list(sentences), "sentences": found}


def attention_tables(sentences: Sentences) -> str:
    """Format the maps as tables of attention weights: queries by keys."""
    blocks = []
    for number, maps in sentences.items():
        for shown in maps:
            title = _title(shown, number, len(sentences))
            queries = map(visible, shown.queries)
            rows = [[q, *(f"{w:.2f}" for w in row)] for q, row in zip(queries, shown.weights, strict=False)]
            blocks.append(title + ("\n" + text_table(["", *map(visible, shown.keys)], rows) if rows else ""))
    return "\n\n".join(blocks)


def attention_figure(sentences: Sentences) -> Figure:
    """Draw the maps of each sentence in rows of up to `COLUMNS`; queries from top to bottom, keys to the right.

    Raise ValueError for more than `LARGEST` cells.
    """
    check_size(sentences.values())
    titled = {number: [_heat(shown, number, len(sentences)) for shown in maps] for number, maps in sentences.items()}
    return heat_figure([maps[i : i + COLUMNS] for maps in titled.values() for i in range(0, len(maps), COLUMNS)])


def _heat(shown: AttentionMap, number: int, sentences: int) -> Heat:
    colours = "Greys" if shown.gate == 0 else "Blues"
    return Heat(_title(shown, number, sentences), shown.queries, shown.keys, shown.weights, colours, (0, 1))


def attention_page(sentences: Sentences, signature: str) -> str:
    """Return a web page without links and scripts: every map is a table whose cells are coloured by their weights.

    Raise ValueError for more than `LARGEST` cells.
    """
    check_size(sentences.values())
    groups = {number: by_type(maps) for number, maps in sentences.items()}
    return templates("attention_maps").get_template("attention.html").render(sentences=groups, signature=signature)
