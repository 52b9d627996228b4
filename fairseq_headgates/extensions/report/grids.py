"""Grids of heads for web pages: a cell for each head, layers by heads (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan
from typing import Any, NamedTuple

from fairseq_headgates.drawing.functions import group_of
from fairseq_headgates.drawing.tables import named, short
from fairseq_headgates.extensions.report.content import ModelHeads
from fairseq_headgates.heads import HeadId, HeadTable
from fairseq_headgates.heads.functions import open_heads

LARGEST = 10_000  # heads of a table


class Cell(NamedTuple):
    """A head in a grid.

    Attributes:
        text: what the cell shows
        strength: strength of its colour, 0 to 1
        label: what the page says of it on hover and by keyboard
        state: "open", "closed" or "removed"; "share" of a layer of which `strength` is kept
    """

    text: str
    strength: float
    label: str
    state: str = "open"


Grids = dict[str, list[list[Cell]]]  # by attention type, a row for each layer


def grids(table: HeadTable, cell: Callable[[HeadId, float], Cell]) -> Grids:
    """Return a grid for each attention type of a table, with cells made by `cell`.

    Raises:
        ValueError: for more than `LARGEST` heads
    """
    heads = sum(len(row) for rows in table.layers.values() for row in rows)
    if heads > LARGEST:
        raise ValueError(f"a table has {heads:,} heads, and at most {LARGEST:,} are drawn: leave it out")
    return {
        attention_type: [
            [cell(HeadId(attention_type, i, j), value) for j, value in enumerate(row)] for i, row in enumerate(rows)
        ]
        for attention_type, rows in table.layers.items()
    }


def gate_grids(model: ModelHeads) -> Grids:
    """Return the gates of a checkpoint."""

    def cell(head: HeadId, gate: float) -> Cell:
        name, probability = named(head), model.open_probability[head]
        if gate > 0:
            return Cell(
                "" if gate == 1 else short(gate), gate, f"{name}: gate {gate:.2f}, P(gate = 0) {1 - probability:.2f}"
            )
        if model.alive is not None and head.attention_type in model.alive.layers and model.alive[head] == 0:
            return Cell("", 0, f"{name}: removed", "removed")
        return Cell("", 0, f"{name}: closed, P(gate = 0) {1 - probability:.2f}", "closed")

    return grids(model.gate, cell)


def score_grids(table: HeadTable) -> Grids:
    """Return scores, coloured from the lowest to the highest of all types."""
    values = [value for _, value in table.items() if not isnan(value)] or [0.0]
    low, high = min(values), max(values)

    def cell(head: HeadId, value: float) -> Cell:
        if isnan(value):
            return Cell("", 0, f"{named(head)}: removed", "removed")
        strength = (value - low) / (high - low) if high > low else 0.0
        return Cell(short(value), strength, f"{named(head)}: {table.name} {value:.4g}")

    return grids(table, cell)


def function_grids(result: Mapping[str, Any]) -> Grids:
    """Return the functions of heads, by their letters; the colour shows the number of different letters."""
    found = {head: entry["functions"] for head, entry in open_heads(result)}
    table = HeadTable({each: [[0.0] * len(row) for row in rows] for each, rows in result["heads"].items()})

    def cell(head: HeadId, _: float) -> Cell:
        if head not in found:
            entry = result["heads"][head.attention_type][head.layer][head.head]
            state = "removed" if entry is None else "closed"
            return Cell("" if entry is None else "0", 0, f"{named(head)}: {state}", state)
        letters = sorted({group_of(name)[0].upper() for name in found[head]})
        text = ", ".join(found[head]) or "no function"
        return Cell("".join(letters), min(1.0, len(letters) / 2), f"{named(head)}: {text}")

    return grids(table, cell)


def neuron_grids(model: ModelHeads) -> Grids:
    """Return the share of the neurons that each layer keeps, for the sides that lost some."""
    return {
        f"{side} neurons": [
            [Cell(f"{kept} of {before}", kept / before, f"{side} layer {i}: {kept} of {before} neurons", "share")]
            for i, kept in enumerate(layers)
        ]
        for side, (before, layers) in model.neurons.items()
        if any(kept < before for kept in layers)
    }
