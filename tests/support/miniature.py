"""Building blocks of the miniature mirrors: parallel text in parts, archives, and a mirror's checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Pair = tuple[str, str]  # in the order of the languages in the corpus's name: (en, ru) or (de, en)
Members = Mapping[str, str]  # path in an archive -> text

# Other texts of the real archives, which a recipe must not read.
OTHER_GERMAN = ["Das gehört nicht hierher.", "Und das auch nicht."]
OTHER_ENGLISH = ["This does not belong here.", "Nor does that."]


# --- texts --------------------------------------------------------------------------------------------------------


def lines(texts: Iterable[str]) -> str:
    """Return the texts, one a line."""
    return "".join(f"{text}\n" for text in texts)


def checked(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """Return the pairs. Raise ValueError if a text does not fit on a line and in a column."""
    for text in (text for pair in pairs for text in pair):
        if any(character in text for character in "\t\n\r"):
            raise ValueError(f"{text!r} has a tab or a line break: make it one line without tabs")
    return pairs


def sides(pairs: Iterable[Pair]) -> tuple[list[str], list[str]]:
    """Return all first texts, and all second ones."""
    pairs = list(pairs)
    return [first for first, _ in pairs], [second for _, second in pairs]


def dealt(items: Sequence[Item], shares: Sequence[int]) -> list[Sequence[Item]]:
    """Split the items into contiguous parts of about these shares."""
    bounds = [round(len(items) * end / sum(shares)) for end in accumulate(shares, initial=0)]
    return [items[start:end] for start, end in pairwise(bounds)]


def in_chunks(items: Iterable[Item], sizes: Iterator[int]) -> Iterator[list[Item]]:
    """Split the items into contiguous parts of these sizes; the last part may be smaller."""
    rest = iter(items)
    while chunk := list(islice(rest, next(sizes))):
        yield chunk


# --- files --------------------------------------------------------------------------------------------------------


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def tgz(members: Members) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data := text.encode())
            archive.addfile(info, io.BytesIO(data))
    return gz(file.getvalue())


def zipped(members: Members) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(2018, 1, 1, 0, 0, 0)), text)
    return file.getvalue()


def save(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a mirror, and SHA256SUMS of all files in the folder."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"SHA256SUMS"}
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" for name in sorted(names)]
    (folder / "SHA256SUMS").write_bytes(lines(sums).encode())
