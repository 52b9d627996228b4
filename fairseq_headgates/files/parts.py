"""Temporary files and folders beside an output, which are renamed to it when they are whole.

The part of NAME is NAME.N~.part, with a random number N. A process that is killed leaves it behind; the output is then
as it was before, except for a folder that is just being replaced: that is NAME.N~.old for a moment.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def part_of(target: Path, folder: bool = False) -> Iterator[Path]:
    """Within the context, yield an empty temporary file or folder beside `target`.

    It is removed afterwards, unless it was renamed. Raise OSError.
    """
    part = _beside(target, "part")
    if folder:
        part.mkdir()
    else:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
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
