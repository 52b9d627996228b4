"""Command lines whose mistakes are reported in one line."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser, without the usage in front of an error: one line on stderr, exit code 2."""

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message)


class Once(argparse.Action):
    """An option without a default that is not given twice with different values, of which argparse takes the last."""

    def __call__(self, parser, namespace, values, option_string=None):
        before = getattr(namespace, self.dest, None)
        if before not in (None, values):
            parser.error(f"argument {option_string}: given twice, as {before!r} and {values!r}: give it once")
        setattr(namespace, self.dest, values)


def fail(program: str, message: str) -> NoReturn:
    """Ends a program with one line on stderr and exit code 2."""
    print(f"{program}: error: {message}", file=sys.stderr)
    raise SystemExit(2)
