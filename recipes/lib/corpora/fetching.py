"""Download files, or find them in a folder, and check them.

A folder or a mirror is laid out `<host>/<path>` as the addresses are (`wget -x` makes this layout); in a folder a file
may also have its bare name. An interrupted download resumes from NAME.I.part, of the I-th address.

FOLDER/SHA256SUMS, as sha256sum writes it, records the checksum of each file at its first use. With a copy of someone
else's, other data is an error; so is data that differs from the SHA256SUMS of the folder or mirror, or, without one,
from sacrebleu's MD5 sum.
"""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from commands import Refused
from corpora.archives import damage
from fairseq_headgates.files import write_whole

SUMS = "SHA256SUMS"
ADVICE = "run the same command again, or put the file into a folder and set DATA_DIR to it"
NOT_PACKED = (".json", ".bpe")


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
    def names(self) -> list[str]:
        """Its possible names in a folder and in SHA256SUMS. The bare names of sacrebleu's files are not unique."""
        bare = [] if self.md5 else [address.rpartition("/")[2] for address in self.addresses]
        return [*map(path_of, self.addresses), self.name, *bare]


def path_of(address: str) -> str:
    """Return the path in a mirror of a file with this address."""
    parts = urlsplit(address)
    return f"{parts.hostname}{parts.path}"


def fetch(sources: list[Source], folder: Path, place: str | None) -> None:
    """Put all files into the folder, checked and recorded. Raise Refused with a line for each file that failed."""
    mirror = place.rstrip("/") if place and "://" in place else ""
    if place and not mirror and not Path(place).is_dir():
        raise Refused(f"DATA_DIR={place} is not a folder: give a folder with the files, or the address of a mirror")
    folder.mkdir(parents=True, exist_ok=True)
    recorded = read_sums(str(folder))
    sums = read_sums(mirror or place) if place else {}
    errors = []
    for source in sources:
        path = folder / source.name
        if path.exists() and source.name in recorded:
            continue
        expected = {recorded[source.name]} if source.name in recorded else {sums[n] for n in source.names if n in sums}
        try:
            if path.exists():
                check(path, source, expected)
            elif place and not mirror and take(path, source, Path(place)):
                check(path, source, expected, remove=True)
            else:
                download(path, source, mirror, expected)
        except (Refused, OSError) as error:
            errors.append(f"{source.name}: {error}")
            continue
        recorded[source.name] = digest(path, "sha256")
        write_whole(folder / SUMS, "".join(f"{recorded[name]}  {name}\n" for name in sorted(recorded)), force=True)
    if errors:
        raise Refused("\n  ".join(errors))


def take(path: Path, source: Source, place: Path) -> bool:
    """Link to a file of the user's folder. Return whether that folder has it."""
    found = next((file for name in source.names if (file := place / name).is_file()), None)
    if found:
        path.unlink(missing_ok=True)  # a broken link
        path.symlink_to(found.resolve())
    return found is not None


def download(path: Path, source: Source, mirror: str, expected: set[str]) -> None:
    """Download a file from its first address that has it. Raise Refused with the reason of each failure."""
    reasons = []
    for number, address in enumerate(source.addresses, 1):
        address = f"{mirror}/{path_of(address)}" if mirror else address
        part = path.with_name(f"{path.name}.{number}.part")
        try:
            receive(address, part)
            check(part, source, expected, remove=True)
        except (OSError, http.client.HTTPException, Refused) as error:
            reasons.append(f"{address} cannot be downloaded ({error})")
            continue
        part.replace(path)
        for other in path.parent.glob(f"{path.name}.*.part"):
            other.unlink()
        return
    raise Refused(f"{', '.join(reasons)}: {ADVICE}")


def receive(address: str, part: Path) -> None:
    """Download a file to `part`, from where an earlier attempt stopped."""
    start = part.stat().st_size if part.exists() else 0
    try:
        answer = opened(address, {"Range": f"bytes={start}-"} if start else {})
    except urllib.error.HTTPError as error:
        if error.code == 416:  # there is nothing after these bytes
            part.unlink()
        raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        size = file.tell() + int(answer.headers.get("Content-Length", 0))
        with tqdm(desc=part.name, initial=file.tell(), total=size, unit="B", unit_scale=True, disable=None) as bar:
            while block := answer.read(1 << 20):
                bar.update(file.write(block))
        if file.tell() < size:
            raise OSError(f"the connection ended after {file.tell():,} of {size:,} bytes")


def opened(address: str, headers: dict[str, str]) -> http.client.HTTPResponse:
    request = urllib.request.Request(address, headers={"User-Agent": "fairseq-headgates", **headers})
    return urllib.request.urlopen(request, timeout=60)


def read_sums(place: str) -> dict[str, str]:
    """Return the checksums of the SHA256SUMS of a folder or mirror by file name; none if it has no such file."""
    try:
        if "://" in place:
            with opened(f"{place}/{SUMS}", {}) as answer:
                text = answer.read()
        else:
            text = (Path(place) / SUMS).read_bytes()
    except (OSError, http.client.HTTPException):
        return {}
    found = [line.strip().split(maxsplit=1) for line in text.decode("utf-8-sig", errors="replace").split("\n")]
    return {words[1].lstrip("*"): words[0].lower() for words in found if len(words) == 2 and len(words[0]) == 64}


def digest(path: Path, algorithm: str) -> str:
    found = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def check(path: Path, source: Source, expected: set[str], remove: bool = False) -> None:
    """Raise Refused for a file that has another checksum or is damaged, and `remove` it or the link to it."""
    wrong = ""
    if expected and (found := digest(path, "sha256")) not in expected:
        wrong = f"has SHA-256 {found[:12]}..., not the {min(expected)[:12]}... of {SUMS} (delete its line to accept it)"
    elif source.md5 and not expected and (found := digest(path, "md5")) != source.md5:
        wrong = f"has MD5 {found}, not the {source.md5} that sacrebleu gives"
    elif not source.name.endswith(NOT_PACKED):
        wrong = damage(path)
    if wrong:
        where = path.resolve()
        if remove:
            path.unlink()
        raise Refused(f"{where} {wrong}" + ("" if remove else ": remove it and run the same command again"))
