"""Read the progress of a training from the logs of fairseq-train, or from its TensorBoard events."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

Series = dict[str, list[tuple[int, float]]]
# What precedes a line: by fairseq-train, or by hydra; nothing in the file of --log-file.
PREFIX = re.compile(r"(?:\| INFO \| \w+ \| |\]\[\w+\]\[INFO\] - )(.*)")
# A line of one of the text formats: an epoch, and a batch number in it or the subset of a validation.
BODY = re.compile(r"epoch \d+(:\s+\d+ / \d+ | \| valid on '([^']*)' subset)?\b")
TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
PAIR = re.compile(r"(?:^|[ ,|])([A-Za-z][\w.]*)[ =](-?[\d.]+(?:e[+-]?\d+)?)(?=[ ,|]|$)")
UPDATE = "num_updates"
EVENTS = "events.out.tfevents"


def parse_log(lines: Iterable[str]) -> Series:
    """Return the numbers in the log of fairseq-train: {"train nll_loss" and so on: [(update, value)]}.

    The log is the output of fairseq-train or fairseq-hydra-train, hydra_train.log, or the file of `--log-file`, with
    any `--log-format` but `none`. `train_inner` has values every `--log-interval` updates, `train` their means at the
    end of each epoch, `valid` those of a validation. A line replaces earlier ones of the same or a higher update,
    as of a training that was resumed, or those that fairseq writes to `--log-file` several times.
    """
    found: Series = {}
    for line in lines:
        part, values = _numbers(line) if UPDATE in line else ("", {})
        update = values.pop(UPDATE, math.nan)
        if part and 0 <= update < 2**53:  # NaN is not
            for name, value in values.items():
                points = found.setdefault(f"{part} {name}", [])
                while points and points[-1][0] >= update:
                    points.pop()
                points.append((int(update), value))
    return _with_validation(found)


def _with_validation(found: Series) -> Series:
    """Name the numbers of the first subset of --valid-subset `valid`, if no subset has this name."""
    parts = [name.removesuffix(" loss") for name in found if name.endswith(" loss")]
    others = [part for part in parts if part not in ("train", "train_inner")]
    if not others or "valid" in others:
        return found
    return {re.sub(rf"^{re.escape(others[0])} ", "valid ", name): points for name, points in found.items()}


def first_time(lines: Iterable[str]) -> str:
    """Return the time stamp of the first line of a log that has one, "" if none has."""
    return next((match[1] for line in lines if (match := TIME.match(line))), "")


def _numbers(line: str) -> tuple[str, dict[str, float]]:
    """Return the part of the training, or the subset, that a line is about, and its numbers."""
    found = PREFIX.search(line)
    body = found[1] if found else line.lstrip()
    if body.startswith("{"):
        return _json_numbers(body)
    match = BODY.match(body)
    if match is None:
        return "", {}
    return match[2] or ("train_inner" if match[1] else "train"), _finite(PAIR.findall(body))


def _finite(pairs: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Return the finite numbers of pairs of a name and a value."""
    numbers = {}
    for name, value in pairs:
        with suppress(TypeError, ValueError, OverflowError):  # "1.2.3"
            if math.isfinite(number := float(value)):
                numbers[name] = number
    return numbers


def _json_numbers(text: str) -> tuple[str, dict[str, float]]:
    """Read --log-format json, whose names begin with `train_`, or the name of the subset, at the end of an epoch."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return "", {}
    names = [name for name in data if name.endswith(UPDATE)] if isinstance(data, dict) else []
    if not names:
        return "", {}
    prefix = names[0].removesuffix(UPDATE)
    numbers = _finite((name.removeprefix(prefix), value) for name, value in data.items())
    return prefix.removesuffix("_") or "train_inner", numbers


def event_files(folder: Path) -> list[Path]:
    """Return the TensorBoard files in a folder, at most two folders below it."""
    return sorted(path for depth in ("", "*/", "*/*/") for path in folder.glob(f"{depth}{EVENTS}*"))


def read_events(files: Iterable[Path]) -> Series:
    """Return the scalars in TensorBoard files of fairseq-train, by the names that `parse_log` gives them.

    Raises:
        ValueError: if tensorboard is not installed, or a file cannot be read
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError:
        raise ValueError(
            "reading TensorBoard events needs tensorboard: pip install 'fairseq-headgates[report]', or give the log of "
            "fairseq-train"
        ) from None
    found: dict[str, dict[int, float]] = {}
    for path in files:
        try:
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    if value.HasField("simple_value") and math.isfinite(value.simple_value):
                        found.setdefault(f"{path.parent.name} {value.tag}", {})[event.step] = value.simple_value
        except Exception as error:  # whatever a broken file makes tensorboard raise
            raise ValueError(
                f"cannot read the TensorBoard file {path} ({str(error)[:200]}): give the log of fairseq-train"
            ) from None
    return _with_validation({name: sorted(points.items()) for name, points in found.items()})
