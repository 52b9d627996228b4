"""The miniature mirror of the recipes' corpora: its layouts, and that what is said about it is true."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from xml.etree import ElementTree

import pytest
from support import mirrors as mirror

DECOYS = {
    mirror.COMMONCRAWL: {
        "commoncrawl.de-en.de",
        "commoncrawl.de-en.en",
        "commoncrawl.ru-en.annotation",
    },
    mirror.NEWS_COMMENTARY: {
        "training-parallel-nc-v13/news-commentary-v13.de-en.de",
        "training-parallel-nc-v13/news-commentary-v13.de-en.en",
    },
}


def made_up(start, number):
    """Pairs of sentences, some of them with characters that mark-up would escape."""
    things, russian = ["cat", "dog & bone", "a < b", 'so-called "bird"'], ["кот", "пёс & кость", "а < б", "«птица»"]
    return [
        (f"Number {n} is a {things[n % 4]}.", f"Номер {n} — это {russian[n % 4]}.")
        for n in range(start, start + number)
    ]


TRAIN, VALID, TEST = made_up(0, 200), made_up(1000, 23), made_up(2000, 31)


def make_all(folder):
    """All mirrors in one folder, and what was said about them."""
    return (
        mirror.make_wmt_mirror(folder, TRAIN, VALID, TEST),
        mirror.make_subtitles_mirror(folder, TRAIN),
        mirror.make_iwslt_mirror(folder, TRAIN, test=TEST),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirror")
    return folder, *make_all(folder)


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def unpacked(path):
    """The members of an archive that are files, as texts."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            found = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    else:
        with tarfile.open(path) as archive:
            found = {info.name: archive.extractfile(info).read() for info in archive if info.isfile()}
    return {name: data.decode() for name, data in found.items()}


def pairs_of(first, second):
    return list(zip(first.splitlines(), second.splitlines(), strict=True))


# --- the folder ---------------------------------------------------------------------------------------------------


def test_same_sentences_same_files(made, tmp_path):
    folder, *told = made
    assert list(make_all(tmp_path)) == told
    assert files(tmp_path) == files(folder)


def test_other_seed_other_subtitles(made, tmp_path):
    folder, _, records, _ = made
    assert mirror.make_subtitles_mirror(tmp_path, TRAIN, seed=2) != records
    assert (tmp_path / mirror.ALIGNMENT).read_bytes() != (folder / mirror.ALIGNMENT).read_bytes()


def test_the_checksum_file_lists_every_file(made):
    there = files(made[0])
    sums = there.pop("SHA256SUMS").decode()
    assert sums == "".join(f"{hashlib.sha256(there[name]).hexdigest()}  {name}\n" for name in sorted(there))


def test_files_are_at_the_paths_of_the_original_addresses(made):
    assert set(files(made[0])) == {
        "SHA256SUMS",
        "www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        "data.statmt.org/wmt18/translation-task/training-parallel-nc-v13.tgz",
        "github.com/mashashma/WMT2022-data/archive/refs/heads/main.zip",
        "www.statmt.org/wmt15/wiki-titles.tgz",
        "data.statmt.org/wikititles/v2/wikititles-v2.ru-en.tsv.gz",
        "statmt.org/wmt13/test.tgz",
        "statmt.org/wmt14/test-filtered.tgz",
        "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/moses/en-ru.txt.zip",
        "object.pouta.csc.fi/OPUS-OpenSubtitles/v2018/xml/en-ru.xml.gz",
        "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    }


@pytest.mark.parametrize("text", ["a\tb", "a\nb", "a\r"])
def test_text_with_a_tab_or_line_break_is_refused(text, tmp_path):
    with pytest.raises(ValueError, match="tab or a line break"):
        mirror.make_subtitles_mirror(tmp_path, [("ok", text)])


# --- WMT ----------------------------------------------------------------------------------------------------------


def test_wmt_divides_the_training_pairs_among_its_corpora(made):
    corpora = made[1]
    assert [len(corpora[name]) for name in mirror.WMT_SHARES] == [90, 30, 60, 20]
    assert sum(corpora.values(), []) == TRAIN


@pytest.mark.parametrize(
    "place, stem, name",
    [
        (mirror.COMMONCRAWL, "commoncrawl.ru-en", "commoncrawl"),
        (mirror.NEWS_COMMENTARY, "training-parallel-nc-v13/news-commentary-v13.ru-en", "news-commentary"),
    ],
)
def test_wmt_two_files(made, place, stem, name):
    members = unpacked(made[0] / place)
    assert set(members) == {f"{stem}.en", f"{stem}.ru"} | DECOYS[place]
    assert pairs_of(members[f"{stem}.en"], members[f"{stem}.ru"]) == made[1][name]


def test_wmt_columns(made):
    members = unpacked(made[0] / mirror.YANDEX)
    parts = [members.pop(f"WMT2022-data-main/en-ru/en-ru.1m_{number}.tsv") for number in range(1, 11)]
    assert [tuple(line.split("\t")) for line in "".join(parts).splitlines()] == made[1]["yandex"]
    assert all(parts) and set(members) == {"WMT2022-data-main/README.md", "WMT2022-data-main/LICENSE"}
    titles = gzip.decompress((made[0] / mirror.WIKI_TITLES).read_bytes()).decode().splitlines()
    assert [tuple(reversed(line.split("\t"))) for line in titles] == made[1]["wiki-titles"]
    headlines = unpacked(made[0] / mirror.HEADLINES)["wiki/ru-en/wiki.ru-en"].splitlines()
    assert [tuple(reversed(line.split(" ||| "))) for line in headlines] == made[1]["wiki-titles"]


READ_WITH_SACREBLEU = """
import json, shutil, sys
from pathlib import Path
from sacrebleu import DATASETS
from sacrebleu.utils import SACREBLEU_DIR, extract_tarball

read = {}
for name in ("wmt13", "wmt14"):
    url = DATASETS[name].data[0]
    raw = Path(SACREBLEU_DIR, name, "raw")
    raw.mkdir(parents=True)
    # sacrebleu neither downloads nor unpacks an existing archive.
    archive = shutil.copy(Path(sys.argv[1], url.split("://")[1]), raw / f"{name}.{url.split('/')[-1]}")
    extract_tarball(str(archive), str(raw))
    references = [line.rstrip() for (line,) in DATASETS[name].references("en-ru")]
    read[name] = list(zip(DATASETS[name].source("en-ru"), references))
    documents = [Path(path).read_text().split() for path in DATASETS[name].get_files("en-ru")[2:]]
    assert [len(set(field)) > 1 for field in documents] == [True, False, True]  # docid, genre, origlang
print(json.dumps(read))
"""


def test_sacrebleu_reads_the_sets(made, tmp_path):
    command = [sys.executable, "-c", READ_WITH_SACREBLEU, made[0]]
    env = os.environ | {"SACREBLEU": str(tmp_path), "PYTHONUTF8": "1"}
    result = subprocess.run(command, env=env, capture_output=True, text=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stderr
    read = {name: [tuple(pair) for pair in pairs] for name, pairs in json.loads(result.stdout).items()}
    assert read == {"wmt13": VALID, "wmt14": TEST}


def test_other_sets_of_sacrebleu(tmp_path):
    mirror.make_wmt_mirror(tmp_path, TRAIN, VALID, TEST, valid_set="wmt18", test_set="wmt19")
    members = unpacked(tmp_path / "data.statmt.org/wmt19/translation-task/test.tgz")
    assert set(members) == {"sgm/newstest2019-enru-src.en.sgm", "sgm/newstest2019-enru-ref.ru.sgm"}
    assert members["sgm/newstest2019-enru-ref.ru.sgm"].startswith('<refset setid="newstest2019" srclang="any" ')


@pytest.mark.parametrize("sets", [("wmt13", "wmt13"), ("wmt13", "wmt23"), ("wmt13", "wmt08"), ("nothing", "wmt14")])
def test_refuses_sets_it_cannot_make(sets, tmp_path):
    with pytest.raises(ValueError, match=re.escape(repr(sets[0])) if sets[0] != "wmt13" else repr(sets[1])):
        mirror.make_wmt_mirror(tmp_path, TRAIN, VALID, TEST, *sets)


# --- OpenSubtitles ------------------------------------------------------------------------------------------------


def read_links(folder):
    """(documents, ids of both sides, overlap) of each link, in the order of the alignment."""
    root = ElementTree.fromstring(gzip.decompress((folder / mirror.ALIGNMENT).read_bytes()))
    assert root.tag == "cesAlign"
    for group in root.iter("linkGrp"):
        for link in group.iter("link"):
            sides = [tuple(side.split()) for side in link.get("xtargets").split(";")]
            yield (group.get("fromDoc"), group.get("toDoc")), *sides, link.get("overlap")


def read_ids(folder):
    for line in unpacked(folder / mirror.SUBTITLES)["OpenSubtitles.en-ru.ids"].splitlines():
        english_document, russian_document, english, russian = line.split("\t")
        yield (english_document, russian_document), tuple(english.split()), tuple(russian.split())


def key(documents, english, russian):
    return documents, tuple(sorted(english)), tuple(sorted(russian))


def test_subtitles_lines(made):
    folder, _, records, _ = made
    members = unpacked(folder / mirror.SUBTITLES)
    stem = "OpenSubtitles.en-ru"
    assert set(members) == {f"{stem}.en", f"{stem}.ru", f"{stem}.ids", "README", "LICENSE"}
    assert pairs_of(members[f"{stem}.en"], members[f"{stem}.ru"]) == [(r.english, r.russian) for r in records]
    ids = [(r.documents, tuple(map(str, r.english_ids)), tuple(map(str, r.russian_ids))) for r in records]
    assert list(read_ids(folder)) == ids
    assert all(document.split("/")[2] == r.film for r in records for document in r.documents)


def test_subtitles_links_and_lines_correspond(made):
    folder, _, records, _ = made
    links = {key(*link): overlap for *link, overlap in read_links(folder) if link[1] and link[2]}
    assert Counter(key(*ids) for ids in read_ids(folder)) == Counter(links.keys())  # each once
    for record in records:
        overlap = links[key(record.documents, map(str, record.english_ids), map(str, record.russian_ids))]
        assert record.overlap == (None if overlap is None else float(overlap))


def test_subtitles_have_the_irregularities_of_the_real_corpus(made):
    folder, _, records, _ = made
    links, ids = list(read_links(folder)), list(read_ids(folder))
    overlaps = Counter(overlap for _, english, russian, overlap in links if english and russian)
    assert overlaps[None] and overlaps["0.900"] and overlaps["0.899"] and overlaps["1.000"]
    assert all(re.fullmatch(r"0\.[3-9]\d\d|1\.000", overlap) for overlap in overlaps if overlap)
    empty = [
        (len(english), len(russian), overlap) for _, english, russian, overlap in links if not (english and russian)
    ]
    assert {(1, 0, None), (0, 2, None)} == set(empty)
    assert {(1, 1), (2, 1), (1, 2), (2, 2)} == {(len(english), len(russian)) for _, english, russian in ids}
    assert {key(*link[:3]) for link in links} > {key(*link) for link in ids}
    assert not {tuple(link[:3]) for link in links} >= set(ids)  # ids in another order
    assert [*dict.fromkeys(link[0] for link in links)] != [*dict.fromkeys(link[0] for link in ids)]


def test_subtitles_films(made):
    records = made[2]
    films = Counter(record.film for record in records)
    assert len(films) > 4 and all(20 <= number <= 41 for number in list(films.values())[:-1])
    documents = {film: {record.documents for record in records if record.film == film} for film in films}
    assert max(map(len, documents.values())) > 1
    of_pair = {}
    for record in records:
        of_pair.setdefault((record.english, record.russian), set()).add(record.film)
    assert set(of_pair) == set(TRAIN)
    assert len(records) == len(TRAIN) + len(films) - 1 and max(map(len, of_pair.values())) > 1


# --- IWSLT14 ------------------------------------------------------------------------------------------------------


def as_fairseq_cleans(text):
    """What grep and sed leave in examples/translation/prepare-iwslt14.sh."""
    kept = [line for line in text.splitlines() if not re.search("<(url|talkid|keywords)>", line)]
    return [re.sub("</?(title|description)>", "", line) for line in kept]


def test_iwslt_training_pairs(made):
    members = unpacked(made[0] / mirror.IWSLT14)
    sides = [as_fairseq_cleans(members[f"de-en/train.tags.de-en.{language}"]) for language in ("de", "en")]
    assert list(zip(*sides, strict=True)) == made[3]["train"]
    assert [pair for pair in made[3]["train"] if pair in TRAIN] == TRAIN
    assert any(not german for german, _ in made[3]["train"])


def test_iwslt_sets(made):
    members, told = unpacked(made[0] / mirror.IWSLT14), made[3]
    sets = {name for name in members if name.endswith(".xml")}
    assert sets == {f"de-en/IWSLT14.{name}.de-en.{side}.xml" for name in mirror.IWSLT_SETS for side in ("de", "en")}
    assert set(members) - sets == {
        f"de-en/{name}" for name in ("README", "train.en", "train.tags.de-en.de", "train.tags.de-en.en")
    }
    for name in mirror.IWSLT_SETS:
        texts = [members[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] for language in ("de", "en")]
        # encoded: the declaration names an encoding
        segments = [[seg.text.strip() for seg in ElementTree.fromstring(text.encode()).iter("seg")] for text in texts]
        assert list(zip(*segments, strict=True)) == told[name]
        assert all(text.count("\n<seg id=") == len(told[name]) for text in texts)  # one a line
    assert sum((told[name] for name in mirror.IWSLT_SETS), []) == TEST


def test_iwslt_with_a_validation_set(tmp_path):
    told = mirror.make_iwslt_mirror(tmp_path, TRAIN, VALID, TEST)
    assert sum((told[name] for name in mirror.IWSLT_SETS[:2]), []) == VALID
    assert sum((told[name] for name in mirror.IWSLT_SETS[2:]), []) == TEST


def test_iwslt_fields_of_later_years(made, tmp_path):
    assert mirror.make_iwslt_mirror(tmp_path, TRAIN, test=TEST, later_fields=True) == made[3]
    members = unpacked(tmp_path / mirror.IWSLT14)
    sides = [members[f"de-en/train.tags.de-en.{language}"].splitlines() for language in ("de", "en")]
    dropped = re.compile("</?(url|talkid|keywords|speaker|transcript|reviewer|translator)[ >]")
    kept = [[re.sub("</?(title|description)>", "", line) for line in side if not dropped.match(line)] for side in sides]
    assert len(sides[0]) == len(sides[1]) and list(zip(*kept, strict=True)) == made[3]["train"]


# --- the command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "corpus, first, second", [("wmt", "en", "ru"), ("opensubtitles", "en", "ru"), ("iwslt14", "de", "en")]
)
def test_the_command_makes_the_same_mirror_as_the_function(corpus, first, second, tmp_path, capsys):
    texts, by_hand, by_command = (tmp_path / name for name in ("texts", "by-hand", "by-command"))
    texts.mkdir()
    for split, pairs in {"train": TRAIN, "valid": VALID, "test": TEST}.items():
        for language, side in zip((first, second), mirror.sides(pairs), strict=True):
            data = mirror.lines(side).encode()
            if split == "train":
                (texts / f"{split}.{language}.gz").write_bytes(gzip.compress(data))
            else:
                (texts / f"{split}.{language}").write_bytes(data)
    mirror.main([corpus, str(texts), str(by_command), "--train", "100"])
    {
        "wmt": lambda: mirror.make_wmt_mirror(by_hand, TRAIN[:100], VALID, TEST),
        "opensubtitles": lambda: mirror.make_subtitles_mirror(by_hand, [*TRAIN[:100], *VALID, *TEST]),
        "iwslt14": lambda: mirror.make_iwslt_mirror(by_hand, TRAIN[:100], test=TEST),
    }[corpus]()
    assert files(by_command) == files(by_hand)
    assert capsys.readouterr().out == (by_hand / "SHA256SUMS").read_text()
