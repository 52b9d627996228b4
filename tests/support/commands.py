"""Runs fairseq's commands as a user does, on a toy model; the fixtures around it are in session.py.

Starting fairseq costs seconds, most of them for imports. `Command` therefore forks a process that has imported
fairseq, and nothing of ours, already: the command still is a process of its own, with its own arguments, standard
streams and exit code. `run_program` starts the installed program itself, for the proof that this makes no difference.
"""

import atexit
import gc
import importlib.metadata
import importlib.util
import multiprocessing
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

# Found, not imported: a forked command imports this file, and must get the plugin from --user-dir alone.
USER_DIR = Path(importlib.util.find_spec("fairseq_headgates").origin).parent

# What fairseq's commands import, the last ones not before they are at work. A missing one is ignored.
PRELOADED = ["fairseq_cli.train", "fairseq_cli.generate", "torch._dynamo", "tensorboardX", "sacrebleu"]

TYPES = "enc-self,dec-self,dec-enc"
L0 = ["--criterion", "label_smoothed_cross_entropy_l0", "--l0-weight", "0.05"]
GATED = ["--gate-heads", TYPES, *L0]
ALIVE = {"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]], "dec-enc": [[1, 1, 0, 1], [0, 1, 1, 1]]}

# The toy model: two layers of four heads on either side.
TOY_SIZES = {"layers": 2, "embed_dim": 32, "ffn_embed_dim": 64, "attention_heads": 4}
TOY_MODEL = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in TOY_SIZES.items()}
TOY_TRAINING = (
    "--cpu --seed 1 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --lr 0.005"
    " --dropout 0.1 --max-tokens 500 --num-workers 0 --required-batch-size-multiple 1"
    " --log-format simple --log-interval 1"
).split()
# How the other commands read the toy data. Without the last option fairseq drops what is left over from groups of 8.
EVALUATION = ["--user-dir", USER_DIR, "--cpu", "--num-workers", "0", "--required-batch-size-multiple", "1"]

_HELD_PORTS = []


@dataclass(frozen=True)
class Toy:
    """A parallel corpus: the text of its splits (`train.src` and so on), and the same as fairseq reads it."""

    text: Path
    data: Path


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def expect(self, code: int | None) -> "Finished":
        """Shows what the command wrote if it did not end as expected (None: in whatever way)."""
        assert code in (self.code, None), f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


def start_fork_server() -> None:
    """Starts the process that commands are forked from, without waiting for it."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


class Command:
    """A running command, in a process forked off one that has imported fairseq; `folder` takes its streams."""

    def __init__(self, folder: Path, program: str, arguments: list, stdin: str = "", limits: dict | None = None):
        folder.mkdir()
        self._files = [folder / name for name in ("stdin", "stdout", "stderr")]
        self._files[0].write_text(stdin)
        start_fork_server()
        context = multiprocessing.get_context("forkserver")
        argv = [program, *map(str, arguments)]
        arguments = (argv, [str(file) for file in self._files], limits or {})
        self._process = context.Process(target=_run_entry_point, args=arguments)
        self._process.start()

    def finish(self, seconds: float = 600) -> Finished:
        """Waits for the command."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        return Finished(self._process.exitcode, *(file.read_text() for file in self._files[1:]))


def _run_entry_point(argv, files, limits):
    """What the installed script does, with the standard streams in files, under {"RLIMIT_FSIZE": bytes, ...}."""
    os.chdir(Path(files[0]).parent)
    written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    modes = (os.O_RDONLY, written, written)
    run_forked(argv, [os.open(name, mode, 0o666) for name, mode in zip(files, modes, strict=True)], limits)


def run_forked(argv, streams, limits):
    """Run a program in this process, with these descriptors as its standard streams."""
    gc.freeze()  # looking for garbage among what the parent imported would copy its memory
    import resource

    import torch

    from support.fairseq_0_12_2 import as_later_versions

    as_later_versions()
    torch.set_num_threads(1)
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (multiprocessing has closed it)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  (the parent's may be another kind of file)
    sys.argv = argv
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    try:
        sys.exit(_entry_point(argv[0])())
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out; TensorBoard's writers close their files there


def _entry_point(program):
    found = importlib.metadata.entry_points(group="console_scripts", name=program)
    if found:
        return next(iter(found)).load()
    return importlib.import_module("fairseq_headgates.cli.main").main  # a checkout that is not installed


def run_program(folder: Path, program: str, *arguments: object, stdin: str = "", code: int | None = 0) -> Finished:
    """Starts, in `folder`, the program that is installed beside the interpreter, and waits for it."""
    script = Path(sys.executable).with_name(program)
    command, environment = [str(script)], {**os.environ, "OMP_NUM_THREADS": "1"}
    if not script.exists():  # `headgates` in a checkout that is not installed
        command = [sys.executable, "-m", "fairseq_headgates"]
        environment["PYTHONPATH"] = str(USER_DIR.parent)
    command += map(str, arguments)
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, cwd=folder, env=environment, timeout=600
    )
    return Finished(done.returncode, done.stdout, done.stderr).expect(code)


def train_arguments(toy: Toy, save_dir: Path, *options: object, arch="transformer_head_gates", updates=2) -> list:
    """The arguments of fairseq-train for the toy model; of an option given twice the last one counts."""
    plugin = ["--user-dir", USER_DIR] if arch != "transformer" else []
    places = [toy.data, *plugin, "--arch", arch, "--save-dir", save_dir, "--max-update", updates]
    model = [f"--{key.replace('_', '-')}={value}" for key, value in TOY_MODEL.items()]
    return [*places, *model, *TOY_TRAINING, *options]


def l0_configuration(toy: Toy, save_dir: Path, **model: object) -> dict:
    """The configuration of fairseq-hydra-train for two updates of the toy model with the L0 criterion."""
    return {
        "common": {"cpu": True, "user_dir": str(USER_DIR), "seed": 1},
        "task": {"_name": "translation", "data": str(toy.data)},
        "model": {"_name": "transformer_head_gates", **TOY_MODEL, **model},
        "criterion": {"_name": "label_smoothed_cross_entropy_l0", "l0_weight": 0.05, "label_smoothing": 0.1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "dataset": {"max_tokens": 500, "num_workers": 0, "required_batch_size_multiple": 1},
        "optimization": {"max_update": 2, "lr": [0.005]},
        "checkpoint": {"save_dir": str(save_dir)},
    }


def reserved_port() -> int:
    """A free port that is given to no other process unless it asks for this number.

    Torch listens on it although this process stays bound to it: both set SO_REUSEADDR, and only one of them listens.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _HELD_PORTS.append(holder)
    return holder.getsockname()[1]


def worker_arguments(count: int) -> list[list]:
    """The options of each of `count` workers started by hand on one machine."""
    address = f"tcp://127.0.0.1:{reserved_port()}"
    together = ["--distributed-init-method", address, "--distributed-world-size", count, "--distributed-no-spawn"]
    together += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    return [[*together, "--distributed-rank", rank, "--device-id", rank] for rank in range(count)]


def logged(finished: Finished, key: str) -> list[float]:
    """The value of a statistic in the log of every update."""
    return [float(value) for value in re.findall(rf"\| train_inner \|.* {key}=([-\d.]+)", finished.text)]


def valid_loss(finished: Finished) -> float:
    """The last validation loss in a log, of training or of fairseq-validate."""
    return float(re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", finished.text)[-1])


def hypotheses(finished: Finished) -> list[str]:
    """The best translations that fairseq-generate or fairseq-interactive printed, in the order of the sentences."""
    found = re.findall(r"^H-(\d+)\t\S+\t(.*)$", finished.out, re.MULTILINE)
    return [text for _, text in sorted(found, key=lambda pair: int(pair[0]))]
