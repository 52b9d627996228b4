"""Write the verses of the New Testament in Greek and English, and their manual word alignments.

    python3 recipes/lib corpora.bible PACKAGE_DIR RAW_DIR

PACKAGE_DIR is the unpacked wheel bible-alignments 0.4.2 (Greek: SBLGNT; English: Berean Standard Bible). The program
writes RAW_DIR/{train,valid,test}.{el,en}, a verse per line, without punctuation and with blanks between the words, and
the links of each verse in Pharaoh format, all of them sure, in {train,valid,test}.align. train has all verses, because
aligners work on the text that they are trained on; valid and test are verses of it, to choose an alignment head and to
measure. test.lines has the places of the verses of test in train, counted from 0.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from commands import ArgumentParser, Refused
from fairseq_headgates.files import write_whole

VALID, TEST = 500, 1000  # verses
Words = dict[str, list[tuple[str, str]]]  # {verse: [(number, word)]}


def read_words(path: Path, verse: str) -> Words:
    """Read a table of words, by the column that names their verse; punctuation is excluded."""
    words: Words = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if not row.get("exclude"):
                words[row[verse].lstrip("n")[:8]].append((row["id"], row["text"]))
    return words


def links_of(records: list[dict[str, Any]], greek: Words, english: Words) -> dict[str, set[tuple[int, int]]]:
    """Return the links of each verse: {verse: {(place of the Greek word, place of the English word)}}.

    A record links each of its Greek words with each of its English words. Links between verses are left out.
    """
    places = [
        {number: (verse, place) for verse, words in side.items() for place, (number, _) in enumerate(words)}
        for side in (greek, english)
    ]
    links = defaultdict(set)
    for record in records:
        for source in record["source"]:
            for target in record["target"]:
                (verse, i), (other, j) = places[0].get(source, ("", 0)), places[1].get(target, ("", 0))
                if verse and verse == other:
                    links[verse].add((i, j))
    return links


def work(args: argparse.Namespace) -> None:
    data = args.package / "data"
    try:
        greek = read_words(data / "sources/SBLGNT.tsv", "id")
        english = read_words(data / "eng/targets/BSB/nt_BSB.tsv", "source_verse")
        records = json.loads((data / "eng/alignments/BSB/SBLGNT-BSB-manual.json").read_text(encoding="utf-8"))
        links = links_of(records["records"], greek, english)
    except (OSError, KeyError, ValueError) as error:
        raise Refused(f"{args.package} is not the unpacked wheel of bible-alignments 0.4.2 ({error})") from None
    verses = sorted(links)
    chosen = random.Random(1).sample(verses, min(VALID + TEST, len(verses)))
    chosen = [*sorted(chosen[:VALID]), *sorted(chosen[VALID:])]
    splits = {"train": verses, "valid": chosen[:VALID], "test": chosen[VALID:]}
    args.raw.mkdir(parents=True, exist_ok=True)
    for split, names in splits.items():
        for language, side in (("el", greek), ("en", english)):
            lines = [" ".join(word for _, word in side[verse]) for verse in names]
            write_whole(args.raw / f"{split}.{language}", "".join(f"{line}\n" for line in lines), force=True)
        aligned = [" ".join(f"{i}-{j}" for i, j in sorted(links[verse])) for verse in names]
        write_whole(args.raw / f"{split}.align", "".join(f"{line}\n" for line in aligned), force=True)
    numbers = [verses.index(verse) for verse in splits["test"]]
    write_whole(args.raw / "test.lines", "".join(f"{number}\n" for number in numbers), force=True)
    print(f"{len(verses):,} verses, {sum(map(len, links.values())):,} links")


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("package", type=Path, metavar="PACKAGE_DIR")
    parser.add_argument("raw", type=Path, metavar="RAW_DIR")
    work(parser.parse_args(argv))
