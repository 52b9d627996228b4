"""The table of corpora: for each collection the files to download and how to read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from commands import Refused
from corpora.fetching import Source
from corpora.formats import Reader, columns, members, no_text, sacrebleu_set, segments, talk_sentences

STATMT = "http://data.statmt.org"
HUB = "https://huggingface.co/datasets/wmt"
OPUS = "https://object.pouta.csc.fi/OPUS-OpenSubtitles/v2018"


def sacrebleu_sets(pair: str) -> list[str]:
    """Return the names of sacrebleu's test sets that have a language pair such as en-ru."""
    from sacrebleu.dataset import DATASETS

    return [name for name, data in DATASETS.items() if pair in data.langpairs]


@dataclass(frozen=True)
class Corpus:
    """Text in one file: `read(path, language)` yields the lines of one side of parallel text."""

    name: str
    source: Source
    read: Reader


def wmt(dev: str, test: str) -> list[Corpus]:
    """The training data of Voita et al. 2019, section 3, with a development and a test set of sacrebleu."""
    crawl = Source(
        "commoncrawl.tgz",
        "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        others=(f"{HUB}/wmt13/resolve/main-zip/training-parallel-commoncrawl.zip",),
    )
    news = Source(
        "news-commentary-v13.tgz",
        f"{STATMT}/wmt18/translation-task/training-parallel-nc-v13.tgz",
        others=(f"{HUB}/wmt18/resolve/main-zip/translation-task/training-parallel-nc-v13.zip",),
    )
    yandex = Source("yandex-1m.zip", "https://github.com/mashashma/WMT2022-data/archive/refs/heads/main.zip")
    # Titles of Wikipedia articles, 515 thousand pairs. The file of WMT14 is the same.
    headlines = Source(
        "wiki-titles.tgz",
        "http://www.statmt.org/wmt15/wiki-titles.tgz",
        others=(f"{HUB}/wmt15/resolve/main-zip/wiki-titles.zip", "http://www.statmt.org/wmt14/wiki-titles.tgz"),
    )
    parts = [f"WMT2022-data-main/en-ru/en-ru.1m_{part}.tsv" for part in range(1, 11)]
    return [
        Corpus("commoncrawl", crawl, members("commoncrawl.ru-en.{}")),
        Corpus("news-commentary", news, members("training-parallel-nc-v13/news-commentary-v13.ru-en.{}")),
        Corpus("yandex", yandex, columns(("en", "ru"), parts)),
        Corpus("wiki-titles", headlines, columns(("ru", "en"), ["wiki/ru-en/wiki.ru-en"], separator="|||")),
        sacrebleu_corpus("valid", dev, "en-ru"),
        sacrebleu_corpus("test", test, "en-ru"),
    ]


def sacrebleu_corpus(name: str, data_set: str, pair: str) -> Corpus:
    """A data set of sacrebleu."""
    from sacrebleu.dataset import DATASETS

    fitting = sacrebleu_sets(pair)
    if data_set not in fitting:
        raise Refused(f"{data_set!r} is not a set of sacrebleu with {pair}: choose from {' '.join(fitting)}")
    found = DATASETS[data_set]
    address = (found.data or [""])[0]
    file = f"{data_set.replace('/', '_')}.{address.rpartition('/')[2]}"
    source = Source(file, address, found.md5[0] if found.md5 else None)
    return Corpus(name, source, sacrebleu_set(data_set, pair, file))


def opensubtitles() -> list[Corpus]:
    """OpenSubtitles2018 (Lison et al. 2018): sentences with their ids, and the alignment with the overlap in time."""
    moses = Source("opensubtitles-v2018.en-ru.txt.zip", f"{OPUS}/moses/en-ru.txt.zip")
    alignment = Source("opensubtitles-v2018.en-ru.xml.gz", f"{OPUS}/xml/en-ru.xml.gz")
    return [Corpus("opensubtitles", moses, members("OpenSubtitles.en-ru.{}")), Corpus("alignment", alignment, no_text)]


def iwslt14() -> list[Corpus]:
    """IWSLT14 as in fairseq's example: the talks of 2014, with the five small sets as the test set."""
    talks = Source("iwslt14.de-en.tgz", "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
    sets = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]
    return [
        Corpus("talks", talks, talk_sentences("de-en/train.tags.de-en.{}")),
        Corpus("test", talks, segments([f"de-en/IWSLT14.{name}.de-en.{{}}.xml" for name in sets])),
    ]


def wikitext103() -> list[Corpus]:
    """WikiText-103 (Merity et al. 2016), the archive with words: rare ones are <unk>."""
    archive = Source(
        "wikitext-103-v1.zip",
        "https://wikitext.smerity.com/wikitext-103-v1.zip",
        others=("https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",),
    )
    texts = {split: members(f"wikitext-103/wiki.{split}.tokens") for split in ("train", "valid", "test")}
    return [Corpus(split, archive, read) for split, read in texts.items()]


FAIRSEQ = "dl.fbaipublicfiles.com"


def mnli() -> list[Corpus]:
    """MNLI as in GLUE, with the BPE of GPT-2, which RoBERTa reads; corpora.mnli unpacks and encodes it."""
    return [
        Corpus("mnli", Source("MNLI.zip", f"https://{FAIRSEQ}/glue/data/MNLI.zip"), no_text),
        *(
            Corpus(name, Source(name, f"https://{FAIRSEQ}/fairseq/gpt2_bpe/{name}"), no_text)
            for name in ("encoder.json", "vocab.bpe")
        ),
    ]


def collection(name: str) -> list[Corpus]:
    """Return the corpora of a collection such as `wmt-en-ru:wmt13,wmt14`."""
    kind, _, sets = name.partition(":")
    dev, _, test = (sets or "wmt13,wmt14").partition(",")
    known = {
        "wmt-en-ru": lambda: wmt(dev, test),
        "opensubtitles-en-ru": opensubtitles,
        "iwslt14-de-en": iwslt14,
        "wikitext-103": wikitext103,
        "mnli": mnli,
    }
    if kind not in known:
        raise Refused(f"{name!r} is not a collection: choose from {', '.join(known)}")
    if sets and kind != "wmt-en-ru":
        raise Refused(f"{name!r}: {kind} has no sets to choose, remove :{sets}")
    return known[kind]()


def languages(name: str) -> tuple[str, ...]:
    """Return the endings of the files of a collection: both languages, or txt for text that is not parallel."""
    if name == "mnli":
        raise Refused("mnli is not a parallel corpus: `recipes/lib corpora.mnli` unpacks it")
    if name == "wikitext-103":
        return ("txt",)
    source, target = name.partition(":")[0].split("-")[-2:]
    return source, target


def sources(corpora: Iterable[Corpus]) -> list[Source]:
    """Return each file once, in order."""
    return list(dict.fromkeys(corpus.source for corpus in corpora))
