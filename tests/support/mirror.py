"""Miniature mirrors of public corpora, in their real layouts, from a few parallel sentences.

The recipes download corpora of millions of sentences; with DATA_DIR=MIRROR_DIR they run on these files instead.

A mirror is a folder laid out `<host>/<path of the address>`, with a `SHA256SUMS`. The same sentences give the same
files. Several mirrors may share a folder.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, cycle, islice, pairwise
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

Item = TypeVar("Item")
Pair = tuple[str, str]  # in the order of the languages in the corpus's name: (en, ru) or (de, en)
Members = Mapping[str, str]  # path in an archive -> text
OTHER = "This does not belong here.\n"  # text of the real archives that a recipe must not read

# --- texts and files ----------------------------------------------------------------------------------------------


def lines(texts: Iterable[str]) -> str:
    """Return the texts, one a line."""
    return "".join(f"{text}\n" for text in texts)


def sides(pairs: Iterable[Pair]) -> tuple[list[str], list[str]]:
    """Return all first texts, and all second ones."""
    pairs = list(pairs)
    return [first for first, _ in pairs], [second for _, second in pairs]


def dealt(items: Sequence[Item], shares: Sequence[int]) -> list[Sequence[Item]]:
    """Split the items into contiguous parts of about these shares."""
    bounds = [round(len(items) * end / sum(shares)) for end in accumulate(shares, initial=0)]
    return [items[start:end] for start, end in pairwise(bounds)]


def in_chunks(items: Iterable[Item], sizes: Iterator[int]) -> Iterator[list[Item]]:
    """Split the items into contiguous parts of these sizes; the last part may be smaller."""
    rest = iter(items)
    while chunk := list(islice(rest, next(sizes))):
        yield chunk


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def tgz(members: Members) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data := text.encode())
            archive.addfile(info, io.BytesIO(data))
    return gz(file.getvalue())


def zipped(members: Members) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(2018, 1, 1, 0, 0, 0)), text)
    return file.getvalue()


def save(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a mirror, and SHA256SUMS of all files in the folder."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"SHA256SUMS"}
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" for name in sorted(names)]
    (folder / "SHA256SUMS").write_text(lines(sums))


# --- WMT ----------------------------------------------------------------------------------------------------------

WMT_SHARES = {"commoncrawl": 45, "news-commentary": 15, "yandex": 30, "wiki-titles": 10}


def make_wmt_mirror(
    folder: Path, train: Sequence[Pair], valid: Sequence[Pair], test: Sequence[Pair]
) -> dict[str, list[Pair]]:
    """Make English-Russian files of four training corpora and two sets of sacrebleu; return the pairs of each."""
    corpora = dict(zip(WMT_SHARES, dealt(train, list(WMT_SHARES.values())), strict=True))
    crawl, news = sides(corpora["commoncrawl"]), sides(corpora["news-commentary"])
    stem = "training-parallel-nc-v13/news-commentary-v13"
    yandex = {"WMT2022-data-main/README.md": "# WMT2022-data\n"}
    for number, part in enumerate(dealt(corpora["yandex"], [1] * 10), 1):
        yandex[f"WMT2022-data-main/en-ru/en-ru.1m_{number}.tsv"] = lines(map("\t".join, part))
    headlines = lines(f"{russian} ||| {english}" for english, russian in corpora["wiki-titles"])
    files = {
        "www.statmt.org/wmt13/training-parallel-commoncrawl.tgz": tgz(
            {
                "commoncrawl.de-en.en": OTHER,
                "commoncrawl.ru-en.annotation": OTHER,
                "commoncrawl.ru-en.en": lines(crawl[0]),
                "commoncrawl.ru-en.ru": lines(crawl[1]),
            }
        ),
        "data.statmt.org/wmt18/translation-task/training-parallel-nc-v13.tgz": tgz(
            {f"{stem}.de-en.en": OTHER, f"{stem}.ru-en.en": lines(news[0]), f"{stem}.ru-en.ru": lines(news[1])}
        ),
        "github.com/mashashma/WMT2022-data/archive/refs/heads/main.zip": zipped(yandex),
        "www.statmt.org/wmt15/wiki-titles.tgz": tgz({"wiki/README": OTHER, "wiki/ru-en/wiki.ru-en": headlines}),
        **sacrebleu_archive("wmt13", valid),
        **sacrebleu_archive("wmt14", test),
    }
    save(folder, files)
    return {name: list(pairs) for name, pairs in corpora.items()}


def sacrebleu_archive(data_set: str, pairs: Sequence[Pair]) -> dict[str, bytes]:
    """Return the archive of a data set as sacrebleu expects it, with the English-Russian files only."""
    from sacrebleu.dataset import DATASETS

    known = DATASETS[data_set]
    source, *references = known.langpairs["en-ru"]
    english, russian = sides(pairs)
    members = {source: sgm(source, english)} | {name: sgm(name, russian) for name in references}
    address = urlsplit(known.data[0])
    return {f"{address.hostname}{address.path}": tgz(members)}


def sgm(name: str, texts: Sequence[str]) -> str:
    """Return an .sgm file of WMT, one segment a line. The texts are not escaped: sacrebleu does not decode entities."""
    stem = PurePosixPath(name).name
    kind, target = ("refset", ' trglang="ru"') if "-ref" in stem else ("srcset", "")
    result = [f'<{kind} setid="{stem.partition("-")[0]}" srclang="any"{target}>']
    for number, segments in enumerate(in_chunks(texts, cycle((5, 9, 3)))):
        result.append(f'<doc sysid="ref" docid="example.org.{number}" genre="news" origlang="en">')
        result += [*(f'<seg id="{i}">{text}</seg>' for i, text in enumerate(segments, 1)), "</doc>"]
    return lines([*result, f"</{kind}>"])


# --- IWSLT14 ------------------------------------------------------------------------------------------------------

IWSLT14 = "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
IWSLT_SETS = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]  # as fairseq joins them


def make_iwslt_mirror(folder: Path, train: Sequence[Pair], test: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Make the archive of German-English IWSLT14. Return the pairs of `train` and of the five small sets, by name.

    The training text has plain lines, with the fields of a talk on lines of their own before; the sets are XML with the
    same fields. The pairs of `train` contain the titles and descriptions of the talks, as after fairseq's preparation.
    """
    sets = dict(zip(IWSLT_SETS, dealt(test, [1] * 5), strict=True))
    talks = list(in_chunks(train, cycle((12, 20, 7))))
    members = {"de-en/train.en": OTHER}
    for index, language in enumerate(("de", "en")):
        tagged = ([*fields(n, index), *(pair[index] for pair in talk)] for n, talk in enumerate(talks, 1))
        members[f"de-en/train.tags.de-en.{language}"] = lines(line for talk in tagged for line in talk)
        for name, pairs in sets.items():
            members[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = mteval(index, sides(pairs)[index])
    save(folder, {IWSLT14: tgz(members)})
    return {
        "train": [pair for number, talk in enumerate(talks, 1) for pair in [*head(number), *talk]],
        **{name: list(pairs) for name, pairs in sets.items()},
    }


def head(number: int) -> list[Pair]:
    """Return title and description of a talk, in both languages; the German description of every third is empty."""
    german = "" if number % 3 == 0 else f"Ein Vortrag über die Zahl {number}."
    return [(f"Vortrag {number}", f"Talk {number}"), (german, f"A talk about the number {number}.")]


def fields(number: int, index: int) -> list[str]:
    """Return the fields of a talk, each on a line."""
    title, description = (pair[index] for pair in head(number))
    return [
        f"<url>http://www.ted.com/talks/talk_{number}.html</url>",
        "<keywords>talks, example</keywords>",
        f"<talkid>{number}</talkid>",
        f"<title>{title}</title>",
        f"<description>{description}</description>",
    ]


def mteval(index: int, texts: Sequence[str]) -> str:
    """Return one side of a small set in the XML format of the campaign's scoring tool."""
    kind = ("srcset", "refset")[index]
    result = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", f'<{kind} setid="iwslt2014" srclang="german">']
    for number, segments in enumerate(in_chunks(texts, cycle((5, 9, 3))), 1001):
        segs = [f'<seg id="{i}"> {escape(text)} </seg>' for i, text in enumerate(segments, 1)]
        result += [f'<doc docid="{number}" genre="lectures">', *fields(number, index), *segs, "</doc>"]
    return lines([*result, f"</{kind}>", "</mteval>"])


# --- OpenSubtitles --------------------------------------------------------------------------------------------------

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
    films = list(in_chunks(pairs, iter(lambda: rng.randint(20, 40), 0)))
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
