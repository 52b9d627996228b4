"""Unpacking of corpora (corpora.get unpack)."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from support import mirror as mirrors
from support.corpora import IWSLT, SUBTITLES, WMT, at, call, fetch, wanted

from commands import Refused
from corpora import archives, get
from corpora.collection import collection as corpora_of
from corpora.formats import columns

pytest_plugins = ["support.corpora"]


def unpacked(texts, name, languages):
    """The pairs of a corpus, cut at \\n and nowhere else."""
    sides = [(texts / f"{name}.{language}").read_bytes().decode().split("\n") for language in languages]
    assert all(side.pop() == "" for side in sides)
    return list(zip(*sides, strict=True))


@pytest.fixture(scope="module")
def all_unpacked(made, tmp_path_factory):
    """What `unpack` made of every collection, and what it said."""
    folder = tmp_path_factory.mktemp("all")
    said = {}
    for collection in (WMT, SUBTITLES, IWSLT):
        assert fetch(collection, folder / "downloads", made[0]) == 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", io.StringIO())
            assert call("unpack", collection, folder / "downloads", folder / collection) == 0
            said[collection] = sys.stdout.getvalue()
    return folder, said


@pytest.mark.parametrize("collection", [WMT, SUBTITLES, IWSLT])
def test_unpacked_corpora_equal_the_text_of_the_mirror(collection, made, all_unpacked):
    folder, said = all_unpacked
    truth = made[1][collection]
    for name, pairs in truth.items():
        assert unpacked(folder / collection, name, collection.split("-")[-2:]) == pairs, name
    assert said[collection] == "".join(f"{name}: {len(pairs):,} pairs\n" for name, pairs in truth.items())
    suffixes = {path.suffix for path in [*(folder / "downloads").iterdir(), *(folder / collection).iterdir()]}
    assert not suffixes & {".unpacked", ".part"}


@pytest.mark.parametrize("name", ["valid", "test"])
def test_validation_and_test_sets_equal_those_of_sacrebleu(name, place, all_unpacked, tmp_path):
    """sacrebleu finds the file where it would have downloaded it, and unpacks it itself."""
    data_set = {"valid": "wmt13", "test": "wmt14"}[name]
    source = next(s for s in wanted(WMT) if s.name.startswith(data_set))
    raw = tmp_path / data_set / "raw"
    raw.mkdir(parents=True)
    archives.unpack(place / at(source), raw)
    shutil.copy(place / at(source), raw / source.name)
    command = [sys.executable, "-m", "sacrebleu", "-t", data_set, "-l", "en-ru", "--echo", "src", "ref"]
    env = {**os.environ, "SACREBLEU": str(tmp_path), "PYTHONUTF8": "1"}
    echo = subprocess.run(command, env=env, capture_output=True, check=True).stdout.decode()
    pairs = unpacked(all_unpacked[0] / WMT, name, ("en", "ru"))
    assert [tuple(line.split("\t")) for line in echo.split("\n")[:-1]] == pairs


def test_talks_equal_the_output_of_fairseqs_grep_and_sed(place, all_unpacked):
    """fairseq's preparation of the corpus: whole fields go, of titles and descriptions the tags."""
    for language in ("de", "en"):
        with tarfile.open(place / mirrors.IWSLT14) as archive:
            data = archive.extractfile(f"de-en/train.tags.de-en.{language}").read()
        filters = "grep -v '<url>' | grep -v '<talkid>' | grep -v '<keywords>'"
        filters += " | sed -e 's/^<title>//' -e 's/<\\/title>$//' -e 's/^<description>//' -e 's/<\\/description>$//'"
        left = subprocess.run(["bash", "-c", filters], input=data, capture_output=True, check=True).stdout
        assert (all_unpacked[0] / IWSLT / f"talks.{language}").read_bytes() == left


def test_unpacking_again_changes_nothing(all_unpacked, capsys):
    folder, said = all_unpacked
    before = {path: path.stat() for path in (folder / IWSLT).iterdir()}
    assert call("unpack", IWSLT, folder / "downloads", folder / IWSLT) == 0
    assert capsys.readouterr().out == said[IWSLT]
    assert {path: path.stat() for path in (folder / IWSLT).iterdir()} == before


def test_unpacking_stopped_between_two_files_is_completed_by_a_rerun(made, tmp_path, monkeypatch):
    """The count is written last: without it both sides are written again."""
    texts = tmp_path / "texts"
    assert fetch(IWSLT, tmp_path / "out", made[0]) == 0

    def fail(path, *rest, **options):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(get, "write_whole", fail)
        assert call("unpack", IWSLT, tmp_path / "out", texts) == 2
    (texts / "talks.de").write_text("half of it\n")
    assert call("unpack", IWSLT, tmp_path / "out", texts) == 0
    for name, pairs in made[1][IWSLT].items():
        assert unpacked(texts, name, ("de", "en")) == pairs


def subtitles_archive(folder, english, russian):
    """The file of OpenSubtitles with these bytes on its two sides, where `unpack` looks for it."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / wanted(SUBTITLES)[0].name, "w") as archive:
        archive.writestr("OpenSubtitles.en-ru.en", english)
        archive.writestr("OpenSubtitles.en-ru.ru", russian)
    (folder / wanted(SUBTITLES)[1].name).write_bytes(mirrors.gz(b"<a/>"))
    return folder


def test_no_character_breaks_the_alignment(tmp_path):
    """Whatever ends a line for some tool is a blank; each line and each column is in its place for all of them."""
    enders = [c for c in map(chr, range(sys.maxunicode + 1)) if len(f"a{c}b".splitlines()) == 2 and c != "\n"]
    assert {"\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"} <= set(enders)
    breaks = [*enders, "\t", "\0", "\ufeff", "\r\r", "\r\u2028\t"]
    english = [f"{c}number{c}{n}{c}" for n, c in enumerate(breaks)]
    russian = [f"номер {n}" for n in range(len(breaks))]
    folder = subtitles_archive(
        tmp_path / "out", ("\ufeff" + "\n".join(english)).encode(), "".join(f"{r}\r\n" for r in russian).encode()
    )
    assert call("unpack", SUBTITLES, folder, tmp_path / "texts") == 0
    expected = [f"number {n}" for n in range(len(breaks))]
    assert unpacked(tmp_path / "texts", "opensubtitles", ("en", "ru")) == list(zip(expected, russian, strict=True))
    for name, lines in (("en", expected), ("ru", russian)):
        text = (tmp_path / "texts" / f"opensubtitles.{name}").read_bytes().decode()
        assert text.splitlines() == lines and text.count("\n") == len(lines)


def test_invalid_utf8_is_replaced_and_counted_and_sides_of_different_length_are_refused(tmp_path, capsys):
    folder = subtitles_archive(
        tmp_path / "out", b"caf\xe9 au lait\nna\xefve \xff\nplain\n", "один\nдва\nтри\n".encode() + b"\xd1\n"
    )
    assert call("unpack", SUBTITLES, folder, tmp_path / "texts") == 2
    assert "3 lines in en and 4 lines in ru: the two sides must be aligned" in capsys.readouterr().err
    assert list((tmp_path / "texts").iterdir()) == []
    subtitles_archive(folder, b"caf\xe9 au lait\nna\xefve \xff\nplain\nlast\n", "один\nдва\nтри\n".encode() + b"\xd1\n")
    assert call("unpack", SUBTITLES, folder, tmp_path / "texts") == 0
    assert capsys.readouterr().out.startswith("opensubtitles: 4 pairs, 4 characters U+FFFD")
    assert unpacked(tmp_path / "texts", "opensubtitles", ("en", "ru")) == [
        ("caf\ufffd au lait", "один"), ("na\ufffdve \ufffd", "два"), ("plain", "три"), ("last", "\ufffd"),
    ]  # fmt: skip


def test_rows_have_two_columns(tmp_path):
    """Of a row with fewer or more it cannot be known what belongs together: both sides are empty, for text.clean."""
    path, read = tmp_path / "x.gz", columns(("ru", "en"))
    path.write_bytes(mirrors.gz("один\tone\nтолько\nраз\tтаб\tone\n\tno\nдва\ttwo\t\nтри\tthree".encode()))
    assert list(read(path, "ru")) == ["один", "", "", "", "", "три"]
    assert list(read(path, "en")) == ["one", "", "", "no", "", "three"]
    path.write_bytes(mirrors.gz(b"one\ntwo\n"))
    for language in ("ru", "en"):
        with pytest.raises(Refused, match=r"x.gz: none of 2 rows has two columns"):
            list(read(path, language))
    path.write_bytes(mirrors.gz(b""))
    assert list(read(path, "ru")) == []


def test_a_set_without_its_files_is_refused(tmp_path):
    """sacrebleu says what is missing."""
    path = tmp_path / "wmt14.test-filtered.tgz"
    path.write_bytes(mirrors.tgz({"test/other.sgm": ""}))
    with pytest.raises(Refused, match=r"sacrebleu cannot read .*wmt14.test-filtered.tgz: .*newstest2014"):
        list(corpora_of(WMT)[-1].read(path, "en"))
    assert list(tmp_path.iterdir()) == [path]


def test_an_archive_cannot_write_outside_of_its_folder(tmp_path, monkeypatch):
    good, folder = tmp_path / "good.tgz", tmp_path / "good"
    good.write_bytes(mirrors.tgz({"test/a.sgm": "text", "test/deep/b.sgm": ""}))
    archives.unpack(good, folder)
    assert (folder / "test/a.sgm").read_text() == "text" and (folder / "test/deep/b.sgm").is_file()
    for number, (name, kind, target) in enumerate(
        [("../out", tarfile.REGTYPE, ""), ("link", tarfile.SYMTYPE, "../../out"), ("pipe", tarfile.FIFOTYPE, "")]
    ):
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            tar.addfile(member, io.BytesIO())
        with pytest.raises(tarfile.TarError):
            archives.unpack(tmp_path / f"{number}.tar", tmp_path / str(number))
    (tmp_path / "x.zip").write_bytes(mirrors.zipped({"../out": ""}))
    archives.unpack(tmp_path / "x.zip", tmp_path / "zip")
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    with pytest.raises(Refused, match="cannot be unpacked safely"):
        archives.unpack(good, tmp_path / "old Python")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_missing_or_broken_or_another_one_is_refused(place, tmp_path, refused):
    out, texts = tmp_path / "out", tmp_path / "texts"
    out.mkdir()
    for collection in (WMT, SUBTITLES, IWSLT):
        source = wanted(collection)[0]
        path, pack = out / source.name, mirrors.zipped if source.name.endswith(".zip") else mirrors.tgz
        refused(call("unpack", collection, out, texts), [str(path), "is missing", "corpora.get fetch"])
        data = (place / at(source)).read_bytes()
        for content, words in (
            (data[: len(data) // 2], ["does not open"]),
            (b"<html>", ["does not open"]),
            (pack({"de-en/other.txt": "x\n"}), ["has no member", "de-en/other.txt", "right file?"]),
        ):
            path.write_bytes(content)
            refused(call("unpack", collection, out, texts), [str(path), *words])
        assert list(texts.iterdir()) == []
