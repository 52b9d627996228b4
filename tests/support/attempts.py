"""Runs commands on files that may be hostile, each in a child process with limits on its time and memory.

Starting Python with torch and fairseq takes seconds. One process imports them, and forks a child for each command.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS = 20
MEGABYTES = 1500  # beside what the imported libraries take

# What the commands import, most of it only when it is needed. Some are extras, and may be missing.
PRELOADED = ["fairseq_cli.generate", "torch._dynamo", "sacrebleu", "ctranslate2.specs.transformer_spec"]
PRELOADED += ["fairseq_headgates.checkpoints.ctranslate2", "fairseq_headgates.analysis.agreement"]
PRELOADED += [f"fairseq_headgates.cli.{name}" for name in ("session", "show", "prune", "convert", "score", "correlate")]


@dataclass(frozen=True)
class Attempt:
    """How a command ended: its exit code, or minus the signal that killed it (SIGALRM: it took too long)."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def refused(self) -> bool:
        """Whether the command ended as it must on bad input: one line on stderr, exit code 2."""
        return self.code == 2 and self.err.count("\n") == 1 and "Traceback" not in self.err

    @property
    def orderly(self) -> bool:
        """Whether the command was carried out, or refused its input."""
        return self.refused or (self.code == 0 and "Traceback" not in self.err)


class Attempts:
    """A process that runs commands in children; use it as a context manager.

    A command is a list whose first element is `headgates` or the name of a fairseq program.
    """

    def __enter__(self) -> Attempts:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(
            # As `python -P -m support.attempts`, which Python 3.10 does not have: not from the current folder.
            [
                sys.executable,
                "-c",
                "import runpy, sys; del sys.path[0]; runpy.run_module('support.attempts', None, '__main__')",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self._process.stdout.readline()  # it has imported everything
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait(30)

    def run(self, *command: object, seconds: int = SECONDS) -> Attempt:
        self._process.stdin.write(json.dumps([seconds, [str(word) for word in command]]) + "\n")
        self._process.stdin.flush()
        return Attempt(**json.loads(self._process.stdout.readline()))


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        seconds, command = json.loads(line)
        print(json.dumps(_attempt(command, seconds)), file=answers, flush=True)


def _attempt(command: list[str], seconds: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            _run(command, seconds, folder)
        _, status = os.waitpid(child, 0)
        out, err = (Path(folder, name).read_text(errors="replace") for name in ("out", "err"))
        taken = time.monotonic() - begun
    return {"code": os.waitstatus_to_exitcode(status), "out": out, "err": err, "seconds": taken}


def _run(command: list[str], seconds: int, folder: str) -> None:
    code = 70
    gc.freeze()  # looking for garbage among what the parent imported would copy its memory
    try:
        os.setsid()  # data loaders must not outlive it
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), descriptor)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEGABYTES * 2**20,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        os.chdir(folder)
        sys.argv = command
        code = _main_of(command[0])() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main_of(program: str):
    if program == "headgates":
        from fairseq_headgates.cli.main import main

        return main
    return importlib.import_module(f"fairseq_cli.{program.removeprefix('fairseq-')}").cli_main


if __name__ == "__main__":
    _serve()
