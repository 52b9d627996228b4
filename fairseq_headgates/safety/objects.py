"""Allow-list of the objects in fairseq's checkpoints besides tensors and plain values.

`torch.load` (since 2.6, and here always) creates only objects of an allow-list. The classes that fairseq stores are not
safe on it: `numpy.ndarray` interprets raw bytes as object pointers, and an `argparse.Namespace` may hold options that
fairseq evaluates as Python. So each name on the list maps to a class of this module, which checks its content and then
becomes (or returns) the stored object.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import fairseq.distributed.utils
import numpy
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf

from fairseq_headgates.compat import allowed_later, configuration
from fairseq_headgates.safety.literals import check_evaluated, plain

LARGEST_ARRAY = 2**20  # bytes; fairseq stores counters, of a few numbers each


class StoredNamespace(argparse.Namespace):
    """Options of a model. Raise ValueError for one that would run code; see `check_evaluated`."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise ValueError("the names of the stored options are not text")
        options = plain(state)
        check_evaluated(options)
        vars(self).update(options)
        # From here on it is an ordinary Namespace, which the rest of the file cannot change.
        object.__setattr__(self, "__class__", argparse.Namespace)


class Marker:
    """A class of which a file needs only the name."""

    def __new__(cls, *_: Any) -> Marker:
        """Ignore the arguments of the file."""
        return object.__new__(cls)

    def __setstate__(self, _: Any) -> None:
        pass


class StoredType:
    """The data type of a numpy array: numbers and truth values only."""

    def __init__(self, name: Any, *_: Any):
        if not isinstance(name, str) or name[:1] not in tuple("biuf") or not name[1:].isdecimal():
            raise ValueError(f"numpy data of type {name!r:.20}: only numbers are allowed")
        self.dtype = numpy.dtype(name)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "=", "|"):
            raise ValueError("numpy data with an unknown byte order")
        self.dtype = self.dtype.newbyteorder(state[1])


class StoredArray(numpy.ndarray):
    """A small numpy array of numbers."""

    def __new__(cls, *_: Any) -> StoredArray:
        """Return an empty array, which `__setstate__` fills."""
        return super().__new__(cls, (0,), "f8")

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("a numpy array of unknown form")
        version, shape, kind, fortran, data = state
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape) or len(shape) > 8:
            raise ValueError("a numpy array of unknown shape")
        _check_data(kind, math.prod(shape), data)
        checked: Any = (1, shape, kind.dtype, fortran is True, data)
        super().__setstate__(checked)

    def __reduce__(self) -> Any:
        return numpy.array(self, subok=False).__reduce__()  # saved again, it is an ordinary array


class StoredScalar:
    """A numpy scalar."""

    def __new__(cls, kind: Any, data: Any) -> Any:
        """Return the number as numpy reads it."""
        _check_data(kind, 1, data)
        return numpy.frombuffer(data, kind.dtype)[0]


def _check_data(kind: Any, count: int, data: Any) -> None:
    if not isinstance(kind, StoredType) or not isinstance(data, bytes):
        raise ValueError("numpy data that are not plain numbers")
    if len(data) != count * kind.dtype.itemsize:
        raise ValueError(f"{len(data):,} bytes of numpy data for {count:,} numbers of {kind.dtype}")
    if len(data) > LARGEST_ARRAY:
        raise ValueError(f"a numpy array of {len(data):,} bytes: at most {LARGEST_ARRAY:,} are allowed")


class StoredNode:
    """A value inside of an omegaconf configuration."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        self.value = state.get("_val") if isinstance(state, dict) else None


def _content(state: Any, kind: type) -> Any:
    content = state.get("_content") if isinstance(state, dict) else None
    if not isinstance(content, kind):
        raise ValueError("an omegaconf configuration of unknown form")
    return content


def _value(node: Any) -> Any:
    if isinstance(node, StoredNode):
        return node.value
    if isinstance(node, (DictConfig, ListConfig)):
        return OmegaConf.to_container(node, resolve=False)
    raise ValueError("an omegaconf configuration with an unknown node")


def _become(stored: Any, value: Any, kind: type) -> None:
    """Turn a placeholder into the configuration of `value`."""
    value = plain(value)
    check_evaluated(value if isinstance(value, Mapping) else {"": value})
    made = configuration(value)
    vars(stored).update(vars(made))
    object.__setattr__(stored, "__class__", kind)  # the configuration refuses attributes
    for node in vars(stored)["_content"].values() if kind is DictConfig else vars(stored)["_content"]:
        node._set_parent(stored)


class StoredDict(DictConfig):
    """Options as the first of several workers sends them to the others."""

    def __new__(cls) -> StoredDict:
        """Return an object without content, which `__setstate__` fills."""
        return object.__new__(cls)

    def __init__(self) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _become(self, {key: _value(node) for key, node in _content(state, dict).items()}, DictConfig)


class StoredList(ListConfig):
    """A list among such options."""

    def __new__(cls) -> StoredList:
        """Return an object without content, which `__setstate__` fills."""
        return object.__new__(cls)

    def __init__(self) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _become(self, [_value(node) for node in _content(state, list)], ListConfig)


# Names in checkpoint files, and the classes that they map to.
STORED = {
    "argparse.Namespace": StoredNamespace,  # the options of a model, in checkpoints of fairseq's command line
    # the counters that --eval-bleu leaves in the training state; the module has moved between versions of numpy
    "numpy.ndarray": Marker,
    "numpy.dtype": StoredType,
    "numpy.core.multiarray._reconstruct": StoredArray,
    "numpy._core.multiarray._reconstruct": StoredArray,
    "numpy.core.multiarray.scalar": StoredScalar,
    "numpy._core.multiarray.scalar": StoredScalar,
    # the options again, as the first of several workers sends them to the others
    "omegaconf.dictconfig.DictConfig": StoredDict,
    "omegaconf.listconfig.ListConfig": StoredList,
    "omegaconf.nodes.AnyNode": StoredNode,
    **dict.fromkeys(
        (
            "omegaconf.base.ContainerMetadata",
            "omegaconf.base.Metadata",
            "typing.Any",
            "collections.defaultdict",
            "builtins.dict",
            "builtins.list",
            "builtins.int",
        ),
        Marker,
    ),
}


@cache
def safe_globals() -> list[Any]:
    """Return the allow-list for `torch.serialization.add_safe_globals`: one class for each name of `STORED`.

    torch finds the entries of its list by module and name, so each is a class with the name in the file.
    """
    found = [
        type(name.rpartition(".")[2], (stored,), {"__module__": name.rpartition(".")[0]})
        for name, stored in STORED.items()
    ]
    # The placeholder of a tensor that is sent separately; a private class, which other versions may not have.
    placeholder = getattr(fairseq.distributed.utils, "_TensorPlaceholder", None)
    return [*found, *([placeholder] if placeholder else [])]


def allow_stored_objects() -> None:
    """Let `torch.load` read fairseq's checkpoints in this process, for fairseq's commands, too."""
    torch.serialization.add_safe_globals([*safe_globals(), *allowed_later()])
