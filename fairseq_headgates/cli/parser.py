"""The argument parser of the command, whose errors are one line, and the values of options."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NoReturn

from fairseq_headgates.heads import TYPES, parse_count, parse_types
from fairseq_headgates.messages import fail


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser with examples, whose errors are one line on stderr, without the usage; exit code 2.

    Attributes:
        examples: commands that the help ends with
    """

    examples: tuple[str, ...] = ()

    def format_help(self) -> str:
        """Return the help."""
        examples = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (f"\nexamples:\n{examples}" if examples else "")

    def error(self, message: str) -> NoReturn:
        """Print an error in one line and exit with code 2."""
        if self.usage and message.startswith("the following arguments are required"):
            message += f": write {self.usage % {'prog': self.prog}}"
        fail(self.prog, f"{message} (see {self.prog} --help)")


class Once(argparse.Action):
    """An option that cannot be given twice with different values; argparse would take the last."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Set the option. Report an error for a second, different value."""
        before = getattr(namespace, self.dest, None)
        if before not in (None, values):
            parser.error(f"argument {option_string}: given twice, as {before!r} and {values!r}: give it once")
        setattr(namespace, self.dest, values)


def filled(text: str) -> str:
    """Parse the name of a file, which is not empty (`--out "$OUT"` without $OUT)."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty: give a name")
    return text


def chosen_types(text: str | None, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Parse the value of --types; without a value, or for "all", return `default`. Raise ValueError."""
    if text in (None, "all"):
        return default
    types = parse_types(text)
    if not types:
        raise ValueError(f"--types {text!r} names no attention type: choose from {', '.join(TYPES)}, or all")
    return types


def counted(text: str, rule: str = "a number from 1 on") -> int:
    """Parse a number that is at least 1; the error says that the text is not `rule`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not {rule}")
    return int(text)


def numbers(rule: str, kind: type = int, low: float = -math.inf, high: float = math.inf) -> Callable[[str], list]:
    """Return a function that parses numbers separated by commas; its error says that the text is not `rule`."""

    def parse(text: str) -> list:
        try:
            found = [kind(part) for part in text.split(",")]
        except ValueError:
            found = []
        if not found or not all(low <= number <= high for number in found):
            raise argparse.ArgumentTypeError(f"{text!r} is not {rule}")
        return found

    return parse


def number_or_fraction(text: str, rule: str = "a number of heads (12) nor a fraction (0.5)") -> float:
    """Parse a number (12, an int) or a fraction (0.5, a float); the error says that the text is neither `rule`."""
    try:
        return parse_count(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither {rule}") from None
