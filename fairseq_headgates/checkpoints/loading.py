"""Checkpoint files, read safely and written whole."""

from __future__ import annotations

import argparse
import collections
import re
import typing
from collections.abc import Mapping
from typing import Any

import fairseq.distributed.utils
import numpy
import omegaconf
import torch
from torch import Tensor

from fairseq_headgates.files import replacing

# What fairseq's checkpoints hold besides tensors and plain Python values. torch.load takes nothing else since 2.6.
SAFE_GLOBALS = [
    argparse.Namespace,  # the options of a model
    # the counters that --eval-bleu leaves in the training state
    numpy.ndarray,
    numpy.dtype,
    type(numpy.dtype("int64")),
    type(numpy.dtype("float64")),  # where several workers have added them up
    numpy.zeros(0).__reduce__()[0],  # numpy's array constructor, whose module moved between versions
    # the options again, as the first worker sends a checkpoint to the others
    omegaconf.DictConfig,
    omegaconf.ListConfig,
    omegaconf.base.ContainerMetadata,
    omegaconf.base.Metadata,
    omegaconf.nodes.AnyNode,
    fairseq.distributed.utils._TensorPlaceholder,
    collections.defaultdict,
    typing.Any,
    list,
    dict,
    int,
]
if hasattr(torch.serialization, "add_safe_globals"):
    torch.serialization.add_safe_globals(SAFE_GLOBALS)


def load_checkpoint(path: str, trust: bool = False) -> dict[str, Any]:
    """Loads a fairseq checkpoint on the CPU: tensors and what is in `SAFE_GLOBALS`, unless `trust` allows all.

    Raises ValueError for anything that is no fairseq checkpoint, or holds more.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=not trust)
    except OSError as error:
        raise ValueError(
            f"cannot read the checkpoint {path!r} ({error.strerror}): give the path of a .pt file"
        ) from None
    except Exception as error:  # a damaged or hostile file can make the reader raise anything
        raise ValueError(f"{path!r} {_first_reason(error)}") from None
    if not _is_checkpoint(state):
        raise ValueError(f"{path!r} is not a fairseq checkpoint: it holds no model with its options")
    return state


def _is_checkpoint(state: Any) -> bool:
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        return False
    options = state.get("args") or (state.get("cfg") or {}).get("model")
    tensors = all(isinstance(weight, Tensor) for weight in state["model"].values())
    return tensors and isinstance(options, (argparse.Namespace, dict))


def _first_reason(error: Exception) -> str:
    """One line of torch's long message: the forbidden object if it names one."""
    forbidden = re.search(r"GLOBAL (\S+)", str(error))
    if forbidden:
        return (
            f"is not loaded: it holds {forbidden.group(1)}, which is neither a weight nor a plain option and could run "
            "code; pass --trust if you know where the file comes from"
        )
    told = re.search(r"WeightsUnpickler error: ([^\n]+)", str(error))  # after torch's advice, which does not help here
    reason = told.group(1) if told else str(error).partition("\n")[0] or type(error).__name__
    if "weights_only" in reason:
        reason = "its contents cannot be read"
    return f"is damaged or no checkpoint ({reason}): copy or train it again"


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
