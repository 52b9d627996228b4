"""Command lines whose mistakes are reported in one line."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser, without the usage in front of an error: one line on stderr, exit code 2."""

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message)


def fail(program: str, message: str) -> NoReturn:
    """Ends a program with one line on stderr and exit code 2."""
    print(f"{program}: error: {message}", file=sys.stderr)
    raise SystemExit(2)
