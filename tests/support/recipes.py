"""Ways to run recipes and their programs in tests."""

from __future__ import annotations

import gzip
import logging
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

import pytest

import commands
from support.kill_and_resume import environment, fingerprints, random_moments, run, run_killed

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"

__all__ = [
    "RECIPES",
    "ROOT",
    "call",
    "copy_checkout",
    "environment",
    "fingerprints",
    "first_lines",
    "make_corpus",
    "random_moments",
    "refused",
    "run",
    "run_killed",
    "shell",
]


def call(program: str, *arguments: object) -> int:
    """Run a program of recipes/lib in this process, and return its exit code."""
    try:
        return commands.run(program, *map(str, arguments))
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        logging.disable(logging.NOTSET)  # text.batches disables it


@pytest.fixture
def refuses(capsys):
    """refuses(program, *arguments, words=..., printed=""): exit code 2, one line on stderr that has all words.

    On stdout it prints nothing, or with None anything.
    """

    def refuses(program, *arguments, words, printed=""):
        code = call(program, *arguments)
        out, err = capsys.readouterr()
        assert code == 2 and printed in (out, None), err
        assert err.startswith(f"{program}: ") and err.count("\n") == 1, err
        assert all(str(word) in err for word in ([words] if isinstance(words, str) else words)), err

    return refuses


def shell(text: str, check: bool = True, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run shell code after common.sh."""
    code = f'recipes={RECIPES}; source "$recipes/lib/common.sh"; {text}'
    command = ["bash", "-c", code]
    return subprocess.run(command, env=environment(settings), capture_output=True, text=True, check=check)


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on stderr that says what is wrong, exit code 2."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and all(word in result.stderr for word in words), result.stderr


def make_corpus(folder: Path) -> Path:
    """A folder of artificial English and Russian, {train,valid,test}.{en,ru}."""
    sizes = ["--train", "300", "--valid", "8", "--test", "9"]
    command = [sys.executable, str(RECIPES / "make_corpus.py"), str(folder), *sizes, "--force"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def first_lines(source, number, target):
    """The beginning of a compressed file, compressed."""
    with gzip.open(source, "rt", encoding="utf-8") as file, gzip.open(target, "wt", encoding="utf-8") as copy:
        copy.writelines(islice(file, number))


def copy_checkout(target: Path) -> None:
    """Copy what a clone would hold, and what is not committed yet: without the patterns of .dockerignore."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]

    def names(folder, found):
        inside = Path(folder).relative_to(ROOT)
        return [
            name
            for name in found
            if any(fnmatch(name, p[3:]) if p.startswith("**/") else fnmatch(str(inside / name), p) for p in ignored)
        ]

    shutil.copytree(ROOT, target, ignore=names, symlinks=True)
