"""Files that are written whole or not at all, what may be overwritten, and the journal that lets long work resume."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def refuse_existing(path: str | os.PathLike[str], force: bool) -> None:
    """Raises ValueError if there is a file already, unless `force` says that it may go; only files may."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} exists and is not a file: choose another name")
    if os.path.exists(path) and not force:
        raise ValueError(f"{path} exists: choose another name, or pass --force to overwrite it")


def check_writable(path: str | os.PathLike[str], force: bool = False) -> None:
    """Raises ValueError if `replacing` would: before long work, rather than after it."""
    path = Path(path)
    refuse_existing(path, force)
    try:
        _temporary(path).touch()
        _temporary(path).unlink()
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}): choose another place") from None


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.part")


@contextmanager
def replacing(path: str | os.PathLike[str], force: bool = False) -> Iterator[Path]:
    """Gives a name to write to, which becomes `path` at the end: a file is there whole or not at all.

    An existing file is replaced only with `force`. Raises ValueError with one line.
    """
    path = Path(path)
    refuse_existing(path, force)
    temporary = _temporary(path)
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise ValueError(f"cannot write {path} ({error.strerror}): choose another place") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


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
            lines = self._known(lines[0], force)
        if self.path and writes:  # without what follows the last newline, which was broken off
            write_whole(self.path, "\n".join(lines) + "\n", force=True)

    def _known(self, head: str, force: bool) -> list[str]:
        """Read the results of the file. Return its whole lines."""
        try:
            text = self.path.read_text(encoding="utf-8") if self.path.is_file() else ""
            *lines, _ = text.split("\n")
            if lines[:1] == [head]:
                self.found = dict(json.loads(line) for line in lines[1:])
                return lines
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        if not force or not self.path.is_file():
            raise ValueError(
                f"{self.path} is not what this command left when it was stopped (the data, the checkpoint or the "
                "options are others): remove it, choose another --out, or pass --force to begin anew"
            )
        return [head]

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, from the file if it has it. A result that is new is added to the file."""
        if key not in self.found:
            self.found[key] = compute()
            if self.path and self.writes:
                self._append(json.dumps([key, self.found[key]]) + "\n")
        return self.found[key]

    def _append(self, line: str) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise ValueError(
                f"cannot add a result to {self.path} ({error.strerror}): make room on the disk, then run the same "
                "command again, which goes on from there"
            ) from None

    def discard(self) -> None:
        """Remove the file, at the end of the work."""
        if self.path and self.writes:
            self.path.unlink(missing_ok=True)
