"""Ctrl-C and signals: a recipe ends with everything it has started, in one line, and the same command resumes it."""

import contextlib
import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

import pytest
from support import mirror as mirrors
from support.recipes import RECIPES, environment, make_corpus, run

import fairseq_headgates

STOPPED = "translation.sh: stopped; run the same command again to resume"
PLUGIN = Path(fairseq_headgates.__file__).parent
TINY = {"HEADGATES": PLUGIN, "PRETOKENIZED": 1, "BPE": 200, "EMBED": 16, "FFN": 16, "LAYERS": 1, "HEADS": 2, "RUNS": ""}
# Waits in a child of its own, and says with a traceback that it was interrupted, as programs in Python do.
WAITING = f"""\
#!{sys.executable}
import pathlib, subprocess, sys
pathlib.Path(sys.argv[0] + ".started").touch()
subprocess.run(["sleep", "300"])
"""


class Terminal:
    """A recipe in a terminal and a session of its own."""

    def __init__(self, recipe, *arguments, env):
        self.output = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvpe("bash", ["bash", str(RECIPES / recipe), *map(str, arguments)], env)

    def read(self, seconds):
        """What comes within some time; whether there may be more."""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return True
        with contextlib.suppress(OSError):
            if text := os.read(self._terminal, 65536):
                self.output += text.decode()
                return True
        return False

    def wait_for(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline and self.read(0.05), self.output

    def press_ctrl_c(self):
        """The terminal sends SIGINT to all processes in the foreground."""
        os.write(self._terminal, b"\x03")

    def finish(self, seconds=60):
        """The exit code."""
        deadline = time.monotonic() + seconds
        ended = 0
        while not ended:
            assert time.monotonic() < deadline, self.output
            self.read(0.05)
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        end = time.monotonic() + 2
        while self.read(0.1) and time.monotonic() < end:
            pass
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)


def left_in(session):
    """The processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append((stat.parent.name, (stat.parent / "cmdline").read_bytes()))
    return found


def assert_nothing_left(session, seconds=3):
    deadline = time.monotonic() + seconds
    while left := left_in(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture
def waiting(tmp_path):
    """waiting(PROGRAM, **settings): an environment in which PROGRAM waits for ever; and the file that says it began."""

    def waiting(program, **settings):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / program).write_text(WAITING)
        (folder / program).chmod(0o755)
        env = environment(settings)
        return env | {"PATH": f"{folder}:{env['PATH']}"}, folder / f"{program}.started"

    return waiting


PROGRAMS = "headgates", "sacremoses", "subword-nmt", "fairseq-preprocess"


def make_text(folder, stages):
    """What the stages before a program have written."""
    folder.mkdir(parents=True)
    files = ["train.both", "codes.en", "codes.de"] if "bpe" in stages else []
    for name in ("train", "valid", "test"):
        files += [f"{name}.{stage}.{language}" for stage in stages for language in ("en", "de")]
    for name in files:
        (folder / name).write_text("a b\n" * 3)


@pytest.mark.parametrize(
    ("program", "how"),
    [
        (PROGRAMS[0], "ctrl-c"),
        (PROGRAMS[1], "SIGTERM"),
        *(pytest.param(name, "SIGUSR1", marks=[pytest.mark.rehearsal, pytest.mark.release]) for name in PROGRAMS[2:]),
    ],
)
def test_a_signal_ends_the_start_of_a_recipe_and_the_preparation_of_text(program, how, raw, tmp_path, waiting):
    settings = {"PRETOKENIZED": int(program != "sacremoses"), "HEADGATES": PLUGIN if program != "headgates" else ""}
    env, started = waiting(program, **TINY | settings)
    make_text(tmp_path / "out" / "text", ["tok", "bpe"][: max(PROGRAMS.index(program) - 1, 0)])
    recipe = Terminal("translation.sh", raw, tmp_path / "out", "en", "de", env=env)
    recipe.wait_for(started.exists)
    recipe.press_ctrl_c() if how == "ctrl-c" else os.kill(recipe.pid, getattr(signal, how))
    begun = time.monotonic()
    assert recipe.finish() == 75 and time.monotonic() - begun < 10
    said = [line for line in recipe.output.replace("^C", "").splitlines() if "tokenising" not in line]
    assert said == [STOPPED]
    assert_nothing_left(recipe.pid)


@pytest.mark.rehearsal
def test_ctrl_c_ends_a_recipe_inside_a_recipe(tmp_path, waiting):
    """iwslt14_de_en.sh runs translation.sh, and goes on after it: the line comes once."""
    sentences = [(f"ein Satz {n}", f"a sentence {n}") for n in range(50)]
    mirrors.make_iwslt_mirror(tmp_path / "mirror", sentences, test=sentences[:3])
    env, started = waiting("sacremoses", **TINY | {"CPU": 1, "DISK_GB": 0, "DATA_DIR": tmp_path / "mirror"})
    recipe = Terminal("iwslt14_de_en.sh", tmp_path / "out", env=env)
    recipe.wait_for(started.exists)
    recipe.press_ctrl_c()
    assert recipe.finish() == 75
    assert "Traceback" not in recipe.output and recipe.output.count("to resume") == 1, recipe.output
    assert recipe.output.replace("^C", "").splitlines()[-1] == STOPPED
    assert_nothing_left(recipe.pid)


@pytest.mark.rehearsal
@pytest.mark.release
def test_ctrl_c_stops_a_training_with_a_checkpoint(tmp_path):
    """While it starts, in the middle (also by the file `stop`) and in the evaluation; the results are the same."""
    make_corpus(tmp_path / "raw")
    settings = TINY | {"UPDATES": 200, "SAVE_EVERY": 100, "MAX_TOKENS": 400, "WARMUP": 2, "LR": 0.01}
    out = tmp_path / "out"
    arguments = ["translation.sh", tmp_path / "raw", out, "en", "ru"]
    log = out / "baseline" / "train.log"

    def stopped(condition, stop=Terminal.press_ctrl_c):
        recipe = Terminal(*arguments, env=environment(settings))
        recipe.wait_for(lambda: condition(recipe))
        stop(recipe)
        assert recipe.finish() == 75, recipe.output
        assert_nothing_left(recipe.pid)
        assert "Traceback" not in recipe.output and "to resume" in recipe.output.splitlines()[-1]
        return recipe.output

    assert "has saved a checkpoint" in stopped(lambda recipe: log.exists())  # while it imports
    assert (out / "baseline" / "checkpoint_last.pt").exists() and not (out / "baseline" / "stop").exists()
    assert log.read_text().count("stopped at update") == 1
    for stops, stop in ((2, Terminal.press_ctrl_c), (3, lambda _: (out / "baseline" / "stop").touch())):
        before = len(log.read_text())
        printed = stopped(lambda _, before=before: "begin training epoch" in log.read_text()[before:], stop)
        assert "has saved a checkpoint" in printed
        assert log.read_text().count("stopped at update") == stops
    stopped(lambda recipe: "evaluating baseline" in recipe.output)
    assert (out / "baseline" / "finished").exists()
    again = run(*arguments, **settings)
    assert again.returncode == 0 and "training" not in again.stdout, again.stdout + again.stderr
    whole = run(*arguments[:2], tmp_path / "whole", "en", "ru", **settings)
    assert whole.stdout.splitlines()[-3:] == again.stdout.splitlines()[-3:]


@pytest.mark.rehearsal
@pytest.mark.release
def test_ctrl_c_stops_a_training_on_two_machines(tmp_path):
    """By ssh, here to the same machine; torchrun starts the workers.

    At the end the agents of torchrun wait for each other through a store in the first one. If that one leaves before
    the answer has reached the other, torchrun logs an error with a traceback and succeeds all the same.
    """
    make_corpus(tmp_path / "raw")
    (tmp_path / "ssh").write_text('#!/usr/bin/env bash\nshift\nexec bash -c "$*"\n')
    (tmp_path / "ssh").chmod(0o755)
    settings = TINY | {"UPDATES": 5000, "SAVE_EVERY": 5000, "MAX_TOKENS": 400, "WARMUP": 2, "LR": 0.01}
    settings |= {"HOSTS": "127.0.0.1 other", "SSH": tmp_path / "ssh", "PORT": 29547}
    recipe = Terminal("translation.sh", tmp_path / "raw", tmp_path / "out", "en", "ru", env=environment(settings))
    log = tmp_path / "out" / "baseline" / "train.log"
    recipe.wait_for(lambda: log.exists() and "train_inner" in log.read_text(), seconds=240)
    recipe.press_ctrl_c()
    assert recipe.finish() == 75, recipe.output + log.read_text()
    own = log.read_text().splitlines()
    if any("Error waiting on exit barrier" in line for line in own):
        own = [line for line in own if "torch/distributed/elastic/agent/server/api.py" not in line]
    assert "has saved a checkpoint" in recipe.output and not any("Traceback" in line for line in own), own
    assert log.read_text().count("stopped at update") == 1 and "training on 2 devices" in log.read_text()
    assert_nothing_left(recipe.pid, seconds=10)
