"""Read the progress of a training from the logs of fairseq-train, or from its TensorBoard events."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

Series = dict[str, list[tuple[int, float]]]
PARTS = ("train_inner", "train", "valid")
LINE = re.compile(r"\| INFO \| (train_inner|train|valid) \| (.*)$", re.MULTILINE)
TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.MULTILINE)
PAIR = re.compile(r"(?:^|[ ,|])([A-Za-z][\w.]*)[ =](-?[\d.]+(?:e[+-]?\d+)?)(?=[ ,|]|$)")
EVENTS = "events.out.tfevents"


def is_training_log(text: str) -> bool:
    """Return whether a text has lines of fairseq-train that say how a training goes."""
    return LINE.search(text) is not None


def parse_log(text: str) -> Series:
    """Return the numbers in the log of fairseq-train: {"train nll_loss" and so on: [(update, value)]}.

    The log may have any `--log-format` but `none`. `train_inner` has values every `--log-interval` updates, `train`
    their means at the end of each epoch, `valid` those of the validation sets. A line replaces earlier ones
    of the same or a higher update, as of a training that was resumed.
    """
    found: Series = {}
    for match in LINE.finditer(text):
        part, rest = match.groups()
        values = dict(_json_values(part, rest) if rest.startswith("{") else _values(rest))
        update = values.pop("num_updates", math.nan)
        if 0 <= update < 2**53:  # NaN is not
            for name, value in values.items():
                points = found.setdefault(f"{part} {name}", [])
                while points and points[-1][0] >= update:
                    points.pop()
                points.append((int(update), value))
    return found


def first_time(text: str) -> str:
    """Return the time stamp of the first line of a log that has one."""
    match = TIME.search(text)
    return match[0] if match else ""


def _values(text: str) -> Iterator[tuple[str, float]]:
    """Read "epoch 001 | loss 4.9 | ..." and "epoch 001: 50 / 251 loss=4.9, ..."."""
    for name, value in PAIR.findall(text):
        with suppress(ValueError):  # "1.2.3"
            number = float(value)
            if math.isfinite(number):
                yield name, number


def _json_values(part: str, text: str) -> Iterator[tuple[str, float]]:
    """Read --log-format json, whose names begin with `train_` or `valid_` at the end of an epoch."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return
    for name, value in data.items() if isinstance(data, dict) else ():
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            if math.isfinite(number):
                yield name.removeprefix(f"{part}_"), number


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
        if path.parent.name not in PARTS:
            continue
        try:
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    if value.HasField("simple_value") and math.isfinite(value.simple_value):
                        found.setdefault(f"{path.parent.name} {value.tag}", {})[event.step] = value.simple_value
        except Exception as error:  # whatever a broken file makes tensorboard raise
            raise ValueError(
                f"cannot read the TensorBoard file {path} ({str(error)[:200]}): give the log of fairseq-train"
            ) from None
    return {name: sorted(points.items()) for name, points in found.items()}
