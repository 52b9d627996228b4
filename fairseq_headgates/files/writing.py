"""Atomic writes of files and folders, and rules for overwriting files.

An output is written to a temporary file or folder beside it, which is renamed to it when it is whole. The part of NAME
is NAME.N~.part, with a random number N. A process that is killed leaves it behind; the output is then as it was before,
except for a folder that is just being replaced: that is NAME.N~.old for a moment.

The name of every output is logged, which the command prints.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)


def refuse_standard_output(path: str | os.PathLike[str]) -> None:
    """Raise ValueError for `-`, which elsewhere means standard output."""
    if path == "-":
        raise ValueError("the output is '-', but it cannot be standard output: give a path (./- if its name is -)")


def check_writable(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raise ValueError if `path` cannot be written: fail early, before long work."""
    with _in_one_line(path, force) as target, part_of(target):
        pass


def check_place(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raise ValueError if `path` exists or its folder does not: the part of `check_writable` that writes nothing."""
    with _in_one_line(path, force) as target:
        os.stat(target.parent)


def log_written(path: str | os.PathLike[str], level: int = logging.INFO) -> None:
    """Log the name of an output that is written."""
    logger.log(level, f"written: {path}")


@contextmanager
def replacing(path: str | os.PathLike[str], force: bool = False, level: int = logging.INFO) -> Iterator[Path]:
    """Within the context, write to a temporary file, which is renamed to `path` at the end, and logged at `level`.

    An existing file is replaced only with `force`. A symbolic link is kept, and its target is written. Raise
    ValueError, in one line, if the file cannot be written.
    """
    with _in_one_line(path, force) as target, part_of(target) as part:
        yield part
        part.replace(target)
    log_written(path, level)


@contextmanager
def _in_one_line(path: str | os.PathLike[str], force: bool) -> Iterator[Path]:
    """Within the context, yield `path` or the target of a link, and turn errors of the system into ValueError."""
    refuse_standard_output(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} exists and is not a file: choose another name")
    if os.path.exists(path) and not force:
        raise ValueError(f"{path} exists: choose another name, or pass --force to overwrite it")
    try:
        yield Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}): choose another place") from None


def write_whole(
    path: str | os.PathLike[str], content: str | bytes, force: bool = False, level: int = logging.INFO
) -> None:
    """Write a file atomically, text in UTF-8; see `replacing`."""
    with replacing(path, force, level) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def part_of(target: Path, folder: bool = False) -> Iterator[Path]:
    """Within the context, yield an empty temporary file or folder beside `target`.

    It is removed afterwards, unless it was renamed. Raise OSError.
    """
    part = _beside(target, "part")
    part.mkdir() if folder else part.touch(exist_ok=False)
    try:
        yield part
    finally:
        with suppress(OSError):
            shutil.rmtree(part) if folder else part.unlink()


def replace_folder(part: Path, target: Path) -> None:
    """Rename the folder `part` to `target`, replacing an older folder. Raise OSError, and then change nothing."""
    if not target.exists():
        part.rename(target)
        return
    old = _beside(target, "old")
    try:
        target.rename(old)
        part.rename(target)
    finally:  # after an interrupt, too
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(old, ignore_errors=True)


def _beside(target: Path, form: str) -> Path:
    return target.with_name(f"{target.name}.{secrets.randbelow(10**9)}~.{form}")
