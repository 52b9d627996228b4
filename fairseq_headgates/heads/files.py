"""Mask files and score files, and the heads in files of functions."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fairseq_headgates.files import parse_json, read_record, read_records, read_text, repeated
from fairseq_headgates.heads.table import AttentionType, HeadTable
from fairseq_headgates.messages import quoted

MASK_FORMAT = "headgates.heads/1"
SCORE_FORMAT = "headgates.scores/1"
MASK_HINT = 'a mask looks like {"enc-self": [[1, 0, 1, 1], ...]}, where 1 keeps and 0 masks a head'
PATH_HINT = "give the path of a JSON file"
SCORE_HINT = "write it with `headgates score --out`"


@dataclass(frozen=True)
class _MaskHeader:
    """What a mask file has besides the mask."""

    format: Literal["headgates.heads/1"] | None
    signature: str | None


@dataclass(frozen=True)
class _Scores:
    """An object of a score file; see `read_scores`."""

    format: Literal["headgates.scores/1"]
    method: str | None
    signature: str | None
    scores: dict[AttentionType, list[list[float | None]]]


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
        return _mask("the inline mask", parse_json(text, "the inline mask", MASK_HINT))
    return _mask(text, parse_json(read_text(text, "the mask", PATH_HINT), text, MASK_HINT))


Mask = HeadTable | Mapping[str, Any] | str | os.PathLike[str]


def as_mask(mask: Mask) -> HeadTable:
    """Convert a mask in any form (mapping, JSON text, path of a file) to a `HeadTable`.

    Args:
        mask: a `HeadTable`, a dict with the content of a mask file (whose rows may be lists, tuples, arrays or
            tensors), inline JSON, or the path of a mask file

    Raises:
        ValueError: if the mask cannot be used; see `parse_mask`
    """
    if isinstance(mask, HeadTable):
        return mask
    if isinstance(mask, Mapping):
        return _mask("the mask", {key: _lists(value) for key, value in mask.items()})
    return parse_mask(os.fspath(mask))


def _lists(value: Any) -> Any:
    """Convert tuples, arrays and tensors to lists, at every level."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _mask(where: str, data: Any) -> HeadTable:
    header = read_record(_MaskHeader, data, where, MASK_HINT)
    rows = {key: value for key, value in data.items() if key not in ("format", "signature")}
    mask = read_record(dict[AttentionType, list[list[Literal[1, 0]]]], rows, where, MASK_HINT)
    return HeadTable(mask, name="alive", signature=header.signature or "")


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
        raise ValueError(f"{path} has no scores of {quoted(method)}: choose {option} from {', '.join(named)}")
    return tables[0] if method is None else named[method]


def read_scores(path: str) -> list[HeadTable]:
    """Read all scores of a score file, which holds one object or a list of objects.

    The format is ``{"format": "headgates.scores/1", "method": "gradient", "signature": "...", "scores": {"enc-self":
    [[0.1, ...] for every layer], ...}}``. A higher score means a more important head; null (NaN in the table) marks a
    removed head.

    Raises:
        ValueError: if the file cannot be used
    """
    return scores_of(parse_json(read_text(path, "the score file", PATH_HINT), path, SCORE_HINT), path)


def scores_of(content: object, path: str) -> list[HeadTable]:
    """Return the scores of the JSON in a score file; see `read_scores`."""
    found = read_records(_Scores, content, path, SCORE_HINT)
    twice = repeated(each.method or "" for each in found)
    if twice is not None:
        raise ValueError(f"{path} has two tables of the method {quoted(twice)}: --method cannot choose, so keep one")
    return [
        HeadTable(each.scores, each.method or "", each.signature or "").map(
            lambda value: math.nan if value is None else value
        )
        for each in found
    ]


def scores_to_json(tables: Sequence[HeadTable]) -> str:
    """Return the text of a score file, one layer per line: an object for one table, a list for several."""
    objects = [
        _object(
            {"format": SCORE_FORMAT, "method": table.name, "signature": table.signature},
            '  "scores": {\n' + _rows(table.rows(), "    ") + "\n  }",
        )
        for table in tables
    ]
    return (objects[0] if len(objects) == 1 else "[\n" + ",\n".join(objects) + "\n]") + "\n"


def _object(head: Mapping[str, str], rest: str) -> str:
    entries = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*entries, rest]) + "\n}"


def _rows(values: Mapping[str, list], indent: str) -> str:
    """Return the entries of a JSON object with a list of layers for every type, one layer per line."""
    entries = []
    for attention_type, layers in values.items():
        lines = ",\n".join(f"{indent}  {json.dumps(layer, allow_nan=False)}" for layer in layers)
        entries.append(f'{indent}"{attention_type}": [\n{lines}\n{indent}]')
    return ",\n".join(entries)


def mask_to_json(mask: HeadTable, one_line: bool = False) -> str:
    """Return the text of a mask file: one layer per line, or all in one line."""
    rows = {each: [[int(value) for value in layer] for layer in layers] for each, layers in mask.layers.items()}
    head: dict[str, Any] = {"format": MASK_FORMAT}
    if mask.signature:
        head["signature"] = mask.signature
    if one_line:
        return json.dumps({**head, **rows})
    return _object(head, _rows(rows, "  ")) + "\n"
