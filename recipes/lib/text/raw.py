"""Check the raw text of a recipe, before anything runs.

    python3 recipes/lib text.raw RAW_DIR RECORD [NAME ...] [--files FILE ...] [--begin]

Each file RAW_DIR/NAME or RAW_DIR/NAME.gz must exist, be UTF-8 and have text; a warning names two that are the same.
RECORD has the sizes and SHA-256 of these and of the FILEs (a checkpoint, its BPE codes and dictionaries): if it exists,
they must be the same.
--begin writes RECORD.begun, which becomes RECORD when the text is made. If it exists with other files, the folder of
RECORD, the unfinished text of these, is removed first.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from filecmp import cmp
from itertools import combinations
from pathlib import Path

from commands import ArgumentParser, Refused
from corpora.archives import BROKEN_ARCHIVE
from corpora.fetching import digest
from fairseq_headgates.files import write_whole


def find(folder: Path, names: list[str]) -> list[Path]:
    """Return the paths of the files. Raise Refused if one is missing."""
    found = [folder / name for name in names]
    found = [path if path.is_file() else path.with_name(f"{path.name}.gz") for path in found]
    for path, name in zip(found, names, strict=True):
        if not path.is_file():
            raise Refused(f"{folder / name}[.gz] is missing: {folder} needs {', '.join(names)}, each plain or .gz")
    return found


def check(path: Path) -> None:
    """Raise Refused for a file without text, or in another encoding."""
    name = str(path).removesuffix(".gz") + "[.gz]"
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            if not sum(not line.isspace() for line in file):  # all lines are read
                raise Refused(f"{name} has no text: give one sentence per line")
    except UnicodeDecodeError:
        raise Refused(
            f"{name} is not UTF-8: convert it, for example with iconv -f latin1 -t utf8 (or -f UTF-16), and run the "
            "recipe again"
        ) from None
    except BROKEN_ARCHIVE as error:
        raise Refused(f"{name} has no text, or cannot be read ({error}): give one sentence per line") from None


def described(paths: list[Path]) -> list[str]:
    """Return a line for each file: name, size and SHA-256."""
    return [f"{path.name}: {path.stat().st_size} bytes, SHA-256 {digest(path, 'sha256')}" for path in paths]


def begin(record: Path, current: list[str]) -> None:
    begun = record.with_name(f"{record.name}.begun")
    if begun.exists() and begun.read_text(encoding="utf-8").splitlines() != current:
        shutil.rmtree(record.parent)
    record.parent.mkdir(parents=True, exist_ok=True)
    write_whole(str(begun), "".join(f"{line}\n" for line in current), force=True)


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("folder", type=Path, metavar="RAW_DIR")
    parser.add_argument("record", type=Path, metavar="RECORD")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--files", nargs="+", type=Path, default=[], metavar="FILE", help="other files of the record")
    parser.add_argument("--begin", action="store_true", help="write RECORD.begun")
    args = parser.parse_args(argv)
    paths = find(args.folder, args.names)
    if missing := [path for path in args.files if not path.is_file()]:
        raise Refused(
            f"{missing[0]} is missing: CHECKPOINT needs its BPE codes and dictionaries in the same folder, and "
            "binarised DATA its valid and test sets"
        )
    if args.begin:
        begin(args.record, described([*paths, *args.files]))
    elif args.record.exists():
        current = described([*paths, *args.files])
        before = args.record.read_text(encoding="utf-8").splitlines()
        if other := [line.split(",")[0] for line in before if line not in current]:
            kind = "files" if args.files else "text"
            raise Refused(
                f"OUT_DIR was made from other {kind} ({', '.join(other)}), and RAW_DIR={args.folder} is not read "
                "again: take another OUT_DIR"
            )
    else:
        for path in paths:
            check(path)
        for first, second in combinations(paths, 2):
            if cmp(first, second, shallow=False):
                recipe = os.environ.get("RECIPE", parser.prog)
                print(f"{recipe}: warning: {first} and {second} are the same: use different text", file=sys.stderr)
