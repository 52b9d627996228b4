"""Files that an interrupted training leaves: temporary ones, and a truncated checkpoint."""

from __future__ import annotations

import logging
import os
import re
import shutil
import zipfile
from pathlib import Path

logger = logging.getLogger("train.py")
# The checkpoints of fairseq besides checkpoint_last.pt.
SAVED = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+)\.pt")


def clean_up(folder: Path) -> None:
    """Remove temporary files, and replace a truncated checkpoint_last.pt."""
    for part in folder.glob("checkpoint*.pt.tmp"):
        part.unlink()
    last = folder / "checkpoint_last.pt"
    if last.exists() and not is_whole(last):
        replace_by_newest(last)


def is_whole(checkpoint: Path) -> bool:
    """Return whether a checkpoint, a zip archive, has its end, which contains the table of contents."""
    try:
        zipfile.ZipFile(checkpoint).close()
    except zipfile.BadZipFile:
        return False
    return True


def replace_by_newest(last: Path) -> None:
    """Replace a truncated checkpoint by the newest whole one beside it, or remove it if there is none."""
    others = [path for path in last.parent.iterdir() if SAVED.fullmatch(path.name) and is_whole(path)]
    if not others:
        last.unlink()
        logger.warning(f"{last} is truncated and removed; there is no other checkpoint: training starts again")
        return
    newest = max(others, key=lambda path: path.stat().st_mtime_ns)
    # A copy, not a hard link: fairseq overwrites checkpoint_last.pt in place, which would change both.
    part = last.with_name(last.name + ".tmp")
    shutil.copyfile(newest, part)
    os.replace(part, last)
    logger.warning(f"{last} is truncated and replaced by {newest.name}")
