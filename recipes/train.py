#!/usr/bin/env python3
"""fairseq-train that can be told to stop, and then goes on as if it had not been stopped.

    python recipes/train.py ARGUMENTS                              ARGUMENTS: exactly those of fairseq-train
    torchrun --nproc_per_node N recipes/train.py ARGUMENTS
    srun python recipes/train.py ARGUMENTS

To stop it, send SIGUSR1 or SIGTERM to any of its processes, or create SAVE_DIR/stop. All processes then end the update
they are at, save checkpoint_last.pt without a validation before, and leave with exit code 0. The same command again
goes on from there. When training comes to its own end, SAVE_DIR/finished is written; with it there is nothing to do.

How: after every step of the optimizer the processes ask each other whether one was told to stop, so that all decide at
the same update. They then change two settings that fairseq looks up at every update: it ends by --stop-time-hours.

Before training, a checkpoint_last.pt that is cut off (fairseq was killed while it copied the file) is replaced by the
newest checkpoint that is whole.

Worth knowing:
- Signals are heeded once the arguments are read; before that they end the process, and nothing is lost.
- torchrun itself ends with an error when it gets a signal: signal one of its workers, or create the file.
- On CPUs torchrun needs --cpu --distributed-backend gloo --ddp-backend legacy_ddp.
- A validation due at the very update of the stop is left out, except at --max-update, where training just ends.
- With --restore-file FILE fairseq begins from FILE every time: use --finetune-from-model to begin from another model.
- --profile and --use-plasma-view, which are not part of training, are refused.
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
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

# From here, and not from fairseq: the module sets up the log before it imports fairseq.
from fairseq_cli.train import convert_namespace_to_omegaconf, distributed_utils, metrics, options, should_stop_early
from fairseq_cli.train import main as fairseq_train
from omegaconf import DictConfig
from torch.optim.optimizer import register_optimizer_step_post_hook

logger = logging.getLogger("train.py")

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
# What fairseq saves besides checkpoint_last.pt.
SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+)\.pt")


class Stop:
    """Whether this process was told to stop, and whether all processes have agreed to."""

    def __init__(self, cfg: DictConfig):
        self._cfg = cfg
        self._file = Path(cfg.checkpoint.save_dir, "stop")
        self._looks = distributed_utils.is_master(cfg.distributed_training)
        self._told = False
        self.agreed = False

    def tell(self, *_: object) -> None:
        """The handler of the signals."""
        self._told = True

    def after_step(self, *_: object) -> None:
        """The hook of the optimizer, which runs in all processes after the same step."""
        told = on_any_rank(self._told or (self._looks and self._file.exists()))
        # At the last update fairseq ends by itself; had it been stopped there, the next run would train one more.
        if told and updates() + 1 < (self._cfg.optimization.max_update or math.inf):
            self.agreed = True
            self._cfg.optimization.stop_time_hours = 1e-9
            self._cfg.dataset.disable_validation = True
            self._cfg.checkpoint.no_last_checkpoints = False


def on_any_rank(flag: bool) -> bool:
    """Whether the flag is set in any process; all of them must ask."""
    if not (dist.is_available() and dist.is_initialized()):
        return flag
    answer = torch.tensor(int(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    return bool(answer)


def updates() -> int:
    """The updates made, earlier runs included. Within the hook fairseq has not counted the present one yet."""
    # The first one, "default", sees everything. By its name fairseq finds a stale copy in a run that was resumed.
    default = metrics.get_active_aggregators()[0]
    return int(default["num_updates"].val) if "num_updates" in default else 0


def train(cfg: DictConfig) -> None:
    """What each process runs, those that fairseq spawns too."""
    stop = Stop(cfg)
    for number in SIGNALS:
        signal.signal(number, stop.tell)
    os.register_at_fork(after_in_child=obey_the_parent)
    # fairseq keeps the count of --patience in memory only: a run that is stopped often would never end by it.
    patience = Path(cfg.checkpoint.save_dir, "patience.json")
    with contextlib.suppress(OSError, ValueError):
        vars(should_stop_early).update(json.loads(patience.read_text()))
    hook = register_optimizer_step_post_hook(stop.after_step)
    fairseq_train(cfg)
    hook.remove()
    if distributed_utils.is_master(cfg.distributed_training):
        if stop.agreed and cfg.checkpoint.patience > 0:
            patience.write_text(json.dumps(vars(should_stop_early), default=float))
        conclude(cfg, stop.agreed)


def obey_the_parent() -> None:
    """Lets the data loader's processes end when the trainer says so, and not when a batch system signals all processes.

    Training would break off when they are gone, so it is the trainer alone that heeds such a signal.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    threading.Thread(target=wait_for_the_parent, daemon=True).start()


def wait_for_the_parent() -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
        pass
    os._exit(0)


def conclude(cfg: DictConfig, stopped: bool) -> None:
    """Says in the log, and in the folder, how training ended."""
    folder = Path(cfg.checkpoint.save_dir)
    (folder / "stop").unlink(missing_ok=True)
    if stopped:
        saved = "nothing saved (--no-save)" if cfg.checkpoint.no_save else "saved: the same command again goes on"
        logger.info(f"stopped at update {updates()}, {saved}")
    elif updates() and not cfg.checkpoint.no_save:
        (folder / "finished").touch()


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint, a zip archive, still has its end, where the archive's table of contents is."""
    try:
        zipfile.ZipFile(checkpoint).close()
    except zipfile.BadZipFile:
        return False
    return True


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
    distributed_utils.infer_init_method(own)


def main() -> None:
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser)
    if args.profile or args.use_plasma_view:
        parser.error("--profile and --use-plasma-view need fairseq-train itself")
    cfg = convert_namespace_to_omegaconf(args)
    # Or fairseq makes its batches once, in the first epoch of each run, with that epoch's number as the seed: a run that
    # was resumed in a later epoch would go on with other batches.
    cfg.dataset.update_epoch_batch_itr = True
    join_workers(cfg)
    first = distributed_utils.is_master(cfg.distributed_training)
    folder = Path(cfg.checkpoint.save_dir)
    try:
        if (folder / "finished").exists():
            if first:
                logger.info(f"nothing to do: training has finished (to go on all the same, remove {folder}/finished)")
            return
        if first:  # the others cannot load anything before: fairseq makes them wait for the first one's connection
            prepare(cfg)
    except OSError as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(2)
    for number in SIGNALS:  # until `train` takes over, and for the process that fairseq spawns the others from
        signal.signal(number, partial(ask, folder / "stop"))
    distributed_utils.call_main(cfg, train)


def ask(file: Path, *_: object) -> None:
    """Hands a signal on to the processes that train."""
    with contextlib.suppress(OSError):
        file.touch()


if __name__ == "__main__":
    main()
