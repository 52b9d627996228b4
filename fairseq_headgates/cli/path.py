"""`headgates path`: print the folder of this package, for --user-dir."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command has no options."""


def run(args: argparse.Namespace) -> int:
    """Run `headgates path` and return its exit code."""
    print(Path(__file__).resolve().parents[1])
    return 0
