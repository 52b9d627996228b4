"""Make a mirror of the WMT corpora, in their real layouts, from parallel text (benchmarks/full_size.sh).

    PYTHONPATH=tests python3 -m support.mirror wmt TEXT_DIR MIRROR_DIR

With DATA_DIR=MIRROR_DIR the recipe runs on these files instead of downloads. TEXT_DIR holds {train,valid,test}.{en,ru},
plain or .gz. The same sentences give the same files, byte for byte.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "recipes" / "lib")]

import headgates_start  # noqa: E402, F401  (before fairseq_headgates, which then does not import fairseq and torch)
from commands import ArgumentParser, run  # noqa: E402
from fairseq_headgates.files import decode, lines_of  # noqa: E402
from support.miniature import Pair  # noqa: E402
from support.miniature_wmt import make_wmt_mirror  # noqa: E402


def read_side(folder: Path, name: str) -> list[str]:
    """Read the lines of a file, plain or .gz; characters that do not fit into a column become blanks."""
    packed = folder / f"{name}.gz"
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    return [line.replace("\t", " ").replace("\r", " ").strip() for line in lines_of(decode(data, name))]


def read_pairs(folder: Path, split: str) -> list[Pair]:
    english, russian = (read_side(folder, f"{split}.{language}") for language in ("en", "ru"))
    return list(zip(english, russian, strict=True))


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("corpus", choices=["wmt"])
    parser.add_argument("text_dir", type=Path, metavar="TEXT_DIR")
    parser.add_argument("mirror_dir", type=Path, metavar="MIRROR_DIR")
    args = parser.parse_args(argv)
    make_wmt_mirror(args.mirror_dir, *(read_pairs(args.text_dir, split) for split in ("train", "valid", "test")))


if __name__ == "__main__":
    sys.exit(run("support.mirror", *sys.argv[1:]))
