"""Check the raw text of a recipe, before anything runs.

    python3 recipes/lib text.raw RAW_DIR RECORD NAME... [--record]

Each file RAW_DIR/NAME or RAW_DIR/NAME.gz must exist, be UTF-8 and have text. RECORD has the sizes of the files that the
text of OUT_DIR was made from: if it exists, the sizes must be the same, and the text is not read. --record writes it.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from commands import ArgumentParser, Refused
from corpora.archives import BROKEN_ARCHIVE
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


def sizes(paths: list[Path]) -> list[str]:
    return [f"{path.name}: {path.stat().st_size} bytes" for path in paths]


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("folder", type=Path, metavar="RAW_DIR")
    parser.add_argument("record", type=Path, metavar="RECORD")
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--record", dest="write", action="store_true", help="write RECORD")
    args = parser.parse_args(argv)
    paths = find(args.folder, args.names)
    if args.write:
        write_whole(str(args.record), "".join(f"{line}\n" for line in sizes(paths)), force=True)
    elif args.record.exists():
        before = args.record.read_text(encoding="utf-8").splitlines()
        if other := [line for line in before if line not in sizes(paths)]:
            raise Refused(
                f"OUT_DIR was made from other text ({', '.join(other)}), and RAW_DIR={args.folder} is not read again: "
                "take another OUT_DIR"
            )
    else:
        for path in paths:
            check(path)
