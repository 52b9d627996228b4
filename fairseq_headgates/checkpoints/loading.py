"""Checkpoint files, read safely and written whole."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_headgates.arguments import shown
from fairseq_headgates.files import replacing
from fairseq_headgates.safety import check_evaluated, load_file

# Where fairseq keeps what in a checkpoint, and of which type; each may be missing.
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


def load_checkpoint(path: str, trust: bool = False) -> dict[str, Any]:
    """Loads a fairseq checkpoint on the CPU, see `safety.load_file`; `trust` allows objects of any class.

    Raises ValueError for any other file, in one line that names it.
    """
    state = load_file(path, trust)
    reason = next(_faults(state), None)
    if reason:
        raise ValueError(f"{path!r} is not a fairseq checkpoint: {reason}")
    try:
        for options in (state.get("args"), state.get("cfg")):
            check_evaluated({"options": options})
    except ValueError as error:
        raise ValueError(f"{path!r} is not loaded: {error}") from None
    return state


def _faults(state: Any) -> Iterator[str]:
    """Says what is not as fairseq writes it."""
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        yield "it holds no model"
        return
    for name, weight in state["model"].items():
        if not isinstance(name, str) or not isinstance(weight, Tensor):
            yield f"{shown(name)} in its model is not a named tensor"
    for place, kinds in FORMS.items():
        value = state
        for key in place:
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, (*kinds, type(None))):
            allowed = " or ".join(kind.__name__ for kind in kinds)
            yield f"its {'.'.join(place)} is of type {type(value).__name__}, not {allowed}"
            return
    if not all(isinstance(entry, dict) for entry in state.get("optimizer_history") or []):
        yield "its optimizer_history is not a list of dictionaries"
    options = state.get("args") or (state.get("cfg") or {}).get("model")
    if options is None:
        yield "it holds no options of the model, in args or cfg.model"
        return
    named = vars(options) if isinstance(options, argparse.Namespace) else options
    if not all(isinstance(name, str) for name in named):
        yield "its options are not named"
    for name in ("arch", "_name"):
        if not isinstance(named.get(name), (str, type(None))):
            yield f"its option {name} is {shown(named[name])}, not a name"


def model_args(state: Mapping[str, Any]) -> argparse.Namespace:
    """The options of the model stored in a checkpoint, as attributes; changing them does not change the checkpoint."""
    args = state.get("args") or state["cfg"]["model"]
    return argparse.Namespace(**(vars(args) if isinstance(args, argparse.Namespace) else args))


def updates_of(state: Mapping[str, Any]) -> int | str:
    """The number of updates a checkpoint was trained for, '?' if it does not say."""
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates", "?")


def save_checkpoint(state: Mapping[str, Any], path: str, force: bool = False) -> None:
    """Writes a checkpoint whole or not at all; an existing file only with `force` (else ValueError)."""
    with replacing(path, force) as temporary:
        try:
            torch.save(dict(state), temporary)
        except RuntimeError as error:  # how torch says that the disk is full, or the folder missing
            reason = str(error).partition("\n")[0]
            raise ValueError(f"cannot write {path} ({reason}): look at the folder and the room on the disk") from None
