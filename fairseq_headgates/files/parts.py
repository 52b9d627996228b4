"""Temporary files and folders, which are removed even if the process that wrote them was killed.

A part of NAME is NAME.PID~.part; a folder that is being replaced is NAME.PID~.old for a moment. The process holds a
lock (flock) on them, which the system releases when the process ends. A part that can be locked is therefore dead,
whether its process ran on this machine or on another one with the same file system. On a file system without locks,
nothing is removed. The ~ distinguishes a part from the journal NAME.part of an output whose name ends in a number.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def part_of(target: Path, folder: bool = False) -> Iterator[Path]:
    """Within the context, yield an empty temporary file or folder beside `target`.

    It is removed afterwards, unless it was renamed. Raise OSError.
    """
    remove_dead_parts(target)
    part, descriptor = _claim(target, folder)
    try:
        yield part
    finally:
        with suppress(OSError):
            if _is_open_as(descriptor, part):
                _remove(part)
        os.close(descriptor)


def _claim(target: Path, folder: bool) -> tuple[Path, int]:
    """Create and lock a part of `target`. Return it and the file descriptor that holds the lock."""
    for again in itertools.count():
        part = _name(target, f"{os.getpid()}{again or ''}", "part")
        if folder:
            part.mkdir(exist_ok=True)
        descriptor = os.open(part, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
        # Another machine may have a process of this number, and another process removes what it finds unlocked.
        if _lock(descriptor) is not False and _is_open_as(descriptor, part):
            return part, descriptor
        os.close(descriptor)
    raise AssertionError("no free name")


def replace_folder(part: Path, target: Path) -> None:
    """Rename the folder `part` to `target`, replacing an older folder. Raise OSError, and then change nothing."""
    if not target.exists():
        part.rename(target)
        return
    old = _name(target, str(os.getpid()), "old")
    descriptor = os.open(target, os.O_RDONLY)
    try:
        _lock(descriptor)
        target.rename(old)
        part.rename(target)
    finally:  # after an interrupt, too
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        os.close(descriptor)


def remove_dead_parts(target: Path) -> None:
    """Remove parts of `target` from killed processes, and complete an interrupted replacement."""
    form = re.compile(re.escape(target.name) + r"\.\d+~\.(part|old)")
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if form.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_dead(Path(entry.path), target)


def _remove_if_dead(part: Path, target: Path) -> None:
    mode = part.lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return
    descriptor = os.open(part, os.O_RDONLY if stat.S_ISDIR(mode) else os.O_RDWR | os.O_NOFOLLOW)
    try:
        if not _lock(descriptor) or not _is_open_as(descriptor, part):
            return
        if part.suffix == ".old" and not target.exists():
            part.rename(target)
        else:
            _remove(part)
    finally:
        os.close(descriptor)


def _name(target: Path, number: str, form: str) -> Path:
    return target.with_name(f"{target.name}.{number}~.{form}")


def _lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed. Return False if another process holds the lock, None without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_open_as(descriptor: int, path: Path) -> bool:
    """Return whether `path` is the file that is open as `descriptor`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink()
