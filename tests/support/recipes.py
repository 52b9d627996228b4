"""Ways to run recipes and their programs in tests."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

import pytest

import commands

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"

# Files of data or results, which do not contain times, process ids or machine names.
DATA = ("downloads/*", "corpora/*", "corpora.txt", "selection.txt", "raw/*", "text/*", "data-bin/*")
NAMES = ("evaluation", "head_scores", "mask")
RESULTS = ("results.txt", "results.tsv", "**/test.hyp", *(f"**/{name}.json" for name in NAMES))
NOT_DATA = ("preprocess.log",)


def environment(settings: dict[str, object]) -> dict[str, str]:
    """Return the environment with this interpreter's programs, and one thread, so that sums have one order."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **{key: str(v) for key, v in settings.items()}}


def run(recipe: str, *arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run a recipe to its end."""
    command = ["bash", str(RECIPES / recipe), *map(str, arguments)]
    return subprocess.run(command, env=environment(settings), capture_output=True, text=True, check=False)


def random_moments(generator: random.Random, whole_run: float, kills: int) -> list[float]:
    """Return after how many seconds to kill each run; on average they add up to the time of a whole run."""
    return [generator.uniform(0, 2 * whole_run / kills) for _ in range(kills)]


def run_killed(recipe: str, *arguments: object, moments: list[float], **settings: object) -> None:
    """Run a recipe again and again, killed with its child processes after so many seconds; then to its end."""
    for seconds in moments:
        process = subprocess.Popen(
            ["bash", str(RECIPES / recipe), *map(str, arguments)],
            env=environment(settings),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    result = run(recipe, *arguments, **settings)
    assert result.returncode == 0, result.stdout + result.stderr


def fingerprints(out: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of data and results, by its path in the folder.

    Signatures name the last folder and name of the data: the name of the folder itself does not count.
    """
    paths = {path for pattern in (*DATA, *RESULTS) for path in out.glob(pattern) if path.is_file()}
    own, neutral = f"data:{out.name}/".encode(), b"data:OUT_DIR/"
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes().replace(own, neutral)).hexdigest()
        for path in sorted(paths)
        if path.name not in NOT_DATA and not path.name.startswith(".")
    }


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
