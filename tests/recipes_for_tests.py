"""Running recipes to their end, and killing them on the way there."""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
# Files that hold data or results, and no times, processes or machines.
DATA = ("downloads/*", "corpora/*", "corpora.txt", "selection.txt", "raw/*", "text/*", "data-bin/*")
RESULTS = ("results.txt", "results.tsv", "*/scores.json", "*/heads.json", "*/test.hyp", "*/mask.json")
NOT_DATA = ("preprocess.log",)


def environment(settings: dict[str, object]) -> dict[str, str]:
    """This environment's programs first on the PATH, and one thread, so that sums have one order."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **{key: str(v) for key, v in settings.items()}}


def run(recipe: str, *arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(RECIPES / recipe), *map(str, arguments)]
    return subprocess.run(command, env=environment(settings), capture_output=True, text=True, check=False)


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on stderr that says what is wrong, exit code 2."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and all(word in result.stderr for word in words), result.stderr


def run_killed(recipe: str, *arguments: object, moments: list[float], **settings: object) -> list[str]:
    """Runs a recipe again and again, each time killed with all its children after so many seconds; then to its end.

    Returns the last line of each run that was killed.
    """
    command = ["bash", str(RECIPES / recipe), *map(str, arguments)]
    lines = []
    for seconds in moments:
        process = subprocess.Popen(
            command,
            env=environment(settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        lines.append((process.communicate()[0].strip().splitlines() or ["(nothing yet)"])[-1])
    result = run(recipe, *arguments, **settings)
    assert result.returncode == 0, result.stdout + result.stderr
    return lines


def fingerprints(out: Path) -> dict[str, str]:
    """SHA-256 of every file of data and results, by its path in the folder."""
    paths = {path for pattern in (*DATA, *RESULTS) for path in out.glob(pattern) if path.is_file()}
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
        if path.name not in NOT_DATA and not path.name.startswith(".")
    }


def main() -> None:
    """Runs a recipe once undisturbed and once killed at random moments, and compares what they have made."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("recipe", help="for example wmt_en_ru.sh; its settings come from the environment")
    parser.add_argument("folder", type=Path, help="an empty folder for both runs")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    begun = time.time()
    result = run(args.recipe, args.folder / "undisturbed")
    assert result.returncode == 0, result.stdout + result.stderr
    whole = time.time() - begun
    generator = random.Random(args.seed)
    moments = [generator.uniform(0, 2 * whole / args.kills) for _ in range(args.kills)]
    for seconds, line in zip(
        moments, run_killed(args.recipe, args.folder / "killed", moments=moments, **{}), strict=True
    ):
        print(f"killed after {seconds:.1f} s: {line}")
    one, other = (fingerprints(args.folder / name) for name in ("undisturbed", "killed"))
    differ = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    print(f"{len(one)} files of data and results, {len(differ)} differ", *differ, sep="\n  ")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
