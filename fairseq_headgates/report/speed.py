"""Tables of the time of attention layers (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_headgates.report.tables import text_table


def speed_table(speed: Mapping[str, Any]) -> str:
    """Format the costs of attention layers: a line for each layer, in milliseconds of a translation.

    Args:
        speed: what was translated, and the layers, as `headgates prune --by-speed --json` writes them
    """
    rows = []
    for layer in speed["layers"]:
        kept, ms = layer["heads"][1], layer["ms_by_heads"]
        saved = [f"{_next_head(layer):.2f}" if kept > 1 else "", f"{_last_head(layer):.2f}" if kept else ""]
        cache = f"{layer['head_cache_bytes']:,}" if layer["head_cache_bytes"] else ""
        rows.append([_name(layer), str(kept), f"{layer['head_parameters']:,}", cache, f"{ms[kept]:.2f}", *saved])
    return text_table(["", "heads", "parameters", "cache bytes", "ms", "next head", "last head"], rows)


def speed_notes(speed: Mapping[str, Any]) -> list[str]:
    """Say what was measured, what the removal saves, and which layers have lost, or could lose, their last head."""
    layers = speed["layers"]
    before, after = (sum(layer["ms_by_heads"][layer["heads"][i]] for layer in layers) for i in (0, 1))
    notes = [
        f"ms: time of the layer when {speed['sentences']} sentences of {speed['length']} tokens are translated, beam "
        f"{speed['beam']}, {speed['threads']} threads, random weights",
        "next head, last head: ms that the removal of one more head (on average), and of the last one, saves",
        "parameters, cache bytes: those of one head; the cache for each token and hypothesis (dec-self), or for each "
        "source token and sentence (dec-enc)",
        f"attention: {before:.1f} -> {after:.1f} ms",
    ]
    gone = [layer for layer in layers if layer["heads"][0] > 0 == layer["heads"][1]]
    if gone:
        notes.append(f"layers that lose their last head: {_saved(gone)}")
    single = [layer for layer in layers if layer["heads"][1] == 1]
    if single:
        notes.append(f"layers with one head left, which saves most when it is removed: {_saved(single)}")
    return notes


def _saved(layers: Sequence[Mapping[str, Any]]) -> str:
    """Return names of layers with the milliseconds of their last head, those that save most first."""
    ordered = sorted(layers, key=_last_head, reverse=True)
    return ", ".join(f"{_name(layer)} ({_last_head(layer):.2f} ms)" for layer in ordered)


def _name(layer: Mapping[str, Any]) -> str:
    return f"{layer['type']} layer {layer['layer']}"


def _next_head(layer: Mapping[str, Any]) -> float:
    """Return the milliseconds that the removal of a head saves, on average over all but the last."""
    kept, ms = layer["heads"][1], layer["ms_by_heads"]
    return (ms[kept] - ms[1]) / (kept - 1)


def _last_head(layer: Mapping[str, Any]) -> float:
    """Return the milliseconds that the removal of the last head saves."""
    return layer["ms_by_heads"][1] - layer["ms_by_heads"][0]
