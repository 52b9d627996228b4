"""The gate log: P(gate = 0) of every head during a training, one line of JSON for each record (no torch)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fairseq_headgates.files import lines_of, to_json
from fairseq_headgates.heads.table import TYPES, HeadTable

NAME = "gates.jsonl"  # in --save-dir
FORMAT = "headgates.gates/1"


class GateRecord(NamedTuple):
    """P(gate = 0) of every head after a number of updates."""

    update: int
    closed: HeadTable


def gate_log_line(record: GateRecord) -> str:
    """Return the line of a record."""
    rows = {each: [[round(p, 4) for p in layer] for layer in rows] for each, rows in record.closed.values.items()}
    return to_json({"format": FORMAT, "update": record.update, "closed": rows}) + "\n"


def parse_gate_log(text: str, name: str) -> list[GateRecord]:
    """Return the records of a gate log, sorted by update.

    A resumed training writes some updates again: of these, the later records count. Lines that are not complete, as a
    killed training leaves them, are ignored.

    Raises:
        ValueError: if `text` is not a gate log; `name` is that of the file
    """
    records: list[GateRecord] = []
    for number, line in enumerate(lines_of(text), start=1):
        if not line.strip() or _is_cut(line):
            continue
        record = _record(line, f"{name}, line {number}")
        while records and records[-1].update >= record.update:
            records.pop()
        if records and _shape(record) != _shape(records[-1]):
            raise ValueError(f"{name}, line {number} has other heads than the line before: give the log of one model")
        records.append(record)
    if not records:
        raise ValueError(f"{name} is not a gate log: it has no complete line")
    return records


def is_gate_log(text: str) -> bool:
    """Return whether a text begins with a record of a gate log."""
    return text.startswith(f'{{"format": "{FORMAT}"')


def _is_cut(line: str) -> bool:
    """Return whether a line is not JSON, as the beginning of a record."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _record(line: str, where: str) -> GateRecord:
    try:
        data = json.loads(line)
        update, rows = data["update"], data["closed"]
        if data["format"] != FORMAT or not isinstance(update, int) or not rows or not rows.keys() <= set(TYPES):
            raise ValueError
        table = HeadTable({each: [list(map(_probability, layer)) for layer in rows[each]] for each in rows})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise ValueError(f"{where} is not a record of a gate log with the format {FORMAT!r}") from None
    return GateRecord(update, HeadTable(table.values, "P(gate = 0)"))


def _probability(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= value <= 1:  # NaN is not
        raise ValueError
    return float(value)


def _shape(record: GateRecord) -> dict[str, list[int]]:
    return {attention_type: [len(layer) for layer in rows] for attention_type, rows in record.closed.values.items()}


def thinned(records: Sequence[GateRecord], largest: int) -> list[GateRecord]:
    """Return at most `largest` (2 or more) of the records, evenly chosen, the first and the last among them."""
    if len(records) <= largest:
        return list(records)
    step = (len(records) - 1) / (largest - 1)
    return [records[math.floor(i * step + 0.5)] for i in range(largest)]
