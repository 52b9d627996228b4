"""Miniature mirror of OpenSubtitles v2018: sentences, their ids, and the alignment."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise
from pathlib import Path

from support.miniature import Pair, checked, gz, in_chunks, lines, save, zipped

SUBTITLES = "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/moses/en-ru.txt.zip"
ALIGNMENT = "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/xml/en-ru.xml.gz"

# Properties of the links: thousandths of overlap, from-to; sentences of each side, and whether the alignment has their
# ids backwards. Before some links a sentence has no translation.
OVERLAPS = [(900, 900), (899, 899), (1000, 1000), None, *[(901, 999)] * 10, *[(300, 898)] * 6]
SHAPES = [*[(1, 1, 1)] * 15, (2, 1, 1), (2, 1, -1), (1, 2, 1), (1, 2, -1), (2, 2, -1)]


@dataclass(frozen=True)
class SubtitlePair:
    """A line of the Moses files with its overlap in the alignment, and its link."""

    english: str
    russian: str
    overlap: float | None
    film: str
    documents: tuple[str, str]
    ids: tuple[str, str]
    xml: str


def make_subtitles_mirror(folder: Path, pairs: Sequence[Pair], seed: int = 1) -> list[SubtitlePair]:
    """Make the files of English-Russian OpenSubtitles v2018. Return the lines of the Moses files with their properties.

        object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/moses/en-ru.txt.zip    OpenSubtitles.en-ru.{en,ru,ids}
        object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/xml/en-ru.xml.gz       the alignment, XCES

    A line of .ids is English document, Russian document, English sentence ids, Russian sentence ids, with tabs between
    and blanks between ids. A film, the third part of a document's path, has 20 to 40 pairs. In the alignment, the
    documents have another order, and the ids of some links too; links with an empty side are not in the Moses files; a
    few of the other links have no overlap. All films but the first repeat a pair of the film before.
    """
    rng = random.Random(seed)
    films = list(in_chunks(checked(pairs), iter(lambda: rng.randint(20, 40), 0)))
    for earlier, film in pairwise(films):
        film.insert(rng.randint(0, len(film)), rng.choice(earlier))
    found = [list(in_film(film, 6000 + number, rng)) for number, film in enumerate(films)]
    made = [pair for film in found for pair in film]
    moses = {
        "en": lines(pair.english for pair in made),
        "ru": lines(pair.russian for pair in made),
        "ids": lines("\t".join([*pair.documents, *pair.ids]) for pair in made),
    }
    members = {"README": "Not the real corpus.\n"} | {f"OpenSubtitles.en-ru.{name}": moses[name] for name in moses}
    save(folder, {SUBTITLES: zipped(members), ALIGNMENT: gz(alignment(found[::-1]).encode())})
    return made


def in_film(film: Sequence[Pair], name: int, rng: random.Random) -> Iterable[SubtitlePair]:
    """Yield the pairs of a film; its ids rise on both sides."""
    documents = f"en/2001/{name}/{2 * name}.xml.gz", f"ru/2001/{name}/{2 * name + 1}.xml.gz"
    sentences = count(rng.randint(1, 9)), count(rng.randint(1, 9))
    for pair in film:
        unpaired = "".join(f'<link xtargets="{next(sentences[0])};" />' for _ in range(rng.choice([0, 0, 0, 1])))
        bounds, (*sizes, step) = rng.choice(OVERLAPS), rng.choice(SHAPES)
        ids = [list(islice(side, size)) for side, size in zip(sentences, sizes, strict=True)]
        overlap = None if bounds is None else rng.randint(*bounds) / 1000
        targets = ";".join(" ".join(map(str, side[::step])) for side in ids)
        xml = f'{unpaired}<link xtargets="{targets}"' + ("" if overlap is None else f' overlap="{overlap:.3f}"') + " />"
        texts = [" ".join(map(str, side)) for side in ids]
        yield SubtitlePair(*pair, overlap, str(name), documents, (texts[0], texts[1]), xml)


def alignment(films: Iterable[Sequence[SubtitlePair]]) -> str:
    groups = []
    for film in films:
        groups.append('<linkGrp targType="s" fromDoc="{}" toDoc="{}" >'.format(*film[0].documents))
        groups += [*(pair.xml for pair in film), "</linkGrp>"]
    return lines(['<?xml version="1.0" encoding="utf-8"?>', '<cesAlign version="1.0">', *groups, "</cesAlign>"])
