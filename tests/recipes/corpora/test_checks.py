"""Checks of the files of corpora: damaged, wrong or missing files (corpora.get fetch)."""

from __future__ import annotations

import bz2
import gzip
import io
import random
import shutil

import pytest
from support import mirrors
from support.corpora import IWSLT, SUBTITLES, WMT, all_there, call, contents, fetch, sha256, wanted

from corpora import get as corpora
from corpora.archives import BROKEN_ARCHIVE, read_to_the_end
from corpora.collection import Corpus
from corpora.formats import no_text

pytest_plugins = ["support.corpora"]


def test_files_that_are_cut_off_are_refused(copy, tmp_path, refused):
    """At any length, each with a line; the user's files stay as they are, and once mended the same command goes on."""
    v2 = f"{WMT}:wmt13,wmt14,v2"
    folder, out = copy(v2, sums=True), tmp_path / "out"
    assert fetch(v2, out, folder) == 0  # the sacrebleu sets, which only their checksums let through
    (folder / "SHA256SUMS").unlink()
    (out / "manifest.tsv").unlink()
    three = [source for source in wanted(v2) if source.name in ("commoncrawl.tgz", "yandex-1m.zip")]
    three += [source for source in wanted(v2) if source.name.endswith(".tsv.gz")]
    assert len(three) == 3
    whole = {source: (folder / source.path).read_bytes() for source in three}
    for cut in (0, 1, 2, 9, 10, 11, 0.3, 0.9, -9, -8, -1):
        for source, data in whole.items():
            (folder / source.path).write_bytes(data[: int(cut * len(data)) if isinstance(cut, float) else cut])
        before = contents(folder)
        shutil.rmtree(out)
        lines = [[s.name, str(folder / s.path), "does not open", "incomplete", "DATA_DIR"] for s in three]
        err = refused(run_on(three, out, folder), *lines)
        assert "Traceback" not in err and contents(folder) == before
        assert not any((out / source.name).is_symlink() for source in three)
    for source, data in whole.items():
        (folder / source.path).write_bytes(data)
    assert run_on(three, out, folder) == 0
    assert {name: (out / name).read_bytes() for name in (s.name for s in three)} == {
        source.name: data for source, data in whole.items()
    }


def run_on(sources, out, place):
    """`fetch` for some files only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "collection", lambda name: [Corpus("x", s, no_text) for s in sources])
        return fetch("some", out, place)


def test_no_single_changed_byte_ends_in_a_traceback(tmp_path):
    """Of archives of every kind: a change is found, or changes nothing that is read."""
    rng = random.Random(3)
    text = {"a/b": "".join(f"{rng.random()}\n" for _ in range(40)), "c": "d\n"}
    plain = io.BytesIO(gzip.decompress(mirrors.tgz(text)))
    kinds = {
        "x.tgz": mirrors.tgz(text),
        "x.tar.gz": mirrors.tgz(text),
        "x.tar.bz2": bz2.compress(plain.getvalue()),
        "x.zip": mirrors.zipped(text),
        "x.gz": mirrors.gz(text["a/b"].encode()),
    }
    for name, data in kinds.items():
        path = tmp_path / name
        path.write_bytes(data)
        read_to_the_end(path)
        found = 0
        for _ in range(60):
            changed = bytearray(data)
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            try:
                read_to_the_end(path)
            except BROKEN_ARCHIVE:
                found += 1
        assert found > 30, name
        for cut in [*range(20), *(rng.randrange(len(data)) for _ in range(20)), len(data) - 1]:
            path.write_bytes(data[:cut])
            with pytest.raises(BROKEN_ARCHIVE):
                read_to_the_end(path)
        path.write_bytes(b"<html></html>\n")
        with pytest.raises(BROKEN_ARCHIVE):
            read_to_the_end(path)


def test_wrong_checksums_are_refused(copy, place, tmp_path, refused):
    folder, out = copy(SUBTITLES, sums=True), tmp_path / "out"
    sums = (folder / "SHA256SUMS").read_text()
    zipped, alignment = wanted(SUBTITLES)
    true = sha256((folder / alignment.path).read_bytes())
    (folder / "SHA256SUMS").write_text(sums.replace(true, "0123456789abcdef" * 4))
    before = contents(folder)
    refused(
        fetch(SUBTITLES, out, folder),
        [alignment.name, str(folder), true[:12], "0123456789ab", "SHA256SUMS", "download it again"],
    )
    assert contents(folder) == before and not (out / alignment.name).is_symlink()
    assert (out / zipped.name).exists() and zipped.name in (out / "manifest.tsv").read_text()
    (folder / "SHA256SUMS").write_text(sums)
    assert fetch(SUBTITLES, out, folder) == 0
    all_there(SUBTITLES, out, place)


@pytest.mark.parametrize("form", ["{}  {}", "{} *{}", "{}  ./{}", "{}\t{}"])
def test_checksums_may_be_written_in_several_ways(form, copy, tmp_path, refused):
    """Lines without a checksum are ignored, as sha256sum does."""
    folder = copy(IWSLT)
    (source,) = wanted(IWSLT)
    true = sha256((folder / source.path).read_bytes())
    others = f"-----BEGIN PGP SIGNED MESSAGE-----\n\n{true}\n{'1' * 64}  another.tgz\nbytes: 5\n"
    (folder / "SHA256SUMS").write_text(others + form.format("ab" * 32, source.path) + "\n")
    refused(fetch(IWSLT, tmp_path / "out", folder), [source.name, "abababababab", "SHA256SUMS"])
    (folder / "SHA256SUMS").write_bytes(others.encode() + form.format(true.upper(), source.path).encode() + b"\r\n\xff")
    assert fetch(IWSLT, tmp_path / "out", folder) == 0


def test_sets_that_sacrebleu_does_not_know_are_refused(copy, place, tmp_path, refused):
    """Unless a SHA256SUMS vouches for them."""
    folder, out = copy(WMT), tmp_path / "out"
    md5 = {"wmt13": "48eca5d02f637af44e85186847141f67", "wmt14": "84c597844c1542e29c2aff23aaee4310"}
    lines = [[f"{name}.test", "MD5", known, "sacrebleu"] for name, known in md5.items()]
    refused(fetch(WMT, out, folder), *lines)
    assert len((out / "manifest.tsv").read_text().splitlines()) == 5
    shutil.copy(place / "SHA256SUMS", folder)
    assert fetch(WMT, out, folder) == 0
    all_there(WMT, out, place)


def test_a_given_manifest_is_checked(copy, place, tmp_path, refused):
    folder, out, own = copy(SUBTITLES), tmp_path / "out", tmp_path / "own"
    assert fetch(SUBTITLES, own, folder) == 0
    manifest = (own / "manifest.tsv").read_text()
    out.mkdir()
    (out / "manifest.tsv").write_text(manifest)
    assert fetch(SUBTITLES, out, folder) == 0
    assert (out / "manifest.tsv").read_text() == manifest
    shutil.rmtree(out)
    out.mkdir()
    source = wanted(SUBTITLES)[0]
    other = manifest.replace(sha256((folder / source.path).read_bytes()), "5" * 64)
    (out / "manifest.tsv").write_text(other)
    before = contents(folder)
    refused(fetch(SUBTITLES, out, folder), [source.name, "555555555555", "manifest.tsv", "remove its line"])
    assert (out / "manifest.tsv").read_text() == other and contents(folder) == before
    (out / "manifest.tsv").write_text(manifest)
    assert fetch(SUBTITLES, out, folder) == 0
    all_there(SUBTITLES, out, place)


def test_a_file_that_has_changed_since_is_refused(copy, tmp_path, refused):
    folder, out = copy(IWSLT), tmp_path / "out"
    (source,) = wanted(IWSLT)
    assert fetch(IWSLT, out, folder) == 0
    longer = mirrors.tgz({"de-en/a": "b\n" * 10_000})
    (folder / source.path).write_bytes(longer)
    refused(fetch(IWSLT, out, folder), [source.name, f"{len(longer):,} bytes", "manifest.tsv"])
    assert (folder / source.path).read_bytes() == longer


@pytest.mark.parametrize(
    "damaged",
    [
        b"<html>No such page</html>\n",
        b"",
        b"file\tbytes\tsha256\taddress\nx\t12\n",
        b"file\tbytes\tsha256\taddress\nx\tmany\tab\thttp://x\n",
        b"x\t12\tab\thttp://x\n",
        b"file\tbytes\tsha256\taddress\n\xff\xfe\n",
    ],
)
def test_a_damaged_manifest_is_refused(damaged, place, tmp_path, refused):
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.tsv").write_bytes(damaged)
    refused(fetch(IWSLT, out, place), [str(out / "manifest.tsv"), "is not a manifest", "remove it"])
    assert (out / "manifest.tsv").read_bytes() == damaged
    (out / "manifest.tsv").unlink()
    assert fetch(IWSLT, out, place) == 0
    all_there(IWSLT, out, place)


def test_an_existing_unknown_file_is_refused_and_kept(place, tmp_path, refused):
    """Whoever put it there may not want to lose it, and may even have named that folder."""
    out = tmp_path / "out"
    out.mkdir()
    (source,) = wanted(IWSLT)
    (out / source.name).write_text("a letter to a friend")
    for data_dir in (place, out):
        refused(fetch(IWSLT, out, data_dir), [str(out / source.name), "remove it"])
    assert (out / source.name).read_text() == "a letter to a friend"
    (out / source.name).unlink()
    assert fetch(IWSLT, out, place) == 0


def test_a_data_dir_that_is_not_a_folder_is_refused(tmp_path, refused):
    (tmp_path / "file").touch()
    for name in ("file", "nothing", "mirror.example.org"):
        refused(
            fetch(IWSLT, tmp_path / "out", tmp_path / name), [f"DATA_DIR={tmp_path / name} is not a folder", "mirror"]
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["list", "fetch", "unpack"])
def test_unknown_collections_and_sets_are_refused(command, tmp_path, refused):
    folders = [tmp_path / name for name in ("a", "b")][: ["list", "fetch", "unpack"].index(command)]
    for name in ("wmt-en-de", "", "wmt"):
        refused(call(command, name, *folders), [f"'{name}' is not a collection", WMT, SUBTITLES, IWSLT])
    for name, wrong in (("wmt08,wmt14", "wmt08"), ("wmt13,none", "none"), ("wmt13", "")):
        refused(call(command, f"wmt-en-ru:{name}", *folders), [f"'{wrong}' is not a set of sacreb", "en-ru", "wmt20"])
    refused(call(command, "wmt-en-ru:wmt13,wmt14,v3", *folders), ["'v3' names no titles of Wikipedia", "wmt15, v2"])
    refused(call(command, "iwslt14-de-en:wmt13,wmt14", *folders), ["iwslt14-de-en", "has no sets to choose"])
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_number_of_folders_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        call("unpack", IWSLT, tmp_path)
    assert stop.value.code == 2 and "takes 2 folders" in capsys.readouterr().err
