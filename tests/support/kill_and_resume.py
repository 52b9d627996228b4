"""Kill a recipe at random moments, resume it each time, and compare its files with those of an undisturbed run.

    PYTHONPATH=tests python3 -m support.kill_and_resume RECIPE FOLDER [--kills 10] [--seed 1]

RECIPE is for example wmt_en_ru.sh, FOLDER an empty folder for both runs. The settings of the recipe come from the
environment: choose small sizes.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
sys.path += [str(ROOT), str(RECIPES / "lib")]

from commands import ArgumentParser, whole  # noqa: E402
from commands import run as run_program  # noqa: E402

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


def run_whole(recipe: str, *arguments: object, **settings: object) -> str:
    """Run a recipe to its end. Return its output; raise ValueError if it fails."""
    result = run(recipe, *arguments, **settings)
    if result.returncode:
        raise ValueError(f"{recipe} failed: {result.stdout}{result.stderr}")
    return result.stdout


def random_moments(generator: random.Random, whole_run: float, kills: int) -> list[float]:
    """Return after how many seconds to kill each run; on average they add up to the time of a whole run."""
    return [generator.uniform(0, 2 * whole_run / kills) for _ in range(kills)]


def run_killed(recipe: str, *arguments: object, moments: list[float], **settings: object) -> list[str]:
    """Run a recipe again and again, killed with its child processes after so many seconds; then to its end.

    Returns:
        The last line of output of each killed run.
    """
    lines = []
    for seconds in moments:
        process = subprocess.Popen(
            ["bash", str(RECIPES / recipe), *map(str, arguments)],
            env=environment(settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        lines.append((process.communicate()[0].strip().splitlines() or ["(no output)"])[-1])
    run_whole(recipe, *arguments, **settings)
    return lines


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


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--kills", type=whole(), default=10, help="number of times (default 10)")
    parser.add_argument("--seed", type=whole(0), default=1, help="random seed of the moments (default 1)")
    args = parser.parse_args(argv)
    begun = time.time()
    run_whole(args.recipe, args.folder / "undisturbed")
    moments = random_moments(random.Random(args.seed), time.time() - begun, args.kills)
    said = run_killed(args.recipe, args.folder / "killed", moments=moments)
    for seconds, line in zip(moments, said, strict=True):
        print(f"killed after {seconds:.1f} s: {line}")
    one, other = (fingerprints(args.folder / name) for name in ("undisturbed", "killed"))
    differ = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    print(f"{len(one)} files of data and results, {len(differ)} differ", *differ, sep="\n  ")
    if differ:
        raise ValueError(f"{len(differ)} files differ")


if __name__ == "__main__":
    sys.exit(run_program("support.kill_and_resume", *sys.argv[1:]))
