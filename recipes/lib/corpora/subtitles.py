"""Select sentence pairs of OpenSubtitles by the overlap in time of their subtitles, and split them by films.

    python3 recipes/lib corpora.subtitles MOSES.zip ALIGNMENT.xml.gz TO SRC TGT
        [--overlap 0.9] [--pairs N] [--held-out N] [--seed 1]

writes TO/train, TO/valid and TO/test, each .SRC and .TGT. The sentences come from the Moses archive of OPUS, whose
member `.ids` gives the documents and sentence ids of every pair. Only the alignment (XCES XML) gives the overlap in
time, so the two are joined by documents and sentence ids. A pair is kept if its overlap is at least --overlap (0.9 in
Voita et al. 2019, section 3).

Of pairs with the same text, but for case and blanks, the first one is kept, before anything is sampled.

No film of the development and test sets is in the training data. Films are taken in an order that depends only on
their ids and the seed, until each set has --held-out pairs. If a set has more pairs than requested, those with the
smallest hashes are kept, in the order of the corpus: a random sample that is the same on every machine.

`opus_read -a overlap -tr 0.9` selects the same pairs, but reads the sentences from the XML of all subtitles of both
languages, which is many times the size of the Moses archive.
"""

from __future__ import annotations

import argparse
import gzip
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from tqdm import tqdm

from commands import ArgumentParser, Refused, whole
from corpora.archives import BROKEN_ARCHIVE, does_not_open, lines, one_line
from fairseq_headgates.files import replacing

SETS = ("train", "valid", "test")


def key(documents: tuple[str, str], sentences: tuple[str, str]) -> int:
    """Return 64 bits that identify an aligned pair, in any order of its sentence ids."""
    ids = [" ".join(sorted(side.split())) for side in sentences]
    return int.from_bytes(blake2b("\t".join([*documents, *ids]).encode(), digest_size=8).digest(), "big")


def film(document: str) -> str:
    """Return the film of a document: the third part of `en/2001/123456/7890.xml.gz`."""
    parts = document.split("/")
    return parts[2] if len(parts) > 2 else document


def overlapping(alignment: Path, threshold: float, counts: Counter[str]) -> np.ndarray:
    """Return the sorted keys of all links with enough overlap, uint64 [links]: 25 million are 200 MB."""
    found = array("Q")
    try:
        with gzip.open(alignment) as file:
            for _, element in ElementTree.iterparse(file):
                if element.tag == "linkGrp":
                    documents = element.attrib["fromDoc"], element.attrib["toDoc"]
                    for link in element.iter("link"):
                        counts["links"] += 1
                        if float(link.get("overlap", "nan")) >= threshold:
                            source, _, target = link.get("xtargets", ";").partition(";")
                            found.append(key(documents, (source, target)))
                    element.clear()
    except BROKEN_ARCHIVE as error:
        raise Refused(f"{alignment} {does_not_open(error)}") from None
    except (ElementTree.ParseError, ValueError, KeyError) as error:
        raise Refused(f"{alignment} is not an alignment of OPUS ({error}): download it again") from None
    return np.unique(np.frombuffer(found, dtype=np.uint64))


def read_ids(archive: Path, pair: tuple[str, str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the key (uint64) and the number of the film (int64) of each line of `.ids`, and the films."""
    member = f"OpenSubtitles.{pair[0]}-{pair[1]}.ids"
    films: dict[str, int] = {}
    keys, numbers = array("Q"), array("q")
    for line in tqdm(lines(archive, member), desc="reading ids", unit=" pairs", unit_scale=True, disable=None):
        cells = line.split("\t")
        if len(cells) != 4:
            raise Refused(f"{archive}: {member} has a line of {len(cells)} columns, not 4: {line[:60]!r}")
        keys.append(key((cells[0], cells[1]), (cells[2], cells[3])))
        numbers.append(films.setdefault(film(cells[0]), len(films)))
    return np.frombuffer(keys, dtype=np.uint64), np.frombuffer(numbers, dtype=np.int64), list(films)


def aligned(archive: Path, pair: tuple[str, str], values: np.ndarray, doing: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the value of each line of `.ids` with the texts of its pair, behind a progress bar."""
    sides = [lines(archive, f"OpenSubtitles.{pair[0]}-{pair[1]}.{language}") for language in pair]
    bar = tqdm(zip_longest(values, *sides), desc=doing, total=len(values), unit=" pairs", unit_scale=True, disable=None)
    for number, (value, *texts) in enumerate(bar):
        if value is None or None in texts:
            raise Refused(f"{archive}: .ids has {len(values):,} lines, but line {number + 1:,} is not in all members")
        yield int(value), texts


def different(archive: Path, pair: tuple[str, str], film_of: np.ndarray) -> np.ndarray:
    """Return `film_of` with -1 for each pair whose text came before, without case and blanks, or that has no text."""
    selected, texts_of = np.flatnonzero(film_of >= 0), array("Q")
    empty = []
    for number, texts in aligned(archive, pair, film_of, "comparing"):
        if number >= 0:
            plain = ["".join(text.lower().split()) for text in texts]
            if not all(plain):
                empty.append(selected[len(texts_of)])
            texts_of.append(int.from_bytes(blake2b("\t".join(plain).encode(), digest_size=8).digest(), "big"))
    _, first = np.unique(np.frombuffer(texts_of, dtype=np.uint64), return_index=True)
    kept = np.full_like(film_of, -1)
    kept[selected[first]] = film_of[selected[first]]
    kept[empty] = -1
    return kept


def assigned(
    keys: np.ndarray, film_of: np.ndarray, films: list[str], number: int, held_out: int, seed: int
) -> np.ndarray:
    """Return the set of each pair, int8: 0 train, 1 valid, 2 test, -1 none. `film_of` is -1 for pairs not selected."""
    sizes = np.bincount(film_of[film_of >= 0], minlength=len(films))
    order = sorted(range(len(films)), key=lambda i: blake2b(f"{seed} {films[i]}".encode(), digest_size=8).digest())
    set_of_film = np.zeros(len(films) + 1, dtype=np.int8)
    set_of_film[-1] = -1  # for pairs whose film is -1
    position = 0
    for kind in (1, 2):
        size = 0
        while size < held_out and position < len(order):
            size += sizes[order[position]]
            set_of_film[order[position]] = kind
            position += 1
        if size < held_out:
            raise Refused(f"--held-out {held_out}: the corpus has too few films; hold out fewer pairs")
    sets = set_of_film[film_of]
    if not (sets == 0).any():
        raise Refused(f"--held-out {held_out}: nothing is left for training; hold out fewer pairs")
    for kind, wanted in ((0, number), (1, held_out), (2, held_out)):
        members = np.flatnonzero(sets == kind)
        if len(members) > wanted:
            sets[members[np.argsort(keys[members], kind="stable")[wanted:]]] = -1
    return sets


def write_sets(archive: Path, pair: tuple[str, str], sets: np.ndarray, folder: Path) -> Counter[str]:
    """Write train, valid and test; the files appear when they are complete. Return the number of pairs of each."""
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        files = {}
        for name in SETS:
            for language in pair:
                temporary = stack.enter_context(replacing(folder / f"{name}.{language}", force=True))
                files[name, language] = stack.enter_context(temporary.open("w", encoding="utf-8", newline="\n"))
        for kind, texts in aligned(archive, pair, sets, "writing"):
            if kind >= 0:
                counts[SETS[kind]] += 1
                for language, text in zip(pair, texts, strict=True):
                    files[SETS[kind], language].write(one_line(text) + "\n")
    return counts


def select(args: argparse.Namespace) -> None:
    pair = args.source, args.target
    counts: Counter[str] = Counter()
    overlap = overlapping(args.alignment, args.overlap, counts)
    keys, film_of, films = read_ids(args.archive, pair)
    film_of = np.where(np.isin(keys, overlap), film_of, -1)
    print(f"alignment: {counts['links']:,} links, {len(overlap):,} with an overlap of at least {args.overlap:g}")
    kept = int((film_of >= 0).sum())
    print(f"sentence pairs: {len(film_of):,} of {len(films):,} films, {kept:,} with that overlap")
    if not kept:
        raise Refused("no pair is left: are the two files of the same corpus?")
    film_of = different(args.archive, pair, film_of)
    print(f"different pairs: {int((film_of >= 0).sum()):,}")
    args.to.mkdir(parents=True, exist_ok=True)
    sets = assigned(keys, film_of, films, args.pairs, args.held_out, args.seed)
    written = write_sets(args.archive, pair, sets, args.to)
    print("split by films: " + ", ".join(f"{written[name]:,} {name}" for name in SETS))


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("archive", type=Path, metavar="MOSES.zip")
    parser.add_argument("alignment", type=Path, metavar="ALIGNMENT.xml.gz")
    parser.add_argument("to", type=Path, metavar="TO")
    parser.add_argument("source", metavar="SRC")
    parser.add_argument("target", metavar="TGT")
    parser.add_argument("--overlap", type=float, default=0.9)
    parser.add_argument("--pairs", type=whole(), default=6_000_000)
    parser.add_argument("--held-out", type=whole(), default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    select(parser.parse_args(argv))
