"""Fixtures of every test that runs whole commands: a toy corpus, ways to run fairseq on it, small checkpoints."""

import fcntl
import gc
import json
import multiprocessing
import os
import random
import signal
from functools import partial

import pytest
import torch
from hypothesis import settings

from support.attempts import Attempts
from support.commands import (
    ALIVE,
    GATED,
    Command,
    Toy,
    run_program,
    start_fork_server,
    train_arguments,
    worker_arguments,
)
from support.fairseq_0_12_2 import as_later_versions
from support.in_process import can_run, never_compose_twice, run_fairseq_here, run_here

# Fixtures that several test files share.
pytest_plugins = [
    "support.analysis",
    "support.checkpoints",
    "support.classifiers",
    "support.families",
    "support.language_models",
    "support.prune_command",
    "support.report",
]

# A slow machine is no failure.
settings.register_profile("headgates", deadline=None)
settings.load_profile("headgates")

# So that models of this plugin can be compared with those of fairseq 0.12.2. checkpoints/test_fairseq_0_12_2.py runs it
# as it is, and so do the installed programs.
as_later_versions()
never_compose_twice()

# Before tests import scripts of recipes, which import headgates_start: with that the package registers nothing.
import fairseq_headgates  # noqa: E402, F401

# Looking for garbage among all that is imported by now takes a tenth of the time of the tests.
gc.collect()
gc.freeze()
gc.set_threshold(5000, 20, 100)

# Without a GPU torch keeps every seed for later, with a listing of the stack.
if not torch.cuda.is_available():
    torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = lambda seed: None

# Ignored under nohup and in background jobs of a shell; the tests of signals need the defaults.
for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)  # before fixtures of any scope
def pytest_runtest_setup():
    """Random weights do not depend on the tests that ran before."""
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before those that -m does not choose are left out
def pytest_collection_modifyitems(items):
    """Of a parametrised test with the mark `cases(n)`, all cases but n, evenly spread, get the mark `release`."""
    tests = {}
    for item in items:
        if mark := item.get_closest_marker("cases"):
            tests.setdefault(item.nodeid.partition("[")[0], (mark.args[0], []))[1].append(item)
    for number, cases in tests.values():
        kept = {round(i * (len(cases) - 1) / max(number - 1, 1)) for i in range(number)}
        for i, item in enumerate(cases):
            if i not in kept:
                item.add_marker("release")


def pytest_sessionstart(session):
    """In a process of pytest-xdist: some test will need it, and each may be the first."""
    if hasattr(session.config, "workerinput"):
        start_fork_server()


def pytest_sessionfinish():
    """Ends the commands that a failed test left running, such as workers that wait for one that has failed."""
    for command in multiprocessing.active_children():
        command.kill()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, request):
    """made_once(name, make) returns a folder that make(folder) filled, once for all processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base

    def made_once(name, make):
        folder, done = shared / name, shared / f"{name}.done"
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                folder.mkdir()  # fails where another process failed before
                make(folder)
                done.touch()
        return folder

    return made_once


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """start(program, *arguments, stdin="", limits={}) starts a command; its `finish()` waits for it."""
    folder = tmp_path_factory.mktemp("streams")

    def start(program, *arguments, stdin="", limits=None):
        return Command(folder / str(len(os.listdir(folder))), program, arguments, stdin, limits)

    return start


@pytest.fixture(scope="session")
def forked(start):
    """forked(program, *arguments, stdin="", code=0, workers=1) runs a command to its end, with the exit code `code`.

    With several workers it runs once for each, and the result is that of the first, which writes.
    """

    def forked(program, *arguments, stdin="", code=0, workers=1):
        options = worker_arguments(workers) if workers > 1 else [[]]
        started = [start(program, *arguments, *own, stdin=stdin) for own in options]
        return [command.finish().expect(code) for command in started][0]

    return forked


@pytest.fixture(scope="session")
def run(forked):
    """Like `forked`; `headgates`, and fairseq with the plugin, run in this process, which has imported everything."""

    def run(program, *arguments, stdin="", code=0, workers=1):
        if program == "headgates" and workers == 1:
            return run_here(*arguments, stdin=stdin).expect(code)
        if can_run(program, arguments) and workers == 1:
            return run_fairseq_here(program, *arguments, stdin=stdin).expect(code)
        return forked(program, *arguments, stdin=stdin, code=code, workers=workers)

    return run


@pytest.fixture(params=["forked", pytest.param("installed", marks=pytest.mark.release)])
def either(request, forked, tmp_path):
    """Like `forked`; before a release also with the installed program, which takes seconds to start."""
    return forked if request.param == "forked" else partial(run_program, tmp_path)


@pytest.fixture(scope="session")
def attempts():
    """Runs commands in children of a process that has imported everything; see support/attempts.py."""
    with Attempts() as attempts:
        yield attempts


@pytest.fixture(scope="session")
def toy(made_once, run):
    """Letters and, as their translation, the same letters as capitals in reverse; one dictionary for both."""

    def make(text):
        rng = random.Random(7)
        for split, sentences in (("train", 200), ("valid", 30), ("test", 10)):
            sources = [rng.choices("abcdefgh", k=rng.randint(3, 8)) for _ in range(sentences)]
            for side, lines in (("src", sources), ("tgt", [[c.upper() for c in reversed(s)] for s in sources])):
                (text / f"{split}.{side}").write_text("".join(" ".join(line) + "\n" for line in lines))
        options = ["--source-lang", "src", "--target-lang", "tgt", "--joined-dictionary", "--destdir", text / "bin"]
        options += [f"--{split}pref={text / split}" for split in ("train", "valid", "test")]
        run("fairseq-preprocess", *options)

    text = made_once("toy", make)
    return Toy(text, text / "bin")


@pytest.fixture(scope="session")
def train(toy, run):
    """train(save_dir, *options, arch=..., updates=2, code=0, workers=1) trains the toy model with fairseq-train.

    As `run`; fairseq's own architecture, too, is trained in this process, although the plugin has been imported.
    """

    def train(save_dir, *options, code=0, workers=1, **choices):
        command = ["fairseq-train", *train_arguments(toy, save_dir, *options, **choices)]
        if choices.get("arch") == "transformer" and workers == 1:
            return run_fairseq_here(*command).expect(code)
        return run(*command, code=code, workers=workers)

    return train


KINDS = {
    "baseline": [],
    "gated": GATED,
    "fixed": ["--alive-heads", ALIVE],
    "mixed": [*GATED, "--gate-heads", "dec-self,dec-enc", "--alive-heads", {"enc-self": ALIVE["enc-self"]}],
}


class Checkpoints:
    """Checkpoints of every kind of model after four updates, by name; each is made when it is first needed.

    The mask files of "fixed" and "mixed" are gone afterwards: a checkpoint must not need them.
    """

    def __init__(self, made_once, train):
        self._made_once, self._train = made_once, train

    def __getitem__(self, kind):
        return self._made_once(f"checkpoint_{kind}", partial(self._make, KINDS[kind])) / "checkpoint_last.pt"

    def _make(self, options, folder):
        mask = folder / "mask.json"
        mask.write_text(json.dumps(next((word for word in options if isinstance(word, dict)), {})))
        self._train(folder, *[mask if isinstance(word, dict) else word for word in options], updates=4)
        mask.unlink()


@pytest.fixture(scope="session")
def checkpoints(made_once, train):
    return Checkpoints(made_once, train)


@pytest.fixture(scope="session")
def gated_checkpoint(checkpoints):
    """A checkpoint with gates on every type of attention."""
    return checkpoints["gated"]


@pytest.fixture(scope="session")
def stock_checkpoint(made_once, train):
    """A checkpoint of fairseq's own architecture after two updates."""
    return made_once("checkpoint_stock", lambda folder: train(folder, arch="transformer")) / "checkpoint_last.pt"


@pytest.fixture
def raw(tmp_path):
    """Raw text of three pairs for every split."""
    folder = tmp_path / "raw"
    folder.mkdir()
    pairs = [("one two\n", "eins zwei\n"), ("two one\n", "zwei eins\n"), ("one one\n", "eins eins\n")]
    for first, split in enumerate(("train", "valid", "test")):  # the same in another order
        for language, lines in zip(("en", "de"), zip(*pairs[first:], *pairs[:first], strict=True), strict=True):
            (folder / f"{split}.{language}").write_text("".join(lines))
    return folder
