"""Atomic file writes, and rules for overwriting files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairseq_headgates.files.parts import part_of
from fairseq_headgates.messages import shown

LARGEST_TEXT = 64 * 2**20  # bytes of a mask or score file: thousands of times what a large model needs


def read_text(path: str, what: str, cure: str) -> str:
    """Read the text of a regular file.

    A pipe or a device is not opened: it could block, or never end.

    Args:
        path: the file
        what: what the file is, for the message
        cure: what to do about a file that cannot be read, for the message

    Raises:
        ValueError: if the file cannot be read
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"it is {'a folder' if stat.S_ISDIR(found.st_mode) else 'no regular file'}")
        if found.st_size > LARGEST_TEXT:
            raise ValueError(f"it has {found.st_size:,} bytes, at most {LARGEST_TEXT:,} are read")
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: also text in another encoding
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot read {what} {shown(path)} ({reason}): {cure}") from None


def refuse_existing(path: str | os.PathLike[str], force: bool) -> None:
    """Raise ValueError if `path` exists, unless it is a regular file and `force` is set."""
    if not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise ValueError(f"{path} exists and is not a file: choose another name")
    if _is_printed_to(path):
        raise ValueError(f"{path} is the standard output or error of this command: choose another name")
    if not force:
        raise ValueError(f"{path} exists: choose another name, or pass --force to overwrite it")


def _is_printed_to(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is standard output or standard error of this process."""
    for stream in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(stream)):
                return True
    return False


def check_writable(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raise ValueError if `path` cannot be written: fail early, before long work."""
    with _in_one_line(path, force) as target, part_of(target):
        pass


@contextmanager
def replacing(path: str | os.PathLike[str], force: bool = False) -> Iterator[Path]:
    """Within the context, write to a temporary file, which is renamed to `path` at the end.

    An existing file is replaced only with `force`. A symbolic link is kept, and its target is written. Raise
    ValueError, in one line, if the file cannot be written.
    """
    with _in_one_line(path, force) as target, part_of(target) as part:
        yield part
        part.replace(target)


@contextmanager
def _in_one_line(path: str | os.PathLike[str], force: bool) -> Iterator[Path]:
    """Within the context, yield `path` or the target of a link, and turn errors of the system into ValueError."""
    refuse_existing(path, force)
    try:
        target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
        if os.path.islink(target):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        yield target
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}): choose another place") from None


def write_whole(path: str | os.PathLike[str], text: str, force: bool = False) -> None:
    """Write a file atomically; replace an existing one only with `force`. Raise ValueError."""
    with replacing(path, force) as temporary:
        temporary.write_text(text, encoding="utf-8")
