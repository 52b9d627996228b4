"""Load a fairseq checkpoint: safely, and checked for the form in which fairseq writes it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fairseq_headgates.messages import quoted
from fairseq_headgates.safety.options import check_evaluated
from fairseq_headgates.safety.reading import TRUST, load_file

# The entries of a fairseq checkpoint and their types; each may be missing.
FORMS: dict[tuple[str, ...], tuple[type, ...]] = {
    ("args",): (dict, argparse.Namespace),
    ("cfg",): (dict,),
    ("cfg", "model"): (argparse.Namespace, dict),
    ("cfg", "task"): (argparse.Namespace, dict),
    ("cfg", "criterion"): (argparse.Namespace, dict),
    ("cfg", "common"): (argparse.Namespace, dict),
    ("optimizer_history",): (list,),
    ("extra_state",): (dict,),
    ("extra_state", "train_iterator"): (dict,),
    ("extra_state", "ema"): (dict,),
    ("extra_state", "ema_fp32_params"): (dict,),
    ("last_optimizer_state",): (dict,),
}


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
    if reason := _fault(state):
        raise ValueError(f"{path!r} is not a fairseq checkpoint: {reason}")
    try:
        for options in (state.get("args"), state.get("cfg")):
            check_evaluated({"options": options})
    except ValueError as error:
        raise ValueError(f"{path!r} is not loaded: {error}") from None
    return state


def _fault(state: Any) -> str | None:
    """Return the first difference from the form in which fairseq writes checkpoints, None without any."""
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        return "it holds no model"
    for name, weight in state["model"].items():
        if not isinstance(name, str) or not isinstance(weight, Tensor):
            return f"{quoted(name)} in its model is not a named tensor"
    for place, kinds in FORMS.items():
        value: Any = state
        for key in place:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, (*kinds, type(None))):
            allowed = " or ".join(kind.__name__ for kind in kinds)
            return f"its {'.'.join(place)} is of type {type(value).__name__}, not {allowed}"
    if not all(isinstance(entry, dict) for entry in state.get("optimizer_history") or []):
        return "its optimizer_history is not a list of dictionaries"
    options = state.get("args") or (state.get("cfg") or {}).get("model")
    if options is None:
        return "it holds no options of the model, in args or cfg.model"
    named = vars(options) if isinstance(options, argparse.Namespace) else options
    if not all(isinstance(name, str) for name in named):
        return "its option names are not text"
    for name in ("arch", "_name"):
        if not isinstance(named.get(name), (str, type(None))):
            return f"its option {name} is {quoted(named[name])}, not a name"
    return None


def model_args(state: Mapping[str, Any]) -> argparse.Namespace:
    """Return a copy of the options of the model stored in a checkpoint."""
    args = state.get("args") or state["cfg"]["model"]
    return argparse.Namespace(**(vars(args) if isinstance(args, argparse.Namespace) else args))


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return stored options as a mapping, an empty one for what are no options."""
    value = vars(value) if isinstance(value, argparse.Namespace) else value
    return value if isinstance(value, Mapping) else {}


def architecture(args: argparse.Namespace) -> str:
    """Return the name by which fairseq builds a model, '?' if the options have none."""
    return getattr(args, "_name", None) or getattr(args, "arch", None) or "?"


def updates_of(state: Mapping[str, Any]) -> int | str:
    """Return the number of updates that a checkpoint was trained for, '?' if it is not stored or not possible."""
    history = state.get("optimizer_history") or [{}]
    updates = history[-1].get("num_updates", "?")
    return updates if isinstance(updates, int) and 0 <= updates < 2**63 else "?"
