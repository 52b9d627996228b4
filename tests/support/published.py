"""Miniature downloads of the published corpora, in their real layouts, as the rules of the recipes read them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from hashlib import md5
from pathlib import Path
from xml.sax.saxutils import escape

Pair = tuple[str, str]
OTHER = "This does not belong here.\n"  # text of the real archives that a recipe must not read
IWSLT_SETS = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]  # as fairseq joins them


def lines(texts: Iterable[str]) -> str:
    """Return the texts, one a line."""
    return "".join(f"{text}\n" for text in texts)


def save(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def tgz(members: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data := text.encode())
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def zipped(members: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file.getvalue()


def wmt(downloads: Path, parts: Sequence[Sequence[Pair]], valid: Sequence[Pair], test: Sequence[Pair]) -> None:
    """Make the English-Russian files of four training corpora, and of two sets of sacrebleu."""
    crawl, news, yandex, titles = parts
    stem = "training-parallel-nc-v13/news-commentary-v13.ru-en"
    for address, name, members in (  # of mtdata's index; its cache has a file NAME._valid of a complete download
        (
            "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
            "wmt13_parallel_commoncrawl.tgz",
            {"commoncrawl.de-en.en": OTHER, **sides("commoncrawl.ru-en", crawl)},
        ),
        (
            "http://data.statmt.org/wmt18/translation-task/training-parallel-nc-v13.tgz",
            "wmt18_news_commentary_v13.tgz",
            sides(stem, news),
        ),
    ):
        host, digest = address.split("/")[2], md5(address.encode()).hexdigest()
        cached = downloads / "mtdata" / host / digest[:4] / digest[4:] / name
        save(cached, tgz(members))
        save(cached.with_name(f"{name}._valid"), b"")
    tables = {
        f"WMT2022-data-main/en-ru/en-ru.1m_{n}.tsv": lines("\t".join(p) for p in yandex[n - 1 :: 10])
        for n in range(1, 11)
    }
    save(downloads / "yandex-1m.zip", zipped({"WMT2022-data-main/README.md": OTHER, **tables}))
    table = lines(f"{russian} ||| {english}" for english, russian in titles)
    save(downloads / "wiki-titles.tgz", tgz({"wiki/README": OTHER, "wiki/ru-en/wiki.ru-en": table}))
    for name, file, pairs in (("wmt13", "wmt13.test.tgz", valid), ("wmt14", "wmt14.test-filtered.tgz", test)):
        from sacrebleu.dataset import DATASETS

        raw = downloads / "sacrebleu" / name / "raw"
        save(raw / file, b"not read: its files are there")
        for member, texts in zip(DATASETS[name].langpairs["en-ru"], zip(*pairs, strict=True), strict=True):
            segments = [f'<seg id="{n}">{text}</seg>' for n, text in enumerate(texts, 1)]
            save(raw / member, lines(['<srcset setid="x">', "<doc>", *segments, "</doc>", "</srcset>"]).encode())


def sides(stem: str, pairs: Sequence[Pair]) -> dict[str, str]:
    english, russian = zip(*pairs, strict=True)
    return {f"{stem}.en": lines(english), f"{stem}.ru": lines(russian)}


def iwslt14(downloads: Path, train: Sequence[Pair], test: Sequence[Pair]) -> list[Pair]:
    """Make the archive of German-English IWSLT14. Return the pairs of its talks, with titles and descriptions.

    The training text has plain lines, with the fields of a talk on lines of their own before; the sets are XML with the
    same fields. The German description of every third talk is empty.
    """
    talks = [train[start : start + 13] for start in range(0, len(train), 13)]
    heads = [[(f"Vortrag {n}", f"Talk {n}"), (f"Über {n}." if n % 3 else "", f"About {n}.")] for n in range(len(talks))]
    members = {"de-en/train.en": OTHER}
    for index, language in enumerate(("de", "en")):
        fields = [
            ["<url>http://x/talks/1.html</url>", "<keywords>talks</keywords>", "<talkid>1</talkid>"]
            + [f"<{tag}>{pair[index]}</{tag}>" for tag, pair in zip(("title", "description"), head, strict=True)]
            for head in heads
        ]
        texts = ([*field, *(pair[index] for pair in talk)] for field, talk in zip(fields, talks, strict=True))
        members[f"de-en/train.tags.de-en.{language}"] = lines(line for talk in texts for line in talk)
        for number, name in enumerate(IWSLT_SETS):
            segments = [f'<seg id="{n}"> {escape(pair[index])} </seg>' for n, pair in enumerate(test[number::5], 1)]
            xml = ["<mteval>", '<doc docid="1" genre="lectures">', *fields[0], *segments, "</doc>", "</mteval>"]
            members[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = lines(xml)
    save(downloads / "iwslt14.de-en.tgz", tgz(members))
    return [pair for head, talk in zip(heads, talks, strict=True) for pair in [*head, *talk]]
