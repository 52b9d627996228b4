"""Command lines of the recipes' programs: an error is one line on stderr, with exit code 2."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn


class Refused(ValueError):
    """An input that a program refuses; the message gives the value, the rule and the cure."""


class ArgumentParser(argparse.ArgumentParser):
    """Parser with the module's docstring as its description, and one line for an error."""

    def __init__(self, description: str | None, **options: Any):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(description=description, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def exit_code(program: str, work: Callable[..., None], *arguments: Any) -> int:
    """Run a program's work and print its error, if there is one. Return the exit code."""
    try:
        work(*arguments)
    except (OSError, ValueError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: stopped; run the same command again to resume", file=sys.stderr)
        return 130
    return 0
