"""Command lines of the recipes' programs: an error is one line on stderr, with exit code 2."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn


class Refused(ValueError):
    """An input that a program refuses; the message gives the value, the rule and a hint."""


class ArgumentParser(argparse.ArgumentParser):
    """Parser of a module: its docstring is the description, and an error is one line."""

    def __init__(self, module: str, description: str | None, **options: Any):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(module, description=description, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def run(program: str = "", *arguments: str) -> int:
    """Run `main` of a module and print its error, if there is one. Return the exit code."""
    import headgates_start  # noqa: F401  (with it fairseq_headgates imports fairseq and torch only where they are needed)

    if not re.fullmatch(r"\w+\.\w+", program):
        print("recipes/lib: give ROOM.PROGRAM, for example text.clean", file=sys.stderr)
        return 2
    code = 2
    try:
        import_module(program).main(list(arguments))
        return 0
    except (OSError, ValueError) as error:
        said = str(error)
    except ModuleNotFoundError as error:
        said = f"the package {error.name} is missing: activate the environment (README, Install)"
    except KeyboardInterrupt:
        said, code = "stopped; run the same command again to resume", 130
    print(f"{os.environ.get('RECIPE', program)}: {said}", file=sys.stderr)
    return code


def whole(low: int = 1) -> Callable[[str], int]:
    """Return the `type` of argparse for a whole number from `low` on."""

    def value(text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) < low:
            raise argparse.ArgumentTypeError(f"{quoted(text)} must be a whole number, {low} or more")
        return int(text)

    return value


def number(low: float = -math.inf, high: float = math.inf) -> Callable[[str], float]:
    """Return the `type` of argparse for a number from `low` to `high`."""

    def value(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not low <= found <= high:
            raise argparse.ArgumentTypeError(f"{quoted(text)} must be a number from {low:g} to {high:g}")
        return found

    return value


def quoted(text: str) -> str:
    """Return the text in quotes, on one line, cut after 200 characters."""
    return repr(text if len(text) <= 200 else text[:197] + "...")
