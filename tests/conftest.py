"""fairseq's own commands on a toy task: the fixtures of every test that runs whole commands.

Starting fairseq costs seconds, most of them for imports, so `run` forks a process that has imported fairseq, and
nothing of ours, already: the command is a process of its own all the same, with its own arguments, standard
streams and exit code. `run_program` starts the installed program itself, for the proof that this makes no
difference.
"""

import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # the models are so small that threads would only wait for each other

# Found, not imported: a forked command imports this file, and must get the plugin from --user-dir alone.
USER_DIR = Path(importlib.util.find_spec("fairseq_headgates").origin).parent

# What fairseq's commands import, the last ones not before they are at work. A missing one is passed over.
PRELOADED = ["pytest", "fairseq_cli.train", "fairseq_cli.generate", "torch._dynamo", "tensorboardX", "sacrebleu"]

TYPES = "enc-self,dec-self,dec-enc"
GATED = ["--gate-heads", TYPES, "--criterion", "label_smoothed_cross_entropy_l0", "--l0-weight", "0.05"]
ALIVE = {"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]], "dec-enc": [[1, 1, 0, 1], [0, 1, 1, 1]]}

# The toy model: two layers of four heads on either side.
TOY_MODEL = [
    f"--{side}-{option}={value}"
    for side in ("encoder", "decoder")
    for option, value in (("layers", 2), ("embed-dim", 32), ("ffn-embed-dim", 64), ("attention-heads", 4))
]
TOY_TRAINING = (
    "--cpu --seed 1 --optimizer adam --lr 0.005 --dropout 0.1 --label-smoothing 0.1 --max-tokens 500"
    " --log-format simple --log-interval 1 --num-workers 0 --required-batch-size-multiple 1"
).split()

# How the evaluating commands read the toy data. Without the last option fairseq drops the rest after groups of 8.
TOY_DATA = ["--user-dir", USER_DIR, "--cpu", "--num-workers", "0", "--required-batch-size-multiple", "1"]


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class Command:
    """A running command, in a process forked off one that has imported fairseq."""

    def __init__(self, streams: Path, program: str, *arguments: object, stdin: str = ""):
        streams.mkdir()
        self._files = [streams / name for name in ("stdin", "stdout", "stderr")]
        self._files[0].write_text(stdin)
        argv = [program, *map(str, arguments)]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._process = context.Process(target=_run_entry_point, args=(argv, [str(f) for f in self._files]))
        self._process.start()

    def finish(self, seconds: float = 120) -> Finished:
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            pytest.fail(f"still running after {seconds} s:\n" + self._files[2].read_text())
        return Finished(self._process.exitcode, *(file.read_text() for file in self._files[1:]))


def _run_entry_point(argv, files):
    """What the installed script does, with the standard streams in files."""
    import torch

    torch.set_num_threads(1)
    for descriptor, (name, mode) in enumerate(zip(files, "rww", strict=True)):
        with open(name, mode) as file:
            os.dup2(file.fileno(), descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (multiprocessing has closed it)
    sys.argv = argv
    os.chdir(Path(files[0]).parent)
    sys.exit(_entry_point(argv[0])())


def _entry_point(program):
    found = importlib.metadata.entry_points(group="console_scripts", name=program)
    if found:
        return next(iter(found)).load()
    return importlib.import_module("fairseq_headgates.cli").main  # a checkout that is not installed


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """start(program, *arguments, stdin="") starts a command; its `finish()` waits for it."""
    folder = tmp_path_factory.mktemp("streams")

    def start(program, *arguments, stdin=""):
        return Command(folder / str(len(os.listdir(folder))), program, *arguments, stdin=stdin)

    return start


@pytest.fixture(scope="session")
def run(start):
    """run(program, *arguments, stdin="", code=0) runs a command to its end, which must be the exit code `code`."""

    def run(program, *arguments, stdin="", code=0):
        return expect(start(program, *arguments, stdin=stdin).finish(), code)

    return run


@pytest.fixture(scope="session")
def run_program(tmp_path_factory):
    """As `run`, but starts the program that is installed beside the interpreter; takes seconds."""
    folder = tmp_path_factory.mktemp("programs")

    def run_program(program, *arguments, stdin="", code=0):
        script = Path(sys.executable).with_name(program)
        head, environment = [str(script)], dict(os.environ)
        if not script.exists():
            head = [sys.executable, "-m", "fairseq_headgates.cli"]
            environment["PYTHONPATH"] = str(USER_DIR.parent)
        done = subprocess.run(
            [*head, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment,
            timeout=120,
        )
        return expect(Finished(done.returncode, done.stdout, done.stderr), code)

    return run_program


def expect(finished: Finished, code: int | None) -> Finished:
    """Shows what a command wrote if it did not end as expected (None: in whatever way)."""
    assert code in (finished.code, None), f"exit code {finished.code}\n{finished.out}\n{finished.err}"
    return finished


@dataclass(frozen=True)
class Toy:
    """A parallel corpus: the text of its splits (`train.src` and so on), and the same as fairseq reads it."""

    text: Path
    data: Path


@pytest.fixture(scope="session")
def toy(tmp_path_factory, run_program):
    """Letters and, as their translation, the same letters as capitals in reverse; one dictionary for both."""
    text = tmp_path_factory.mktemp("toy")
    rng = random.Random(7)
    for split, sentences in (("train", 200), ("valid", 30), ("test", 10)):
        sources = [rng.choices("abcdefgh", k=rng.randint(3, 8)) for _ in range(sentences)]
        for side, lines in (("src", sources), ("tgt", [[c.upper() for c in reversed(s)] for s in sources])):
            (text / f"{split}.{side}").write_text("".join(" ".join(line) + "\n" for line in lines))
    prefixes = [f"--{split}pref={text / split}" for split in ("train", "valid", "test")]
    languages = ["--source-lang", "src", "--target-lang", "tgt"]
    run_program("fairseq-preprocess", *languages, *prefixes, "--destdir", text / "bin", "--joined-dictionary")
    return Toy(text, text / "bin")


def train_arguments(toy, save_dir, *options, arch="transformer_head_gates", updates=2):
    """The arguments of fairseq-train for the toy model; later options win over earlier ones."""
    plugin = ["--user-dir", USER_DIR] if arch.startswith("transformer_head_gates") else []
    # A criterion only knows --label-smoothing if it smooths labels: the default one does not.
    criterion = [] if "--criterion" in options else ["--criterion", "label_smoothed_cross_entropy"]
    places = [toy.data, *plugin, "--arch", arch, "--save-dir", save_dir, "--max-update", updates]
    return [*places, *TOY_MODEL, *TOY_TRAINING, *criterion, *options]


@pytest.fixture(scope="session")
def train(toy, run):
    """train(save_dir, *options, arch=..., updates=2, code=0) trains the toy model with fairseq-train."""

    def train(save_dir, *options, arch="transformer_head_gates", updates=2, code=0):
        return run("fairseq-train", *train_arguments(toy, save_dir, *options, arch=arch, updates=updates), code=code)

    return train


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory, train):
    """Checkpoints of every kind of model, {name: path}: two updates, then two more in a second run.

    The mask file of "fixed" and "mixed" is gone afterwards: a checkpoint must not need it.
    """
    folder = tmp_path_factory.mktemp("checkpoints")
    masks = {"fixed": folder / "fixed.json", "mixed": folder / "mixed.json"}
    masks["fixed"].write_text(json.dumps(ALIVE))
    masks["mixed"].write_text(json.dumps({"enc-self": ALIVE["enc-self"]}))
    options = {
        "baseline": [],
        "gated": GATED,
        "fixed": ["--alive-heads", masks["fixed"]],
        "mixed": [*GATED, "--gate-heads", "dec-self,dec-enc", "--alive-heads", masks["mixed"]],
    }
    for name, own in options.items():
        train(folder / name, *own, updates=2)
        again = train(folder / name, *own, updates=4)
        assert f"Loaded checkpoint {folder / name / 'checkpoint_last.pt'} (epoch 1 @ 2 updates)" in again.text
    for mask in masks.values():
        mask.unlink()
    return {name: folder / name / "checkpoint_last.pt" for name in options}


@pytest.fixture(scope="session")
def gated_checkpoint(checkpoints):
    """A checkpoint with gates on every type of attention."""
    return checkpoints["gated"]
