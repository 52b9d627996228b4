"""Mask files and score files, and the heads in files of functions."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fairseq_headgates.files import read_text
from fairseq_headgates.heads.table import TYPES, HeadTable
from fairseq_headgates.messages import shown

MASK_FORMAT = "headgates.heads/1"
SCORE_FORMAT = "headgates.scores/1"


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
    for attention_type, layers in rows.items():
        _check_zero_one(where, attention_type, layers)
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
        for attention_type, layers in rows.items():
            _check_numbers(path, attention_type, layers)
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
    for attention_type, layers in values.items():
        lines = ",\n".join(f"{indent}  {json.dumps(layer, allow_nan=False)}" for layer in layers)
        entries.append(f'{indent}"{attention_type}": [\n{lines}\n{indent}]')
    return ",\n".join(entries)


def _values(where: str, attention_type: str, layers: Any, what: str) -> Iterator[tuple[int, Any]]:
    """Return the values of a type with the numbers of their layers. Raise ValueError for another form than lists."""
    if attention_type not in TYPES:
        raise ValueError(
            f"{where} has the unknown attention type {shown(attention_type)}: choose from {', '.join(TYPES)}"
        )
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, list) for layer in layers):
        raise ValueError(
            f"{where}: {attention_type} is {shown(layers)}: it must be a list with one list of {what} for every layer"
        )
    return ((i, value) for i, layer in enumerate(layers) for value in layer)


def _check_numbers(where: str, attention_type: str, layers: Any) -> None:
    for i, value in _values(where, attention_type, layers, "numbers"):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
            raise ValueError(
                f"{where}: {attention_type} layer {i} holds {shown(value)}: only finite numbers are allowed"
            )


def _check_zero_one(where: str, attention_type: str, layers: Any) -> None:
    for i, value in _values(where, attention_type, layers, "0/1"):
        if isinstance(value, bool) or value not in (0, 1):
            raise ValueError(
                f"{where}: {attention_type} layer {i} holds {shown(value)}: only 1 (keep) and 0 (mask) are allowed"
            )


def mask_to_json(mask: HeadTable, one_line: bool = False) -> str:
    """Return the text of a mask file: one layer per line, or all in one line."""
    rows = {each: [[int(value) for value in layer] for layer in layers] for each, layers in mask.values.items()}
    head: dict[str, Any] = {"format": MASK_FORMAT}
    if mask.signature:
        head["signature"] = mask.signature
    if one_line:
        return json.dumps({**head, **rows})
    entries = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*entries, _rows(rows, "  ")]) + "\n}\n"
