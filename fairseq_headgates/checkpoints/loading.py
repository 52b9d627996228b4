"""Checkpoint files, read safely and written whole."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_headgates.files import replacing
from fairseq_headgates.safety import check_evaluated, load_file, shown


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
    """What is not as fairseq writes it."""
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        yield "it holds no model with its options"
        return
    for name, weight in state["model"].items():
        if not isinstance(name, str) or not isinstance(weight, Tensor):
            yield f"{shown(name)} in its model is not a named tensor"
    args, cfg = state.get("args"), state.get("cfg")
    if cfg and not isinstance(cfg, dict):
        yield f"its cfg is of type {type(cfg).__name__}, not a dictionary"
        return
    options = args or (cfg or {}).get("model")
    if not isinstance(options, (argparse.Namespace, dict)):
        yield "it holds no model with its options"
        return
    for name in ("arch", "_name"):
        value = (vars(options) if isinstance(options, argparse.Namespace) else options).get(name)
        if not isinstance(value, (str, type(None))):
            yield f"its option {name} is {shown(value)}, not a name"
    kinds = {"optimizer_history": list, "extra_state": dict, "last_optimizer_state": dict}
    for name, kind in kinds.items():
        if not isinstance(state.get(name), (kind, type(None))):
            yield f"its {name} is of type {type(state[name]).__name__}, not {kind.__name__}"
            return
    if not all(isinstance(entry, dict) for entry in state.get("optimizer_history") or []):
        yield "its optimizer_history is not a list of dictionaries"


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
