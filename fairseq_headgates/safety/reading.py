"""Reading a checkpoint file that a stranger may have made."""

from __future__ import annotations

import os
import pickletools
import re
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from fairseq_headgates.safety.objects import STORED, safe_globals

# What the pickle in a checkpoint may name: far less than `torch.load(weights_only=True)` accepts.
TENSORS = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "torch.storage.TypedStorage",
    "torch.storage.UntypedStorage",
    "torch.Size",
    "torch.device",
    "_codecs.encode",  # how the bytes of a numpy array are written
}
STORAGE_OR_TYPE = re.compile(r"torch\.(cuda\.)?[A-Za-z]+Storage|torch\.[a-z]+\d+(_e\dm\d(fn)?(uz)?)?|torch\.bool")
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # modules of Python 2, whose names protocol 2 keeps
LARGEST_PICKLE = 2**28  # bytes; that of a model with 10,000 tensors has about two million


def load_file(path: str | os.PathLike[str], trust: bool = False) -> Any:
    """Returns what a file of `torch.save` holds, on the CPU.

    Without `trust`, the file may hold tensors, plain values and the objects of `objects.STORED`, nothing that could run
    code, and no tensor that is larger than the file. Raises ValueError for any other file, in one line.
    """
    try:
        size = _size_of_regular_file(path)
        if not trust:
            _check_names(path, size)
            with torch.serialization.safe_globals(safe_globals()):
                state = torch.load(path, map_location="cpu", weights_only=True)
            _check_tensors(state, size)
            return state
        return torch.load(path, map_location="cpu", weights_only=False)
    except OSError as error:
        raise ValueError(
            f"cannot read the checkpoint {str(path)!r} ({error.strerror or error}): give the path of a .pt file"
        ) from None
    except Exception as error:  # a damaged or hostile file can make the reader raise anything
        raise ValueError(f"{str(path)!r} {_reason(error)}") from None


class Refused(ValueError):
    """A file that could harm; its text says why, and what to do."""


def _size_of_regular_file(path: str | os.PathLike[str]) -> int:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device may never end
        raise OSError(None, "it is not a regular file")
    return status.st_size


def _check_names(path: str | os.PathLike[str], size: int) -> None:
    """Raises Refused if the file names anything but tensors and `STORED`, or unpacks to more than its size."""
    with open(path, "rb") as file:
        names = _names_in_zip(file, size) if zipfile.is_zipfile(file) else _names_before_tensors(file)
        for name in names:
            if name not in TENSORS and name not in STORED and not STORAGE_OR_TYPE.fullmatch(name):
                raise Refused(
                    f"is not loaded: it holds {name.removeprefix('builtins.')}, which is neither a weight nor a plain "
                    "option and could run code; pass --trust if you know where the file comes from"
                )


def _names_in_zip(file: IO[bytes], size: int) -> Iterator[str]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise Refused("is not loaded: it is compressed, which fairseq's checkpoints are not; save it again")
        if sum(entry.file_size for entry in entries) > size:
            raise Refused("is not loaded: its parts overlap; copy or train it again")
        pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
        if len(pickles) != 1 or len({entry.filename for entry in entries}) < len(entries):
            raise Refused("is no checkpoint: it holds no list of weights, or several; copy or train it again")
        if pickles[0].file_size > LARGEST_PICKLE:
            raise Refused(f"is no checkpoint: the list of its weights has {pickles[0].file_size:,} bytes")
        yield from _names(archive.read(pickles[0]))


def _names_before_tensors(file: IO[bytes]) -> Iterator[str]:
    """The names in a file as torch wrote them before 1.6: five pickles, then the numbers of the tensors."""
    file.seek(0)
    for _ in range(5):
        yield from _names(file)


def _names(pickle: bytes | IO[bytes]) -> Iterator[str]:
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            yield f"{RENAMED.get(module, module)}.{name}"


def _check_tensors(state: Any, size: int) -> None:
    """Raises Refused for tensors of other than plain numbers, or of more numbers than the file has room for."""
    storages: dict[int, int] = {}
    for tensor in _tensors(state):
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
            raise Refused("is not loaded: it holds a tensor that is not a plain array of numbers")
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        if tensor.numel() * tensor.element_size() > storage.nbytes():
            raise Refused(f"is not loaded: a tensor of shape {tuple(tensor.shape)} has fewer numbers than that")
    if sum(storages.values()) > size:
        raise Refused("is not loaded: its tensors are larger than the file")


def _tensors(state: Any) -> Iterator[Tensor]:
    """All tensors in nested dictionaries, lists and tuples, each container once."""
    pending, seen = [state], set()
    while pending:
        value = pending.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            pending.extend(value.values() if isinstance(value, dict) else value)


def _reason(error: Exception) -> str:
    """One line of torch's long message."""
    if isinstance(error, Refused):
        return str(error)
    told = re.search(r"WeightsUnpickler error: ([^\n]+)", str(error))  # after torch's advice, which does not help here
    reason = told.group(1) if told else str(error).partition("\n")[0] or type(error).__name__
    forbidden = re.search(r"GLOBAL (\S+)", str(error))
    if forbidden:
        reason = f"it holds {forbidden.group(1)}"
    elif "weights_only" in reason:
        reason = "its contents cannot be read"
    return f"is damaged or no checkpoint ({reason[:200]}): copy or train it again"


def is_checkpoint_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a file that `torch.save` may have written, by its name or its first bytes."""
    path = Path(path)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04" or path.suffix == ".pt"
