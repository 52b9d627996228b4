"""A journal of results, from which a stopped command resumes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_headgates.files.writing import write_whole


class ResumeJournal:
    """The results of long work so far, in a file of JSON lines, from which the same command resumes.

    Args:
        path: the file; None keeps the results in memory only
        work: text that names all that the results depend on, the first line of the file
        writes: whether this process writes the file
        force: replace a file of other work

    Raises:
        ValueError: if the file is of other work, or cannot be written
    """

    def __init__(self, path: str | None, work: str, writes: bool = True, force: bool = False):
        self.path = None if path is None else Path(path)
        self.writes = writes
        self.results: dict[str, Any] = {}
        lines = [json.dumps(work)]
        if self.path and self.path.exists():
            lines = self._known(self.path, lines[0], force)
        if self.path and writes:  # without an incomplete last line
            write_whole(self.path, "\n".join(lines) + "\n", force=True, level=logging.DEBUG)  # no output

    def _known(self, path: Path, head: str, force: bool) -> list[str]:
        """Read the results of the file. Return its whole lines."""
        try:
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            *lines, _ = text.split("\n")
            if lines[:1] == [head]:
                self.results = dict(json.loads(line) for line in lines[1:])
                return lines
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        if not force or not path.is_file():
            raise ValueError(
                f"{path} has the partial results of a command with other data, another checkpoint or other options: "
                "remove it, choose another --out, or pass --force to start again"
            )
        return [head]

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the stored result of `key`, or call `compute` and store its result."""
        if key not in self.results:
            self.results[key] = compute()
            if self.path and self.writes:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self.results[key]]) + "\n")
        return self.results[key]

    def discard(self) -> None:
        """Remove the file, at the end of the work."""
        if self.path and self.writes:
            self.path.unlink(missing_ok=True)
