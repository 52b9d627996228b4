#!/usr/bin/env python3
"""Gets the corpora of a recipe: finds or downloads their files, checks them, keeps a manifest, unpacks them.

    corpora.py list   COLLECTION                                 the files and where they come from
    corpora.py fetch  COLLECTION DOWNLOADS [--data-dir PLACE]    each file, whole and checked, in DOWNLOADS
    corpora.py unpack COLLECTION DOWNLOADS TEXT_DIR              CORPUS.SRC and CORPUS.TGT, one sentence a line

COLLECTION is `wmt-en-ru[:DEV,TEST]` (test sets as sacrebleu names them, default wmt13,wmt14), `opensubtitles-en-ru` or
`iwslt14-de-en`.

PLACE is a folder or the address of a mirror; fetching.py says what it may look like, and how files are checked.
"""

from __future__ import annotations

import argparse
import gzip
import html
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO

from fetching import BROKEN_ARCHIVE, Refused, Source, does_not_open, fetch
from rules import sacrebleu_sets
from tqdm import tqdm

from fairseq_headgates.cli.parser import ArgumentParser
from fairseq_headgates.files import replacing, write_whole

STATMT = "http://data.statmt.org"
OPUS = "https://object.pouta.csc.fi/OPUS-OpenSubtitles/v2018"


@dataclass(frozen=True)
class Corpus:
    """Parallel text in one file: `read(path, language)` gives the lines of one side."""

    name: str
    source: Source
    read: Callable[[Path, str], Iterable[str]]


# --- what the collections consist of -------------------------------------------------------------------------


def wmt(dev: str, test: str) -> list[Corpus]:
    """The training data of Voita et al. 2019, section 4.1, and a dev and a test set of sacrebleu."""
    crawl = Source("commoncrawl.tgz", "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz")
    news = Source("news-commentary-v13.tgz", f"{STATMT}/wmt18/translation-task/training-parallel-nc-v13.tgz")
    yandex = Source("yandex-1m.zip", "https://github.com/mashashma/WMT2022-data/archive/refs/heads/main.zip")
    titles = Source("wikititles-v2.ru-en.tsv.gz", f"{STATMT}/wikititles/v2/wikititles-v2.ru-en.tsv.gz")
    parts = [f"WMT2022-data-main/en-ru/en-ru.1m_{part}.tsv" for part in range(1, 11)]
    return [
        Corpus("commoncrawl", crawl, members("commoncrawl.ru-en.{}")),
        Corpus("news-commentary", news, members("training-parallel-nc-v13/news-commentary-v13.ru-en.{}")),
        Corpus("yandex", yandex, columns(("en", "ru"), parts)),
        Corpus("wiki-titles", titles, columns(("ru", "en"))),
        sacrebleu_set("valid", dev, "en-ru"),
        sacrebleu_set("test", test, "en-ru"),
    ]


def opensubtitles() -> list[Corpus]:
    """OpenSubtitles2018 (Lison et al. 2018): sentences and their ids, and the alignment with the overlap in time."""
    moses = Source("opensubtitles-v2018.en-ru.txt.zip", f"{OPUS}/moses/en-ru.txt.zip")
    alignment = Source("opensubtitles-v2018.en-ru.xml.gz", f"{OPUS}/xml/en-ru.xml.gz")
    return [Corpus("opensubtitles", moses, members("OpenSubtitles.en-ru.{}")), Corpus("alignment", alignment, whole)]


def iwslt14() -> list[Corpus]:
    """IWSLT14 as fairseq's users know it: the talks of 2014, the five small sets together as the test set."""
    talks = Source("iwslt14.de-en.tgz", "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
    sets = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]
    return [
        Corpus("talks", talks, talk_sentences("de-en/train.tags.de-en.{}")),
        Corpus("test", talks, segments([f"de-en/IWSLT14.{name}.de-en.{{}}.xml" for name in sets])),
    ]


def collection(name: str) -> list[Corpus]:
    kind, _, sets = name.partition(":")
    dev, _, test = (sets or "wmt13,wmt14").partition(",")
    known = {"wmt-en-ru": lambda: wmt(dev, test), "opensubtitles-en-ru": opensubtitles, "iwslt14-de-en": iwslt14}
    if kind not in known:
        raise Refused(f"{name!r} is no collection: take one of {', '.join(known)}")
    if sets and kind != "wmt-en-ru":
        raise Refused(f"{name!r}: {kind} has no sets to choose, leave out :{sets}")
    return known[kind]()


def languages(name: str) -> tuple[str, str]:
    return tuple(name.partition(":")[0].split("-")[-2:])


def sources(corpora: Iterable[Corpus]) -> list[Source]:
    """Each file once, in order."""
    return list(dict.fromkeys(corpus.source for corpus in corpora))


# --- reading ------------------------------------------------------------------------------------------------


@contextmanager
def open_member(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    """A file inside a tar or zip archive, or what a .gz file holds, to be read from beginning to end."""
    with ExitStack() as stack:
        if member is None:
            yield stack.enter_context(gzip.open(path))
            return
        zipped = path.suffix == ".zip"
        archive = stack.enter_context(zipfile.ZipFile(path) if zipped else tarfile.open(path))  # noqa: SIM115
        names = archive.namelist() if zipped else archive.getnames()
        if member not in names:
            some = ", ".join(names[:3])
            raise Refused(f"{path} has no member {member}, but for example {some}: is it the right file?")
        yield stack.enter_context(archive.open(member) if zipped else archive.extractfile(member))


# A line ends at \n and nowhere else; these would end one in some tool later on, and the two sides would part.
BREAKS = re.compile("[\t\r\x00\x0b\x0c\x1c-\x1e\x85\u2028\u2029\ufeff]+")


def lines(path: Path, member: str | None = None) -> Iterator[str]:
    """The lines without their ends; bytes that are no UTF-8 become U+FFFD."""
    try:
        with open_member(path, member) as file:
            for line in file:
                yield line.decode("utf-8", errors="replace").rstrip("\r\n")
    except BROKEN_ARCHIVE as error:
        raise Refused(f"{path} {does_not_open(error)}") from None


def members(pattern: str) -> Callable[[Path, str], Iterable[str]]:
    """One member for each language."""
    return lambda path, language: lines(path, pattern.format(language))


def columns(order: tuple[str, str], parts: Iterable[str | None] = (None,)) -> Callable[[Path, str], Iterable[str]]:
    """Two columns of tab-separated text, over one or several members; rows of fewer or more are empty pairs."""

    def read(path: Path, language: str) -> Iterator[str]:
        rows = pairs = 0
        for part in parts:
            for line in lines(path, part):
                cells = line.split("\t")
                rows += 1
                pairs += len(cells) == 2
                yield cells[order.index(language)] if len(cells) == 2 else ""
        if rows and not pairs:
            raise Refused(f"{path}: none of {rows:,} rows has two columns, with a tab between: is it the right file?")

    return read


def whole(path: Path, language: str) -> Iterable[str]:
    """Not text to be unpacked."""
    return ()


TALK_FIELDS_WITHOUT_TEXT = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|transcript|doc)\b")
TAGS_OF_TEXT = re.compile(r"^\s*<(title|description)>|</(title|description)>\s*$")
SEGMENT = re.compile(r"\s*<seg\b[^>]*>(.*?)(</seg>\s*)?")


def talk_sentences(pattern: str) -> Callable[[Path, str], Iterable[str]]:
    """The sentences of talks, with titles and descriptions, without the other fields."""

    def read(path: Path, language: str) -> Iterator[str]:
        for line in lines(path, pattern.format(language)):
            if not TALK_FIELDS_WITHOUT_TEXT.match(line):
                yield TAGS_OF_TEXT.sub("", line).strip()

    return read


def segments(patterns: Iterable[str]) -> Callable[[Path, str], Iterable[str]]:
    """The <seg> lines of several members, which are XML: &amp; is & there."""

    def read(path: Path, language: str) -> Iterator[str]:
        for pattern in patterns:
            for line in lines(path, pattern.format(language)):
                if found := SEGMENT.fullmatch(line):
                    yield html.unescape(found[1]).strip()

    return read


def sacrebleu_set(name: str, data_set: str, pair: str) -> Corpus:
    from sacrebleu.dataset import DATASETS

    fitting = sacrebleu_sets(pair)
    if data_set not in fitting:
        raise Refused(f"{data_set!r} is no set of sacrebleu with {pair}: take one of {' '.join(fitting)}")
    found = DATASETS[data_set]
    file = f"{data_set.replace('/', '_')}.{found.data[0].rpartition('/')[2]}"
    source = Source(file, found.data[0], found.md5[0] if found.md5 else None)

    def read(path: Path, language: str) -> Iterable[str]:
        field = "src" if language == pair.partition("-")[0] else "ref"
        with unpacking_folder(path) as folder:
            raw = folder / data_set / "raw"
            raw.mkdir(parents=True)
            try:
                shutil.unpack_archive(path, raw, filter="data")
            except BROKEN_ARCHIVE as error:
                raise Refused(f"{path} {does_not_open(error)}") from None
            # sacrebleu takes a file that is there for downloaded and unpacked.
            (raw / file).symlink_to(path.resolve())
            command = [sys.executable, "-m", "sacrebleu", "-t", data_set, "-l", pair, "--echo", field]
            env = os.environ | {"SACREBLEU": str(folder.resolve()), "PYTHONUTF8": "1"}
            result = subprocess.run(command, env=env, capture_output=True, check=False)
        if result.returncode:
            raise Refused(f"sacrebleu cannot read {path}: {result.stderr.decode().strip().splitlines()[-1]}")
        return result.stdout.decode("utf-8").split("\n")[:-1]

    return Corpus(name, source, read)


@contextmanager
def unpacking_folder(path: Path) -> Iterator[Path]:
    """A folder beside the file, on the same disk, which is gone afterwards."""
    folder = path.parent / f"{path.name}.unpacked"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- unpacking --------------------------------------------------------------------------------------------------


def unpack(name: str, folder: Path, texts: Path) -> None:
    """CORPUS.SRC and CORPUS.TGT of every corpus, one sentence a line; prints the number of pairs of each."""
    corpora, pair = collection(name), languages(name)
    texts.mkdir(parents=True, exist_ok=True)
    for corpus in corpora:
        path = folder / corpus.source.name
        if not path.exists():
            raise Refused(f"{path} is missing: run `corpora.py fetch {name} {folder}` first")
        count = texts / f"{corpus.name}.count"  # written last: both sides are there
        if not count.exists():
            number, replaced = write_pairs(
                path, corpus, [texts / f"{corpus.name}.{language}" for language in pair], pair
            )
            note = f", {replaced:,} characters U+FFFD, which stands for what is no UTF-8" if replaced else ""
            write_whole(count, f"{corpus.name}: {number:,} pairs{note}\n", force=True)
        print(count.read_text(encoding="utf-8"), end="")


def write_pairs(path: Path, corpus: Corpus, outputs: list[Path], pair: tuple[str, str]) -> tuple[int, int]:
    """Both sides of a corpus, line by line; how many pairs, and how many characters had to be replaced."""
    sides = [iter(corpus.read(path, language)) for language in pair]
    counts, replaced = [0, 0], 0
    with ExitStack() as stack:
        names = [stack.enter_context(replacing(output, force=True)) for output in outputs]
        files = [stack.enter_context(name.open("w", encoding="utf-8", newline="\n")) for name in names]
        for texts in tqdm(zip_longest(*sides), desc=corpus.name, unit=" pairs", unit_scale=True, disable=None):
            for i, text in enumerate(texts):
                if text is not None:
                    counts[i] += 1
                    replaced += text.count("\ufffd")
                    files[i].write(one_line(text) + "\n")
        if counts[0] != counts[1]:
            numbers = " and ".join(f"{n:,} lines in {language}" for n, language in zip(counts, pair, strict=True))
            raise Refused(f"{path}: {corpus.name} has {numbers}: the two sides must be aligned, get the file anew")
    return counts[0], replaced


def one_line(text: str) -> str:
    """Without what would end a line, or a column, in a later tool; without blanks around."""
    return BREAKS.sub(" ", text).strip()


# --- the command --------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "fetch", "unpack"])
    parser.add_argument("collection")
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--data-dir", metavar="PLACE")
    args = parser.parse_args(argv)
    wants = {"list": 0, "fetch": 1, "unpack": 2}[args.command]
    if len(args.folders) != wants:
        parser.error(f"{args.command} takes {wants} folders after the collection, not {len(args.folders)}")
    try:
        if args.command == "list":
            for source in sources(collection(args.collection)):
                print(f"{source.name}\t{source.address}")
        elif args.command == "fetch":
            fetch(sources(collection(args.collection)), args.folders[0], args.data_dir)
        else:
            unpack(args.collection, *args.folders)
    except (Refused, ValueError, OSError) as error:
        print(f"corpora.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("corpora.py: stopped; run it again and it goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
