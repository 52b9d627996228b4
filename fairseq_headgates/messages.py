"""Messages: errors in one line, values within errors, progress, and what other libraries log (no torch)."""

from __future__ import annotations

import logging
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

logger = logging.getLogger(__name__)

Progress = Callable[[Iterable], Iterable]  # wraps an iterable in a progress bar, such as `tqdm`

SHOWN = 200  # characters of a wrong value that a message repeats
LONGEST = 4000  # characters of a message
IN_WORDS = "\u200c\u200d\u00a0\u3000"  # joiners and blanks, which text in tables may have
PROGRAM = "fairseq-headgates"  # in messages of the plugin within fairseq's commands


def fail(program: str, message: str) -> NoReturn:
    """Print one line on stderr and exit with code 2."""
    print(f"{program}: error: {one_line(message)}", file=sys.stderr)
    raise SystemExit(2)


def printable(text: str, kept: str = IN_WORDS) -> str:
    """Return text with escapes for line breaks, and for control characters, which a terminal would obey."""
    if text.isprintable():  # thousands of times as fast
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def one_line(message: str) -> str:
    """Return a message without line breaks and control characters, shortened in the middle if it is very long."""
    message = printable(message, "")
    if len(message) <= LONGEST:
        return message
    return f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"


def quoted(value: Any) -> str:
    """Return the repr of a wrong value for a message, shortened if it is long, in bounded time for any value."""
    if isinstance(value, str) and len(value) > SHOWN:
        return f"{value[:SHOWN]!r}... ({len(value):,} characters)"
    short = reprlib.Repr()
    short.maxstring = short.maxlong = short.maxother = SHOWN
    return short.repr(value)


def check_finite(what: str, *tensors: Any) -> None:
    """Raise ValueError if a tensor has values that are not finite; `what` names them, in the plural."""
    if not all(tensor.isfinite().all() for tensor in tensors):
        raise ValueError(f"{what} are not finite: check the weights for inf and NaN, or leave out --fp16")


def first_line(error: BaseException) -> str:
    """Return the first line of an error; of one that a DataLoader worker passes on, the line with the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if "DataLoader worker" in lines[0] else lines[0]


def described(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


@cache
def warn_once(notice: str) -> None:
    """Log a warning, unless it is empty or was logged before."""
    if notice:
        logger.warning(printable(notice))


@contextmanager
def logging_only(level: int, *names: str) -> Iterator[None]:
    """Within the context, the loggers `names` report nothing below `level`."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(level)
        yield
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            logger.setLevel(before)
