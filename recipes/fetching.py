"""Gets files: finds or downloads them, checks them, and keeps a manifest of what they were.

A file may be taken from a folder or from a mirror. Both are laid out `<host>/<path>` as the addresses are, which is
what `wget -x` makes; in a folder, a file may also lie under its bare name. What a folder does not hold is downloaded
by curl, all files at once, each going on where an earlier attempt stopped.

What a file has to be is known from up to three places: `manifest.tsv` beside the files (size and SHA-256 of their first
use; copy the manifest of someone else there and you get the same data, or an error), `SHA256SUMS` in the folder or
mirror, and sacrebleu's MD5 sums. A file counts only when it is in the manifest, and it gets there when its checksums
are right and it could be read to its end.
"""

from __future__ import annotations

import bz2
import fcntl
import gzip
import hashlib
import re
import shutil
import subprocess
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from fairseq_headgates.files import write_whole

# RuntimeError: what zipfile says of a method or an encryption that it does not know.
BROKEN_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError)


class Refused(Exception):
    """One line for the user: the value, the rule, the cure."""


@dataclass(frozen=True)
class Source:
    """One file to get: the name it has here, its address, and sacrebleu's MD5 sum where there is one."""

    name: str
    address: str
    md5: str | None = None

    @property
    def path(self) -> str:
        """Where it lies in a mirror."""
        parts = urlsplit(self.address)
        return f"{parts.hostname}{parts.path}"

    @property
    def names(self) -> list[str]:
        """What it may be called in a folder and in SHA256SUMS. sacrebleu's files have one bare name for many years."""
        return [self.path, self.name, *([] if self.md5 else [self.address.rpartition("/")[2]])]

    def at(self, place: str | None) -> str:
        """Where it is downloaded from."""
        return f"{place.rstrip('/')}/{self.path}" if place and is_address(place) else self.address


MANIFEST = "manifest.tsv"
MANIFEST_HEADER = "file\tbytes\tsha256\taddress"


@dataclass(frozen=True)
class Entry:
    """What the manifest says of a file."""

    size: int
    sha256: str
    address: str


def read_manifest(folder: Path) -> dict[str, Entry]:
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        header, *rows = path.read_text(encoding="utf-8").splitlines()
        if header != MANIFEST_HEADER:
            raise ValueError
        cells = [row.split("\t") for row in rows]
        return {name: Entry(int(size), sha256, address) for name, size, sha256, address in cells}
    except ValueError:
        raise Refused(
            f"{path} is no manifest (columns {MANIFEST_HEADER.split()}): remove it, or copy it anew"
        ) from None


def write_manifest(folder: Path, entries: dict[str, Entry]) -> None:
    rows = [f"{name}\t{entry.size}\t{entry.sha256}\t{entry.address}" for name, entry in sorted(entries.items())]
    write_whole(folder / MANIFEST, "\n".join([MANIFEST_HEADER, *rows, ""]), force=True)


SUM = re.compile(r"([0-9a-fA-F]{64})\s+\*?(?:\./)?(.+)")


def listed_sums(place: str | None) -> dict[str, str]:
    """The checksums of PLACE/SHA256SUMS by name, if a folder or mirror has them; other lines are passed over."""
    if not place:
        return {}
    if is_address(place):
        got = subprocess.run(
            curl("--max-time", "60", f"{place.rstrip('/')}/SHA256SUMS"), capture_output=True, check=False
        )
        text = got.stdout if got.returncode == 0 else b""
    else:
        file = Path(place) / "SHA256SUMS"
        text = file.read_bytes() if file.exists() else b""
    found = [SUM.fullmatch(line.strip()) for line in text.decode("utf-8", errors="replace").split("\n")]
    return {match[2]: match[1].lower() for match in found if match}


def is_address(place: str) -> bool:
    return "://" in place


def curl(*arguments: str) -> list[str]:
    if shutil.which("curl") is None:
        raise Refused("curl is not on the PATH: install it, or put the files into a folder and name that in DATA_DIR=")
    return ["curl", "--fail", "--location", "--silent", "--show-error", *arguments]


def fetch(sources: list[Source], folder: Path, place: str | None) -> None:
    """Every file lies in the folder, whole, checked and in the manifest, or Refused has a line for each other one."""
    if place and not is_address(place) and not Path(place).is_dir():
        raise Refused(f"DATA_DIR={place} is no folder: name one that holds the files, or the address of a mirror")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder) as lock:
        entries = read_manifest(folder)
        wanted = [source for source in sources if not is_ready(folder, source, entries)]
        sums = listed_sums(place) if wanted else {}
        missing = [source for source in wanted if not (folder / source.name).exists()]
        errors = download(folder, [source for source in missing if not take(folder, source, place)], place, lock)
        for source in tqdm(wanted, desc="checking", unit="file", disable=None):
            if source.name not in errors:
                try:
                    origin = source.at(place) if source in missing else None
                    entries[source.name] = check(folder, source, entries.get(source.name), sums, origin)
                    write_manifest(folder, entries)
                except Refused as error:
                    errors[source.name] = str(error)
    if errors:
        raise Refused("\n  ".join(errors.values()))


def is_ready(folder: Path, source: Source, entries: dict[str, Entry]) -> bool:
    """Checked by an earlier run and not changed since, as far as the size says."""
    path, entry = folder / source.name, entries.get(source.name)
    return path.exists() and entry is not None and path.stat().st_size == entry.size


def take(folder: Path, source: Source, place: str | None) -> bool:
    """Links a file of the user's folder, which may be on another disk, to its name here."""
    if not place or is_address(place):
        return False
    found = next((file for name in source.names if (file := Path(place) / name).is_file()), None)
    if found is None:
        return False
    link = folder / source.name
    link.unlink(missing_ok=True)  # a link to nothing
    link.symlink_to(found.resolve())
    return True


# curl's words where a server cannot go on in the middle of a file (33, 36), or has nothing from there on (22).
CANNOT_GO_ON = re.compile(r"curl: \((33|36)\)|error: 416\b")
# And where the connection ended too early or nothing came any more, or the server was too busy. curl's own --retry
# would begin each time where the first attempt began.
CUT_OFF = re.compile(r"curl: \((18|28|52|55|56|92)\)|error: (429|50[0-4])\b")
RETRIES = 3


@dataclass
class Download:
    """One file on its way to `part`."""

    source: Source
    address: str
    part: Path
    process: subprocess.Popen
    went_on: bool

    def error(self) -> str | None:
        """Waits for the end; why there is no file, if there is none."""
        reason = self.process.communicate()[1].strip().splitlines()
        if self.process.returncode == 0 and self.part.exists():
            return None
        why = reason[-1] if reason else f"curl left with {self.process.returncode}"
        return (
            f"{self.source.name}: {self.address} cannot be downloaded ({why}): run this again and it goes on, or put \
the file into a folder and name that in DATA_DIR="
        )


def download(folder: Path, wanted: list[Source], place: str | None, lock: int) -> dict[str, str]:
    """All files at once, each to NAME.part, going on where an earlier run stopped; the reasons of those that failed."""
    sizes = {source: size_at(source.at(place)) for source in wanted}
    there = {source: size_of(part_of(folder, source)) for source in wanted}
    need_space(folder, sum(max(0, sizes[source] - there[source]) for source in wanted))
    running = [
        start(folder, source, source.at(place), lock) for source in wanted if not 0 < sizes[source] == there[source]
    ]
    follow(running, sizes)
    errors = {}
    for one in running:
        error = one.error()
        for _ in range(RETRIES):
            if not error or not (CANNOT_GO_ON.search(error) and one.went_on or CUT_OFF.search(error)):
                break
            if CANNOT_GO_ON.search(error):
                one.part.unlink()
            one = start(folder, one.source, one.address, lock)
            follow([one], sizes)
            error = one.error()
        if error:
            errors[one.source.name] = error
    for source in wanted:
        if source.name not in errors:
            part_of(folder, source).rename(folder / source.name)
    return errors


def part_of(folder: Path, source: Source) -> Path:
    return folder / f"{source.name}.part"


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def size_at(address: str) -> int:
    """Bytes of a file as the server announces them, 0 where it does not."""
    answer = subprocess.run(curl("--head", "--max-time", "30", address), capture_output=True, check=False)
    found = re.findall(rb"(?im)^content-length: *(\d+)", answer.stdout)
    return int(found[-1]) if found and answer.returncode == 0 else 0


def need_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise Refused(
            f"{folder}: {free / 1e9:.1f} GB are free and {size / 1e9:.1f} GB are to be downloaded: free some, "
            "or take another folder"
        )


def start(folder: Path, source: Source, address: str, lock: int) -> Download:
    part = part_of(folder, source)
    patience = ["--connect-timeout", "30", "--speed-limit", "1", "--speed-time", "60"]
    command = curl(*patience, "--continue-at", "-", "--output", str(part), address)
    # The lock goes along: should this process be killed and curl live on, no other run writes to the same file.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=[lock])
    return Download(source, address, part, process, went_on=part.exists())


def follow(running: list[Download], sizes: dict[Source, int]) -> None:
    """A bar for each file until all processes have ended."""
    with ExitStack() as stack:
        for one in running:
            stack.callback(one.process.terminate)
        bars = [
            stack.enter_context(
                tqdm(desc=one.source.name, total=sizes[one.source] or None, unit="B", unit_scale=True, disable=None)
            )
            for one in running
        ]
        alive = True
        while alive:
            alive = any(one.process.poll() is None for one in running)
            for one, bar in zip(running, bars, strict=True):
                bar.update(size_of(one.part) - bar.n)
            if alive:
                time.sleep(0.2)


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """One run at a time in a folder; gives the file descriptor that holds the lock."""
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"another run is getting files into {folder}: wait for its end, or stop it") from None
        yield file.fileno()


def check(folder: Path, source: Source, entry: Entry | None, sums: dict[str, str], origin: str | None) -> Entry:
    """What the file is, if it is what it should be and opens.

    Else a link goes, and what has just been downloaded from `origin`; a file that lay there before is the user's.
    """
    path = folder / source.name
    size, sha256, md5 = digests(path)
    expected = next((sums[name] for name in source.names if name in sums), None)
    wrong = None
    if entry and (entry.size, entry.sha256) != (size, sha256):
        known = f"{entry.size:,} and {entry.sha256[:12]}... of {MANIFEST} (remove its line there to take this one)"
        wrong = f"has {size:,} bytes and SHA-256 {sha256[:12]}..., not the {known}"
    elif expected and sha256 != expected:
        wrong = f"has SHA-256 {sha256[:12]}..., not the {expected[:12]}... of SHA256SUMS"
    elif source.md5 and not expected and md5 != source.md5:
        wrong = f"has MD5 {md5}, not the {source.md5} that sacrebleu knows"
    else:
        try:
            read_to_the_end(path)
        except BROKEN_ARCHIVE as error:
            wrong = does_not_open(error)
    if wrong and not path.is_symlink() and origin is None:
        raise Refused(f"{source.name}: {path} {wrong}: remove it and run this again")
    if wrong:
        where = path.resolve() if path.is_symlink() else origin
        path.unlink()
        raise Refused(f"{source.name}: {where} {wrong}: get it anew, or from elsewhere with DATA_DIR=")
    return Entry(size, sha256, source.address)


def does_not_open(error: Exception) -> str:
    reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return f"does not open ({reason.splitlines()[0].rstrip(':')}): it is cut off, or no archive"


def digests(path: Path) -> tuple[int, str, str]:
    """Size, SHA-256 and MD5 of a file."""
    size, sha256, md5 = 0, hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            sha256.update(block)
            md5.update(block)
    return size, sha256.hexdigest(), md5.hexdigest()


def read_to_the_end(path: Path) -> None:
    """Raises where an archive is cut off or damaged: their checksums stand at the end of what they are of."""
    if path.stat().st_size == 0:
        raise EOFError("it is empty")  # which gzip takes for a file of nothing
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"{damaged} is damaged")
    else:
        with (bz2.open if path.suffix == ".bz2" else gzip.open)(path) as file:
            if path.name.endswith((".tgz", ".tar.gz", ".tar.bz2")):
                with tarfile.open(fileobj=file, mode="r|") as archive:
                    for _ in archive:
                        pass
            while file.read(1 << 20):
                pass
