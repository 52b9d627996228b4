"""Command lines whose mistakes are reported in one line."""

from __future__ import annotations

import argparse
import reprlib
import sys
from typing import Any, NoReturn

SHOWN = 200  # characters of a wrong value that a message repeats
LONGEST = 4000  # characters of a message


class ArgumentParser(argparse.ArgumentParser):
    """argparse's parser, except that an error is one line on stderr, without the usage; exit code 2."""

    def error(self, message: str) -> NoReturn:
        fail(self.prog, f"{message} (see {self.prog} --help)")


class Once(argparse.Action):
    """An option without a default that is not given twice with different values, of which argparse takes the last."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        if before not in (None, values):
            parser.error(f"argument {option_string}: given twice, as {before!r} and {values!r}: give it once")
        setattr(namespace, self.dest, values)


def fail(program: str, message: str) -> NoReturn:
    """Ends a program with one line on stderr and exit code 2."""
    print(f"{program}: error: {one_line(message)}", file=sys.stderr)
    raise SystemExit(2)


def one_line(message: str) -> str:
    """A message without line breaks and other control characters, cut in the middle where it is very long."""
    message = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    if len(message) <= LONGEST:
        return message
    return f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"


def shown(value: Any) -> str:
    """A wrong value for a message: its repr, cut where it is long, and quick for any value."""
    if isinstance(value, str) and len(value) > SHOWN:
        return f"{value[:SHOWN]!r}... ({len(value):,} characters)"
    short = reprlib.Repr()
    short.maxstring = short.maxlong = short.maxother = SHOWN
    return short.repr(value)


def filled(text: str) -> str:
    """An argparse type for names of files and the like, which are not empty: `--out "$OUT"` without $OUT is no wish."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty: give a name")
    return text
