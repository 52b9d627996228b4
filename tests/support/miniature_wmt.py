"""Miniature mirror of the WMT corpora: four training corpora, and two data sets of sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from support.miniature import (
    OTHER_ENGLISH,
    OTHER_GERMAN,
    Members,
    Pair,
    checked,
    dealt,
    in_chunks,
    lines,
    save,
    sides,
    tgz,
    zipped,
)

COMMONCRAWL = "www.statmt.org/wmt13/training-parallel-commoncrawl.tgz"
NEWS_COMMENTARY = "data.statmt.org/wmt18/translation-task/training-parallel-nc-v13.tgz"
YANDEX = "github.com/mashashma/WMT2022-data/archive/refs/heads/main.zip"
HEADLINES = "www.statmt.org/wmt15/wiki-titles.tgz"
WMT_SHARES = {"commoncrawl": 45, "news-commentary": 15, "yandex": 30, "wiki-titles": 10}


def make_wmt_mirror(
    folder: Path,
    train: Sequence[Pair],
    valid: Sequence[Pair],
    test: Sequence[Pair],
) -> dict[str, list[Pair]]:
    """Make English-Russian files of four training corpora and two sets of sacrebleu. Return the pairs of each corpus.

        www.statmt.org/wmt13/training-parallel-commoncrawl.tgz      commoncrawl.ru-en.{ru,en}
        data.statmt.org/.../training-parallel-nc-v13.tgz            training-parallel-nc-v13/*.ru-en.{ru,en}
        github.com/.../main.zip                                     WMT2022-data-main/en-ru/en-ru.1m_{1..10}.tsv
        www.statmt.org/wmt15/wiki-titles.tgz                        wiki/ru-en/wiki.ru-en: Russian ||| English
        statmt.org/wmt13/test.tgz, statmt.org/wmt14/...             test/newstest*.sgm

    The last two have the paths of sacrebleu's addresses.
    """
    corpora = dict(zip(WMT_SHARES, dealt(checked(train), list(WMT_SHARES.values())), strict=True))
    files = {
        COMMONCRAWL: tgz(commoncrawl(corpora["commoncrawl"])),
        NEWS_COMMENTARY: tgz(news_commentary(corpora["news-commentary"])),
        YANDEX: zipped(yandex(corpora["yandex"])),
        HEADLINES: tgz(headlines(corpora["wiki-titles"])),
        **sacrebleu_archive("wmt13", checked(valid)),
        **sacrebleu_archive("wmt14", checked(test)),
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
    """Return the members of a branch archive of GitHub: one folder, named after repository and branch."""
    members = {"README.md": "# WMT2022-data\n", "LICENSE": "Not the real licence.\n"}
    for number, part in enumerate(dealt(pairs, [1] * 10), 1):
        members[f"en-ru/en-ru.1m_{number}.tsv"] = lines("\t".join(pair) for pair in part)
    return {f"WMT2022-data-main/{name}": text for name, text in members.items()}


def headlines(pairs: Sequence[Pair]) -> Members:
    return {
        "wiki/README": "Not the real one.\n",
        "wiki/fi-en/wiki.fi-en": "Talo ||| House\n",
        "wiki/ru-en/wiki.ru-en": lines(f"{russian} ||| {english}" for english, russian in pairs),
    }


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
