"""Files of `headgates functions`: the heads in them (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fairseq_headgates.heads.table import TYPES, HeadId, HeadTable


def open_heads(result: Mapping[str, Any], *types: str) -> Iterator[tuple[HeadId, Mapping[str, Any]]]:
    """Iterate over the heads in a file of functions that are neither removed nor closed, with their entries.

    Without `types`, over those of all attention types.
    """
    for attention_type in types or TYPES:
        for layer, row in enumerate(result["heads"].get(attention_type, [])):
            for head, entry in enumerate(row):
                if entry is not None and entry["gate"] > 0:
                    yield HeadId(attention_type, layer, head), entry


def best_head(result: Mapping[str, Any], left: HeadTable | None = None) -> HeadId:
    """Return the open cross-attention head that is most often on an aligned word.

    Args:
        result: a result of `find`, with word alignments
        left: a mask of the heads to choose from, by default all

    Raises:
        ValueError: if there is none
    """
    rates = {
        head: entry["words"]["alignment"]["rate"]
        for head, entry in open_heads(result, "dec-enc")
        if "alignment" in entry.get("words", {}) and (left is None or left[head])
    }
    if not rates:
        raise ValueError("no open cross-attention head was compared with links: give word alignments that have some")
    return max(rates, key=lambda head: rates[head])
