"""Selection of subtitles by overlap and their split by films, against what the miniature corpus was made of."""

from __future__ import annotations

import gzip
import re
import zipfile
from collections import defaultdict
from hashlib import blake2b

import pytest
from support import mirror as mirrors
from support.recipes import call

pytest_plugins = ["support.recipes"]

SETS = ("train", "valid", "test")
PAIRS = [(f"Line {n} of the film & more.", f"Строка {n}: <i>да</i>!") for n in range(1600)]
EVERYTHING = 10**9


def corpus(folder, films):
    """A corpus of one document for each film: of each link its xtargets, its ids in .ids, and its overlap."""
    xml, ids, english, russian = [], [], [], []
    for film, links in films.items():
        documents = f"en/2000/{film}/1.xml.gz", f"ru/2000/{film}/2.xml.gz"
        xml.append('<linkGrp fromDoc="{}" toDoc="{}">'.format(*documents))
        for number, (targets, sentences, overlap) in enumerate(links):
            attribute = "" if overlap is None else f' overlap="{overlap}"'
            xml.append(f'<link id="{number}" xtargets="{targets}"{attribute}/>')
            ids.append("\t".join([*documents, sentences]))
            english.append(f"en {film} {number}")
            russian.append(f"ru {film} {number}")
        xml.append("</linkGrp>")
    members = {"en": english, "ru": russian, "ids": ids}
    path = folder / "moses.zip"
    path.write_bytes(mirrors.zipped({f"OpenSubtitles.en-ru.{name}": mirrors.lines(t) for name, t in members.items()}))
    return path, alignment(folder, "\n".join(["<cesAlign>", *xml, "</cesAlign>"]))


def alignment(folder, xml):
    path = folder / "alignment.xml.gz"
    path.write_bytes(gzip.compress(xml.encode()))
    return path


def changed(path, target, change):
    """A copy of the Moses archive, one member of which is changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
    target.write_bytes(mirrors.zipped({name: change(name, text) for name, text in members.items()}))
    return target


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The two files and the records of all lines."""
    folder = tmp_path_factory.mktemp("mirror")
    records = mirrors.make_subtitles_mirror(folder, PAIRS, seed=5)
    return folder / mirrors.SUBTITLES, folder / mirrors.ALIGNMENT, records


def given(files, to, pairs=EVERYTHING, held_out=60, **options):
    """The arguments of the program."""
    options = {"pairs": pairs, "held-out": held_out, **options}
    return ["corpora.subtitles", *files, to, "en", "ru", *(w for o, v in options.items() for w in (f"--{o}", v))]


def run(*arguments, **options):
    return call(*given(*arguments, **options))


def read(folder):
    """The pairs of each set."""
    sets = {}
    for name in SETS:
        sides = [(folder / f"{name}.{language}").read_bytes().decode().split("\n") for language in ("en", "ru")]
        assert all(side.pop() == "" for side in sides)
        sets[name] = list(zip(*sides, strict=True))
    return sets


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def overlapping(records, threshold=0.9):
    return [record for record in records if record.overlap is not None and record.overlap >= threshold]


def selected(records, threshold=0.9):
    """Those that overlap, each text once."""
    seen, found = set(), []
    for record in overlapping(records, threshold):
        text = tuple(re.sub(r"\s", "", side).lower() for side in (record.english, record.russian))
        if text not in seen:
            seen.add(text)
            found.append(record)
    return found


def naive_split(records, held_out, seed, threshold=0.9):
    """The records of each set before any is left out for being too many: films in the order of their hashes."""
    by_film = defaultdict(list)
    for record in selected(records, threshold):
        by_film[record.film].append(record)
    films = {record.film for record in records}
    queue = sorted(films, key=lambda film: blake2b(f"{seed} {film}".encode(), digest_size=8).hexdigest())
    held = {}
    for name in ("valid", "test"):
        held[name] = set()
        while sum(len(by_film[film]) for film in held[name]) < held_out:
            held[name].add(queue.pop(0))
    held["train"] = set(queue)
    return {
        name: [record for record in selected(records, threshold) if record.film in films]
        for name, films in held.items()
    }


def is_part_of(some, whole):
    """Whether `some` is `whole` with items left out, in the same order."""
    rest = iter(whole)
    return all(item in rest for item in some)


def texts(records):
    return [(record.english, record.russian) for record in records]


@pytest.mark.parametrize(("threshold", "seed", "held_out"), [(0.9, 1, 60), (0.9, 2, 1), (0.899, 1, 60), (0.5, 7, 200)])
def test_sets_are_the_records_with_enough_overlap(threshold, seed, held_out, made, tmp_path, capsys):
    *files, records = made
    assert run(files, tmp_path, overlap=threshold, seed=seed, held_out=held_out) == 0
    expected, found = naive_split(records, held_out, seed, threshold), read(tmp_path)
    assert found["train"] == texts(expected["train"])
    for name in ("valid", "test"):
        assert len(found[name]) == held_out and is_part_of(found[name], texts(expected[name]))
    out = capsys.readouterr().out
    with gzip.open(files[1], "rt", encoding="utf-8") as file:
        links = file.read().count("<link ")
    number, films = len(overlapping(records, threshold)), len({record.film for record in records})
    assert f"alignment: {links:,} links, {number:,} with an overlap of at least {threshold:g}\n" in out
    assert f"sentence pairs: {len(records):,} of {films:,} films, {number:,} with that overlap\n" in out
    assert f"different pairs: {len(selected(records, threshold)):,}\n" in out
    train = len(expected["train"])
    assert out.endswith(f"split by films: {train:,} train, {held_out:,} valid, {held_out:,} test\n")


@pytest.mark.parametrize(
    ("overlap", "stays"),
    [("0.900", True), ("0.9", True), ("0.899", False), ("0.8999999", False), ("1.000", True), (None, False)],
)
def test_an_overlap_equal_to_the_threshold_is_kept(overlap, stays, tmp_path):
    films = {str(number): [("1;1", "1\t1", "0.95")] for number in range(4)}
    files = corpus(tmp_path, {**films, "99": [("1 2;7", "1 2\t7", overlap)]})
    assert run(files, tmp_path / "out", held_out=1) == 0
    found = [pair for pairs in read(tmp_path / "out").values() for pair in pairs]
    assert (("en 99 0", "ru 99 0") in found) is stays and len(found) == 4 + stays


def test_equal_sentence_ids_in_other_documents_are_another_link(tmp_path):
    """The same sentence ids in another film, or in other documents, are another link."""
    third = [("1 2;3", "1\t2 3", "0.95"), ("12;4", "1 2\t4", "0.95"), ("5;67", "5\t6 7", "0.95"), ("9;9", "9\t9", "1")]
    films = {
        "1": [("1;1", "1\t1", "0.95"), ("2;2", "2\t2", "0.1")],
        "2": [("1;1", "1\t1", "0.1"), ("2;2", "2\t2", "0.95")],
        "3": third,
    }
    files = corpus(tmp_path, films)
    assert run(files, tmp_path / "out", held_out=1) == 0
    found = {pair for pairs in read(tmp_path / "out").values() for pair in pairs}
    assert found == {("en 1 0", "ru 1 0"), ("en 2 1", "ru 2 1"), ("en 3 3", "ru 3 3")}


def test_each_text_is_taken_once_before_anything_is_sampled(tmp_path):
    """With as many pairs as asked for; the first of equal ones stays; empty ones go; no character ends a line."""
    odd = "f".join("\r\x0b\x0c\x1c\x85\u2028\u2029\ufeff\0\t")
    texts = ["a b", "A  B", "c", "d", "", "e", "c", odd]
    files = corpus(tmp_path, {str(n): [(f"{n};{n}", f"{n}\t{n}", "0.95")] for n in range(len(texts))})

    def change(name, text):
        language = name[-2:]
        return text if name.endswith("ids") else "".join(f"{t} {language}\n" if t else "\n" for t in texts)

    files = changed(files[0], tmp_path / "x.zip", change), files[1]
    assert run(files, tmp_path / "out", pairs=3, held_out=1) == 0
    sets = read(tmp_path / "out")
    assert {name: len(pairs) for name, pairs in sets.items()} == {"train": 3, "valid": 1, "test": 1}
    found = {source for pairs in sets.values() for source, _ in pairs}
    assert found == {"a b en", "c en", "d en", "e en", "f f f f f f f f f  en"}


def test_a_smaller_sample_is_part_of_a_larger_one(made, tmp_path):
    """A sample of the same corpus grows, it does not change; and it is no piece from its beginning."""
    *files, records = made
    everything = naive_split(records, 37, seed=1)
    found = {EVERYTHING: {name: texts(everything[name]) for name in SETS}}
    for pairs in (1, 50, 200):
        assert run(files, tmp_path / str(pairs), pairs=pairs, held_out=37) == 0
        found[pairs] = read(tmp_path / str(pairs))
        assert {name: len(found[pairs][name]) for name in SETS} == {"train": pairs, "valid": 37, "test": 37}
    for some, more in ((1, 50), (50, 200), (200, EVERYTHING)):
        assert all(is_part_of(found[some][name], found[more][name]) for name in SETS)
    train = found[EVERYTHING]["train"]
    places = [train.index(pair) / len(train) for pair in found[200]["train"]]
    assert min(places) < 0.05 and max(places) > 0.95 and 0.4 < sum(places) / len(places) < 0.6


@pytest.fixture
def keeps(refuses, tmp_path):
    """keeps(files, *words, ...): as `refuses`, and what was in `out` is as it was."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "train.en").write_text("of an earlier run\n")

    def keeps(files, *words, **options):
        refuses(*given(files, out, **options), words=words, printed=None)
        assert bytes_of(out) == {"train.en": b"of an earlier run\n"}

    return keeps


DAMAGED_ALIGNMENTS = {
    "half": lambda data, xml: data[: len(data) // 2],
    "half of the XML": lambda data, xml: gzip.compress(xml[: len(xml) // 2].encode()),
    "no number": lambda data, xml: gzip.compress(xml.replace('overlap="0.900"', 'overlap="much"').encode()),
    "no document": lambda data, xml: gzip.compress(re.sub('fromDoc="[^"]*"', "", xml).encode()),
}


@pytest.mark.parametrize("damage", DAMAGED_ALIGNMENTS.values(), ids=DAMAGED_ALIGNMENTS)
def test_damaged_alignments_are_refused(damage, made, tmp_path, keeps):
    moses, whole, _ = made
    data, path = whole.read_bytes(), tmp_path / "damaged.xml.gz"
    path.write_bytes(damage(data, gzip.decompress(data).decode()))
    keeps((moses, path), path)


def test_damaged_archives_are_refused(made, tmp_path, keeps):
    """And a line of ids that has not four columns."""
    moses, aligned, _ = made
    path = tmp_path / "damaged.zip"
    path.write_bytes(moses.read_bytes()[:-30])
    keeps((path, aligned), path)
    path = changed(moses, tmp_path / "x.zip", lambda name, text: text + "a\tb\t1\n" * name.endswith("ids"))
    keeps((path, aligned), path, "OpenSubtitles.en-ru.ids", "3 columns, not 4")


@pytest.mark.parametrize("member", ["en", "ids"])
def test_members_that_are_missing_or_of_another_length_are_refused(member, made, tmp_path, keeps):
    moses, aligned, records = made
    path, number = tmp_path / "x.zip", len(records)
    for more in (1, -1):

        def change(name, text, more=more):
            first = text[: text.index("\n") + 1]
            return text if not name.endswith(f".{member}") else text + first if more == 1 else text[len(first) :]

        changed(moses, path, change)
        ids = number + more * (member == "ids")
        keeps(
            (path, aligned), path, f".ids has {ids:,} lines", f"line {min(number, number + more) + 1:,} is not in all"
        )
    with zipfile.ZipFile(moses) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist() if not name.endswith(member)}
    path.write_bytes(mirrors.zipped(members))
    keeps((path, aligned), "has no member", f"OpenSubtitles.en-ru.{member}")


def test_too_many_pairs_to_hold_out_are_refused(made, keeps):
    *files, records = made
    number = len(selected(records))
    keeps(files, f"--held-out {number}", "too few films", "fewer", held_out=number)


def test_a_split_that_leaves_nothing_for_training_is_refused(tmp_path, keeps):
    files = corpus(tmp_path, {str(number): [("1;1", "1\t1", "0.95")] for number in range(2)})
    keeps(files, "--held-out 1", "nothing is left for training", "fewer", held_out=1)


def test_an_empty_selection_is_refused(made, tmp_path, keeps):
    """A threshold that nothing reaches, and an alignment or an archive of something else."""
    moses, aligned, _ = made
    keeps((moses, aligned), "no pair is left", overlap="nan")
    keeps((moses, alignment(tmp_path, "<cesAlign/>")), "no pair is left", "same corpus")
