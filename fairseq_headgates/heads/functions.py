"""Files of `headgates functions`: the heads in them (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairseq_headgates.heads.table import TYPES, HeadId, HeadTable


def open_heads(result: Mapping[str, Any]) -> Iterator[tuple[HeadId, Mapping[str, Any]]]:
    """Iterate over the heads of a file of functions that are neither removed nor closed, with their entries."""
    for attention_type in TYPES:
        for layer, row in enumerate(result["heads"].get(attention_type, [])):
            for head, entry in enumerate(row):
                if entry is not None and entry["gate"] > 0:
                    yield HeadId(attention_type, layer, head), entry


def best_head(result: Mapping[str, Any], left: HeadTable | None = None) -> HeadId:
    """Return the open decoder-encoder head that is most often on an aligned word.

    Args:
        result: a result of `find`, with word alignments
        left: a mask of the heads to choose from, by default all

    Raises:
        ValueError: if there is none
    """
    rates = {
        HeadId("dec-enc", layer, head): entry["words"]["alignment"]["rate"]
        for layer, row in enumerate(result["heads"].get("dec-enc", []))
        for head, entry in enumerate(row)
        if entry is not None and entry["gate"] > 0 and "alignment" in entry.get("words", {})
        if left is None or left.values["dec-enc"][layer][head]
    }
    if not rates:
        raise ValueError("no open decoder-encoder head was compared with links: give word alignments that have some")
    return max(rates, key=lambda head: rates[head])
