#!/usr/bin/env python3
"""fairseq-train that can be stopped at any update and resumes as if it had not been stopped.

    python recipes/train.py ARGUMENTS                              ARGUMENTS: those of fairseq-train
    torchrun --nproc_per_node N recipes/train.py ARGUMENTS
    srun python recipes/train.py ARGUMENTS

To stop it, send SIGINT, SIGTERM or SIGUSR1 to any of its processes, or create SAVE_DIR/stop. All processes finish the
current update, save checkpoint_last.pt without a validation, and exit with code 0. The same command resumes. When the
training is complete, SAVE_DIR/finished is written, and the same command does nothing.
If checkpoint_last.pt is truncated (fairseq was killed while it copied the file), the newest whole one replaces it.

lib/training/trainer.py replaces fairseq's Trainer in this process; nothing else of fairseq is replaced.

- Signals are handled once the arguments are parsed; before that they end the process.
- A validation that is due, or in progress, comes first.
- With torchrun signal one of its workers, or create the file. torchrun itself forwards a SIGTERM or SIGINT, gives the
  workers 30 s and ends with an error; a SIGUSR1 ends torchrun alone, and its workers continue.
- On CPUs torchrun needs --cpu --distributed-backend gloo --ddp-backend legacy_ddp.
- With --restore-file FILE fairseq starts from FILE every time: use --finetune-from-model to start from another model.
- --profile, --use-plasma-view and --model-parallel-size are not supported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))

from fairseq_cli import train as fairseq_train  # before other modules of fairseq, because it configures logging
from omegaconf import DictConfig

from training.interrupted import clean_up
from training.stopping import Stop, catch_signals, touch_on_signals
from training.trainer import Trainer

logger = logging.getLogger("train.py")


def train(cfg: DictConfig) -> None:
    """Run the training in this process, with or without others."""
    stop = Stop()
    catch_signals(stop)
    with contextlib.suppress(OSError, ValueError):
        vars(fairseq_train.should_stop_early).update(json.loads(patience_file(cfg).read_text()))
    fairseq_train.Trainer = partial(Trainer, stop)
    fairseq_train.main(cfg)
    if is_first(cfg):
        conclude(cfg, stop)


def conclude(cfg: DictConfig, stop: Stop) -> None:
    """Record how the training ended, in the log and in the folder."""
    folder = Path(cfg.checkpoint.save_dir)
    (folder / "stop").unlink(missing_ok=True)
    if stop.agreed:
        if cfg.checkpoint.patience > 0:
            patience_file(cfg).write_text(json.dumps(vars(fairseq_train.should_stop_early), default=float))
        saved = "nothing saved (--no-save)" if cfg.checkpoint.no_save else "saved: the same command resumes"
        logger.info(f"stopped at update {stop.updates}, {saved}")
    elif stop.updates is not None and not cfg.checkpoint.no_save:
        (folder / "finished").touch()


def patience_file(cfg: DictConfig) -> Path:
    """Return the file that keeps the state of --patience over a stop; fairseq keeps it in memory only."""
    return Path(cfg.checkpoint.save_dir, "patience.json")


def prepare(cfg: DictConfig) -> None:
    """Create the folder, and remove what an interrupted training left in it."""
    folder = Path(cfg.checkpoint.save_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stop").unlink(missing_ok=True)
    if cfg.checkpoint.restore_file == "checkpoint_last.pt":
        clean_up(folder)


def find_rank(cfg: DictConfig) -> None:
    """Find the rank of this process as fairseq does, and in two cases where fairseq does not.

    fairseq ignores torchrun's workers if it sees at most one GPU, and has no device for them on CPUs.
    """
    own = cfg.distributed_training
    by_torchrun = os.environ.keys() >= {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}
    if own.distributed_init_method is None and by_torchrun and int(os.environ["WORLD_SIZE"]) > 1:
        own.distributed_world_size = int(os.environ["WORLD_SIZE"])
        if cfg.common.cpu:
            own.distributed_init_method, own.distributed_no_spawn = "env://", True
            own.distributed_rank = int(os.environ["RANK"])
    fairseq_train.distributed_utils.infer_init_method(own)


def check_world_size(cfg: DictConfig, planned: int | None) -> None:
    """Raise ValueError, in one line, if other than `planned` processes are about to train; None: not planned."""
    found = cfg.distributed_training.distributed_world_size
    if planned is not None and found != planned:
        raise ValueError(
            f"{found} processes would train, but --distributed-world-size is {planned}, the number for which the "
            "batches of an update are planned: start as many processes, or change the number (a recipe: WORKERS, GPUS)"
        )


def is_first(cfg: DictConfig) -> bool:
    """Return whether this process has rank 0."""
    return fairseq_train.distributed_utils.is_master(cfg.distributed_training)


def main() -> None:
    parser = fairseq_train.options.get_training_parser()
    args = fairseq_train.options.parse_args_and_arch(parser)
    if args.profile or args.use_plasma_view or args.model_parallel_size > 1:
        parser.error("--profile, --use-plasma-view and --model-parallel-size need fairseq-train itself")
    given = any(argument.split("=")[0] == "--distributed-world-size" for argument in sys.argv[1:])
    planned = args.distributed_world_size if given else None
    cfg = fairseq_train.convert_namespace_to_omegaconf(args)
    find_rank(cfg)
    folder = Path(cfg.checkpoint.save_dir)
    try:
        check_world_size(cfg, planned)
        if (folder / "finished").exists():
            if is_first(cfg):
                logger.info(f"nothing to do: training has finished (remove {folder}/finished to train on)")
            return
        if is_first(cfg):  # before any other process loads: they wait for this one to connect
            prepare(cfg)
    except (OSError, ValueError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(2)
    touch_on_signals(folder / "stop")  # until `train` starts, and in the process that spawns the workers
    fairseq_train.distributed_utils.call_main(cfg, train)


if __name__ == "__main__":
    main()
