"""Binarised data as files: what a subset consists of, whether its files belong together, and a digest of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fairseq.data.indexed_dataset import IndexedDataset, MMapIndexedDataset

MMAP = MMapIndexedDataset.Index._HDR_MAGIC[:8]  # the format of fairseq-preprocess
LEGACY = IndexedDataset._HDR_MAGIC  # that of --dataset-impl cached and lazy
CHUNK = 2**20  # bytes hashed at a time


def language_pair(folder: str, source: str | None = None, target: str | None = None) -> tuple[str, str] | None:
    """Return the source and target language of a folder of binarised data, by its dictionaries and names of files.

    Languages may contain `-` and `.` (zh-CN, pt.BR), at which fairseq cuts names. Of several pairs, the first in
    alphabetical order with this `source` and `target` is returned; None if there is none.
    """
    languages = [path.name.removeprefix("dict.").removesuffix(".txt") for path in Path(folder).glob("dict.*.txt")]
    pairs = {
        (first, second)
        for name in (f"{path.name}." for path in Path(folder).glob("*.*-*.*"))
        for first in languages
        if f".{first}-" in name
        for second in languages
        if any(f".{first}-{second}.{side}." in name for side in (first, second))
    }
    return min((pair for pair in pairs if source in (None, pair[0]) and target in (None, pair[1])), default=None)


def subset_files(folder: str, subset: str, stems: Sequence[str] = ()) -> list[Path]:
    """Return the files of a subset by name: only those of `stems`, such as "de-en.de", if there are any."""
    prefix = Path(os.path.join(folder, subset))
    try:
        there = [path for path in prefix.parent.iterdir() if path.name.startswith(f"{prefix.name}.")]
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return []
    prefixes = [f"{prefix.name}.{stem}." for stem in stems]
    return sorted(path for path in there if not stems or f"{path.name}.".startswith(tuple(prefixes)))


def check_sizes(files: Iterable[Path]) -> None:
    """Raise ValueError for data that fairseq could read as other data, without an error of its own.

    A data file must exist and have the size that its index describes, and all sides as many sentences.
    """
    numbers = {}
    for path in files:
        if path.suffix != ".idx":
            continue
        data = path.with_suffix(".bin")
        size = data.stat().st_size
        if found := _described(path):
            numbers[path], expected = found
            if size != expected:
                raise ValueError(f"{data} has {size} bytes, its index describes {expected}")
    if len(set(numbers.values())) > 1:
        depth = -1 if len({path.name for path in numbers}) == len(numbers) else -2
        told = ", ".join(f"{number} in {'/'.join(path.parts[depth:])}" for path, number in numbers.items())
        raise ValueError(f"the numbers of sentences differ: {told}")


def _described(path: Path) -> tuple[int, int] | None:
    """Return the number of sentences and the bytes of data that an index describes, None for formats without these."""
    with path.open("rb") as file:
        magic = file.read(len(LEGACY))
    if magic == MMAP:
        index = MMapIndexedDataset.Index(str(path))
        return len(index), int(index.sizes.sum(dtype=int)) * index.dtype().itemsize
    if magic == LEGACY:
        data = IndexedDataset(str(path.with_suffix("")))
        return len(data), int(data.sizes.sum()) * data.element_size
    return None


def digest(files: Iterable[str | Path]) -> str:
    """Return a hash of the content of files in their order, the same for copies in another place."""
    together = hashlib.sha256()
    for path in files:
        content = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                content.update(chunk)
        together.update(content.digest())
    return together.hexdigest()
