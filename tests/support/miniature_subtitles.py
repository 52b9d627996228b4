"""Miniature mirror of OpenSubtitles v2018: sentences, their ids, and the alignment."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise
from pathlib import Path

from support.miniature import Item, Members, Pair, checked, dealt, gz, in_chunks, lines, save, zipped

SUBTITLES = "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/moses/en-ru.txt.zip"
ALIGNMENT = "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/xml/en-ru.xml.gz"

# Properties of the links. Each list is used up in random order before it is used again, so that no case is rare.
OVERLAPS = [(900, 900), (899, 899), (1000, 1000), None, *[(901, 999)] * 10, *[(300, 898)] * 6]  # thousandths, from-to
SHAPES = [*[(1, 1, False)] * 15, (2, 1, False), (2, 1, True), (1, 2, False), (1, 2, True), (2, 2, True)]
UNPAIRED = [*[(0, 0)] * 8, (1, 0), (0, 2)]  # sentences of one side before a link, without a translation


@dataclass(frozen=True)
class SubtitlePair:
    """A line of the Moses files with its overlap in the alignment; sentence ids in the order of .ids."""

    english: str
    russian: str
    overlap: float | None
    film: str
    documents: tuple[str, str]
    english_ids: tuple[int, ...]
    russian_ids: tuple[int, ...]


@dataclass(frozen=True)
class Link:
    """A link of the alignment; it has no pair if one of the sides is empty."""

    pair: Pair | None
    english_ids: tuple[int, ...]
    russian_ids: tuple[int, ...]
    thousandths: int | None = None
    backwards: bool = False

    def xml(self, number: int) -> str:
        step = -1 if self.backwards else 1
        targets = ";".join(" ".join(map(str, ids[::step])) for ids in (self.english_ids, self.russian_ids))
        overlap = "" if self.thousandths is None else f' overlap="{self.thousandths / 1000:.3f}"'
        return f'<link id="SL{number}" xtargets="{targets}"{overlap} />'


@dataclass(frozen=True)
class Subtitles:
    """Two documents of a film and their links."""

    film: str
    documents: tuple[str, str]
    links: list[Link]

    def pairs(self) -> Iterator[SubtitlePair]:
        for link in self.links:
            if link.pair:
                overlap = None if link.thousandths is None else link.thousandths / 1000
                ids = link.english_ids, link.russian_ids
                yield SubtitlePair(*link.pair, overlap, self.film, self.documents, *ids)

    def xml(self) -> Iterator[str]:
        yield '<linkGrp targType="s" fromDoc="{}" toDoc="{}" >'.format(*self.documents)
        yield from (link.xml(number) for number, link in enumerate(self.links))
        yield "</linkGrp>"


class LinkMaker:
    """Make links for sentence pairs, with the difficulties of the real ones."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.overlaps = self.deal(OVERLAPS)
        self.shapes = self.deal(SHAPES)
        self.unpaired = self.deal(UNPAIRED)

    def deal(self, deck: Sequence[Item]) -> Iterator[Item]:
        while True:
            yield from self.rng.sample(deck, len(deck))

    def __call__(self, pairs: Iterable[Pair]) -> Iterator[Link]:
        english, russian = (count(self.rng.randint(1, 9)) for _ in range(2))  # the next sentence of each document
        for pair in pairs:
            before = next(self.unpaired)
            if any(before):
                yield Link(None, tuple(islice(english, before[0])), tuple(islice(russian, before[1])))
            bounds = next(self.overlaps)
            *numbers, backwards = next(self.shapes)
            ids = tuple(islice(english, numbers[0])), tuple(islice(russian, numbers[1]))
            yield Link(pair, *ids, bounds and self.rng.randint(*bounds), backwards)


def make_subtitles_mirror(folder: Path, pairs: Sequence[Pair], seed: int = 1) -> list[SubtitlePair]:
    """Make the files of English-Russian OpenSubtitles v2018. Return the lines of the Moses files with their properties.

        object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/moses/en-ru.txt.zip    OpenSubtitles.en-ru.{en,ru,ids}
        object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/xml/en-ru.xml.gz       the alignment, XCES

    A line of .ids is English document, Russian document, English sentence ids, Russian sentence ids, with tabs between
    and blanks between ids. A film, the third part of a document's path, has 20 to 40 pairs in one to three pairs of
    documents. In the alignment, the documents have another order, and the ids of some links too; links with an
    empty side are not in the Moses files; a few of the other links have no overlap. All films but the first repeat a
    pair of the film before, so there are a few more lines than `pairs`.
    """
    rng = random.Random(seed)
    documents = [document for film in in_films(checked(pairs), rng) for document in film]
    save(folder, {SUBTITLES: zipped(moses(documents)), ALIGNMENT: gz(alignment(documents, rng).encode())})
    return [pair for document in documents for pair in document.pairs()]


def in_films(pairs: Sequence[Pair], rng: random.Random) -> Iterator[list[Subtitles]]:
    """Yield the documents of each film."""
    films = list(in_chunks(pairs, iter(lambda: rng.randint(20, 40), 0)))
    for earlier, film in pairwise(films):
        film.insert(rng.randint(0, len(film)), rng.choice(earlier))
    make_links = LinkMaker(rng)
    for name, film in zip(rng.sample(range(6000, 3_000_000), len(films)), films, strict=True):
        parts = dealt(film, [1] * rng.randint(1, min(3, len(film))))
        place, files = f"{rng.randint(1950, 2017)}/{name}", rng.sample(range(1000, 7_000_000), 2 * len(parts))
        # The second Russian document is of the same English one as the first.
        names = [
            (f"en/{place}/{files[-1 - i // 2]}.xml.gz", f"ru/{place}/{files[i]}.xml.gz") for i in range(len(parts))
        ]
        yield [Subtitles(str(name), both, list(make_links(part))) for both, part in zip(names, parts, strict=True)]


def moses(documents: Iterable[Subtitles]) -> Members:
    pairs = [pair for document in documents for pair in document.pairs()]
    ids = [[" ".join(map(str, side)) for side in (pair.english_ids, pair.russian_ids)] for pair in pairs]
    return {
        "README": "Not the real corpus.\n",
        "LICENSE": "Not the real licence.\n",
        "OpenSubtitles.en-ru.en": lines(pair.english for pair in pairs),
        "OpenSubtitles.en-ru.ru": lines(pair.russian for pair in pairs),
        "OpenSubtitles.en-ru.ids": lines("\t".join([*p.documents, *i]) for p, i in zip(pairs, ids, strict=True)),
    }


def alignment(documents: Sequence[Subtitles], rng: random.Random) -> str:
    order = rng.sample(documents, len(documents))
    if order == documents:  # this happens with few documents
        order.reverse()
    return lines(
        [
            '<?xml version="1.0" encoding="utf-8"?>',
            '<!DOCTYPE cesAlign PUBLIC "-//CES//DTD XML cesAlign//EN" "">',
            '<cesAlign version="1.0">',
            *(line for document in order for line in document.xml()),
            "</cesAlign>",
        ]
    )
