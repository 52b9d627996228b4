"""Reading of archives and compressed text: member by member, line by line, with a clear error for a damaged file."""

from __future__ import annotations

import bz2
import gzip
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from commands import Refused

# zipfile raises RuntimeError for an unknown compression or encryption.
BROKEN_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError)


def does_not_open(error: Exception) -> str:
    reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return f"does not open ({reason.splitlines()[0].rstrip(':')}): it is incomplete, or not an archive"


@contextmanager
def open_member(path: Path, member: str | None) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file inside a tar or zip archive, or the content of a .gz file, for reading from beginning to end."""
    if member is None:
        with gzip.open(path) as text:
            yield text
    elif is_zip(path):
        with zipfile.ZipFile(path) as archive:
            check_member(path, member, archive.namelist())
            with archive.open(member) as file:
                yield file
    else:
        with tarfile.open(path) as tar:
            check_member(path, member, tar.getnames())
            extracted = tar.extractfile(member)
            if extracted is None:
                raise Refused(f"{path}: {member} is not a file: is it the right archive?")
            with extracted:
                yield extracted


def is_zip(path: Path) -> bool:
    """By its name or its content: a mirror may have packed a .tgz as .zip."""
    return path.suffix == ".zip" or (path.suffix == ".tgz" and zipfile.is_zipfile(path))


def check_member(path: Path, member: str, names: list[str]) -> None:
    if member not in names:
        some = ", ".join(names[:3])
        raise Refused(f"{path} has no member {member}, but for example {some}: is it the right file?")


def lines(path: Path, member: str | None = None) -> Iterator[str]:
    """Yield lines without their ends; bytes that are not UTF-8 become U+FFFD."""
    try:
        with open_member(path, member) as file:
            for line in file:
                yield line.decode("utf-8", errors="replace").rstrip("\r\n")
    except BROKEN_ARCHIVE as error:
        raise Refused(f"{path} {does_not_open(error)}") from None


# Only \n ends a line here. Some tools end a line, or a column, at these characters too, which breaks the alignment.
BREAKS = re.compile("[\t\r\x00\x0b\x0c\x1c-\x1e\x85\u2028\u2029\ufeff]+")


def one_line(text: str) -> str:
    """Replace characters that end a line or a column in other tools by blanks, and strip blanks at both ends."""
    return BREAKS.sub(" ", text).strip()


def unpack(path: Path, folder: Path) -> None:
    """Unpack an archive. Raise one of BROKEN_ARCHIVE for a member or a link outside of the folder, or a device."""
    folder.mkdir(parents=True, exist_ok=True)
    if is_zip(path):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        return
    if not hasattr(tarfile, "data_filter"):  # Python 3.10.12 and 3.11.4 have this filter
        raise Refused(f"{path} cannot be unpacked safely with this Python: install its latest patch release")
    with tarfile.open(path) as tar:
        tar.extractall(folder, filter="data")


def damage(path: Path) -> str:
    """Return what is wrong with an archive, "" for nothing. It has its own checksums, at its end."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return f"is damaged: {member}" if (member := archive.testzip()) else ""
        with path.open("rb") as raw, (bz2.open if raw.peek(3).startswith(b"BZh") else gzip.open)(raw) as file:
            if not file.read(1):
                return "is empty"
            while file.read(1 << 20):
                pass
    except BROKEN_ARCHIVE as error:
        return does_not_open(error)
    return ""
