"""Files that are written whole or not at all, what may be overwritten, and the journal that lets long work resume."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairseq_headgates.arguments import shown
from fairseq_headgates.parts import part_of

LARGEST_TEXT = 64 * 2**20  # bytes of a mask or score file: thousands of times what a large model needs


def read_text(path: str, what: str, cure: str) -> str:
    """The text of a regular file; `what` it is and the `cure` are for the message. Raises ValueError.

    A pipe or a device is not opened: it could block, or never end.
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
    """Raises ValueError if there is a file already, unless `force` allows to replace it; only regular files may be."""
    if not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise ValueError(f"{path} exists and is not a file: choose another name")
    if _is_printed_to(path):
        raise ValueError(f"{path} is where this command prints: choose the name of another file")
    if not force:
        raise ValueError(f"{path} exists: choose another name, or pass --force to overwrite it")


def _is_printed_to(path: str | os.PathLike[str]) -> bool:
    """Whether a file is /dev/stdout or /dev/stderr, or the file that the shell sends them to."""
    for stream in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(stream)):
                return True
    return False


def check_writable(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raises ValueError if `replacing` would: before long work, rather than after it."""
    with _in_one_line(path, force) as target, part_of(target):
        pass


@contextmanager
def replacing(path: str | os.PathLike[str], force: bool = False) -> Iterator[Path]:
    """Gives a name to write to, which becomes `path` at the end: a file is there whole or not at all.

    An existing file is replaced only with `force`. A link stays, and the file that it names is written. Raises
    ValueError with one line.
    """
    with _in_one_line(path, force) as target, part_of(target) as part:
        yield part
        part.replace(target)


@contextmanager
def _in_one_line(path: str | os.PathLike[str], force: bool) -> Iterator[Path]:
    """Gives the file that is written for `path`: itself, or what it links to. What goes wrong becomes a ValueError."""
    refuse_existing(path, force)
    try:
        target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
        if os.path.islink(target):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        yield target
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}): choose another place") from None


def write_whole(path: str | os.PathLike[str], text: str, force: bool = False) -> None:
    """Writes a file whole or not at all; an existing one only with `force` (else ValueError)."""
    with replacing(path, force) as temporary:
        temporary.write_text(text, encoding="utf-8")


class Journal:
    """The results of long work so far, in a file of JSON lines, so that it goes on where it was stopped.

    The first line names all that the results depend on; a file with another first line is replaced only with `force`.
    Without a path nothing is kept. Raises ValueError.
    """

    def __init__(self, path: str | None, work: str, writes: bool = True, force: bool = False):
        self.path = None if path is None else Path(path)
        self.writes = writes
        self.found: dict[str, Any] = {}
        lines = [json.dumps(work)]
        if self.path and self.path.exists():
            lines = self._known(self.path, lines[0], force)
        if self.path and writes:  # without what follows the last newline, which was broken off
            write_whole(self.path, "\n".join(lines) + "\n", force=True)

    def _known(self, path: Path, head: str, force: bool) -> list[str]:
        """Read the results of the file. Return its whole lines."""
        try:
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            *lines, _ = text.split("\n")
            if lines[:1] == [head]:
                self.found = dict(json.loads(line) for line in lines[1:])
                return lines
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        if not force or not path.is_file():
            raise ValueError(
                f"{path} is not what this command left when it was stopped (the data, the checkpoint or the "
                "options are others): remove it, choose another --out, or pass --force to begin anew"
            )
        return [head]

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, from the file if it has it. A result that is new is added to the file."""
        if key not in self.found:
            self.found[key] = compute()
            if self.path and self.writes:
                self._append(self.path, json.dumps([key, self.found[key]]) + "\n")
        return self.found[key]

    def _append(self, path: Path, line: str) -> None:
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise ValueError(
                f"cannot add a result to {path} ({error.strerror}): make room on the disk, then run the same "
                "command again, which goes on from there"
            ) from None

    def discard(self) -> None:
        """Remove the file, at the end of the work."""
        if self.path and self.writes:
            self.path.unlink(missing_ok=True)
