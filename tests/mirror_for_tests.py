"""Makes a miniature mirror of public corpora, in their real layouts, from a few parallel sentences.

The recipes download corpora of millions of sentences; this is what they can be tried on. A mirror is a folder laid out
`<host>/<path of the address>`, which is what `wget -x` makes, with a `SHA256SUMS` in its root as sha256sum writes it.
The same sentences give the same files, byte for byte. Several mirrors may share a folder.

    python tests/mirror_for_tests.py wmt|opensubtitles|iwslt14 TEXT_DIR MIRROR_DIR [--train N]

TEXT_DIR holds {train,valid,test}.{en,ru} ({de,en} for iwslt14), plain or as .gz; N is the number of training pairs.
"""

from __future__ import annotations

import argparse
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

COMMONCRAWL = "www.statmt.org/wmt13/training-parallel-commoncrawl.tgz"
NEWS_COMMENTARY = "data.statmt.org/wmt18/translation-task/training-parallel-nc-v13.tgz"
YANDEX = "github.com/mashashma/WMT2022-data/archive/refs/heads/main.zip"
WIKI_TITLES = "data.statmt.org/wikititles/v2/wikititles-v2.ru-en.tsv.gz"
SUBTITLES = "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/moses/en-ru.txt.zip"
ALIGNMENT = "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/xml/en-ru.xml.gz"
IWSLT14 = "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"

WMT_SHARES = {"commoncrawl": 45, "news-commentary": 15, "yandex": 30, "wiki-titles": 10}
IWSLT_SETS = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]  # as fairseq joins them

# What the real archives hold besides: no recipe may take it.
OTHER_GERMAN = ["Das gehört nicht hierher.", "Und das auch nicht."]
OTHER_ENGLISH = ["This does not belong here.", "Nor does that."]


# --- texts --------------------------------------------------------------------------------------------------------


def lines(texts: Iterable[str]) -> str:
    """One text a line."""
    return "".join(f"{text}\n" for text in texts)


def checked(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The pairs, if each text fits on a line and in a column."""
    for text in (text for pair in pairs for text in pair):
        if any(character in text for character in "\t\n\r"):
            raise ValueError(f"{text!r} has a tab or a line break: make it one line without tabs")
    return pairs


def sides(pairs: Iterable[Pair]) -> tuple[list[str], list[str]]:
    """All first texts, and all second ones."""
    pairs = list(pairs)
    return [first for first, _ in pairs], [second for _, second in pairs]


def dealt(items: Sequence[Item], shares: Sequence[int]) -> list[Sequence[Item]]:
    """The items in contiguous parts of about these shares."""
    bounds = [round(len(items) * end / sum(shares)) for end in accumulate(shares, initial=0)]
    return [items[start:end] for start, end in pairwise(bounds)]


def in_chunks(items: Iterable[Item], sizes: Iterator[int]) -> Iterator[list[Item]]:
    """The items in contiguous parts of these sizes; the last part may be smaller."""
    rest = iter(items)
    while chunk := list(islice(rest, next(sizes))):
        yield chunk


# --- files --------------------------------------------------------------------------------------------------------


def with_folders(members: Members) -> Iterator[tuple[str, bytes]]:
    """The members of an archive, each folder (its name ends in /) before what lies in it."""
    seen = set()
    for name, text in members.items():
        for folder in reversed(PurePosixPath(name).parents[:-1]):
            if folder not in seen:
                seen.add(folder)
                yield f"{folder}/", b""
        yield name, text.encode()


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def tgz(members: Members) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in with_folders(members):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_400_000_000
            if name.endswith("/"):
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info, io.BytesIO(data))
    return gz(file.getvalue())


def zipped(members: Members) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in with_folders(members):
            info = zipfile.ZipInfo(name, date_time=(2018, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix, on whatever system the tests run
            info.external_attr = (0o40755 << 16 | 0x10) if name.endswith("/") else 0o100644 << 16
            info.compress_type = zipfile.ZIP_STORED if name.endswith("/") else zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return file.getvalue()


def save(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of a mirror, and the SHA256SUMS of all that is there then."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"SHA256SUMS"}
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" for name in sorted(names)]
    (folder / "SHA256SUMS").write_bytes(lines(sums).encode())


# --- WMT ----------------------------------------------------------------------------------------------------------


def make_wmt_mirror(
    folder: Path,
    train: Sequence[Pair],
    valid: Sequence[Pair],
    test: Sequence[Pair],
    valid_set: str = "wmt13",
    test_set: str = "wmt14",
) -> dict[str, list[Pair]]:
    """English-Russian: four training corpora, and two data sets of sacrebleu; the training pairs of each corpus.

        www.statmt.org/wmt13/training-parallel-commoncrawl.tgz      commoncrawl.ru-en.{ru,en}
        data.statmt.org/.../training-parallel-nc-v13.tgz            training-parallel-nc-v13/*.ru-en.{ru,en}
        github.com/.../main.zip                                     WMT2022-data-main/en-ru/en-ru.1m_{1..10}.tsv
        data.statmt.org/.../wikititles-v2.ru-en.tsv.gz              Russian, tab, English
        statmt.org/wmt13/test.tgz, statmt.org/wmt14/...             test/newstest*.sgm

    The last two, or those of other data sets, lie where sacrebleu would download them from.
    """
    if valid_set == test_set:
        raise ValueError(f"{valid_set!r} cannot be both the development and the test set")
    corpora = dict(zip(WMT_SHARES, dealt(checked(train), list(WMT_SHARES.values())), strict=True))
    files = {
        COMMONCRAWL: tgz(commoncrawl(corpora["commoncrawl"])),
        NEWS_COMMENTARY: tgz(news_commentary(corpora["news-commentary"])),
        YANDEX: zipped(yandex(corpora["yandex"])),
        WIKI_TITLES: gz(lines(f"{russian}\t{english}" for english, russian in corpora["wiki-titles"]).encode()),
        **sacrebleu_archive(valid_set, checked(valid)),
        **sacrebleu_archive(test_set, checked(test)),
    }
    save(folder, files)
    return {name: list(pairs) for name, pairs in corpora.items()}


def commoncrawl(pairs: Sequence[Pair]) -> Members:
    english, russian = sides(pairs)
    return {
        "commoncrawl.de-en.de": lines(OTHER_GERMAN),
        "commoncrawl.de-en.en": lines(OTHER_ENGLISH),
        "commoncrawl.ru-en.annotation": lines(f"http://example.org/page{n}.html" for n in range(len(pairs))),
        "commoncrawl.ru-en.en": lines(english),
        "commoncrawl.ru-en.ru": lines(russian),
    }


def news_commentary(pairs: Sequence[Pair]) -> Members:
    english, russian = sides(pairs)
    stem = "training-parallel-nc-v13/news-commentary-v13"
    return {
        f"{stem}.de-en.de": lines(OTHER_GERMAN),
        f"{stem}.de-en.en": lines(OTHER_ENGLISH),
        f"{stem}.ru-en.en": lines(english),
        f"{stem}.ru-en.ru": lines(russian),
    }


def yandex(pairs: Sequence[Pair]) -> Members:
    """Archives of a branch on GitHub have one folder, named after repository and branch, around everything."""
    members = {"README.md": "# WMT2022-data\n", "LICENSE": "Not the real licence.\n"}
    for number, part in enumerate(dealt(pairs, [1] * 10), 1):
        members[f"en-ru/en-ru.1m_{number}.tsv"] = lines("\t".join(pair) for pair in part)
    return {f"WMT2022-data-main/{name}": text for name, text in members.items()}


def sacrebleu_archive(data_set: str, pairs: Sequence[Pair]) -> dict[str, bytes]:
    """The archive of a data set as sacrebleu expects it, with the English-Russian files only."""
    from sacrebleu.dataset import DATASETS
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    known = DATASETS.get(data_set)
    if type(known) is not FakeSGMLDataset or not known.data or "en-ru" not in known.langpairs:
        raise ValueError(f"{data_set!r} is no data set of sacrebleu with English-Russian .sgm files")
    source, *references = known.langpairs["en-ru"]
    english, russian = sides(pairs)
    members = {source: sgm(source, english)} | {name: sgm(name, russian) for name in references}
    address = urlsplit(known.data[0])
    return {f"{address.hostname}{address.path}": tgz(members)}


def sgm(name: str, texts: Sequence[str]) -> str:
    """An .sgm file of WMT, one segment a line, the segments numbered in each document.

    The texts stand as they are. The real files have &amp; for &, and sacrebleu leaves it so; an entity written here
    would be in what sacrebleu reads, which is to be the texts.
    """
    stem = PurePosixPath(name).name
    kind, target = ("refset", ' trglang="ru"') if "-ref" in stem else ("srcset", "")
    result = [f'<{kind} setid="{stem.partition("-")[0]}" srclang="any"{target}>']
    for number, segments in enumerate(in_chunks(texts, cycle((5, 9, 3)))):
        origin = ("en", "ru")[number % 2]
        result.append(f'<doc sysid="ref" docid="example.org.{number}" genre="news" origlang="{origin}">')
        numbered = [f'<seg id="{i}">{text}</seg>' for i, text in enumerate(segments, 1)]
        result += ["<hl>", numbered[0], "</hl>"]
        for paragraph in in_chunks(numbered[1:], cycle((3,))):
            result += ["<p>", *paragraph, "</p>"]
        result.append("</doc>")
    return lines([*result, f"</{kind}>"])


# --- OpenSubtitles ------------------------------------------------------------------------------------------------

# What happens to the links, each a deck that is shuffled, dealt to its end, and shuffled again: no case is rare.
OVERLAPS = [(900, 900), (899, 899), (1000, 1000), None, *[(901, 999)] * 10, *[(300, 898)] * 6]  # thousandths, from-to
SHAPES = [*[(1, 1, False)] * 15, (2, 1, False), (2, 1, True), (1, 2, False), (1, 2, True), (2, 2, True)]
UNPAIRED = [*[(0, 0)] * 8, (1, 0), (0, 2)]  # sentences on one side before a link that have nothing on the other


@dataclass(frozen=True)
class SubtitlePair:
    """A line of the Moses files, and what the alignment says about it; sentence ids in the order of .ids."""

    english: str
    russian: str
    overlap: float | None
    film: str
    documents: tuple[str, str]
    english_ids: tuple[int, ...]
    russian_ids: tuple[int, ...]


@dataclass(frozen=True)
class Link:
    """A link of the alignment; it has no pair where one of the sides is empty."""

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
    """Makes links around sentence pairs, with all that makes the real ones hard to read."""

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
    """English-Russian OpenSubtitles v2018: the lines of the Moses files, in order, with what is true of them.

        object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/moses/en-ru.txt.zip    OpenSubtitles.en-ru.{en,ru,ids}
        object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/xml/en-ru.xml.gz       the alignment, XCES

    A line of .ids is English document, Russian document, English sentence ids, Russian sentence ids, with tabs between
    and blanks between ids. A film, the third part of a document's path, has 20 to 40 pairs in one to three pairs of
    documents. In the alignment, the documents stand in another order, and the ids of some links too; links with an
    empty side are in no Moses file; a few links that are there have no overlap. All films but the first repeat a pair
    of the film before, so there are a few more lines than `pairs`.
    """
    rng = random.Random(seed)
    documents = [document for film in in_films(checked(pairs), rng) for document in film]
    save(folder, {SUBTITLES: zipped(moses(documents)), ALIGNMENT: gz(alignment(documents, rng).encode())})
    return [pair for document in documents for pair in document.pairs()]


def in_films(pairs: Sequence[Pair], rng: random.Random) -> Iterator[list[Subtitles]]:
    """The documents of each film."""
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
    if order == documents:  # possible with a few documents
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


# --- IWSLT14 ------------------------------------------------------------------------------------------------------

LANGUAGES = {"de": "german", "en": "english"}
TITLE = {"de": "Sprecher {0}: Vortrag {0}", "en": "Speaker {0}: Talk {0}"}
DESCRIPTION = {"de": "Ein Vortrag über die Zahl {0}.", "en": "A talk about the number {0}."}


def make_iwslt_mirror(
    folder: Path,
    train: Sequence[Pair],
    valid: Sequence[Pair] | None = None,
    test: Sequence[Pair] = (),
    later_fields: bool = False,
) -> dict[str, list[Pair]]:
    """German-English talks of IWSLT14: the pairs of `train` and of the five small sets, by name.

        dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz
            de-en/train.tags.de-en.{de,en}              plain lines; the fields of a talk on lines of their own before
            de-en/IWSLT14.{TED,TEDX}.*.de-en.{de,en}.xml     <seg> lines, and the same fields, in well-formed XML

    fairseq makes its test set of all five sets, and its validation set of every 23rd training pair. `test` is therefore
    dealt out over the five; if there is a `valid`, it goes to the two dev sets and `test` to the three tst sets.

    The pairs of `train` are what fairseq's preparation leaves: the titles and descriptions of the talks too. Of every
    third talk the German description is empty. The files of 2014 have the fields that fairseq knows, url, keywords,
    talkid, title and description; `later_fields` adds those of later years to the training files: speaker, transcript,
    reviewer and translator.
    """
    if valid is None:
        parts = dealt(checked(test), [1] * 5)
    else:
        parts = [*dealt(checked(valid), [1] * 2), *dealt(checked(test), [1] * 3)]
    sets = dict(zip(IWSLT_SETS, parts, strict=True))
    talks = list(in_chunks(checked(train), cycle((12, 20, 7))))
    save(folder, {IWSLT14: tgz(iwslt_members(talks, sets, later_fields))})
    return {
        "train": [pair for number, talk in enumerate(talks, 1) for pair in [*head(number), *talk]],
        **{name: list(pairs) for name, pairs in sets.items()},
    }


def iwslt_members(talks: list[list[Pair]], sets: Mapping[str, Sequence[Pair]], later_fields: bool) -> Members:
    members = {"README": "Not the real corpus.\n", "train.en": lines(OTHER_ENGLISH)}
    for index, language in enumerate(LANGUAGES):
        tagged = (
            tagged_talk(number, index, [pair[index] for pair in talk], later_fields)
            for number, talk in enumerate(talks, 1)
        )
        members[f"train.tags.de-en.{language}"] = lines(line for talk in tagged for line in talk)
        for name, pairs in sets.items():
            members[f"IWSLT14.{name}.de-en.{language}.xml"] = mteval(name, index, sides(pairs)[index])
    return {f"de-en/{name}": members[name] for name in sorted(members)}


def head(number: int) -> list[Pair]:
    """Title and description of a talk, in both languages."""
    german = "" if number % 3 == 0 else DESCRIPTION["de"].format(number)
    return [(TITLE["de"].format(number), TITLE["en"].format(number)), (german, DESCRIPTION["en"].format(number))]


def fields(number: int, index: int, speaker: bool) -> list[str]:
    """The fields of a talk, each on a line."""
    title, description = (pair[index] for pair in head(number))
    return [
        f"<url>http://www.ted.com/talks/talk_{number}.html</url>",
        "<keywords>talks, example</keywords>",
        *([f"<speaker>Speaker {number}</speaker>"] if speaker else []),
        f"<talkid>{number}</talkid>",
        f"<title>{title}</title>",
        f"<description>{description}</description>",
    ]


def tagged_talk(number: int, index: int, texts: Sequence[str], later_fields: bool) -> list[str]:
    """A talk in the training data: its fields, then its sentences as plain lines."""
    before = fields(number, index, speaker=later_fields)
    if not later_fields:
        return [*before, *texts]
    people = [
        f'<{role} href="http://www.ted.com/profiles/{number}">Somebody</{role}>' for role in ("reviewer", "translator")
    ]
    return [*before, "<transcript>", *texts, "</transcript>", *people]


def mteval(name: str, index: int, texts: Sequence[str]) -> str:
    """One side of a small set: XML as the scoring tool of the campaign reads it."""
    setid = f"iwslt2014-{name.rpartition('.')[2]}"
    kind = ("srcset", "refset")[index]
    more = ("", ' trglang="english" refid="ref"')[index]
    result = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", f'<{kind} setid="{setid}" srclang="german"{more}>']
    for number, segments in enumerate(in_chunks(texts, cycle((5, 9, 3))), 1001):
        result += [f'<doc docid="{number}" genre="lectures">', *fields(number, index, speaker=True)]
        result += [f'<seg id="{i}"> {escape(text)} </seg>' for i, text in enumerate(segments, 1)]
        result.append("</doc>")
    return lines([*result, f"</{kind}>", "</mteval>"])


# --- the command --------------------------------------------------------------------------------------------------


def read_side(folder: Path, name: str) -> list[str]:
    """The lines of a file, plain or .gz, without what would not fit in a column."""
    packed = folder / f"{name}.gz"
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    return [line.replace("\t", " ").replace("\r", " ").strip() for line in data.decode().removesuffix("\n").split("\n")]


def read_pairs(folder: Path, split: str, languages: Sequence[str]) -> list[Pair]:
    first, second = (read_side(folder, f"{split}.{language}") for language in languages)
    return list(zip(first, second, strict=True))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["wmt", "opensubtitles", "iwslt14"])
    parser.add_argument("text_dir", type=Path)
    parser.add_argument("mirror_dir", type=Path)
    parser.add_argument("--train", type=int, metavar="N", help="take the first N training pairs only")
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
    main()
