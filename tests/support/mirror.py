"""Make a miniature mirror of public corpora, in their real layouts, from a few parallel sentences.

    PYTHONPATH=tests python3 -m support.mirror wmt|opensubtitles|iwslt14 TEXT_DIR MIRROR_DIR [--train N]

The recipes download corpora of millions of sentences; with DATA_DIR=MIRROR_DIR they run on these files instead.
TEXT_DIR holds {train,valid,test}.{en,ru} ({de,en} for iwslt14), plain or .gz; N is the number of training pairs.

A mirror is a folder laid out `<host>/<path of the address>` (`wget -x` makes this layout), with a `SHA256SUMS` as
sha256sum writes it. The same sentences give the same files, byte for byte. Several mirrors may share a folder.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "recipes" / "lib")]

import headgates_start  # noqa: E402, F401  (before fairseq_headgates, which then does not import fairseq and torch)
from commands import ArgumentParser, run, whole  # noqa: E402
from fairseq_headgates.files import decode, lines_of  # noqa: E402
from support.miniature import Pair  # noqa: E402
from support.miniature_subtitles import make_subtitles_mirror  # noqa: E402
from support.miniature_talks import make_iwslt_mirror  # noqa: E402
from support.miniature_wmt import make_wmt_mirror  # noqa: E402


def read_side(folder: Path, name: str) -> list[str]:
    """Read the lines of a file, plain or .gz; characters that do not fit into a column become blanks."""
    packed = folder / f"{name}.gz"
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    return [line.replace("\t", " ").replace("\r", " ").strip() for line in lines_of(decode(data, name))]


def read_pairs(folder: Path, split: str, languages: Sequence[str]) -> list[Pair]:
    first, second = (read_side(folder, f"{split}.{language}") for language in languages)
    return list(zip(first, second, strict=True))


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("corpus", choices=["wmt", "opensubtitles", "iwslt14"])
    parser.add_argument("text_dir", type=Path, metavar="TEXT_DIR")
    parser.add_argument("mirror_dir", type=Path, metavar="MIRROR_DIR")
    parser.add_argument("--train", type=whole(), metavar="N", help="take the first N training pairs only")
    args = parser.parse_args(argv)
    languages = ("de", "en") if args.corpus == "iwslt14" else ("en", "ru")
    train, valid, test = (read_pairs(args.text_dir, split, languages) for split in ("train", "valid", "test"))
    train = train[: args.train]
    if args.corpus == "wmt":
        make_wmt_mirror(args.mirror_dir, train, valid, test)
    elif args.corpus == "opensubtitles":
        make_subtitles_mirror(args.mirror_dir, [*train, *valid, *test])
    else:
        make_iwslt_mirror(args.mirror_dir, train, test=test)
    print((args.mirror_dir / "SHA256SUMS").read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    sys.exit(run("support.mirror", *sys.argv[1:]))
