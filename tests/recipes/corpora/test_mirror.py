"""The miniature mirrors have the layouts of the real archives, and irregularities of the real corpora."""

from __future__ import annotations

import gzip
import hashlib
import re
import tarfile
import zipfile
from collections import Counter
from xml.etree import ElementTree

from support import mirrors
from support.corpora import IWSLT, SUBTITLES, TEST, TRAIN, VALID, WMT, contents
from support.recipes import call

pytest_plugins = ["support.corpora"]
NEWS, YANDEX, MOSES = "training-parallel-nc-v13", "WMT2022-data-main", "OpenSubtitles.en-ru"
# Files at the paths of their addresses, and their members; other languages must not be read.
LAYOUT = {
    "www.statmt.org/wmt13/training-parallel-commoncrawl.tgz": [
        *(f"commoncrawl.{name}" for name in ("de-en.de", "de-en.en", "ru-en.annotation", "ru-en.en", "ru-en.ru"))
    ],
    "data.statmt.org/wmt18/translation-task/training-parallel-nc-v13.tgz": [
        *(f"{NEWS}/news-commentary-v13.{name}" for name in ("de-en.de", "de-en.en", "ru-en.en", "ru-en.ru"))
    ],
    "github.com/mashashma/WMT2022-data/archive/refs/heads/main.zip": [
        *(f"{YANDEX}/{name}" for name in ("LICENSE", "README.md")),
        *(f"{YANDEX}/en-ru/en-ru.1m_{number}.tsv" for number in range(1, 11)),
    ],
    "www.statmt.org/wmt15/wiki-titles.tgz": ["wiki/README", "wiki/fi-en/wiki.fi-en", "wiki/ru-en/wiki.ru-en"],
    "data.statmt.org/wikititles/v2/wikititles-v2.ru-en.tsv.gz": None,
    "statmt.org/wmt13/test.tgz": ["test/newstest2013-src.en.sgm", "test/newstest2013-src.ru.sgm"],
    "statmt.org/wmt14/test-filtered.tgz": ["test/newstest2014-ruen-ref.ru.sgm", "test/newstest2014-ruen-src.en.sgm"],
    "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/moses/en-ru.txt.zip": [
        *("LICENSE", "README", f"{MOSES}.en", f"{MOSES}.ids", f"{MOSES}.ru")
    ],
    "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/xml/en-ru.xml.gz": None,
    "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz": [
        *(f"de-en/{name}" for name in ("README", "train.en", "train.tags.de-en.de", "train.tags.de-en.en")),
        *(f"de-en/IWSLT14.{name}.de-en.{side}.xml" for name in mirrors.IWSLT_SETS for side in ("de", "en")),
    ],
}


def members(path):
    """The members of an archive that are files, as texts."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            return {name: archive.read(name).decode() for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(path) as archive:
        return {info.name: archive.extractfile(info).read().decode() for info in archive if info.isfile()}


def test_files_and_members_are_those_of_the_real_corpora(place):
    there = contents(place)
    sums = there.pop("SHA256SUMS").decode()
    assert there.keys() == LAYOUT.keys()
    assert sums == "".join(f"{hashlib.sha256(there[name]).hexdigest()}  {name}\n" for name in sorted(there))
    for name, names in LAYOUT.items():
        assert names is None or set(members(place / name)) == set(names), name


def test_rows_have_the_columns_of_the_real_corpora(made):
    folder, truth = made
    titles = gzip.decompress((folder / mirrors.WIKI_TITLES).read_bytes()).decode().splitlines()
    headlines = members(folder / mirrors.HEADLINES)["wiki/ru-en/wiki.ru-en"].splitlines()
    for rows, separator in ((titles, "\t"), (headlines, " ||| ")):
        assert [tuple(reversed(row.split(separator))) for row in rows] == truth[WMT]["wiki-titles"]
    parts = [members(folder / mirrors.YANDEX)[name] for name in LAYOUT[mirrors.YANDEX][2:]]
    assert all(parts) and [tuple(row.split("\t")) for row in "".join(parts).splitlines()] == truth[WMT]["yandex"]
    assert sum((truth[WMT][name] for name in mirrors.WMT_SHARES), []) == TRAIN
    for name in mirrors.IWSLT_SETS:  # well-formed, and a segment a line
        text = members(folder / mirrors.IWSLT14)[f"de-en/IWSLT14.{name}.de-en.de.xml"]
        assert len(list(ElementTree.fromstring(text.encode()).iter("seg"))) == text.count("\n<seg id=") > 0
    assert [pair for pair in truth[IWSLT]["talks"] if pair in TRAIN] == TRAIN
    assert any(not german for german, _ in truth[IWSLT]["talks"])


def read_links(path):
    """(documents, ids of both sides, overlap) of each link, in the order of the alignment."""
    root = ElementTree.fromstring(gzip.decompress(path.read_bytes()))
    for group in root.iter("linkGrp"):
        for link in group.iter("link"):
            sides = [tuple(side.split()) for side in link.get("xtargets").split(";")]
            yield (group.get("fromDoc"), group.get("toDoc")), *sides, link.get("overlap")


def key(documents, english, russian, *_):
    return documents, tuple(sorted(english)), tuple(sorted(russian))


def test_subtitles_have_the_irregularities_of_the_real_corpus(place, made):
    links, archive = list(read_links(place / mirrors.ALIGNMENT)), members(place / mirrors.SUBTITLES)
    rows = [line.split("\t") for line in archive[f"{MOSES}.ids"].splitlines()]
    ids = [((one, other), tuple(english.split()), tuple(russian.split())) for one, other, english, russian in rows]
    assert all(document.split("/")[2] == documents[0].split("/")[2] for documents, *_ in ids for document in documents)
    assert len(ids) == len(made[1][SUBTITLES]["opensubtitles"]) > len(TRAIN)  # a pair is in two films
    paired = [link for link in links if link[1] and link[2]]
    assert Counter(key(*link) for link in paired) == Counter(key(*row) for row in ids)  # each once
    overlaps = Counter(overlap for *_, overlap in paired)
    assert overlaps[None] and overlaps["0.900"] and overlaps["0.899"] and overlaps["1.000"]
    assert all(re.fullmatch(r"0\.[3-9]\d\d|1\.000", overlap) for overlap in overlaps if overlap)
    unpaired = {(len(english), len(russian), overlap) for _, english, russian, overlap in links} - {
        (len(english), len(russian), overlap) for _, english, russian, overlap in paired
    }
    assert unpaired == {(1, 0, None), (0, 2, None)}
    assert {(1, 1), (2, 1), (1, 2), (2, 2)} == {(len(english), len(russian)) for _, english, russian in ids}
    assert not {link[:3] for link in links} >= set(ids)  # ids in another order
    assert [*dict.fromkeys(link[0] for link in links)] != [*dict.fromkeys(row[0] for row in ids)]


def test_the_command_makes_the_same_mirror_as_the_function(tmp_path, capsys):
    for split, pairs in {"train": TRAIN, "valid": VALID, "test": TEST}.items():
        for language, side in zip(("en", "ru"), mirrors.sides(pairs), strict=True):
            (tmp_path / f"{split}.{language}.gz").write_bytes(gzip.compress(mirrors.lines(side).encode()))
    assert call("support.mirror", "wmt", tmp_path, tmp_path / "command", "--train", 100) == 0
    mirrors.make_wmt_mirror(tmp_path / "function", TRAIN[:100], VALID, TEST)
    assert contents(tmp_path / "command") == contents(tmp_path / "function")
    assert capsys.readouterr().out == (tmp_path / "function" / "SHA256SUMS").read_text()
