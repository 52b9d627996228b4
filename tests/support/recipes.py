"""Ways to run recipes and their programs in tests."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"


def environment(settings: dict[str, object]) -> dict[str, str]:
    """Return the environment with this interpreter's programs, and one thread, so that sums have one order."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **{key: str(v) for key, v in settings.items()}}


def run(recipe: str, *arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run a recipe to its end."""
    command = ["bash", str(RECIPES / recipe), *map(str, arguments)]
    return subprocess.run(command, env=environment(settings), capture_output=True, text=True, check=False)


def make_corpus(folder: Path) -> Path:
    """A folder of artificial English and Russian, {train,valid,test}.{en,ru}."""
    sizes = ["--train", "300", "--valid", "8", "--test", "9"]
    command = [sys.executable, str(RECIPES / "scripts" / "make_corpus.py"), str(folder), *sizes, "--force"]
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
