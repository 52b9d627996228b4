"""Parse the values of options: from the command line, from hydra, or stored in a checkpoint.

All raise ValueError or TypeError.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from fairseq_headgates.gates import METHODS
from fairseq_headgates.gates.distribution import LARGEST
from fairseq_headgates.heads import HeadTable, as_mask
from fairseq_headgates.messages import quoted
from fairseq_headgates.safety.checkpoint import load_checkpoint, model_args


def parse_init(value: Any) -> float | str:
    """Parse an initial log_alpha: '2.5' -> 2.5, 'glorot' -> 'glorot'."""
    if value == "glorot":
        return value
    if not abs(float(value)) <= LARGEST:
        raise ValueError(
            f"the initial log_alpha is {quoted(value)}: it must be 'glorot' or a number from {-LARGEST:g} to "
            f"{LARGEST:g}"
        )
    return float(value)


def one_of(what: str, choices: Collection[str]) -> Callable[[Any], str]:
    """Return a parser of a name, one of `choices`."""

    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"unknown {what} {quoted(value)}: choose from {', '.join(choices)}")
        return value

    return parse


parse_method = one_of("method", METHODS)


def count(value: Any) -> int:
    """Parse a number from 0."""
    if int(value) < 0:
        raise ValueError(f"{quoted(value)} is below 0")
    return int(value)


def comma_separated(value: Any) -> str:
    """Return a list of hydra as the text of the command line."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def parse_alive(value: Any) -> HeadTable | None:
    """Read a mask: a file, inline JSON or a checkpoint as text, or a mapping of hydra."""
    from fairseq_headgates.plugin.models.building import read_mask  # builds models, whose options are parsed here

    if not isinstance(value, str):
        return None if value is None else as_mask(value)
    with torch.random.fork_rng(devices=[]):  # building a model draws its weights
        return read_mask(value)


def switch(value: Any) -> bool:
    """Parse true or false."""
    if value not in (True, False):
        raise ValueError(f"{quoted(value)} is neither true nor false")
    return bool(value)


def parse_ffn_dims(value: Any) -> dict[str, tuple[int, ...]] | None:
    """Parse numbers of neurons: '{"encoder": [512, 0]}' -> {"encoder": (512, 0)}; None for empty text.

    The path of a checkpoint stands for the numbers that it stores, None if no neurons were removed.
    """
    if isinstance(value, str) and os.path.isfile(value):
        value = getattr(model_args(load_checkpoint(value, hint="give the numbers as JSON")), "ffn_dims", None)
    if value in (None, ""):
        return None
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        found = None
    if (
        not isinstance(found, Mapping)
        or not {*found} <= {"encoder", "decoder"}
        or not all(map(_is_dims, found.values()))
    ):
        raise ValueError(
            f"{quoted(value)} does not give the neurons of each layer: it must be a checkpoint, or look like "
            '{"encoder": [512, 0, 256], "decoder": [128, 512, 512]}'
        )
    return {side: tuple(dims) for side, dims in found.items()}


def _is_dims(numbers: Any) -> bool:
    return isinstance(numbers, (list, tuple)) and all(type(number) is int and number >= 0 for number in numbers)
