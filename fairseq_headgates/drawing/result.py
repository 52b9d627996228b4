"""What a result file says, as tables and figures (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairseq_headgates.heads import Signature

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Names of files that say nothing without that of their folder.
GENERAL = ("pruned.pt", "checkpoint_last.pt", "checkpoint_best.pt", "evaluation.json")


class Word(NamedTuple):
    """A word of a cell, and whether it is marked."""

    text: str
    marked: bool = False


class Table(NamedTuple):
    """A table: its title ("" for none), the titles of its columns, and rows of cells, each a text or words."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | Sequence[Word]]]


class Plot(NamedTuple):
    """A figure: its title ("" for none), and a function that draws it with matplotlib."""

    title: str
    draw: Callable[[], Figure]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was found: the heading of such results, of what it is, how it was computed, tables and figures.

    `sentence` is the most important finding, `note` says how to read tables and figures.
    """

    kind: str
    title: str = ""
    signature: str = ""
    sentence: str = ""
    note: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Plot] = ()


def short_names(paths: Sequence[str]) -> list[str]:
    """Return short names for files and folders: their own, or that of the folder; the paths if two are equal."""
    found = []
    for path in map(Path, paths):
        stem = path.stem if path.suffix in (".pt", ".json") else path.name
        found.append((path.parent.name if path.name in GENERAL else stem) or str(path))
    return [path if found.count(name) > 1 else name for path, name in zip(paths, found, strict=True)]


def checkpoint_name(signature: str) -> str:
    """Return the short name of the checkpoint in a signature, "" if there is none."""
    return short_names([Signature.parse(signature).parts.get("ckpt", "")])[0].removesuffix(".")
