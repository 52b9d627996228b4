"""Read a checkpoint file of which nothing runs as code."""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import torch

from fairseq_headgates.safety.literals import check_nesting
from fairseq_headgates.safety.objects import allow_stored_objects

TRUST = "pass --trust only if you made the file yourself"


def load_file(path: str | os.PathLike[str], trust: bool = False, hint: str = TRUST) -> Any:
    """Load the content of a file of `torch.save` on the CPU.

    Args:
        path: the file
        trust: allow objects of any class. Otherwise the file may hold tensors, plain values and the objects of
            `objects.STORED`, nothing that could run code.
        hint: what to do about a file that could run code, for the message

    Raises:
        ValueError: in one line, for any other file
    """
    if not os.path.isfile(path):  # a pipe or a device may never end
        reason = "it is not a regular file" if os.path.exists(path) else "no such file"
        raise ValueError(f"cannot read the checkpoint {str(path)!r} ({reason}): give the path of a .pt file")
    allow_stored_objects()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged file can make torch warn
            state = torch.load(path, map_location="cpu", weights_only=not trust)
        check_nesting(state)
        return state
    except Exception as error:  # torch's message has many lines, and recommends weights_only=False
        raise ValueError(f"{str(path)!r} is not loaded: {_reason(error, hint)}") from None


def _reason(error: Exception, hint: str) -> str:
    """Return one line of torch's long message."""
    if found := re.search(r"(?:GLOBAL|global:?|class) (\S+\.\S+?)[ ,`]", str(error)):
        name = found[1].removeprefix("builtins.").removeprefix("__builtin__.")
        return f"it holds {name}, which is neither a weight nor a plain option and could run code; {hint}"
    told = re.search(r"WeightsUnpickler error: ([^\n]+)", str(error))  # after torch's advice
    reason = told[1] if told else str(error).partition("\n")[0] or type(error).__name__
    if type(error) is ValueError and not told:
        return reason
    return f"it is damaged or not a fairseq checkpoint ({reason[:200]}): download or save it again"
