"""Load a fairseq checkpoint of which nothing runs as code, and read what it stores."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from fairseq_headgates.safety.literals import check_evaluated
from fairseq_headgates.safety.reading import TRUST, load_file


def load_checkpoint(path: str, trust: bool = False, hint: str = TRUST) -> dict[str, Any]:
    """Load a fairseq checkpoint on the CPU; see `load_file` for what it may hold.

    Args:
        path: a checkpoint file
        trust: allow objects of any class, which may run code
        hint: what to do about a file that could run code, for the message

    Raises:
        ValueError: in one line that names the file, if it is not a fairseq checkpoint or not safe
    """
    state = load_file(path, trust, hint)
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise ValueError(f"{path!r} is not a fairseq checkpoint: it holds no model")
    options = state.get("args") or as_mapping(state.get("cfg")).get("model")
    if not isinstance(options, (Mapping, argparse.Namespace)):
        raise ValueError(
            f"{path!r} is not a fairseq checkpoint: it holds no options of the model, in args or cfg.model"
        )
    try:
        check_evaluated({"args": state.get("args"), "cfg": state.get("cfg")})
    except ValueError as error:
        raise ValueError(f"{path!r} is not loaded: {error}") from None
    return state


def model_args(state: Mapping[str, Any]) -> argparse.Namespace:
    """Return a copy of the options of the model stored in a checkpoint."""
    args = state.get("args") or state["cfg"]["model"]
    return argparse.Namespace(**(vars(args) if isinstance(args, argparse.Namespace) else args))


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return stored options as a mapping, an empty one for what are no options."""
    value = vars(value) if isinstance(value, argparse.Namespace) else value
    return value if isinstance(value, Mapping) else {}


def stored_options(state: Mapping[str, Any], group: str) -> Mapping[str, Any]:
    """Return the options of a group ("task", "criterion", ...) of a checkpoint. Older fairseq stores all in one."""
    return as_mapping(state.get("args")) or as_mapping(as_mapping(state.get("cfg")).get(group))


def architecture(args: argparse.Namespace) -> str:
    """Return the name by which fairseq builds a model, '?' if the options have none."""
    return getattr(args, "_name", None) or getattr(args, "arch", None) or "?"


def updates_of(state: Mapping[str, Any]) -> int | str:
    """Return the number of updates that a checkpoint was trained for, '?' if it is not stored or not possible."""
    history = state.get("optimizer_history") or [{}]
    updates = history[-1].get("num_updates", "?")
    return updates if isinstance(updates, int) and 0 <= updates < 2**63 else "?"
