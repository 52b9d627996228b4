"""Attention heads by name: (attention type, layer, head) -> value.

`HeadTable` is what everything that measures heads produces and everything that removes or prints them consumes.
A mask is a table of 0 and 1. No torch here: a table is a small thing made of lists.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_headgates.arguments import shown
from fairseq_headgates.files import read_text

TYPES = ("enc-self", "dec-self", "dec-enc")  # encoder self-, decoder self-, decoder-encoder attention
MASK_FORMAT = "headgates.heads/1"
SCORE_FORMAT = "headgates.scores/1"


@dataclass(frozen=True)
class HeadTable:
    """A value for every head: `values[type][layer][head]`, types in the order of `TYPES`."""

    values: Mapping[str, list[list[float]]]
    name: str = ""
    signature: str = ""

    def __post_init__(self) -> None:
        ordered = {kind: [list(layer) for layer in self.values[kind]] for kind in TYPES if kind in self.values}
        object.__setattr__(self, "values", ordered)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(self.values)

    def heads(self, kind: str) -> list[float]:
        """All values of one type, layer after layer."""
        return [value for layer in self.values[kind] for value in layer]

    def rows(self) -> dict[str, list[list[float | None]]]:
        """The values for JSON, which has no NaN: None instead."""
        return {
            kind: [[None if math.isnan(value) else value for value in layer] for layer in layers]
            for kind, layers in self.values.items()
        }

    def map(self, function: Callable[[float], float], name: str = "") -> HeadTable:
        """The table with `function` applied to every value."""
        changed = {kind: [[function(v) for v in layer] for layer in rows] for kind, rows in self.values.items()}
        return HeadTable(changed, name or self.name, self.signature)

    def count(self, kind: str) -> tuple[int, int]:
        """How many heads of a type have a value above 0, and how many heads there are."""
        values = self.heads(kind)
        return sum(value > 0 for value in values), len(values)


def kind_and_layer(name: str) -> tuple[str, int]:
    """'decoder.layers.3.encoder_attn' -> ('dec-enc', 3): fairseq names its attention alike in every architecture."""
    layer = re.findall(r"(?:^|\.)layers\.(\d+)\.", name)
    if name.endswith("encoder_attn"):
        kind = "dec-enc"
    else:
        kind = "dec-self" if re.search(r"(^|\.)decoder\.", name) else "enc-self"
    return kind, int(layer[-1]) if layer else 0


def parse_types(text: str | None) -> tuple[str, ...]:
    """'dec-enc,enc-self' -> ('enc-self', 'dec-enc'). Raises ValueError for an unknown or repeated type."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in TYPES:
            raise ValueError(f"unknown attention type {shown(name)}: choose from {', '.join(TYPES)}")
        if names.count(name) > 1:
            raise ValueError(f"attention type {name!r} is named twice: name each type once")
    return tuple(kind for kind in TYPES if kind in names)


def parse_mask(text: str) -> HeadTable:
    """Reads a mask: inline JSON, or the path of a JSON file.

    The format is `{"format": "headgates.heads/1", "enc-self": [[1, 0, ...] for every layer], ...}`; 1 alive,
    0 removed, a missing type is fully alive. Raises ValueError with the place and the rule.
    """
    if text.lstrip().startswith("{"):
        return _mask("the inline mask", _json("the inline mask", text))
    return _mask(text, _read("the mask", text))


Mask = HeadTable | Mapping[str, Any] | str | os.PathLike[str]


def as_mask(mask: Mask) -> HeadTable:
    """The mask that is given in any of its forms: a table, a dict like a mask file, inline JSON, or a file's path.

    The rows of a dict are lists, tuples, arrays or tensors. Raises TypeError for anything else, and ValueError as
    `parse_mask` does.
    """
    if isinstance(mask, HeadTable):
        return mask
    if isinstance(mask, Mapping):
        return _mask("the mask", {key: _lists(value) for key, value in mask.items()})
    if isinstance(mask, (str, os.PathLike)):
        return parse_mask(os.fspath(mask))
    raise TypeError(
        f"a mask cannot be of type {type(mask).__name__}: give a HeadTable, a dict like "
        '{"enc-self": [[1, 0, 1, 1], ...]}, the path of a mask file, or the same JSON as text'
    )


def _lists(value: Any) -> Any:
    """Tuples, arrays and tensors as lists, at every level."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _mask(where: str, data: Any) -> HeadTable:
    if not isinstance(data, dict):
        raise ValueError(f'{where} is not a JSON object: it must look like {{"enc-self": [[1, 0, 1, 1], ...]}}')
    if data.get("format", MASK_FORMAT) != MASK_FORMAT:
        raise ValueError(f"{where} has format {shown(data['format'])}: only {MASK_FORMAT!r} is known")
    rows = {key: value for key, value in data.items() if key not in ("format", "signature")}
    for key in rows:
        if key not in TYPES:
            raise ValueError(f"{where} has the unknown attention type {shown(key)}: choose from {', '.join(TYPES)}")
    if not rows:
        raise ValueError(f"{where} names no attention type: give at least one of {', '.join(TYPES)}")
    for kind, layers in rows.items():
        _check_zero_one(where, kind, layers)
    return HeadTable(rows, name="alive", signature=str(data.get("signature", "")))


def _read(what: str, path: str) -> Any:
    return _json(path, read_text(path, what, "give the path of a JSON file"))


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object_without_repeats)
    except _RepeatedKey as error:
        raise ValueError(f"{where} has the key {shown(error.args[0])} twice in one object: keep one of them") from None
    except (ValueError, RecursionError) as error:  # ValueError: also a number of more than 4300 digits
        raise ValueError(f"{where} is not JSON ({error}): give it as a `headgates` command writes it") from None


class _RepeatedKey(Exception):
    """A key of a JSON object that occurs twice."""


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise _RepeatedKey(_repeated(key for key, _ in pairs))
    return result


def _repeated(names: Iterable[str]) -> str | None:
    """The first name that occurs a second time."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def parse_scores(path: str, method: str | None = None, option: str = "--method") -> HeadTable:
    """Reads the scores of one method from a score file; of `method`, where the file has several.

    Raises ValueError; `option` is how the user names the method.
    """
    tables = read_scores(path)
    named = {table.name: table for table in tables}
    if method is None and len(tables) != 1:
        raise ValueError(f"{path} holds the scores of {', '.join(named)}: choose one with {option}")
    if method is not None and method not in named:
        raise ValueError(f"{path} has no scores of {shown(method)}: it holds {', '.join(named)}")
    return tables[0] if method is None else named[method]


def read_scores(path: str) -> list[HeadTable]:
    """Reads a score file: one object, or a list of them.

    The format is `{"format": "headgates.scores/1", "method": "gradient", "signature": "...", "scores": {"enc-self":
    [[0.1, ...] for every layer], ...}}`; a higher score says that a head matters more; null, NaN here, stands for a
    head that was taken out of the model. Raises ValueError.
    """
    data = _read("the score file", path)
    tables = data if isinstance(data, list) else [data]
    if not tables:
        raise ValueError(f"{path} holds no scores: it is an empty list")
    for table in tables:
        if not isinstance(table, dict) or table.get("format") != SCORE_FORMAT:
            raise ValueError(f"{path} is not a score file: it must hold objects with the format {SCORE_FORMAT!r}")
        rows = table.get("scores")
        if not isinstance(rows, dict) or not rows:
            raise ValueError(
                f'{path} holds no scores: it must look like {{..., "scores": {{"enc-self": [[0.1, ...]]}}}}'
            )
        for kind, layers in rows.items():
            _check_numbers(path, kind, layers)
    twice = _repeated(str(table.get("method", "")) for table in tables)
    if twice is not None:
        raise ValueError(f"{path} has two tables of the method {shown(twice)}: --method cannot choose, so keep one")
    return [
        HeadTable(t["scores"], str(t.get("method", "")), str(t.get("signature", ""))).map(
            lambda value: math.nan if value is None else float(value)
        )
        for t in tables
    ]


def scores_to_json(tables: Sequence[HeadTable]) -> str:
    """The text of a score file, one layer per line: an object for one table, a list for several."""
    objects = [_object(t, {"format": SCORE_FORMAT, "method": t.name, "signature": t.signature}) for t in tables]
    return (objects[0] if len(objects) == 1 else "[\n" + ",\n".join(objects) + "\n]") + "\n"


def _object(table: HeadTable, head: Mapping[str, str]) -> str:
    entries = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*entries, '  "scores": {\n' + _rows(table.rows(), "    ") + "\n  }"]) + "\n}"


def _rows(values: Mapping[str, list], indent: str) -> str:
    """The entries of a JSON object with a list of layers for every type, one layer per line."""
    entries = []
    for kind, layers in values.items():
        lines = ",\n".join(f"{indent}  {json.dumps(layer, allow_nan=False)}" for layer in layers)
        entries.append(f'{indent}"{kind}": [\n{lines}\n{indent}]')
    return ",\n".join(entries)


def _check_numbers(where: str, kind: str, layers: Any) -> None:
    if kind not in TYPES:
        raise ValueError(f"{where} has the unknown attention type {shown(kind)}: choose from {', '.join(TYPES)}")
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, list) for layer in layers):
        raise ValueError(f"{where}: {kind} must be a list with one list of numbers for every layer")
    for i, layer in enumerate(layers):
        for value in layer:
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
                raise ValueError(f"{where}: {kind} layer {i} holds {shown(value)}: only finite numbers are allowed")


def _check_zero_one(where: str, kind: str, layers: Any) -> None:
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, list) for layer in layers):
        raise ValueError(f"{where}: {kind} must be a list with one list of 0/1 for every layer")
    for i, layer in enumerate(layers):
        for value in layer:
            if isinstance(value, bool) or value not in (0, 1):
                raise ValueError(
                    f"{where}: {kind} layer {i} holds {shown(value)}: only 1 (alive) and 0 (removed) are allowed"
                )


def check_shape(table: HeadTable, sizes: Mapping[str, tuple[int, int]], what: str = "the mask") -> None:
    """Raises ValueError, with every reason at once, unless `table` fits a model: `sizes[type] = (layers, heads)`."""
    reasons = []
    for kind, rows in table.values.items():
        if kind not in sizes:
            reasons.append(f"the model has no {kind} attention")
            continue
        layers, heads = sizes[kind]
        if len(rows) != layers:
            reasons.append(f"{kind} has {len(rows)} layers, the model has {layers}")
        reasons += [
            f"{kind} layer {i} has {len(row)} heads, the model has {heads}"
            for i, row in enumerate(rows)
            if len(row) != heads
        ]
    if reasons:
        raise ValueError(f"{what} does not fit: " + "; ".join(reasons))


def mask_to_json(mask: HeadTable, one_line: bool = False) -> str:
    """A mask as the text of a mask file: one layer per line, or all in one line."""
    rows = {kind: [[int(value) for value in layer] for layer in layers] for kind, layers in mask.values.items()}
    head: dict[str, Any] = {"format": MASK_FORMAT}
    if mask.signature:
        head["signature"] = mask.signature
    if one_line:
        return json.dumps({**head, **rows})
    entries = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*entries, _rows(rows, "  ")]) + "\n}\n"
