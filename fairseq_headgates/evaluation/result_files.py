"""Read files of `headgates evaluate` (no torch)."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fairseq_headgates.evaluation.results import FORMAT, Evaluation, Loss, Score, Speed
from fairseq_headgates.files import read_text
from fairseq_headgates.messages import printable, shown

LARGEST = sys.float_info.max
CURE = "write it with `headgates evaluate --out`"
Value = TypeVar("Value")


class _Unfit(ValueError):
    """Content that is no evaluation, and why."""


def read_evaluations(path: str) -> list[Evaluation]:
    """Read the evaluations of a file of `headgates evaluate --out`.

    Raises:
        ValueError: in one line, if the file cannot be read or has other content
    """
    text = read_text(path, "the evaluation", CURE)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no evaluation, because it is not JSON: {CURE}") from None
    if content == []:
        raise ValueError(f"{path} is no evaluation, because it is an empty list: {CURE}")
    return [parse_evaluation(each, path) for each in (content if isinstance(content, list) else [content])]


def parse_evaluation(content: object, name: str = "the object") -> Evaluation:
    """Convert the JSON object of an evaluation. Raise ValueError, in one line with its `name`, for other content."""
    try:
        return _evaluation(content)
    except _Unfit as error:
        raise ValueError(f"{name} is no evaluation, because {error}: {CURE}") from None


def _evaluation(content: object) -> Evaluation:
    of = _object(content, "it")
    if of.get("format") != FORMAT:
        raise _Unfit(f"its format is {shown(of.get('format'))}, not {FORMAT!r}")
    scores, speed = _each(of, "scores", _score), of.get("speed")
    predictions, references = (_predictions(of, name, "accuracy" in scores) for name in ("predictions", "references"))
    if scores and (predictions is None or references is None or len(predictions) != len(references)):
        raise _Unfit("it does not have a reference for each prediction")
    if scores and scores.keys() not in ({"BLEU", "chrF2"}, {"accuracy"}):
        raise _Unfit(f"its scores are {', '.join(scores)}, not BLEU and chrF2, or accuracy")
    heads = _each(of, "heads", lambda value, where: _numbers(value, where, _whole, 2))
    if "total" not in heads:
        raise _Unfit("it has no heads total")
    return Evaluation(
        _get(of, "checkpoint", _name),
        {attention_type: (kept, total) for attention_type, (kept, total) in heads.items()},
        _each(of, "layers", lambda value, where: _numbers(value, where, _whole)),
        _get(of, "parameters", _whole),
        _each(of, "losses", _loss),
        _get(of, "subset", _name),
        scores,
        predictions,
        references,
        None if speed is None else _speed(speed),
        _get(of, "signature", _name),
    )


def _loss(value: object, where: str) -> Loss:
    of = _object(value, where)
    sentences = _get(of, "sentences", lambda v, w: _numbers(v, w, _number), where)
    counts = _get(of, "counts", lambda v, w: _numbers(v, w, _whole), where)
    if len(sentences) != len(counts) or not sum(counts) > 0:
        raise _Unfit(f"{where} does not have a count for each of its sentences, or they are 0")
    optional: dict[str, Any] = {name: _get(of, name, reader, where) for name, reader in OPTIONAL.items() if name in of}
    return Loss(
        mean=_get(of, "mean", _number, where),
        interval=_interval(of, where),
        unit=_get(of, "unit", _name, where),
        sentences=sentences,
        counts=counts,
        **optional,
    )


def _score(value: object, where: str) -> Score:
    of = _object(value, where)
    return Score(_get(of, "score", _number, where), _interval(of, where), _get(of, "signature", _name, where))


def _speed(value: object) -> Speed:
    of = _object(value, "speed")
    return Speed(_get(of, "unit", _name, "speed"), _get(of, "per_second", _number, "speed"))


def _interval(of: Mapping[str, Any], where: str) -> tuple[float, float]:
    low, high = _get(of, "interval", lambda value, name: _numbers(value, name, _number, 2), where)
    return low, high


def _predictions(of: Mapping[str, Any], name: str, classes: bool) -> list[Any] | None:
    reader: Callable[[object, str], Any] = _whole if classes else _text
    return [reader(each, name) for each in _list(of[name], name)] if name in of else None


def _get(of: Mapping[str, Any], name: str, reader: Callable[[object, str], Value], where: str = "") -> Value:
    """Read a member of an object."""
    place = f"{where} {name}".strip()
    if name not in of:
        raise _Unfit(f"it has no {place}")
    return reader(of[name], place)


def _each(of: Mapping[str, Any], name: str, reader: Callable[[object, str], Value]) -> dict[str, Value]:
    """Read every member of an object within an object."""
    members = _get(of, name, _object)
    return {printable(key): reader(value, f"{name} {key}") for key, value in members.items()}


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Unfit(f"{where} is {shown(value)}, not an object")
    return value


def _list(value: object, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise _Unfit(f"{where} is {shown(value)}, not a list" + (f" of {length}" if length else ""))
    return value


def _numbers(
    value: object, where: str, reader: Callable[[object, str], Value], length: int | None = None
) -> list[Value]:
    return [reader(each, where) for each in _list(value, where, length)]


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _Unfit(f"{where} is {shown(value)}, not text")
    return value


def _name(value: object, where: str) -> str:
    """Read text that is printed."""
    return printable(_text(value, where))


def _whole(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _Unfit(f"{where} is {shown(value)}, not a number of 0 or more")
    return value


def _number(value: object, where: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) < LARGEST:  # type: ignore[arg-type]
        raise _Unfit(f"{where} is {shown(value)}, not a finite number")
    return float(value)  # type: ignore[arg-type]


def _perplexity(value: object, where: str) -> float:
    return math.inf if value == math.inf else _number(value, where)


OPTIONAL: dict[str, Callable[[object, str], Any]] = {
    "perplexity": _perplexity,
    "tokens": _whole,
    "unknown": _whole,
    "words": _whole,
    "perplexity_per_word": _perplexity,
}
