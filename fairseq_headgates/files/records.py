"""Write and read JSON, and check its content by the types of the fields of dataclasses (no torch)."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from fairseq_headgates.messages import printable, quoted

LARGEST = 2**63 - 1  # of whole numbers: sums and quotients of such numbers can be computed
RULES = {str: "text", int: "a whole number from 0 to 2^63 - 1", dict: "an object", list: "a list"}


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, with null for numbers that are not finite, which JSON does not have."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def parse_json(text: str, name: str, hint: str) -> Any:
    """Parse JSON in which no object has a key twice. Raise ValueError, in one line with a name and a hint."""
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON ({error}): {hint}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"it has the key {quoted(repeated(key for key, _ in pairs))} twice in one object")
    return found


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs a second time, None if there is none."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def read_records(kind: Any, content: object, name: str, hint: str) -> list[Any]:
    """Convert a JSON object, or the objects of a list; see `read_record`."""
    return [read_record(kind, each, name, hint) for each in (content if isinstance(content, list) else [content])]


def read_record(kind: Any, value: object, name: str, hint: str) -> Any:
    """Convert JSON to a dataclass, or to another type that a field of one may have.

    These are dataclasses, `list`, `tuple`, `dict`, `Literal`, `str` (with escapes for control characters), `int` (from
    0 to `LARGEST`), `float` (finite), `X | None` (null or missing), and `Any` (unchanged). Members of an object without
    a field are ignored.

    Raises:
        ValueError: with `name`, the place in the JSON, its rule, and `hint`
    """
    try:
        return _read(kind, value, ())
    except ValueError as error:
        raise ValueError(f"{name}: {error}: {hint}") from None


def _read(kind: Any, value: Any, place: tuple[str, ...]) -> Any:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Any:
        return value
    if origin in (Union, UnionType):
        return None if value is None else _read(inner[0], value, place)
    if is_dataclass(kind) and isinstance(value, dict):
        fields = {}
        for name, each in get_type_hints(kind, include_extras=True).items():
            if name not in value and NoneType not in get_args(each):
                _refuse(place, f"has no {name}")
            fields[name] = _read(each, value.get(name), (*place, name))
        return origin(**fields)
    if origin is dict and isinstance(value, dict):
        keys = [_read(inner[0], key, (*place, "key")) for key in value]
        return {key: _read(inner[1], each, (*place, key)) for key, each in zip(keys, value.values(), strict=True)}
    if origin is list and isinstance(value, list):
        return [_read(inner[0], each, (*place, str(i))) for i, each in enumerate(value)]
    if origin is tuple and isinstance(value, list) and len(value) == len(inner):
        return tuple(_read(inner[i], each, (*place, str(i))) for i, each in enumerate(value))
    if origin is str and isinstance(value, str):
        return printable(value)
    if origin is Literal and value in inner and not isinstance(value, bool):
        return value
    if origin is int and type(value) is int and 0 <= value <= LARGEST:
        return value
    if origin is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    _refuse(place, f"must be {_rule(origin, inner)}, not {quoted(value)}")


def _rule(origin: Any, inner: tuple[Any, ...]) -> str:
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin is tuple:
        return f"a list of {len(inner)}"
    return RULES.get(origin, "an object" if is_dataclass(origin) else "a finite number")


def _refuse(place: tuple[str, ...], problem: str) -> NoReturn:
    raise ValueError(f"{'.'.join(place) or 'it'} {problem}")
