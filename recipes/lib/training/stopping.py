"""Signals that stop a training, in every process of it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


@dataclass
class Stop:
    """The state of a stop in one process: `told` by a signal, `agreed` by all processes."""

    told: bool = False
    agreed: bool = False
    updates: int | None = None

    def tell(self, *_: object) -> None:
        """Handle a signal."""
        self.told = True


def on_any_rank(flag: bool) -> bool:
    """Return whether the flag is set in any process. All processes must call this."""
    if not (dist.is_available() and dist.is_initialized()):
        return flag
    answer = torch.tensor(int(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    return bool(answer)


def catch_signals(stop: Stop) -> None:
    """Record signals in `stop`. Processes of the data loader end only when the trainer ends them.

    A batch system signals all processes; without its data loader the trainer could not finish the update.
    """
    for number in SIGNALS:
        signal.signal(number, stop.tell)
    os.register_at_fork(after_in_child=_obey_the_parent)


def _obey_the_parent() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    threading.Thread(target=_wait_for_the_parent, daemon=True).start()


def _wait_for_the_parent() -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
        pass
    os._exit(0)


def touch_on_signals(file: Path) -> None:
    """Create a file on a signal: in a process that does not train, or before training."""

    def touch(*_: object) -> None:
        with contextlib.suppress(OSError):
            file.touch()

    for number in SIGNALS:
        signal.signal(number, touch)
