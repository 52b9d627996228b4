"""Ways to run recipes in tests."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from support.kill_and_resume import environment, fingerprints, random_moments, run, run_killed

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"

__all__ = [
    "RECIPES",
    "ROOT",
    "copy_checkout",
    "environment",
    "fingerprints",
    "first_lines",
    "make_corpus",
    "random_moments",
    "refused",
    "run",
    "run_killed",
]


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
