"""Attention types, head tables, masks and score files (no torch).

A `HeadTable` holds a number for every head: gates, scores, or a mask of 0 and 1. Whatever measures heads returns one;
whatever removes or prints heads takes one.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from fairseq_headgates.files import read_text
from fairseq_headgates.messages import shown

TYPES = ("enc-self", "dec-self", "dec-enc")  # encoder self-, decoder self-, decoder-encoder attention
MASK_FORMAT = "headgates.heads/1"
SCORE_FORMAT = "headgates.scores/1"


class HeadId(NamedTuple):
    """Identifies a head: attention type, layer and head, both counted from 0. Its text is 'dec-enc 5 0'."""

    kind: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.kind} {self.layer} {self.head}"

    @classmethod
    def parse(cls, text: str) -> HeadId:
        """Parse the text of a head: 'dec-enc 5 0'."""
        kind, layer, head = text.split()
        return cls(kind, int(layer), int(head))


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one head for one sentence.

    Attributes:
        head: the head
        gate: its evaluation gate; None for a removed head, which has no weights
        queries: tokens that look: of the source (enc-self), of the input of the decoder (dec-self), or the tokens that
            the decoder predicts (dec-enc)
        keys: tokens that are looked at
        weights: attention weights [queries][keys]
    """

    head: HeadId
    gate: float | None
    queries: list[str]
    keys: list[str]
    weights: list[list[float]]


@dataclass(frozen=True)
class Signature:
    """Describes how a result was computed; its text is 'method|name:value|name:value'.

    `method` may be empty. Values may hold colons, names and values no '|'.
    """

    parts: Mapping[str, str]
    method: str = ""

    def __str__(self) -> str:
        return "|".join([*filter(None, [self.method]), *(f"{name}:{value}" for name, value in self.parts.items())])

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Parse the text of a signature."""
        fields = [part.partition(":") for part in text.split("|")]
        method = "".join(name for name, colon, _ in fields[:1] if not colon)
        return cls({name: value for name, colon, value in fields if colon}, method)

    def with_parts(self, parts: Mapping[str, object]) -> Signature:
        """Return the signature with other values of some parts, and new parts at the end."""
        return Signature({**self.parts, **{name: str(value) for name, value in parts.items()}}, self.method)

    def of_method(self, method: str, parts: Mapping[str, object]) -> Signature:
        """Return the signature of a method, whose own `parts` come first."""
        return Signature({**{name: str(value) for name, value in parts.items()}, **self.parts}, method)


@dataclass(frozen=True)
class HeadTable:
    """A number for every head: `values[type][layer][head]`, with types in the order of `TYPES`.

    `name` says what the numbers are (a method, "gate", "alive"), `signature` how they were computed.
    """

    values: Mapping[str, list[list[float]]]
    name: str = ""
    signature: str = ""

    def __post_init__(self) -> None:
        ordered = {kind: [list(layer) for layer in self.values[kind]] for kind in TYPES if kind in self.values}
        object.__setattr__(self, "values", ordered)

    @property
    def types(self) -> tuple[str, ...]:
        """The attention types, in the order of `TYPES`."""
        return tuple(self.values)

    def __getitem__(self, head: HeadId) -> float:
        return self.values[head.kind][head.layer][head.head]

    def items(self) -> Iterator[tuple[HeadId, float]]:
        """Iterate over all heads, by type, layer and number, with their values."""
        for kind, rows in self.values.items():
            for layer, row in enumerate(rows):
                for head, value in enumerate(row):
                    yield HeadId(kind, layer, head), value

    def heads(self, kind: str) -> list[float]:
        """Return all values of one type, layer after layer."""
        return [value for layer in self.values[kind] for value in layer]

    def rows(self) -> dict[str, list[list[float | None]]]:
        """Return the values for JSON, with None for NaN."""
        return {
            kind: [[None if math.isnan(value) else value for value in layer] for layer in layers]
            for kind, layers in self.values.items()
        }

    def map(self, function: Callable[[float], float], name: str = "") -> HeadTable:
        """Return the table with `function` applied to every value."""
        changed = {kind: [[function(v) for v in layer] for layer in rows] for kind, rows in self.values.items()}
        return HeadTable(changed, name or self.name, self.signature)

    def count(self, kind: str) -> tuple[int, int]:
        """Return how many heads of a type have a value above 0, and the number of all."""
        values = self.heads(kind)
        return sum(value > 0 for value in values), len(values)


def kind_and_layer(name: str) -> tuple[str, int]:
    """Return type and layer of an attention module by its name: 'decoder.layers.3.encoder_attn' -> ('dec-enc', 3).

    In all architectures of fairseq, decoder-encoder attention is an `encoder_attn`, and a decoder or its list of layers
    has "decoder" in its name. The layer is the last number; several encoders or decoders repeat the numbers.
    """
    *path, attention = name.split(".")
    if attention.startswith("encoder_attn"):
        kind = "dec-enc"
    else:
        kind = "dec-self" if any("decoder" in part for part in path) else "enc-self"
    numbers = [part for part in path if part.isdecimal()]
    return kind, int(numbers[-1]) if numbers else 0


def parse_types(text: str | None) -> tuple[str, ...]:
    """Parse attention types: 'dec-enc,enc-self' -> ('enc-self', 'dec-enc').

    Raise ValueError for an unknown or repeated type.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in TYPES:
            raise ValueError(f"unknown attention type {shown(name)}: choose from {', '.join(TYPES)}")
        if names.count(name) > 1:
            raise ValueError(f"attention type {name!r} is named twice: name each type once")
    return tuple(kind for kind in TYPES if kind in names)


def number_of_heads(fraction: float | Decimal, total: int) -> int:
    """Return how many of `total` heads a fraction is. Halves are rounded up: of 5 heads, 0.5 is 3."""
    return int((Decimal(str(fraction)) * total).to_integral_value(ROUND_HALF_UP))  # of 0.1 as it is written


def parse_mask(text: str) -> HeadTable:
    """Read a mask from inline JSON, or from a JSON file.

    The format is ``{"format": "headgates.heads/1", "enc-self": [[1, 0, ...] for every layer], ...}``: 1 keeps a head,
    0 removes it, and all heads of a missing type are kept.

    Args:
        text: JSON, which starts with '{', or the path of a file

    Raises:
        ValueError: with the place and the rule, if the mask cannot be used
    """
    if text.lstrip().startswith("{"):
        return _mask("the inline mask", _json("the inline mask", text))
    return _mask(text, _read("the mask", text))


Mask = HeadTable | Mapping[str, Any] | str | os.PathLike[str]


def as_mask(mask: Mask) -> HeadTable:
    """Convert a mask in any form (mapping, JSON text, path of a file) to a `HeadTable`.

    Args:
        mask: a `HeadTable`, a dict with the content of a mask file (whose rows may be lists, tuples, arrays or
            tensors), inline JSON, or the path of a mask file

    Raises:
        TypeError: if `mask` has another type
        ValueError: if the mask cannot be used; see `parse_mask`
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
    """Convert tuples, arrays and tensors to lists, at every level."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _mask(where: str, data: Any) -> HeadTable:
    if not isinstance(data, dict):
        raise ValueError(f'{where} is not a JSON object: it must look like {{"enc-self": [[1, 0, 1, 1], ...]}}')
    if data.get("format", MASK_FORMAT) != MASK_FORMAT:
        found = shown(data["format"])
        raise ValueError(f"{where} has format {found}: it must be {MASK_FORMAT!r}, as `headgates show --out` writes it")
    rows = {key: value for key, value in data.items() if key not in ("format", "signature")}
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
    """Return the first name that occurs a second time."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def parse_scores(path: str, method: str | None = None, option: str = "--method") -> HeadTable:
    """Read the scores of one method from a score file.

    Args:
        path: a score file
        method: which scores to take if the file has those of several methods
        option: the command-line option of `method`, for messages

    Raises:
        ValueError: if the file cannot be read, or the method is missing or ambiguous
    """
    tables = read_scores(path)
    named = {table.name: table for table in tables}
    if method is None and len(tables) != 1:
        raise ValueError(f"{path} holds the scores of {', '.join(named)}: choose one with {option}")
    if method is not None and method not in named:
        raise ValueError(f"{path} has no scores of {shown(method)}: choose {option} from {', '.join(named)}")
    return tables[0] if method is None else named[method]


def read_scores(path: str) -> list[HeadTable]:
    """Read all scores of a score file, which holds one object or a list of objects.

    The format is ``{"format": "headgates.scores/1", "method": "gradient", "signature": "...", "scores": {"enc-self":
    [[0.1, ...] for every layer], ...}}``. A higher score means a more important head; null (NaN in the table) marks a
    removed head.

    Raises:
        ValueError: if the file cannot be used
    """
    data = _read("the score file", path)
    tables = data if isinstance(data, list) else [data]
    if not tables:
        raise ValueError(f"{path} has no scores, only an empty list: write it with `headgates score --out`")
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
    """Return the text of a score file, one layer per line: an object for one table, a list for several."""
    objects = [_object(t, {"format": SCORE_FORMAT, "method": t.name, "signature": t.signature}) for t in tables]
    return (objects[0] if len(objects) == 1 else "[\n" + ",\n".join(objects) + "\n]") + "\n"


def _object(table: HeadTable, head: Mapping[str, str]) -> str:
    entries = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*entries, '  "scores": {\n' + _rows(table.rows(), "    ") + "\n  }"]) + "\n}"


def _rows(values: Mapping[str, list], indent: str) -> str:
    """Return the entries of a JSON object with a list of layers for every type, one layer per line."""
    entries = []
    for kind, layers in values.items():
        lines = ",\n".join(f"{indent}  {json.dumps(layer, allow_nan=False)}" for layer in layers)
        entries.append(f'{indent}"{kind}": [\n{lines}\n{indent}]')
    return ",\n".join(entries)


def _values(where: str, kind: str, layers: Any, what: str) -> Iterator[tuple[int, Any]]:
    """Return the values of a type with the numbers of their layers. Raise ValueError for another form than lists."""
    if kind not in TYPES:
        raise ValueError(f"{where} has the unknown attention type {shown(kind)}: choose from {', '.join(TYPES)}")
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, list) for layer in layers):
        raise ValueError(
            f"{where}: {kind} is {shown(layers)}: it must be a list with one list of {what} for every layer"
        )
    return ((i, value) for i, layer in enumerate(layers) for value in layer)


def _check_numbers(where: str, kind: str, layers: Any) -> None:
    for i, value in _values(where, kind, layers, "numbers"):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
            raise ValueError(f"{where}: {kind} layer {i} holds {shown(value)}: only finite numbers are allowed")


def _check_zero_one(where: str, kind: str, layers: Any) -> None:
    for i, value in _values(where, kind, layers, "0/1"):
        if isinstance(value, bool) or value not in (0, 1):
            raise ValueError(f"{where}: {kind} layer {i} holds {shown(value)}: only 1 (keep) and 0 (mask) are allowed")


def check_shape(table: HeadTable, sizes: Mapping[str, tuple[int, int]], what: str = "the mask") -> None:
    """Raise ValueError, with every reason, unless `table` fits a model with `sizes[type] = (layers, heads)`."""
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
        raise ValueError(f"{what} does not fit the model: " + "; ".join(reasons))


def mask_to_json(mask: HeadTable, one_line: bool = False) -> str:
    """Return the text of a mask file: one layer per line, or all in one line."""
    rows = {kind: [[int(value) for value in layer] for layer in layers] for kind, layers in mask.values.items()}
    head: dict[str, Any] = {"format": MASK_FORMAT}
    if mask.signature:
        head["signature"] = mask.signature
    if one_line:
        return json.dumps({**head, **rows})
    entries = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*entries, _rows(rows, "  ")]) + "\n}\n"
