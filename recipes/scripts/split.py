"""Split sentence pairs of OpenSubtitles into train, valid and test; no film is in two of them.

    python3 split.py PAIRS.SRC PAIRS.TGT IDS TO [--pairs 6000000] [--held-out 10000] [--seed 1]

PAIRS and IDS are written by `opus_read -wm moses -w PAIRS.SRC PAIRS.TGT -id IDS`. The program writes
TO/{train,valid,test}.SRC and .TGT. Of pairs with the same text, but for case and blanks, the first one is kept. Films
in random order are given to valid, and then to test, until each has --held-out pairs; the others are for training. A
set that has more pairs than requested is a random sample.
"""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path

import numpy as np

from script_errors import errors_in_one_line

SETS = ("train", "valid", "test")


def lines(path: Path) -> Iterator[str]:
    r"""Yield the lines of a file with one blank between words. Only \n ends a line."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            yield " ".join(line.split()) if path.suffix != ".ids" else line


def film(ids: str) -> str:
    """Return the film of a line of IDS: the third part of the first document, en/2001/FILM/7890.xml.gz."""
    document = ids.partition("\t")[0]
    if document.count("/") < 3:
        raise ValueError(f"{ids[:60]!r} is not a line of `opus_read -id`: give the file of the same command")
    return document.split("/")[2]


def read(files: list[Path], ids: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return a hash of the text of each pair, 0 without text; the number of its film; and the films."""
    films: dict[str, int] = {}
    texts, film_of = array("Q"), array("q")
    for *sides, line in zip_longest(*map(lines, [*files, ids])):
        if line is None or None in sides:
            raise ValueError(f"{files[0]}, {files[1]} and {ids} must have as many lines: make them again")
        plain = [side.lower().replace(" ", "") for side in sides]
        digest = blake2b("\t".join(plain).encode(), digest_size=8).digest()
        texts.append(int.from_bytes(digest, "big") if all(plain) else 0)
        film_of.append(films.setdefault(film(line), len(films)))
    return np.array(texts, dtype=np.uint64), np.array(film_of, dtype=np.int64), list(films)


def assigned(texts: np.ndarray, film_of: np.ndarray, films: list[str], args: argparse.Namespace) -> np.ndarray:
    """Return the number of the set of each pair in SETS, -1 for a pair that is left out."""
    values, first = np.unique(texts, return_index=True)
    kept = np.sort(first[values > 0])
    print(f"{len(texts):,} pairs of {len(films):,} films, {len(kept):,} different ones")
    sizes = np.bincount(film_of[kept], minlength=len(films))
    rng = random.Random(args.seed)
    order = sorted(range(len(films)), key=films.__getitem__)
    rng.shuffle(order)
    set_of_film = np.zeros(len(films), dtype=np.int8)
    for number in (1, 2):
        size = 0
        while order and size < args.held_out:
            size += sizes[order[-1]]
            set_of_film[order.pop()] = number
    sets = np.full(len(texts), -1, dtype=np.int8)
    sets[kept] = set_of_film[film_of[kept]]
    for number, most in enumerate((args.pairs, args.held_out, args.held_out)):
        members = np.flatnonzero(sets == number)
        if not len(members) or (number and len(members) < most):
            raise ValueError(f"too few films for --held-out {args.held_out}: hold out fewer pairs")
        if len(members) > most:
            sets[members] = -1
            sets[members[rng.sample(range(len(members)), most)]] = number
    return sets


def write(files: list[Path], sets: np.ndarray, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        with ExitStack() as stack:
            names = [folder / f"{name}{path.suffix}" for name in SETS]
            outputs = [stack.enter_context(name.open("w", encoding="utf-8", newline="\n")) for name in names]
            for number, line in zip(sets, lines(path), strict=True):
                if number >= 0:
                    outputs[number].write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs=2, type=Path, metavar="PAIRS")
    parser.add_argument("ids", type=Path, metavar="IDS")
    parser.add_argument("to", type=Path, metavar="TO")
    parser.add_argument("--pairs", type=int, default=6_000_000, metavar="N")
    parser.add_argument("--held-out", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sets = assigned(*read(args.texts, args.ids), args)
    write(args.texts, sets, args.to)
    print(", ".join(f"{int((sets == number).sum()):,} {name}" for number, name in enumerate(SETS)))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
