"""Binarised data as files: what a subset consists of, whether it is whole, and a digest of its content.

fairseq maps these files into memory and trusts the index. A subset that was truncated or overwritten is found here,
before fairseq opens it. Files of other formats (raw text, Huffman) are left to fairseq.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy

MMAP = b"MMIDIDX\x00"  # the format of fairseq-preprocess
LEGACY = b"TNTIDX\x00\x00"  # that of --dataset-impl cached and lazy
HUFFMAN = b"HUFFIDX\x00"
MMAP_HEADER = struct.Struct("<9sQBQ")  # magic, version, type, number of sentences
LEGACY_HEADER = struct.Struct("<8sQQQQQ")  # magic, version, type, bytes of a token, numbers of sentences and of sizes
# The integers among the types of fairseq's indexed_dataset.
TOKENS = {
    1: numpy.uint8,
    2: numpy.int8,
    3: numpy.int16,
    4: numpy.int32,
    5: numpy.int64,
    8: numpy.uint16,
    9: numpy.uint32,
    10: numpy.uint64,
}
UNKNOWN = "it does not begin as an index of fairseq-preprocess does"
CHUNK = 2**20  # bytes hashed at a time


class _Index(NamedTuple):
    """The lengths of all sentences and where each begins, in tokens, and the bytes of a token."""

    sizes: numpy.ndarray
    begins: numpy.ndarray
    token: int


def dictionary_files(folder: str) -> list[Path]:
    """Return the dictionaries in a folder of binarised data, and in its folders of sentences and labels."""
    return sorted(path for pattern in ("dict*.txt", "*/dict.txt") for path in Path(folder).glob(pattern))


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


def check_whole(files: Iterable[Path]) -> None:
    """Raise ValueError unless every index fits its data file and both sides have the same number of sentences."""
    numbers = {}
    for path in files:
        check_regular(path)
        if path.suffix == ".idx" and (found := _read_index(path)) is not None:
            _check_data(path.with_suffix(".bin"), found)
            numbers[path] = len(found.sizes)
    if len(set(numbers.values())) > 1:
        depth = -1 if len({path.name for path in numbers}) == len(numbers) else -2
        told = ", ".join(f"{number} in {'/'.join(path.parts[depth:])}" for path, number in numbers.items())
        raise ValueError(f"the numbers of sentences differ: {told}")


def check_regular(path: Path) -> None:
    """Raise ValueError for a device, a pipe or a folder, which fairseq would read for ever or not at all."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file")


def is_empty(files: Iterable[Path]) -> bool:
    """Return whether a data file holds no token, which fairseq cannot map into memory."""
    return any(path.suffix == ".bin" and path.stat().st_size == 0 for path in files)


def _read_index(path: Path) -> _Index | None:
    """Return the content of an index, None for a format that is left to fairseq."""
    with path.open("rb") as file:
        magic = file.read(len(MMAP))
    readers = {MMAP: _read_mmap, LEGACY: _read_legacy, HUFFMAN: lambda _: None}
    if magic not in readers:
        raise ValueError(f"{path} is damaged: {UNKNOWN}")
    return readers[magic](path)


def _read_mmap(path: Path) -> _Index:
    magic, version, code, number = _header(path, MMAP_HEADER)
    if magic != MMAP + b"\x00":
        raise ValueError(f"{path} is damaged: {UNKNOWN}")
    token = _bytes_of(path, version, code)
    offset = MMAP_HEADER.size
    _check_size(path, offset + number * 12)
    sizes = numpy.fromfile(path, numpy.int32, number, offset=offset)
    begins = numpy.fromfile(path, numpy.int64, number, offset=offset + sizes.nbytes)
    if (begins % token).any():
        raise ValueError(f"{path} is damaged: an offset is not a multiple of the {token} bytes of a token")
    return _Index(sizes.astype(numpy.int64), begins // token, token)


def _read_legacy(path: Path) -> _Index:
    _, version, code, token, number, total = _header(path, LEGACY_HEADER)
    if token != _bytes_of(path, version, code) or total != number:
        raise ValueError(f"{path} is damaged: it is not an index of sentences")
    _check_size(path, LEGACY_HEADER.size + 8 * (3 * number + 2))
    longs = numpy.fromfile(path, numpy.int64, offset=LEGACY_HEADER.size)
    dimensions, bounds, sizes = numpy.split(longs, [number + 1, 2 * number + 2])
    if (dimensions != numpy.arange(number + 1)).any() or bounds[-1] != sizes.sum():
        raise ValueError(f"{path} is damaged: it is not an index of sentences")
    return _Index(sizes, bounds[:-1], token)


def _header(path: Path, form: struct.Struct) -> tuple:
    with path.open("rb") as file:
        head = file.read(form.size)
    if len(head) < form.size:
        raise ValueError(f"{path} is truncated: it has {len(head)} bytes, its header alone {form.size}")
    return form.unpack(head)


def _bytes_of(path: Path, version: int, code: int) -> int:
    if version != 1 or code not in TOKENS:
        raise ValueError(f"{path} is damaged: version {version} and token type {code} are not fairseq's")
    return numpy.dtype(TOKENS[code]).itemsize


def _check_size(path: Path, expected: int) -> None:
    """Compare the size of an index with its header before anything of that size is read."""
    size = path.stat().st_size
    if size != expected:
        state = "truncated" if size < expected else "damaged"
        raise ValueError(f"{path} is {state}: it has {size} bytes, its header says {expected}")


def _check_data(path: Path, index: _Index) -> None:
    if not path.exists():
        raise ValueError(f"{path} is missing, but its index {path.with_suffix('.idx').name} exists")
    if (index.sizes < 0).any():
        raise ValueError(
            f"{path.with_suffix('.idx')} is damaged: a sentence has {index.sizes.min()} tokens, it must have 0 or more"
        )
    if (index.begins != numpy.cumsum(index.sizes) - index.sizes).any():
        raise ValueError(f"{path.with_suffix('.idx')} is damaged: its sentences are not contiguous")
    size, expected = path.stat().st_size, int(index.sizes.sum()) * index.token
    if size != expected:
        state = "truncated" if size < expected else "not the data of its index"
        raise ValueError(f"{path} is {state}: it has {size} bytes, its index describes {expected}")


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
