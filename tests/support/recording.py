"""A stand-in for CUDA graphs on a CPU: the operators of a piece of work, recorded, and replayed on the same tensors.

As in a graph, every tensor keeps its memory, numbers and shapes are those of the recording, and operators whose result
the host must wait for cannot be recorded.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "masked_select", "unique_dim", "_unique2"}


class Recording(TorchDispatchMode):
    """Records the operators that are called within it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in WAITS, f"{func} waits for the device"
        results = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, results))
        return results

    def replay(self):
        """Call the operators again; the results are written to the tensors of the recording."""
        for func, args, kwargs, results in self.calls:
            if func.is_view:
                continue  # of memory that earlier operators have written
            new = func(*args, **kwargs)
            for old, value in zip(tree_leaves(results), tree_leaves(new), strict=True):
                if torch.is_tensor(old) and old is not value and not _is_input(old, args):
                    old.copy_(value)


def _is_input(tensor, args):
    return any(tensor is each for each in tree_leaves(args))


def record(work):
    """As `graphs.capture`: return a function that does the work again, and its results.

    A graph is captured without doing the work. Here it is done, and undone: all tensors that existed before are restored.
    """
    with Undone(), Recording() as recording:
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
