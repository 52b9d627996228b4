"""Checks of the files of corpora: damaged, wrong or missing files (corpora.get fetch)."""

from __future__ import annotations

import bz2
import gzip
import random
import shutil

import pytest
from support import mirrors
from support.corpora import IWSLT, SUBTITLES, WMT, all_there, call, contents, fetch, sha256, wanted

from corpora.archives import BROKEN_ARCHIVE, read_to_the_end

pytest_plugins = ["support.corpora"]


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[: len(data) // 3], lambda data: data[:-1], lambda data: b"<html></html>\n"],
    ids=["empty", "a third", "all but the last byte", "a page"],
)
def test_files_that_do_not_open_are_refused_and_kept(damage, copy, place, tmp_path, refused):
    """Those of a .zip, .xml.gz and .tgz, each with a line; once mended the same command goes on."""
    for collection in (SUBTITLES, IWSLT):
        folder, out = copy(collection), tmp_path / collection
        for source in wanted(collection):
            (folder / source.path).write_bytes(damage((place / source.path).read_bytes()))
        before = contents(folder)
        lines = [[s.name, str(folder / s.path), "does not open", "incomplete", "DATA_DIR"] for s in wanted(collection)]
        refused(fetch(collection, out, folder), *lines)
        assert contents(folder) == before and not any((out / s.name).is_symlink() for s in wanted(collection))
        assert fetch(collection, out, copy(collection)) == 0
        all_there(collection, out, place)


def test_no_single_changed_byte_ends_in_a_traceback(tmp_path):
    """Of archives of every kind: a change is found, or changes nothing that is read."""
    rng = random.Random(3)
    text = {"a/b": "".join(f"{rng.random()}\n" for _ in range(40)), "c": "d\n"}
    kinds = {
        "x.tgz": mirrors.tgz(text),
        "x.tar.gz": mirrors.tgz(text),
        "x.tar.bz2": bz2.compress(gzip.decompress(mirrors.tgz(text))),
        "x.zip": mirrors.zipped(text),
        "x.gz": mirrors.gz(text["a/b"].encode()),
    }

    def is_broken(path, data):
        path.write_bytes(data)
        try:
            read_to_the_end(path)
        except BROKEN_ARCHIVE:
            return True
        return False

    for name, data in kinds.items():
        path = tmp_path / name
        assert not is_broken(path, data) and is_broken(path, b"<html></html>\n")
        found = 0
        for copy in [bytearray(data) for _ in range(60)]:
            copy[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            found += is_broken(path, copy)
        assert found > 30, name
        cuts = [*range(20), *(rng.randrange(len(data)) for _ in range(20)), len(data) - 1]
        assert all(is_broken(path, data[:cut]) for cut in cuts)


def test_wrong_checksums_are_refused(copy, place, tmp_path, refused):
    folder, out = copy(SUBTITLES, sums=True), tmp_path / "out"
    sums = (folder / "SHA256SUMS").read_text()
    zipped, alignment = wanted(SUBTITLES)
    true = sha256((folder / alignment.path).read_bytes())
    (folder / "SHA256SUMS").write_text(sums.replace(true, "0123456789abcdef" * 4))
    before = contents(folder)
    words = [alignment.name, str(folder), true[:12], "0123456789ab", "SHA256SUMS", "download it again"]
    refused(fetch(SUBTITLES, out, folder), words)
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
    refused(fetch(WMT, out, folder), *[[f"{name}.test", "MD5", known, "sacrebleu"] for name, known in md5.items()])
    assert len((out / "manifest.tsv").read_text().splitlines()) == 5
    shutil.copy(place / "SHA256SUMS", folder)
    assert fetch(WMT, out, folder) == 0
    all_there(WMT, out, place)


def test_a_given_manifest_is_checked(copy, place, tmp_path, refused):
    """Another checksum in it, and a file that changed after it was recorded."""
    folder, out = copy(IWSLT), tmp_path / "out"
    (source,) = wanted(IWSLT)
    assert fetch(IWSLT, out, folder) == 0
    manifest = (out / "manifest.tsv").read_text()
    other = manifest.replace(sha256((folder / source.path).read_bytes()), "5" * 64)
    (out / source.name).unlink()
    (out / "manifest.tsv").write_text(other)
    before = contents(folder)
    refused(fetch(IWSLT, out, folder), [source.name, "555555555555", "manifest.tsv", "remove its line"])
    assert (out / "manifest.tsv").read_text() == other and contents(folder) == before
    (out / "manifest.tsv").write_text(manifest)
    assert fetch(IWSLT, out, folder) == 0 and (out / "manifest.tsv").read_text() == manifest
    all_there(IWSLT, out, place)
    longer = mirrors.tgz({"de-en/a": "b\n" * 10_000})
    (folder / source.path).write_bytes(longer)
    refused(fetch(IWSLT, out, folder), [source.name, f"{len(longer):,} bytes", "manifest.tsv"])
    assert (folder / source.path).read_bytes() == longer


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"<html>No such page</html>\n",
        b"file\tbytes\tsha256\taddress\nx\t12\n",
        b"file\tbytes\tsha256\taddress\nx\tmany\tab\thttp://x\n",
        b"x\t12\tab\thttp://x\n",
        b"file\tbytes\tsha256\taddress\n\xff\xfe\n",
    ],
)
def test_a_damaged_manifest_is_refused(damaged, place, tmp_path, refused):
    (tmp_path / "manifest.tsv").write_bytes(damaged)
    refused(fetch(IWSLT, tmp_path, place), [str(tmp_path / "manifest.tsv"), "is not a manifest", "remove it"])
    assert (tmp_path / "manifest.tsv").read_bytes() == damaged


def test_an_existing_unknown_file_is_refused_and_kept(place, tmp_path, refused):
    """Whoever put it there may not want to lose it, and may even have named that folder."""
    (source,) = wanted(IWSLT)
    (tmp_path / source.name).write_text("a letter to a friend")
    for data_dir in (place, tmp_path):
        refused(fetch(IWSLT, tmp_path, data_dir), [str(tmp_path / source.name), "remove it"])
    assert (tmp_path / source.name).read_text() == "a letter to a friend"


@pytest.mark.parametrize("name", ["file", "nothing", "mirror.example.org"])
def test_a_data_dir_that_is_not_a_folder_is_refused(name, tmp_path, refused):
    (tmp_path / "file").touch()
    place = tmp_path / name
    refused(fetch(IWSLT, tmp_path / "out", place), [f"DATA_DIR={place} is not a folder", "mirror"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["list", "fetch", "unpack"])
def test_unknown_collections_and_sets_are_refused(command, tmp_path, refused):
    folders = [tmp_path / name for name in ("a", "b")][: ["list", "fetch", "unpack"].index(command)]
    for name, words in {
        **{name: [f"'{name}' is not a collection", WMT, SUBTITLES, IWSLT] for name in ("wmt-en-de", "", "wmt")},
        "wmt-en-ru:wmt08,wmt14": ["'wmt08' is not a set of sacreb", "en-ru", "wmt20"],
        "wmt-en-ru:wmt13,none": ["'none' is not a set of sacreb"],
        "wmt-en-ru:wmt13": ["'' is not a set of sacreb"],
        "wmt-en-ru:wmt13,wmt14,v3": ["'v3' names no titles of Wikipedia", "wmt15, v2"],
        "iwslt14-de-en:wmt13,wmt14": ["iwslt14-de-en", "has no sets to choose"],
    }.items():
        refused(call(command, name, *folders), words)
    assert list(tmp_path.iterdir()) == []
