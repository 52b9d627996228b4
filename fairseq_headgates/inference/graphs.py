"""Captured CUDA graphs: work on a GPU that is launched as a whole instead of operator by operator."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch

MOST = 12  # graphs that are kept


class Graphs:
    """The graphs of pieces of work, by keys; without a GPU the work is done without graphs.

    All share one pool of memory: only one may be replayed at a time, and its results must be used before the next.
    """

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, tuple[Callable[[], None], Any]] = OrderedDict()

    def run(self, key: Hashable, work: Callable[[], Any], device: torch.device) -> Any:
        """Do `work` on a device, and return its results; the next run with the same key may overwrite them.

        The first run does the work and captures it, later ones replay the graph. Everything that the work depends on
        besides the content of tensors must be part of `key`.
        """
        if not can_capture(device):
            return work()
        if key in self._graphs:
            self._graphs.move_to_end(key)
            replay, results = self._graphs[key]
            replay()
            return results
        results = work()  # torch's libraries initialise in the first run, which cannot be captured
        if len(self._graphs) == MOST:
            self._graphs.popitem(last=False)
        self._graphs[key] = capture(work)
        return results


def can_capture(device: torch.device) -> bool:
    """Return whether work on a device can be captured."""
    return device.type == "cuda"


_shared: dict[torch.device, Any] = {}  # the pool of memory of each GPU


def capture(work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Capture `work` without doing it. Return a function that does it, and the tensors with its results."""
    device = torch.device("cuda", torch.cuda.current_device())
    if device not in _shared:
        _shared[device] = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_shared[device], capture_error_mode="thread_local"):
        results = work()
    return graph.replay, results
