"""Checksums of downloaded files: `manifest.tsv` and `SHA256SUMS`.

`manifest.tsv` lies beside the files and records the size, SHA-256 and address of each at its first use. With a copy of
someone else's manifest, other data is an error.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from commands import Refused
from fairseq_headgates.files import decode, lines_of, write_whole

NAME = "manifest.tsv"
HEADER = "file\tbytes\tsha256\taddress"
# A line of SHA256SUMS, as sha256sum writes and reads it.
SUM = re.compile(r"([0-9a-fA-F]{64})\s+\*?(?:\./)?(.+)")


@dataclass(frozen=True)
class Entry:
    """The row of a file."""

    size: int
    sha256: str
    address: str

    @classmethod
    def of(cls, path: Path, address: str) -> Entry:
        return cls(path.stat().st_size, digest(path, "sha256"), address)


def digest(path: Path, algorithm: str) -> str:
    found = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def read_manifest(folder: Path) -> dict[str, Entry]:
    path = folder / NAME
    if not path.exists():
        return {}
    try:
        header, *rows = lines_of(decode(path.read_bytes(), str(path)))
        if header != HEADER:
            raise ValueError
        cells = [row.split("\t") for row in rows]
        return {name: Entry(int(size), sha256, address) for name, size, sha256, address in cells}
    except ValueError:
        raise Refused(f"{path} is not a manifest (columns {HEADER.split()}): remove it, or copy it again") from None


def write_manifest(folder: Path, entries: dict[str, Entry]) -> None:
    rows = [f"{name}\t{entry.size}\t{entry.sha256}\t{entry.address}" for name, entry in sorted(entries.items())]
    write_whole(folder / NAME, "\n".join([HEADER, *rows, ""]), force=True)


def parse_sums(text: bytes) -> dict[str, str]:
    """Return the checksums of a SHA256SUMS by file name. Other lines are ignored, as sha256sum does."""
    found = [SUM.fullmatch(line.strip()) for line in text.decode("utf-8-sig", errors="replace").split("\n")]
    return {match[2]: match[1].lower() for match in found if match}
