"""Attention maps as text, JSON, figures and web pages (no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fairseq_headgates.drawing.maps import LARGEST, Heat, heat_figure, templates
from fairseq_headgates.drawing.tables import TITLES, named, text_table
from fairseq_headgates.drawing.text import visible
from fairseq_headgates.heads import AttentionMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Sentences = Mapping[int, Sequence[AttentionMap]]  # by the number of the sentence, from 1
FORMAT = "headgates.attention/1"
COLUMNS = 4  # maps side by side
SHOWN = 0.1  # smallest weight whose number is shown


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


def _title(head_map: AttentionMap, number: int, sentences: int) -> str:
    return (f"sentence {number}, " if sentences > 1 else "") + title_of(head_map)


def attention_json(sentences: Sentences, signature: str) -> dict[str, Any]:
    """Return the maps of several sentences for JSON. Tokens are listed once for each attention type."""
    found = []
    for maps in sentences.values():
        types: dict[str, Any] = {}
        for head_map in maps:
            empty = {"queries": head_map.queries, "keys": head_map.keys, "heads": []}
            of_type = types.setdefault(head_map.head.attention_type, empty)
            number = {"layer": head_map.head.layer, "head": head_map.head.head, "gate": head_map.gate}
            of_type["heads"].append({**number, "weights": head_map.weights or None})
        found.append(types)
    return {"format": FORMAT, "signature": signature, "lines": list(sentences), "sentences": found}


def attention_tables(sentences: Sentences) -> str:
    """Format the maps as tables of attention weights: queries by keys."""
    blocks = []
    for number, maps in sentences.items():
        for head_map in maps:
            title = _title(head_map, number, len(sentences))
            queries = map(visible, head_map.queries)
            rows = [[q, *(f"{w:.2f}" for w in row)] for q, row in zip(queries, head_map.weights, strict=False)]
            blocks.append(title + ("\n" + text_table(["", *map(visible, head_map.keys)], rows) if rows else ""))
    return "\n\n".join(blocks)


def attention_figure(sentences: Sentences) -> Figure:
    """Draw the maps of each sentence in rows of up to `COLUMNS`; queries from top to bottom, keys to the right.

    Raise ValueError for more than `LARGEST` cells.
    """
    check_size(sentences.values())
    titled = {
        number: [_heat(head_map, number, len(sentences)) for head_map in maps] for number, maps in sentences.items()
    }
    return heat_figure([maps[i : i + COLUMNS] for maps in titled.values() for i in range(0, len(maps), COLUMNS)])


def _heat(head_map: AttentionMap, number: int, sentences: int) -> Heat:
    texts = [[f"{100 * weight:.0f}" if weight >= SHOWN else "" for weight in row] for row in head_map.weights]
    return Heat(
        _title(head_map, number, sentences),
        ("query", "key; attention weights in percent"),
        head_map.queries,
        head_map.keys,
        head_map.weights,
        texts,
        "Greys" if head_map.gate == 0 else "Blues",
        (0, 1),
    )


def attention_page(sentences: Sentences, signature: str) -> str:
    """Return a web page without links and scripts: every map is a table whose cells are coloured by their weights.

    Raise ValueError for more than `LARGEST` cells.
    """
    check_size(sentences.values())
    groups = {number: _by_type(maps) for number, maps in sentences.items()}
    return (
        templates("attention")
        .get_template("attention.html")
        .render(sentences=groups, signature=signature, title_of=title_of)
    )


def _by_type(maps: Sequence[AttentionMap]) -> list[tuple[str, str, list[AttentionMap]]]:
    """Return type, title and maps of each attention type, for the templates."""
    groups = groupby(maps, key=lambda head_map: head_map.head.attention_type)
    return [(attention_type, TITLES[attention_type], list(group)) for attention_type, group in groups]
