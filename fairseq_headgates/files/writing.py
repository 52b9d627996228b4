"""Atomic file writes, and rules for overwriting files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairseq_headgates.files.parts import part_of

COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".lzma", ".zst", ".lz4", ".zip", ".7z")  # ends of names


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
    """Within the context, yield `path` or the target of a link, and turn errors of the system into ValueError.

    Refuse names of compressed files: what is written is not compressed, and is then read as if it were.
    """
    if (end := os.path.splitext(path)[1].lower()) in COMPRESSED:
        raise ValueError(f"{path} ends in {end}, but outputs are not compressed: leave out {end}")
    refuse_existing(path, force)
    try:
        target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
        if os.path.islink(target):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        yield target
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}): choose another place") from None


def write_whole(path: str | os.PathLike[str], content: str | bytes, force: bool = False) -> None:
    """Write a file atomically, text in UTF-8; replace an existing one only with `force`. Raise ValueError."""
    with replacing(path, force) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
