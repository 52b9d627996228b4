"""Download files with curl, or find them in a folder, and check them.

A folder or a mirror is laid out `<host>/<path>` as the addresses are (`wget -x` makes this layout); in a folder a file
may also have its bare name. curl downloads what a folder does not contain: all files at once, to NAME.part, resuming
where an earlier attempt stopped; then those that failed, or are not what they should be, from their next address.

Three places may give the checksum of a file: manifest.tsv (manifest.py), SHA256SUMS in the folder or mirror, and
sacrebleu's MD5 sums. A file is recorded in the manifest when its checksums are right and it could be read to its end.
"""

from __future__ import annotations

import fcntl
import glob
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from commands import Refused
from corpora import manifest
from corpora.archives import BROKEN_ARCHIVE, does_not_open, read_to_the_end
from corpora.manifest import Entry


@dataclass(frozen=True)
class Source:
    """A file to download: its name on this machine, its address, and sacrebleu's MD5 sum if there is one.

    `others` are addresses of files with the same members, tried in this order where the first address fails. Such a
    file may be packed otherwise, for example .zip instead of .tgz.
    """

    name: str
    address: str
    md5: str | None = None
    others: tuple[str, ...] = ()

    @property
    def addresses(self) -> list[str]:
        return [self.address, *self.others]

    @property
    def path(self) -> str:
        """Its path in a mirror."""
        return path_of(self.address)

    @property
    def names(self) -> list[str]:
        """Its possible names in a folder and in SHA256SUMS. The bare names of sacrebleu's files are not unique."""
        bare = [name for address in self.addresses for name in self.bare_names(address)]
        return [*map(path_of, self.addresses), self.name, *bare]

    def bare_names(self, address: str) -> list[str]:
        """The bare name of the file at an address, if it is unique."""
        return [] if self.md5 else [address.rpartition("/")[2]]

    def at(self, place: str | None) -> list[str]:
        """Its addresses, in a mirror if `place` is one."""
        if place and is_address(place):
            return [f"{place.rstrip('/')}/{path_of(address)}" for address in self.addresses]
        return self.addresses


def path_of(address: str) -> str:
    """Return the path in a mirror of a file with this address."""
    parts = urlsplit(address)
    return f"{parts.hostname}{parts.path}"


def is_address(place: str) -> bool:
    return "://" in place


def fetch(sources: list[Source], folder: Path, place: str | None) -> None:
    """Put all files into the folder, checked and recorded. Raise Refused with a line for each file that failed."""
    if place and not is_address(place) and not Path(place).is_dir():
        raise Refused(f"DATA_DIR={place} is not a folder: give a folder with the files, or the address of a mirror")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder) as lock:
        entries = manifest.read_manifest(folder)
        wanted = [source for source in sources if not is_ready(folder, source, entries)]
        sums = listed_sums(place) if wanted else {}
        missing = [source for source in wanted if not (folder / source.name).exists()]
        absent = [source for source in missing if not take(folder, source, place)]
        errors = record(folder, {source: None for source in wanted if source not in absent}, entries, sums)
        errors |= download(folder, absent, place, lock, entries, sums)
    if errors:
        raise Refused("\n  ".join(f"{source.name}: {errors[source]}" for source in sources if source in errors))


def record(
    folder: Path, origins: Mapping[Source, str | None], entries: dict[str, Entry], sums: Mapping[str, str]
) -> dict[Source, str]:
    """Check files and write them to the manifest.

    Args:
        origins: the files, and the address of each one that was just downloaded

    Returns:
        The errors. A wrong file is removed, unless it is the user's.
    """
    errors: dict[Source, str] = {}
    for source, origin in tqdm(origins.items(), desc="checking", unit="file", disable=None if origins else True):
        try:
            entries[source.name] = check(folder, source, entries.get(source.name), sums, origin)
            manifest.write_manifest(folder, entries)
        except Refused as error:
            errors[source] = str(error)
    return errors


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Refuse a second run in the same folder. Yield the file descriptor that holds the lock."""
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"another run downloads to {folder}: wait until it ends, or stop it") from None
        yield file.fileno()


def is_ready(folder: Path, source: Source, entries: dict[str, Entry]) -> bool:
    """Whether an earlier run checked the file, and its size is the same."""
    path, entry = folder / source.name, entries.get(source.name)
    return path.exists() and entry is not None and path.stat().st_size == entry.size


def take(folder: Path, source: Source, place: str | None) -> bool:
    """Link to a file of the user's folder. Return whether that folder has it."""
    if not place or is_address(place):
        return False
    found = next((file for name in source.names if (file := Path(place) / name).is_file()), None)
    if found is None:
        return False
    link = folder / source.name
    link.unlink(missing_ok=True)  # a broken link
    link.symlink_to(found.resolve())
    return True


# --- curl -----------------------------------------------------------------------------------------------------------

# A server that cannot resume in the middle of a file (33), or has nothing after the given position (416).
RESTART = re.compile(r"curl: \(33\)|error: 416\b")
# An interrupted or stalled connection, or a busy server. curl's own --retry would lose the bytes of the attempt.
RETRY = re.compile(r"curl: \((18|28|52|55|56|92)\)|error: (429|50[0-4])\b")
ATTEMPTS = 4


def curl(*arguments: str) -> list[str]:
    if shutil.which("curl") is None:
        raise Refused("curl is not on the PATH: install it, or put the files into a folder and set DATA_DIR to it")
    return ["curl", "--fail", "--location", "--silent", "--show-error", *arguments]


def listed_sums(place: str | None) -> dict[str, str]:
    """Return the checksums of PLACE/SHA256SUMS by file name, if a folder or mirror has that file."""
    if not place:
        return {}
    if is_address(place):
        command = curl("--max-time", "60", f"{place.rstrip('/')}/SHA256SUMS")
        got = subprocess.run(command, capture_output=True, check=False)
        return manifest.parse_sums(got.stdout) if got.returncode == 0 else {}
    file = Path(place) / "SHA256SUMS"
    return manifest.parse_sums(file.read_bytes()) if file.exists() else {}


def size_at(address: str) -> int:
    """Return the size that the server announces, in bytes, or 0."""
    answer = subprocess.run(curl("--head", "--max-time", "30", address), capture_output=True, check=False)
    found = re.findall(rb"(?im)^content-length: *(\d+)", answer.stdout)
    return int(found[-1]) if found and answer.returncode == 0 else 0


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def download(
    folder: Path,
    sources: list[Source],
    place: str | None,
    lock: int,
    entries: dict[str, Entry],
    sums: Mapping[str, str],
) -> dict[Source, str]:
    """Download all files at once, and those that fail from their next address. Return the errors."""
    failed: dict[Source, list[str]] = {source: [] for source in sources}
    addresses = {source: addresses_of(source, place, entries.get(source.name)) for source in sources}
    left = set(sources)
    for turn in range(max(map(len, addresses.values()), default=0)):
        trying = {s: known[turn] for s, known in addresses.items() if s in left and turn < len(known)}
        # Each address has a file of its own, so that an interrupted download resumes with bytes of the same file.
        parts = {s: folder / (f"{s.name}.address{turn + 1}.part" if turn else f"{s.name}.part") for s in trying}
        for source, reason in download_from(folder, trying, parts, lock).items():
            if reason:
                failed[source].append(f"{trying.pop(source)} cannot be downloaded ({reason})")
            else:
                parts[source].rename(folder / source.name)
        wrong = record(folder, trying, entries, sums)
        for source in trying:
            if source in wrong:
                failed[source].append(wrong[source])
                continue
            left.remove(source)
            for other in folder.glob(f"{glob.escape(source.name)}*.part"):
                other.unlink()
    advice = "run the same command again to resume, or put the file into a folder and set DATA_DIR to it"
    return {source: f"{', '.join(failed[source])}: {advice}" for source in sources if source in left}


def addresses_of(source: Source, place: str | None, entry: Entry | None) -> list[str]:
    """Return the addresses to try: that of the manifest alone, if it has one, because its checksum is of that file."""
    known = zip(source.addresses, source.at(place), strict=True)
    fitting = [here for address, here in known if not entry or entry.address == address]
    return fitting or source.at(place)


def download_from(
    folder: Path, addresses: dict[Source, str], parts: dict[Source, Path], lock: int
) -> dict[Source, str]:
    """Download {source: address} to `parts`, all at once. Return the reason of each failure, "" for success."""
    sizes = {source: size_at(address) for source, address in addresses.items()}
    need_space(folder, sum(max(0, size - size_of(parts[source])) for source, size in sizes.items()))
    reasons = dict.fromkeys(addresses, "")
    left = [source for source in addresses if not 0 < sizes[source] == size_of(parts[source])]
    for _ in range(ATTEMPTS):
        results = run_curl({addresses[source]: parts[source] for source in left}, sum(sizes.values()), lock)
        reasons |= zip(left, results, strict=True)
        for source in left:
            if RESTART.search(reasons[source]):
                parts[source].unlink(missing_ok=True)
        left = [s for s in left if RESTART.search(reasons[s]) or RETRY.search(reasons[s])]
        if not left:
            break
    return reasons


def need_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise Refused(
            f"{folder}: {free / 1e9:.1f} GB are free and {size / 1e9:.1f} GB are to be downloaded: free some, "
            "or take another folder"
        )


def run_curl(parts: dict[str, Path], size: int, lock: int) -> list[str]:
    """Download {address: file}, one curl for each, with a progress bar. Return the error of each, "" for success.

    One process per file gives an exit code for each with any version of curl (`--parallel` needs 7.66, the exit code
    of a transfer 7.75). curl inherits the lock: if this process is killed, no other run writes to the same files.
    """
    patience = ["--connect-timeout", "30", "--speed-limit", "1", "--speed-time", "60"]
    with ExitStack() as stack:
        running = []
        for address, part in parts.items():
            command = curl(*patience, "--continue-at", "-", "--output", str(part), address)
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=[lock])
            stack.callback(process.terminate)
            running.append(process)
        bar = stack.enter_context(
            tqdm(desc="downloading", total=size or None, unit="B", unit_scale=True, disable=None if parts else True)
        )
        while any(process.poll() is None for process in running):
            bar.update(sum(map(size_of, parts.values())) - bar.n)
            time.sleep(0.1)
        said = [process.communicate()[1].strip().splitlines() for process in running]
    return [
        "" if process.returncode == 0 and part.exists() else (words or [f"curl exited with {process.returncode}"])[-1]
        for process, part, words in zip(running, parts.values(), said, strict=True)
    ]


# --- checks -------------------------------------------------------------------------------------------------------


def check(folder: Path, source: Source, entry: Entry | None, sums: Mapping[str, str], origin: str | None) -> Entry:
    """Return the manifest entry of a file whose checksums are right and that opens.

    Otherwise raise Refused, and remove a link or a file just downloaded from `origin`, but no file of the user.
    """
    path = folder / source.name
    address = entry.address if entry else address_of(source, path, origin)
    found = Entry.of(path, address)
    wrong = defect(path, found, source, entry, sum_of(source, address, sums))
    if not wrong:
        return found
    if not path.is_symlink() and origin is None:
        raise Refused(f"{path} {wrong}: remove it and run the same command again")
    where = path.resolve() if path.is_symlink() else origin
    taken = path.is_symlink()
    path.unlink()
    raise Refused(f"{where} {wrong}" + (": download it again, or set DATA_DIR to another place" if taken else ""))


def sum_of(source: Source, address: str, sums: Mapping[str, str]) -> str | None:
    """Return the SHA-256 in SHA256SUMS of a file from an address; other addresses may have it packed otherwise."""
    names = [path_of(address), *source.bare_names(address)]
    if address == source.address:
        names.append(source.name)
    return next((sums[name] for name in names if name in sums), None)


def address_of(source: Source, path: Path, origin: str | None) -> str:
    """Return the address of a file: that which ends like its place, then one with its bare name, then the first one."""
    where = str(path.resolve()) if path.is_symlink() else origin or ""
    fitting = [address for address in source.addresses if where == address or where.endswith(path_of(address))]
    named = [address for address in source.addresses if where.rpartition("/")[2] in source.bare_names(address)]
    return [*fitting, *named, source.address][0]


def defect(path: Path, found: Entry, source: Source, entry: Entry | None, expected: str | None) -> str | None:
    """Return what is wrong with a file, or None. `expected` is the SHA-256 in SHA256SUMS."""
    if entry and (entry.size, entry.sha256) != (found.size, found.sha256):
        known = f"{entry.size:,} and {entry.sha256[:12]}... of {manifest.NAME} (remove its line to accept this file)"
        return f"has {found.size:,} bytes and SHA-256 {found.sha256[:12]}..., not the {known}"
    if expected and found.sha256 != expected:
        return f"has SHA-256 {found.sha256[:12]}..., not the {expected[:12]}... of SHA256SUMS"
    if source.md5 and not expected and (md5 := manifest.digest(path, "md5")) != source.md5:
        return f"has MD5 {md5}, not the {source.md5} that sacrebleu gives"
    try:
        read_to_the_end(path)
    except BROKEN_ARCHIVE as error:
        return does_not_open(error)
    return None
