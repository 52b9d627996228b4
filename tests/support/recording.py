"""A stand-in for CUDA graphs on a CPU: the operators of a piece of work, recorded, and replayed on the same memory.

As in a graph, numbers and shapes are those of the recording, tensors are taken from the same memory, which somebody
else must keep, and operators for whose result the host must wait cannot be recorded.
"""

from contextlib import ExitStack
from unittest.mock import patch

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

COPIES = [*((torch.Tensor, name) for name in ("tolist", "cpu", "numpy", "cuda")), (torch, "tensor")]
WAITS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "unique_dim", "_unique2"}


class Memory:
    """A tensor that was there before the recording, without keeping its memory."""

    def __init__(self, tensor):
        self.place = (tensor.storage_offset(), tensor.size(), tensor.stride())
        self.dtype, self.storage = tensor.dtype, StorageWeakRef(tensor.untyped_storage())

    def tensor(self):
        assert not self.storage.expired(), "the memory of a tensor that a graph reads is gone"
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.place)


class Recording(TorchDispatchMode):
    """Records the operators that are called within it."""

    def __init__(self):
        super().__init__()
        self.calls, self.own = [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in WAITS, f"{func} waits for the device"
        given = tree_map(self._given, args)
        results = func(*args, **(kwargs or {}))
        if func.is_view:
            return results  # of memory that is known
        made = [] if func._schema.is_mutable else _tensors(results)
        self.own |= set(map(_address, made))
        self.calls.append((func, given, kwargs or {}, made))
        return results

    def _given(self, value):
        known = not torch.is_tensor(value) or value.is_mkldnn or _address(value) in self.own
        return value if known else Memory(value)

    def replay(self):
        """Call the operators again; the results are written to the tensors of the recording."""
        for func, given, kwargs, made in self.calls:
            new = func(*tree_map(lambda each: each.tensor() if isinstance(each, Memory) else each, given), **kwargs)
            if made:
                for old, value in zip(made, _tensors(new), strict=True):
                    old.copy_(value)


def _tensors(results):
    return [each for each in tree_leaves(results) if torch.is_tensor(each)]


def _address(tensor):
    return tensor.untyped_storage()._cdata


def record(work):
    """As `graphs.capture`: return a function that does the work again, and its results.

    A graph is captured without doing the work. Here it is done, and undone: tensors that existed before are restored.
    """
    with ExitStack() as stack:
        for owner, name in COPIES:  # between host and device, which on a CPU no operator tells of
            refused = AssertionError(f"{name} copies between host and device")
            stack.enter_context(patch.object(owner, name, side_effect=refused))
        stack.enter_context(Undone())
        recording = stack.enter_context(Recording())
        results = work()
    return recording.replay, results


class Undone(TorchDispatchMode):
    """Restores, at its end, the tensors that were changed within it."""

    def __init__(self):
        super().__init__()
        self.before = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable:
            changed = [arg for arg, about in zip(args, func._schema.arguments, strict=False) if _is_written(about)]
            self.before += [(tensor, tensor.clone()) for tensor in changed]
        return func(*args, **(kwargs or {}))

    def __exit__(self, *exception):
        super().__exit__(*exception)
        for tensor, value in reversed(self.before):
            tensor.copy_(value)


def _is_written(argument):
    return argument.alias_info is not None and argument.alias_info.is_write
