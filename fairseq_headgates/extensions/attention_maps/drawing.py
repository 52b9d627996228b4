"""Attention maps as text, JSON, figures and web pages (no torch)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fairseq_headgates.heads import AttentionMap
from fairseq_headgates.report.maps import Heat, Sentences, by_type, check_size, heat_figure, templates, title_of
from fairseq_headgates.report.tables import text_table
from fairseq_headgates.report.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = "headgates.attention/1"
COLUMNS = 4  # maps side by side
SHOWN = 0.1  # smallest weight whose number is shown
# Of an interactive page: tokens of a sentence, and weights, which take 16 MB.
LONGEST, LARGEST_INTERACTIVE = 200, 12_000_000


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
    groups = {number: by_type(maps) for number, maps in sentences.items()}
    return templates("attention_maps").get_template("attention.html").render(sentences=groups, signature=signature)


def interactive_page(sentences: Sentences, signature: str) -> str:
    """Return a web page that needs no network: type, layer and heads to choose, tokens to point at.

    Weights are stored in 8 bits each. Raise ValueError for sentences that are too long, or too many weights.
    """
    maps = [head_map for each in sentences.values() for head_map in each]
    longest = max((len(tokens) for head_map in maps for tokens in (head_map.queries, head_map.keys)), default=0)
    if longest > LONGEST:
        raise ValueError(
            f"a sentence has {longest} tokens, and an interactive page takes at most {LONGEST}: leave --interactive out"
        )
    cells = sum(len(head_map.weights) * len(head_map.keys) for head_map in maps)
    if cells > LARGEST_INTERACTIVE:
        raise ValueError(
            f"the maps have {cells:,} weights, and an interactive page takes at most {LARGEST_INTERACTIVE:,}: choose "
            "fewer heads with --heads, or fewer sentences"
        )
    data = [{"number": number, "types": _types(each)} for number, each in sentences.items()]
    return templates("attention_maps").get_template("interactive.html").render(data=data, signature=signature)


def _types(maps: Sequence[AttentionMap]) -> list[dict[str, Any]]:
    found = []
    for attention_type, title, of_type in by_type(maps):
        layers = [
            {"layer": layer, "heads": [_head(head_map) for head_map in heads]}
            for layer, heads in groupby(of_type, key=lambda head_map: head_map.head.layer)
        ]
        queries, keys = ([visible(token) for token in tokens] for tokens in (of_type[0].queries, of_type[0].keys))
        found.append({"title": f"{attention_type} ({title})", "queries": queries, "keys": keys, "layers": layers})
    return found


def _head(head_map: AttentionMap) -> dict[str, Any]:
    """Return number, gate and weights of a head, in bytes of 1 / 255; None for a removed head."""
    weights = bytes(round(255 * min(1.0, max(0.0, weight))) for row in head_map.weights for weight in row)
    packed = base64.b64encode(weights).decode() if head_map.gate is not None else None
    return {"head": head_map.head.head, "gate": head_map.gate, "weights": packed}
