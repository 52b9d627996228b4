"""Read an untrusted checkpoint file."""

from __future__ import annotations

import os
import pickletools
import re
import stat
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.serialization import MAGIC_NUMBER

from fairseq_headgates.safety.objects import STORED, allow_stored_objects
from fairseq_headgates.safety.options import check_nesting, nested

# Names that the pickle in a checkpoint may hold: far fewer than `torch.load(weights_only=True)` accepts.
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
IN_FILES = {name for name in STORED if name.startswith(("argparse", "numpy"))}  # workers send the others
STORAGE_OR_TYPE = re.compile(r"torch\.(cuda\.)?[A-Za-z]+Storage|torch\.[a-z]+\d+(_e\dm\d(fn)?(uz)?)?|torch\.bool")
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # modules of Python 2, whose names protocol 2 keeps
ZIP = b"PK\x03\x04"
PICKLES_BEFORE_1_6 = 5  # torch wrote five, then the numbers of the tensors
LARGEST_PICKLE = 2**26  # bytes; that of 10,000 tensors has about two million
MOST_INSTRUCTIONS = 5_000_000  # of a pickle; 10,000 tensors and their optimiser take about two million
CHANGES = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD"}  # instructions that change the value below others
TRUST = "pass --trust only if you made the file yourself"


def load_file(path: str | os.PathLike[str], trust: bool = False, hint: str = TRUST) -> Any:
    """Load the content of a file of `torch.save` on the CPU.

    Args:
        path: the file
        trust: allow objects of any class. Otherwise the file may hold tensors (not larger than the file), plain
            values and the objects of `objects.STORED`, nothing that could run code.
        cure: what to do about a file that could run code, for the message

    Raises:
        ValueError: in one line, for any other file
    """
    try:
        size = _size_of_regular_file(path)
        if not trust:
            _check_names(path, size, hint)
            allow_stored_objects()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged file can make torch warn
            state = torch.load(path, map_location="cpu", weights_only=not trust)
        check_nesting(state) if trust else _check_tensors(state, size)
        return state
    except OSError as error:
        raise ValueError(
            f"cannot read the checkpoint {str(path)!r} ({error.strerror or error}): give the path of a .pt file"
        ) from None
    except Exception as error:  # a damaged or hostile file can make the reader raise anything
        raise ValueError(f"{str(path)!r} {_reason(error)}") from None


class Refused(ValueError):
    """A file that is not loaded; the message gives the reason and the cure."""


def _size_of_regular_file(path: str | os.PathLike[str]) -> int:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device may never end
        raise OSError(None, "it is not a regular file")
    return status.st_size


def _check_names(path: str | os.PathLike[str], size: int, hint: str) -> None:
    """Raise Refused if the file names anything but tensors and `STORED`, or unpacks to more than its size."""
    with open(path, "rb") as file:
        is_zip = file.read(len(ZIP)) == ZIP  # how torch decides; zipfile would also look at the end
        file.seek(0)
        for name in _names([_pickle_in_zip(path, size)] if is_zip else [file] * PICKLES_BEFORE_1_6):
            if name not in TENSORS and name not in IN_FILES and not STORAGE_OR_TYPE.fullmatch(name):
                raise Refused(
                    f"is not loaded: it holds {name.removeprefix('builtins.')}, which is neither a weight nor a plain "
                    f"option and could run code; {hint}"
                )


def _pickle_in_zip(path: str | os.PathLike[str], size: int) -> bytes:
    """Read the pickle of an archive as torch does, if the archive has the form in which torch writes it."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise Refused("is not loaded: it is compressed, which fairseq's checkpoints are not; save it again")
        if sum(entry.file_size for entry in entries) > size or len({entry.filename for entry in entries}) < len(
            entries
        ):
            raise Refused("is not loaded: its parts overlap; download or save it again")
        pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
        if len(pickles) != 1:
            raise Refused("is not a checkpoint: it must hold exactly one data.pkl; download or save it again")
        if pickles[0].file_size > LARGEST_PICKLE:
            raise Refused(f"is not loaded: its data.pkl has {pickles[0].file_size:,} bytes, {LARGEST_PICKLE:,} at most")
        found = archive.read(pickles[0])
    if bytes(torch._C.PyTorchFileReader(str(path)).get_record("data.pkl")) != found:
        raise Refused(
            "is not loaded: torch and zipfile find different entries data.pkl in it; download or save it again"
        )
    return found


def _names(pickles: list[Any]) -> Iterator[str]:
    """Yield the names in pickles, each bytes or an open file. Raise ValueError for values that are endless to read.

    The values are outlined and checked before torch creates them: that alone hashes keys and copies options.
    """
    count = 0
    for pickle in pickles:
        outline = _Outline()
        for opcode, argument, _ in pickletools.genops(pickle):
            count += 1
            if count > MOST_INSTRUCTIONS:
                raise Refused(f"is not loaded: its pickle has more than {MOST_INSTRUCTIONS:,} instructions")
            if opcode.name == "GLOBAL":
                module, _, name = str(argument).partition(" ")
                yield f"{RENAMED.get(module, module)}.{name}"
            if isinstance(argument, int) and argument.bit_length() > 64 and argument != MAGIC_NUMBER:
                raise Refused("is not loaded: it holds a number of more than 64 bits")  # many may have the same hash
            outline.add(opcode, argument)
        check_nesting(outline.stacks)


class _Outline:
    """The values of a pickle while it is read, of which all containers and objects are lists."""

    def __init__(self) -> None:
        self.stacks: list[list[Any]] = [[]]  # one for each mark that is open
        self._memo: dict[int, Any] = {}

    def add(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Carry out one instruction. Raise IndexError or KeyError if there is nothing that it applies to."""
        name, stack = opcode.name, self.stacks[-1]
        if name.endswith("PUT"):
            self._memo[argument] = stack[-1]
        elif name.endswith("GET"):
            stack.append(self._memo[argument])
        elif opcode.arg is not None:
            stack += [argument] * len(opcode.stack_after)
        elif name == "MARK":
            self.stacks.append([])
        elif name != "STOP" and opcode.stack_after:
            needs, marked = opcode.stack_before, []
            if pickletools.markobject in needs:
                marked = self.stacks.pop()
                stack, needs = self.stacks[-1], needs[: needs.index(pickletools.markobject)]
            taken = [*[stack.pop() for _ in needs][::-1], *marked]
            if name == "REDUCE" and taken[0] == "_codecs encode" and taken[1][1:] != ["latin1"]:  # others can be slow
                raise Refused("is not loaded: it holds bytes in a form that is not that of torch.save")
            if name in CHANGES and isinstance(taken[0], list):
                taken[0] += taken[1:]
                taken = taken[0]
            stack.append(taken)


def _check_tensors(state: Any, size: int) -> None:
    """Raise Refused for tensors that are not plain arrays of numbers, or are larger than the file.

    Also for a dictionary with an attribute that hides a method: fairseq would call it.
    """
    storages: dict[int, int] = {}
    for _, value in nested(state):
        if isinstance(value, OrderedDict) and any(hasattr(OrderedDict, str(name)) for name in vars(value)):
            raise Refused("is not loaded: it holds a dictionary with methods of its own")
        if not isinstance(value, Tensor):
            continue
        if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.device.type != "cpu":
            raise Refused("is not loaded: it holds a tensor that is not a plain array of numbers")
        storage = value.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        if value.numel() * value.element_size() > storage.nbytes():
            raise Refused(f"is not loaded: its tensor of shape {tuple(value.shape)} is larger than its storage")
    if sum(storages.values()) > size:
        raise Refused("is not loaded: its tensors are larger than the file")


def _reason(error: Exception) -> str:
    """Return one line of torch's long message."""
    if isinstance(error, Refused):
        return str(error)
    if type(error) is ValueError and "stored" in str(error):
        return f"is not loaded: {error}"
    told = re.search(r"WeightsUnpickler error: ([^\n]+)", str(error))  # after torch's advice, which does not help here
    reason = told.group(1) if told else str(error).partition("\n")[0] or type(error).__name__
    forbidden = re.search(r"GLOBAL (\S+)", str(error))
    if forbidden:
        reason = f"it holds {forbidden.group(1)}"
    elif "weights_only" in reason:
        reason = "its contents cannot be read"
    return f"cannot be loaded ({reason[:200]}): it is damaged or not a fairseq checkpoint, download or save it again"


def is_checkpoint_file(path: str | os.PathLike[str]) -> bool:
    """Return whether `torch.save` may have written a file, by its name or its first bytes."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(ZIP)) == ZIP or str(path).endswith(".pt")
