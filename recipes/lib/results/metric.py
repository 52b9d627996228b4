"""Run a metric of the user, for example a neural one, and print its score as JSON.

COMMAND is split as a shell does. It gets the three files as arguments, detokenised text with one sentence per line, and
prints one number, the score of the whole set, as the last line of its output.
"""

from __future__ import annotations

import json
import math
import shlex
import subprocess

from commands import ArgumentParser, quoted


def score(command: str, files: list[str]) -> float:
    """Return the number that a command prints. Raise ValueError, in one line, if it fails or prints no number."""
    done = subprocess.run([*shlex.split(command), *files], capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it printed no reason"])[-1]
        raise ValueError(f"METRIC={quoted(command)} failed with exit code {done.returncode}: {why}")
    said = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        number = float(said)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"METRIC={quoted(command)} printed {quoted(said)}: the last line must be one number")
    return number


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    for name in ("command", "source", "hypothesis", "reference"):
        parser.add_argument(name, metavar=name.upper())
    args = parser.parse_args(argv)
    print(
        json.dumps(
            {"command": args.command, "score": score(args.command, [args.source, args.hypothesis, args.reference])}
        )
    )
