"""Tables of the time of attention layers (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_headgates.report.tables import text_table


def speed_table(speed: Mapping[str, Any]) -> str:
    """Format the costs of attention layers: a line for each layer, with its milliseconds in a translation.

    Args:
        speed: the shape of the translation, and the layers, as `headgates prune --by-speed --json` writes them
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
        f"ms: time of the layer alone, with random weights, on the shapes of a translation of {speed['sentences']} "
        f"sentences with {speed['length']} tokens on each side, beam {speed['beam']}; {speed['threads']} threads",
        "next head: ms saved by removing one more head (mean over all but the last)",
        "last head: ms saved by removing the only head left",
        "parameters, cache bytes: those of one head; the cache for each token and hypothesis (dec-self), or for each "
        "source token and sentence (dec-enc)",
        f"attention: {before:.1f} -> {after:.1f} ms",
    ]
    gone = [layer for layer in layers if layer["heads"][0] > 0 == layer["heads"][1]]
    if gone:
        notes.append(f"layers that lose all heads, and the ms that this saves: {_saved(gone)}")
    single = [layer for layer in layers if layer["heads"][1] == 1]
    if single:
        notes.append(f"layers with one head left, and the ms that removing it saves: {_saved(single)}")
    return notes


def _saved(layers: Sequence[Mapping[str, Any]]) -> str:
    """Return names of layers with the milliseconds that they take more than without heads, the most first."""
    saved = {_name(layer): _all_heads(layer) for layer in layers}
    return ", ".join(f"{name} ({saved[name]:.2f} ms)" for name in sorted(saved, key=saved.__getitem__, reverse=True))


def _name(layer: Mapping[str, Any]) -> str:
    return f"{layer['type']} layer {layer['layer']}"


def _next_head(layer: Mapping[str, Any]) -> float:
    """Return the milliseconds that the removal of a head saves, on average over all but the last."""
    kept, ms = layer["heads"][1], layer["ms_by_heads"]
    return (ms[kept] - ms[1]) / (kept - 1)


def _all_heads(layer: Mapping[str, Any]) -> float:
    """Return the milliseconds that the heads cost: those to be removed if none is kept, else those that are kept."""
    heads, ms = layer["heads"], layer["ms_by_heads"]
    return ms[heads[1] or heads[0]] - ms[0]


def _last_head(layer: Mapping[str, Any]) -> float:
    """Return the milliseconds that the removal of the last head saves."""
    return layer["ms_by_heads"][1] - layer["ms_by_heads"][0]
