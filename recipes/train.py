#!/usr/bin/env python3
"""fairseq-train that can be told to stop, and then goes on as if it had not been stopped.

    python recipes/train.py ARGUMENTS                              ARGUMENTS: exactly those of fairseq-train
    torchrun --nproc_per_node N recipes/train.py ARGUMENTS
    srun python recipes/train.py ARGUMENTS

To stop it, send SIGINT, SIGTERM or SIGUSR1 to any of its processes, or create SAVE_DIR/stop. All processes then end the
update they are at, save checkpoint_last.pt without a validation before, and leave with exit code 0. The same command
again goes on from there. When training comes to its own end, SAVE_DIR/finished is written; with it there is nothing to
do.
A checkpoint_last.pt that is cut off (fairseq was killed while it copied the file) is replaced by the newest whole one.

How: after every update the processes ask each other whether one was told to stop, so that all decide at the same one.
They then change two settings that fairseq looks up at every update: it ends, as by --stop-time-hours, and saves.

Worth knowing:
- Signals are heeded once the arguments are read; before that they end the process, and nothing is lost.
- A validation that is due, or under way, comes first. So it makes no difference to the best checkpoint, --patience or
  the learning rate that there was a stop.
- With torchrun signal one of its workers, or create the file. torchrun itself hands on a SIGTERM or SIGINT, gives the
  workers 30 s and ends with an error; a SIGUSR1 ends torchrun alone, and its workers go on.
- On CPUs torchrun needs --cpu --distributed-backend gloo --ddp-backend legacy_ddp.
- With --restore-file FILE fairseq begins from FILE every time: use --finetune-from-model to begin from another model.
- --profile, --use-plasma-view and --model-parallel-size are for fairseq-train itself.
"""

import contextlib
import json
import logging
import math
import os
import re
import shutil
import signal
import sys
import threading
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fairseq_cli import train as fairseq_train  # the first of fairseq's modules: it sets up the log before the others
from omegaconf import DictConfig

logger = logging.getLogger("train.py")

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
# What fairseq saves besides checkpoint_last.pt.
SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+)\.pt")


@dataclass
class Stop:
    """What a process knows about the stop."""

    told: bool = False
    agreed: bool = False
    updates: int | None = None

    def tell(self, *_: object) -> None:
        """The handler of the signals."""
        self.told = True


class Trainer(fairseq_train.Trainer):
    """fairseq's trainer, which looks for the stop after every update and makes the same batches in every run."""

    def __init__(self, stop: Stop, cfg: DictConfig, *others: Any):
        super().__init__(cfg, *others)
        self._stop = stop
        self._file = Path(cfg.checkpoint.save_dir, "stop") if self.is_data_parallel_master else None
        self._put_off = False

    def train_step(self, samples: list, raise_oom: bool = False) -> Any:
        logged = super().train_step(samples, raise_oom)
        if on_any_rank(self._stop.told or (self._file is not None and self._file.exists())):
            self._heed()
        return logged

    def _heed(self) -> None:
        """Stops at this update, or at the next one if a validation comes first."""
        updates, cfg = self.get_num_updates(), self.cfg
        if updates >= (cfg.optimization.max_update or math.inf):
            return  # the end: fairseq would make one more update if it were started again
        intervals = (cfg.checkpoint.save_interval_updates, cfg.dataset.validate_interval_updates)
        due = self._batches.end_of_epoch() or any(every > 0 and updates % every == 0 for every in intervals)
        if due and not self._put_off:
            self._put_off = True
            return
        self._stop.agreed = True
        cfg.optimization.stop_time_hours = 1e-9
        cfg.dataset.disable_validation = True
        cfg.checkpoint.no_last_checkpoints = False

    def set_num_updates(self, num_updates: int) -> None:
        super().set_num_updates(num_updates)
        self._stop.updates = num_updates

    def get_train_iterator(self, epoch: int, load_dataset: bool = True, **options: Any) -> Any:
        """The batches, which fairseq puts together once in a run, with the number of the epoch as the seed.

        In a run that goes on in a later epoch they would be others than in a run that was not stopped.
        """
        kept = not options.get("disable_iterator_cache") and not self.cfg.dataset.update_epoch_batch_itr
        if load_dataset and kept:  # as when a checkpoint is loaded; the number of its epoch is set afterwards
            self._batches = super().get_train_iterator(1, **options)
            if self.task.can_reuse_epoch_itr(self.task.dataset(self.cfg.dataset.train_subset)):
                return self._batches
        self._batches = super().get_train_iterator(epoch, load_dataset=load_dataset, **options)
        return self._batches


def on_any_rank(flag: bool) -> bool:
    """Whether the flag is set in any process; all of them must ask."""
    if not (dist.is_available() and dist.is_initialized()):
        return flag
    answer = torch.tensor(int(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    return bool(answer)


def train(cfg: DictConfig) -> None:
    """What each process runs, those that fairseq spawns too."""
    stop = Stop()
    for number in SIGNALS:
        signal.signal(number, stop.tell)
    os.register_at_fork(after_in_child=obey_the_parent)
    with contextlib.suppress(OSError, ValueError):
        vars(fairseq_train.should_stop_early).update(json.loads(patience_file(cfg).read_text()))
    fairseq_train.Trainer = partial(Trainer, stop)
    fairseq_train.main(cfg)
    if is_first(cfg):
        conclude(cfg, stop)


def conclude(cfg: DictConfig, stop: Stop) -> None:
    """Says in the log, and in the folder, how training ended."""
    folder = Path(cfg.checkpoint.save_dir)
    (folder / "stop").unlink(missing_ok=True)
    if stop.agreed:
        if cfg.checkpoint.patience > 0:
            patience_file(cfg).write_text(json.dumps(vars(fairseq_train.should_stop_early), default=float))
        saved = "nothing saved (--no-save)" if cfg.checkpoint.no_save else "saved: the same command again goes on"
        logger.info(f"stopped at update {stop.updates}, {saved}")
    elif stop.updates is not None and not cfg.checkpoint.no_save:
        (folder / "finished").touch()


def patience_file(cfg: DictConfig) -> Path:
    """Where a stop leaves the count of --patience.

    fairseq keeps it in memory only, so that a run that is stopped often would never end by it.
    """
    return Path(cfg.checkpoint.save_dir, "patience.json")


def obey_the_parent() -> None:
    """Lets the data loader's processes end when the trainer says so, and only then.

    A batch system signals all processes, and without these the trainer could not come to an orderly end.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    threading.Thread(target=wait_for_the_parent, daemon=True).start()


def wait_for_the_parent() -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
        pass
    os._exit(0)


def prepare(cfg: DictConfig) -> None:
    """Leaves a folder that fairseq can begin with, or go on with."""
    folder = Path(cfg.checkpoint.save_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stop").unlink(missing_ok=True)
    if cfg.checkpoint.restore_file != "checkpoint_last.pt":
        return
    for part in folder.glob("checkpoint*.pt.tmp"):
        part.unlink()
    last = folder / "checkpoint_last.pt"
    if last.exists() and not is_whole(last):
        mend(last)


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint, a zip archive, still has its end, where the archive's table of contents is."""
    try:
        zipfile.ZipFile(checkpoint).close()
    except zipfile.BadZipFile:
        return False
    return True


def mend(last: Path) -> None:
    """Replaces a checkpoint that is cut off by the newest whole one beside it, or removes it if there is none."""
    others = [path for path in last.parent.iterdir() if SAVED.fullmatch(path.name) and is_whole(path)]
    if not others:
        last.unlink()
        logger.warning(f"{last} was cut off and is removed; no other checkpoint is whole: training begins anew")
        return
    newest = max(others, key=lambda path: path.stat().st_mtime_ns)
    # A copy, no hard link: when fairseq next copies onto checkpoint_last.pt, it would write into both.
    part = last.with_name(last.name + ".tmp")
    shutil.copyfile(newest, part)
    os.replace(part, last)
    logger.warning(f"{last} was cut off and is replaced by {newest.name}")


def join_workers(cfg: DictConfig) -> None:
    """Finds this process's rank as fairseq does, and in two cases where fairseq does not.

    Of torchrun's workers it takes no notice where it sees one GPU or none, and on CPUs it has no device for them.
    """
    own = cfg.distributed_training
    by_torchrun = os.environ.keys() >= {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}
    if own.distributed_init_method is None and by_torchrun and int(os.environ["WORLD_SIZE"]) > 1:
        own.distributed_world_size = int(os.environ["WORLD_SIZE"])
        if cfg.common.cpu:
            own.distributed_init_method, own.distributed_no_spawn = "env://", True
            own.distributed_rank = int(os.environ["RANK"])
    fairseq_train.distributed_utils.infer_init_method(own)


def is_first(cfg: DictConfig) -> bool:
    """Whether this process has rank 0."""
    return fairseq_train.distributed_utils.is_master(cfg.distributed_training)


def hand_on(file: Path, *_: object) -> None:
    """The handler of signals to a process that does not train, or not yet."""
    with contextlib.suppress(OSError):
        file.touch()


def main() -> None:
    parser = fairseq_train.options.get_training_parser()
    args = fairseq_train.options.parse_args_and_arch(parser)
    if args.profile or args.use_plasma_view or args.model_parallel_size > 1:
        parser.error("--profile, --use-plasma-view and --model-parallel-size are for fairseq-train itself")
    cfg = fairseq_train.convert_namespace_to_omegaconf(args)
    join_workers(cfg)
    folder = Path(cfg.checkpoint.save_dir)
    try:
        if (folder / "finished").exists():
            if is_first(cfg):
                logger.info(f"nothing to do: training has finished (remove {folder}/finished to train on)")
            return
        if is_first(cfg):  # before any other process loads: they wait for this one to connect
            prepare(cfg)
    except OSError as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(2)
    for number in SIGNALS:  # until `train` takes over, and for the process that fairseq spawns the others from
        signal.signal(number, partial(hand_on, folder / "stop"))
    fairseq_train.distributed_utils.call_main(cfg, train)


if __name__ == "__main__":
    main()
