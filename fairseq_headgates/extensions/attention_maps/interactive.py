"""An interactive page of attention maps: lines between the tokens, for chosen layers and heads (no torch)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from fairseq_headgates.heads import AttentionMap
from fairseq_headgates.report.maps import Sentences, by_type, templates
from fairseq_headgates.report.text import visible

LONGEST = 200  # tokens of a sentence
LARGEST_INTERACTIVE = 12_000_000  # weights, which take 16 MB


def interactive_page(sentences: Sentences, signature: str) -> str:
    """Return a web page that needs no network: type, layer and heads to choose, tokens to point at.

    Weights are stored in 8 bits each. Raise ValueError for sentences that are too long, or too many weights.
    """
    maps = [shown for each in sentences.values() for shown in each]
    longest = max((len(tokens) for shown in maps for tokens in (shown.queries, shown.keys)), default=0)
    if longest > LONGEST:
        raise ValueError(
            f"a sentence has {longest} tokens, and an interactive page takes at most {LONGEST}: leave --interactive out"
        )
    cells = sum(len(shown.weights) * len(shown.keys) for shown in maps)
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
            {"layer": layer, "heads": [_head(shown) for shown in heads]}
            for layer, heads in groupby(of_type, key=lambda shown: shown.head.layer)
        ]
        queries, keys = ([visible(token) for token in tokens] for tokens in (of_type[0].queries, of_type[0].keys))
        found.append({"title": f"{attention_type} ({title})", "queries": queries, "keys": keys, "layers": layers})
    return found


def _head(shown: AttentionMap) -> dict[str, Any]:
    """Return number, gate and weights of a head, in bytes of 1 / 255; None for a removed head."""
    weights = bytes(round(255 * min(1.0, max(0.0, weight))) for row in shown.weights for weight in row)
    packed = base64.b64encode(weights).decode() if shown.gate is not None else None
    return {"head": shown.head.head, "gate": shown.gate, "weights": packed}
