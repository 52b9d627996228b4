#!/usr/bin/env python3
"""Count the bytes that workers exchange in an update: fairseq's `transformer`, and this plugin with each gating method.

    python benchmarks/communication.py [--workers 8] [--ddp-backend legacy_ddp|pytorch_ddp] [--json FILE]

Each model is small and is trained by fairseq-train in --workers processes on this machine, on CPUs with the backend
gloo, on random text. Every process counts the bytes of the tensors that it gives to functions of torch.distributed
within an update, and notes what they are: gradients by the names of their parameters, statistics of the criterion by
their names. All updates and all workers must agree.

    all              bytes in an update
    extra            bytes more than `stock`: gates + other gradients + statistics + rest
    4 x gates        the number of gates times 4 bytes, for comparison with the next column
    gates            gradients of the gates
    other gradients  those of other parameters that `stock` does not have
    statistics       what fairseq sums over the workers for its log: 8 bytes for each number
    rest             everything else

fairseq's default backend, pytorch_ddp, refuses models on CPUs. With --ddp-backend pytorch_ddp this script passes
`device_ids=None`, and changes nothing else. On GPUs, fairseq also compares the norms of the gradients, 8 bytes for each
worker, with and without gates.

Bytes are those that one worker passes to the collectives; they do not depend on the number of workers. What is sent
over the network depends on the algorithm of the reduction: a ring sends 2 (N - 1) / N times as much from each of N
workers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # here, and not in every worker: torch's optimisers import it
import torch.distributed as dist
from fairseq.distributed import LegacyDistributedDataParallel
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from fairseq_cli import train as fairseq_train
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from tqdm import tqdm

import fairseq_headgates
from fairseq_headgates.files import write_whole
from fairseq_headgates.heads import TYPES
from fairseq_headgates.messages import fail
from fairseq_headgates.report.tables import text_table

OURS = ["--arch", "transformer_head_gates"]
GATES = [*OURS, "--gate-heads", ",".join(TYPES), "--criterion", "label_smoothed_cross_entropy_l0"]
VARIANTS = {
    "stock": ["--arch", "transformer"],
    "no gates": OURS,
    "l0": [*GATES, "--l0-weight", "0.01"],
    "lagrangian": [*GATES, "--sparsity-method", "lagrangian", "--target-heads", "0.5"],
    "subset": [*GATES, "--sparsity-method", "subset", "--target-heads", "0.5"],
}
TRAINING = (
    "--task dummy_mt --dict-size 100 --dataset-size 4096 --src-len 8 --tgt-len 8 --batch-size 4 --num-workers 0"
    " --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --lr 0.001 --cpu"
    " --no-save --disable-validation --no-progress-bar"
).split()
COLLECTIVES = (
    "all_reduce broadcast reduce all_gather gather scatter reduce_scatter all_to_all all_to_all_single"
    " all_gather_into_tensor reduce_scatter_tensor all_reduce_coalesced all_gather_coalesced"
).split()
SECONDS = 300  # that the workers of one model may take


class Record:
    """What one worker exchanges in each update.

    Attributes:
        updates: for each update, {"sent": bytes by what they are for, "named": {what for: bytes by name}}
    """

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self._open = False  # within an update
        self._purpose = ""  # of what is sent

    @contextmanager
    def update(self) -> Iterator[None]:
        """Count within the context, as one update."""
        self.updates.append({"sent": Counter(), "named": {}})
        self._open = True
        yield
        self._open = False

    @contextmanager
    def purpose(self, name: str, parts: dict[str, int] | None) -> Iterator[None]:
        """Count what is sent within the context under `name`. `parts`: the bytes that it should consist of."""
        before, self._purpose = self._purpose, name
        if self._open and parts is not None:
            self.updates[-1]["named"].setdefault(name, {}).update(parts)
        yield
        self._purpose = before

    def sent(self, function: str, tensors: Any) -> None:
        """Count the tensors that `function` gets."""
        if self._open:
            tensors = [tensors] if isinstance(tensors, Tensor) else tensors
            self.updates[-1]["sent"][self._purpose or function] += sum(tensor.nbytes for tensor in tensors)


# --- in a worker -----------------------------------------------------------------------------------------------------


def watch(record: Record) -> None:
    """Replace functions of torch.distributed and of fairseq, in this process, by the same ones with a record."""
    for name in COLLECTIVES:
        if hasattr(dist, name):
            setattr(dist, name, counted(record, name, getattr(dist, name)))

    def update(trainer: Any, *arguments: Any, step: Callable = fairseq_train.Trainer.train_step, **options: Any) -> Any:
        with record.update():
            return step(trainer, *arguments, **options)

    def statistics(
        data: dict, *arguments: Any, reduce: Callable = distributed_utils.all_reduce_dict, **options: Any
    ) -> Any:
        with record.purpose("statistics", {name: 8 * torch.as_tensor(value).numel() for name, value in data.items()}):
            return reduce(data, *arguments, **options)

    def gradients(wrapper: nn.Module, reduce: Callable = LegacyDistributedDataParallel.all_reduce_grads) -> None:
        with record.purpose("gradients", gradient_bytes(wrapper.module)):
            reduce(wrapper)

    fairseq_train.Trainer.train_step = update
    distributed_utils.all_reduce_dict = statistics
    LegacyDistributedDataParallel.all_reduce_grads = gradients
    distributed_fairseq_model.DistributedDataParallel = partial(without_gpus, record)


def counted(record: Record, name: str, function: Callable) -> Callable:
    """Return a function of torch.distributed, with its first argument recorded."""

    def call(tensors: Any, *arguments: Any, **options: Any) -> Any:
        record.sent(name, tensors)
        return function(tensors, *arguments, **options)

    return call


def without_gpus(record: Record, module: nn.Module, device_ids: Any, output_device: Any, **options: Any) -> nn.Module:
    """Return PyTorch's DistributedDataParallel for a CPU, with a record of the buckets that it reduces."""
    wrapped = nn.parallel.DistributedDataParallel(module, **options)

    def reduce(group, bucket):  # torch checks the annotations of a hook
        with record.purpose("gradients", gradient_bytes(module)):
            return allreduce_hook(group, bucket)

    wrapped.register_comm_hook(options["process_group"], reduce)
    return wrapped


def gradient_bytes(model: nn.Module) -> dict[str, int]:
    """Return the bytes of the gradient of every parameter."""
    return {name: p.nbytes for name, p in model.named_parameters() if p.requires_grad}


def work(arguments: list[str], log: Path, found: Any) -> None:
    """Run fairseq-train in this process, its output in a file. Put all updates, or the error, in `found`."""
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    record = Record()
    watch(record)
    sys.argv = ["fairseq-train", *arguments]
    try:
        fairseq_train.cli_main()
        found.put(record.updates)
    except BaseException as error:
        found.put(f"{type(error).__name__}: {error}")
        raise


# --- all workers -----------------------------------------------------------------------------------------------------


def main() -> None:
    options = parse()
    with tqdm(options.models, leave=False) as bar:
        found = {name: measure(options, name) for name in bar}
    gates = len(TYPES) * options.layers * options.heads
    rows = {name: figures(update, found["stock"]) for name, update in found.items()}
    print(
        f"{options.workers} workers, {options.ddp_backend}, bytes of each in an update; the models have {gates} gates"
    )
    print(sizes_table(rows, gates))
    print(f"\n{names_table(rows)}")
    if options.json:
        write_whole(options.json, json.dumps({"gates": gates, "models": rows}, indent=1) + "\n", force=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = partial(fail, "communication.py")  # type: ignore[method-assign]
    add = parser.add_argument
    add("--workers", type=int, default=8, help="processes (default: %(default)s)")
    add("--updates", type=int, default=3, help="updates of each model (default: %(default)s)")
    add("--layers", type=int, default=2, help="of the encoder and of the decoder (default: %(default)s)")
    add("--heads", type=int, default=4, help="of each layer, of 8 dimensions (default: %(default)s)")
    add("--ddp-backend", choices=["legacy_ddp", "pytorch_ddp"], default="legacy_ddp", help="(default: %(default)s)")
    add("--models", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="(default: all); always with stock")
    add("--json", metavar="FILE", help="also write all figures to FILE")
    options = parser.parse_args()
    for name, least in {"workers": 2, "updates": 1, "layers": 1, "heads": 1}.items():
        if getattr(options, name) < least:
            parser.error(f"--{name} is {getattr(options, name)}: it must be at least {least}")
    options.models = [name for name in VARIANTS if name in options.models or name == "stock"]
    return options


def arguments_of(options: argparse.Namespace, name: str) -> list[str]:
    """Return the arguments of fairseq-train for a model, without those of a single worker."""
    sizes = {"embed-dim": 8 * options.heads, "ffn-embed-dim": 32 * options.heads}
    sizes |= {"layers": options.layers, "attention-heads": options.heads}
    model = [f"--{side}-{key}={value}" for side in ("encoder", "decoder") for key, value in sizes.items()]
    plugin = [] if name == "stock" else ["--user-dir", str(Path(fairseq_headgates.__file__).parent)]
    together = ["--distributed-world-size", str(options.workers), "--distributed-no-spawn"]
    together += ["--distributed-backend", "gloo", "--ddp-backend", options.ddp_backend]
    return [*TRAINING, *VARIANTS[name], *plugin, *model, *together, "--max-update", str(options.updates)]


def measure(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train a model with all workers. Return the record of an update; all must be equal."""
    context = multiprocessing.get_context("fork")  # each shares what this process has imported
    with tempfile.TemporaryDirectory() as folder:
        shared = [*arguments_of(options, name), "--distributed-init-method", f"file://{folder}/rendezvous"]
        shared += ["--save-dir", f"{folder}/checkpoints"]
        found, workers = context.Queue(), []
        for rank in range(options.workers):
            own = [*shared, "--distributed-rank", str(rank), "--device-id", str(rank)]
            workers.append(context.Process(target=work, args=(own, Path(folder, f"{rank}.log"), found), daemon=True))
            workers[-1].start()
        try:
            records = [collected(found.get(timeout=SECONDS), name) for _ in workers]
        except queue.Empty:
            sys.exit(f"communication.py: {name}: a worker has not ended within {SECONDS} s")
        finally:
            for worker in workers:
                worker.join(10 if sys.exc_info()[0] is None else 0)
                worker.kill()
    updates = [update for record in records for update in record]
    if len(updates) != options.workers * options.updates or any(update != updates[0] for update in updates):
        sys.exit(f"communication.py: {name}: the workers sent different numbers of bytes, or in different updates")
    return updates[0]


def collected(record: list | str, name: str) -> list:
    """Return the updates of a worker. Exit if it failed."""
    if isinstance(record, str):
        sys.exit(f"communication.py: {name}: a worker failed: {record}")
    return record


def figures(update: dict[str, Any], stock: dict[str, Any]) -> dict[str, Any]:
    """Return the bytes of a model in an update, the extra bytes over those of `stock`, and {what: bytes by name}."""
    total, before = (sum(record["sent"].values()) for record in (update, stock))
    names = {
        purpose: {key: count for key, count in parts.items() if key not in stock["named"][purpose]}
        for purpose, parts in update["named"].items()
    }
    return {"all": total, "extra": total - before, "names": names}


def sizes_table(rows: dict[str, dict], gates: int) -> str:
    """Return the table of bytes."""
    lines = []
    for name, row in rows.items():
        gradients, statistics = (sum(row["names"][key].values()) for key in ("gradients", "statistics"))
        of_gates = sum(count for key, count in row["names"]["gradients"].items() if key.endswith(".gate.theta"))
        rest = row["extra"] - gradients - statistics
        numbers = [row["all"], row["extra"], 4 * gates if of_gates else 0]
        lines.append([name, *(f"{n:,}" for n in [*numbers, of_gates, gradients - of_gates, statistics, rest])])
    return text_table(["model", "all", "extra", "4 x gates", "gates", "other gradients", "statistics", "rest"], lines)


def names_table(rows: dict[str, dict]) -> str:
    """Return the table of what is extra, and in which models. Parameters of several layers are one line."""
    found: dict[tuple, list[str]] = {}
    for model, row in rows.items():
        for purpose, parts in row["names"].items():
            of_kind: Counter = Counter()
            for key, count in parts.items():
                of_kind[purpose, short(key)] += count
            for (_, key), count in of_kind.items():
                found.setdefault((f"{purpose}: {key}", count), []).append(model)
    lines = [[what, f"{count:,}", ", ".join(models)] for (what, count), models in sorted(found.items())]
    return text_table(["extra", "bytes", "models"], lines)


def short(name: str) -> str:
    """Return the name of a parameter without its layer, or of a statistic without fairseq's prefix."""
    part, dot, last = name.rpartition(".gate.")
    return f"gate.{last}" if dot and part else name.removeprefix("logging_outputs_")


if __name__ == "__main__":
    main()
