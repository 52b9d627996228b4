"""Runs commands on files that may be hostile, each in a child process with limits on its time and memory.

Starting Python with torch and fairseq takes seconds. One process, forked off that of support/commands.py, imports
this plugin and forks a child for each command.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from support.commands import PRELOADED

SECONDS = 20
MEGABYTES = 1500  # beside what the imported libraries take

# What the commands import besides PRELOADED, most of it only when it is needed. Some are extras, and may be missing.
IMPORTED = ["ctranslate2.specs.transformer_spec", "fairseq_headgates.extensions.convert.action"]
IMPORTED += [f"fairseq_headgates.cli.{name}" for name in ("session", "actions.show", "actions.prune")]


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
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,))
        self._process.start()
        other.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.send(None)
        self._process.join(30)

    def run(self, *command: object, seconds: int = SECONDS) -> Attempt:
        self._connection.send((seconds, [str(word) for word in command]))
        return Attempt(**self._connection.recv())


def _serve(connection: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    while received := connection.recv():
        seconds, command = received
        connection.send(_attempt(command, seconds))


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
