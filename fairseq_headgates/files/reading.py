"""Reading of text: UTF-8 with or without a byte order mark, whose lines end in LF or CRLF."""

from __future__ import annotations

import codecs
import gzip
import os
import stat
import sys
import zlib
from typing import Any

from fairseq_headgates.messages import first_line, quoted

MARK = "\ufeff"  # byte order mark
LARGEST_TEXT = 64 * 2**20  # bytes of a file that is read whole: thousands of times what the masks of a large model need
OTHER_ENCODINGS = {  # by the byte order mark; UTF-32 begins with the mark of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_text(path: str, what: str, hint: str, largest: int = LARGEST_TEXT) -> str:
    """Read the text of a regular file, gzip-compressed if its name ends in .gz; see `decode`.

    A pipe or a device is not opened: it could block, or never end.

    Args:
        path: the file
        what: what the file is, for the message
        hint: what to do about a file that cannot be read, for the message
        largest: the bytes of the largest text that is read

    Raises:
        ValueError: if the file cannot be read, or is not UTF-8
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError("it is not a regular file")
        with gzip.open(path) if str(path).endswith(".gz") else open(path, "rb") as file:
            data = file.read(largest + 1)
        if len(data) > largest:
            raise ValueError(f"it has more than {largest:,} bytes")
    except (OSError, ValueError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ValueError(f"cannot read {what} {quoted(path)} ({reason}): {hint}") from None
    return decode(data, f"{what} {quoted(path)}")


def read_standard_input() -> str:
    """Read all text of standard input; see `decode`. The encoding of the locale has no influence."""
    return decode(sys.stdin.buffer.read(), "standard input")


def decode(data: bytes, name: str) -> str:
    r"""Return UTF-8 text without a byte order mark, with \n for \r\n.

    Args:
        data: the bytes of a file
        name: the file, for the message

    Raises:
        ValueError: for another encoding, with the command that converts it
    """
    for mark, encoding in OTHER_ENCODINGS.items():
        if data.startswith(mark):
            raise ValueError(f"{name} is {encoding}: convert it with iconv -f {encoding} -t utf8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name} is not UTF-8 in line {line:,}: convert it, for example with iconv -f latin1 -t utf8"
        ) from None
    return text.replace("\r\n", "\n")


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text, which end at \n alone: tokens may have other ends of lines, such as U+2028."""
    return text.removesuffix("\n").split("\n") if text else []


def check_dictionary(dictionary: Any) -> None:
    """Remove a byte order mark, which fairseq reads as a part of the first symbol of a dictionary's file."""
    if dictionary is not None and len(dictionary) > dictionary.nspecial:
        symbol = dictionary.symbols[dictionary.nspecial]
        plain = symbol.removeprefix(MARK)
        if plain not in dictionary.indices:
            dictionary.symbols[dictionary.nspecial] = plain
            dictionary.indices[plain] = dictionary.indices.pop(symbol)
