"""The workers (processes) that share the data of one command."""

from __future__ import annotations

import os
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch import Tensor

PATIENCE = 3.0  # seconds that a worker waits for the others before it says so


def join_workers(args: Namespace) -> None:
    """Initialise torch.distributed if there are several workers, by `torchrun` or fairseq's --distributed-* options.

    Afterwards `args` holds the rank and the world size. Raise ValueError if the rendezvous address is missing.
    """
    if all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        args.distributed_init_method = "env://"
        args.distributed_rank, args.distributed_world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        args.device_id = int(os.environ.get("LOCAL_RANK", args.distributed_rank))
    # fairseq's default is the number of visible GPUs; this command takes one of them, unless it is told more.
    by_default = not args.distributed_init_method and args.distributed_world_size == torch.cuda.device_count()
    if args.distributed_world_size <= 1 or by_default:
        args.distributed_rank, args.distributed_world_size = 0, 1
        return
    size, rank = args.distributed_world_size, args.distributed_rank
    if not args.distributed_init_method:
        raise ValueError(
            f"--distributed-world-size is {size}, but there is no rendezvous address: start the command with "
            f"`torchrun --nproc-per-node {size} --no-python`, or give every process "
            "--distributed-init-method and --distributed-rank"
        )
    if not 0 <= rank < size:
        raise ValueError(f"--distributed-rank is {rank}: it must be from 0 to {size - 1}, one less than the world size")
    on_gpu = device_of(args).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(args.device_id)
    if not torch.distributed.is_initialized():
        backend = args.distributed_backend if on_gpu else "gloo"
        with _waiting(args):
            torch.distributed.init_process_group(backend, args.distributed_init_method, world_size=size, rank=rank)


@contextmanager
def _waiting(args: Namespace) -> Iterator[None]:
    """Within the context, print what this worker waits for, after `PATIENCE` seconds."""
    address, hint = args.distributed_init_method, "leave out --distributed-world-size"
    if address == "env://":
        address, hint = "{MASTER_ADDR}:{MASTER_PORT}".format(**os.environ), "unset WORLD_SIZE (env -u WORLD_SIZE ...)"
    text = (
        f"worker {args.distributed_rank} waits at {address} for the others of {args.distributed_world_size} workers: "
        f"start them, or {hint} to run one alone"
    )
    timer = threading.Timer(PATIENCE, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def leave_workers() -> None:
    """Wait for the other workers and leave torch.distributed, after success: a worker that failed must not wait."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def all_reduce(sums: Tensor) -> Tensor:
    """Return the sum of a small tensor over all workers."""
    if not torch.distributed.is_initialized():
        return sums
    gathered = sums.cuda() if torch.distributed.get_backend() == "nccl" else sums.clone()
    torch.distributed.all_reduce(gathered)
    return gathered.to(sums.device)


def gather(found: dict) -> dict:
    """Return the dictionaries of all workers as one."""
    if not torch.distributed.is_initialized():
        return found
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, found)
    return {key: value for part in parts for key, value in part.items()}


def device_of(args: Namespace) -> torch.device:
    """Return the device of fairseq's options."""
    return torch.device("cpu" if args.cpu or not torch.cuda.is_available() else f"cuda:{args.device_id}")
