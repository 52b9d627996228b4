"""Files of corpora from a folder or a mirror: found, downloaded, checked (corpora.get fetch)."""

from __future__ import annotations

import bz2
import gzip
import os
import random
import shutil
from urllib.parse import urlsplit

import pytest
from support import mirror as mirrors
from support.corpora import IWSLT, SUBTITLES, WMT, all_there, at, call, contents, fetch, sha256, wanted
from support.recipes import shell

from commands import Refused
from corpora import archives, fetching
from corpora.fetching import Source

pytest_plugins = ["support.corpora"]


def listed(collection, capsys):
    assert call("list", collection) == 0
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def test_the_list_has_every_address_once(capsys):
    rows = listed("wmt-en-ru:wmt18,wmt20", capsys)
    assert len({address for _, address in rows}) == len(rows)
    assert [name for name, _ in rows].count("wiki-titles.tgz") == 3  # with alternatives
    first = {name: urlsplit(address).path.rpartition("/")[2] for name, address in reversed(rows)}
    assert first["wmt18.test.tgz"] == first["wmt20.test.tgz"] == "test.tgz" and first["yandex-1m.zip"] == "main.zip"


def test_unknown_collections_and_sets_are_refused(refused):
    for name, words in {
        "wmt-en-de": ["'wmt-en-de' is not a collection", WMT, SUBTITLES, IWSLT],
        "wmt-en-ru:wmt08,wmt14": ["'wmt08' is not a set of sacreb", "en-ru", "wmt20"],
        "iwslt14-de-en:wmt13,wmt14": ["iwslt14-de-en", "has no sets to choose"],
    }.items():
        refused(call("list", name), words)


# --- from a folder ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collection", [WMT, SUBTITLES, IWSLT])
def test_files_of_a_mirror_in_a_folder_are_found_and_recorded(collection, place, tmp_path, monkeypatch):
    folder = tmp_path / "down loads"
    monkeypatch.chdir(place.parent)
    assert fetch(collection, folder, f"{place.name}/") == 0  # a relative path
    all_there(collection, folder, place)
    assert all((folder / source.name).is_symlink() for source in wanted(collection))
    before = (folder / "SHA256SUMS").stat()
    assert fetch(collection, folder) == 0
    assert (folder / "SHA256SUMS").stat() == before


@pytest.mark.parametrize("by_name", [True, False])
def test_files_may_lie_in_a_folder_under_their_bare_names(by_name, place, tmp_path):
    """As they are called here, or as a browser would save them."""
    flat = tmp_path / "flat"
    flat.mkdir()
    sums = []
    for source in wanted(WMT):
        data = (place / at(source)).read_bytes()
        name = source.name if by_name or source.md5 else at(source).rpartition("/")[2]
        (flat / name).write_bytes(data)
        sums.append(f"{sha256(data)}  {name}\n")
    (flat / "SHA256SUMS").write_text("".join(sums))
    assert fetch(WMT, tmp_path / "out", flat) == 0
    all_there(WMT, tmp_path / "out", place)


def test_an_ambiguous_bare_file_name_is_not_used(tmp_path):
    """test.tgz may be that of wmt13 or of any other year; other bare names are of one file only."""
    taken = set()
    for source in wanted("wmt-en-ru:wmt13,wmt14"):
        (tmp_path / at(source).rpartition("/")[2]).touch()
        if fetching.take(tmp_path / f"link to {source.name}", source, tmp_path):
            taken.add(source.name)
    assert taken == {"commoncrawl.tgz", "news-commentary-v13.tgz", "yandex-1m.zip", "wiki-titles.tgz"}


def test_what_a_folder_does_not_have_is_downloaded_and_a_broken_link_replaced(copy, tmp_path, serve):
    folder, half, out = copy(SUBTITLES), tmp_path / "half", tmp_path / "out"
    server = serve(folder)
    one, two = (Source(s.name, f"{server.address}/{at(s)}") for s in wanted(SUBTITLES))
    half.mkdir()
    shutil.copy(folder / mirrors.SUBTITLES, half / one.name)
    out.mkdir()
    (out / one.name).symlink_to(tmp_path / "of an earlier place")
    fetching.fetch([one, two], out, str(half))
    assert (out / one.name).resolve() == half / one.name and not (out / two.name).is_symlink()
    assert (out / two.name).read_bytes() == (folder / mirrors.ALIGNMENT).read_bytes()
    assert [path for path, _ in server.seen] == [mirrors.ALIGNMENT]


def test_a_data_dir_that_is_not_a_folder_is_refused(tmp_path, refused):
    refused(fetch(IWSLT, tmp_path / "out", tmp_path / "nothing"), ["DATA_DIR=", "nothing is not a folder", "mirror"])
    assert not (tmp_path / "out").exists()


# --- from a mirror ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
def test_files_are_downloaded_only_once_and_partial_ones_resumed(ranges, place, tmp_path, serve):
    server, out = serve(place), tmp_path / "out"
    server.ranges = ranges
    first, second = wanted(SUBTITLES)
    out.mkdir()
    (out / f"{first.name}.1.part").write_bytes((place / at(first)).read_bytes()[:1000])
    assert fetch(SUBTITLES, out, server.address + "/") == 0
    all_there(SUBTITLES, out, place)
    assert server.asked(first) == ["bytes=1000-"] and server.asked(second) == [None]
    assert fetch(SUBTITLES, out, server.address) == 0
    assert server.asked(first) == ["bytes=1000-"] and server.asked(second) == [None]


def test_an_interrupted_download_resumes(place, tmp_path, serve, refused):
    """A part with more bytes than the file (416) is removed, for the next attempt."""
    server, (source,) = serve(place), wanted(IWSLT)
    size = (place / at(source)).stat().st_size
    server.cut[at(source)] = 40
    words = [source.name, f"{server.address}/{at(source)}", f"after 40 of {size:,} bytes", "run the same command"]
    refused(fetch(IWSLT, tmp_path, server.address), words)
    server.cut.clear()
    (tmp_path / f"{source.name}.1.part").write_bytes(b"x" * size)
    refused(fetch(IWSLT, tmp_path, server.address), [source.name, "416"])
    (tmp_path / f"{source.name}.1.part").write_bytes((place / at(source)).read_bytes()[:40])
    assert fetch(IWSLT, tmp_path, server.address) == 0
    all_there(IWSLT, tmp_path, place)
    assert server.asked(source) == [None, f"bytes={size}-", "bytes=40-"]


def test_where_an_address_fails_the_next_one_is_tried(tmp_path, serve):
    """The first is missing, the second a page, the third packed otherwise."""
    server, out = serve(tmp_path / "server"), tmp_path / "out"
    files = {"b/x.tgz": b"<p>moved</p>", "c/x.zip": mirrors.zipped({"wiki/ru-en/wiki.ru-en": "один ||| one\n"})}
    addresses = [f"{server.address}/{name}" for name in ("a/x.tgz", *files)]
    source = Source("x.tgz", addresses[0], others=tuple(addresses[1:]))
    with pytest.raises(Refused, match=r"(?s)x.tgz: .*a/x.tgz .*404.*, .*b/x.tgz .*404.*, .*c/x.zip .*404"):
        fetching.fetch([source], out, None)
    for name, data in files.items():
        (tmp_path / "server" / name).parent.mkdir(parents=True)
        (tmp_path / "server" / name).write_bytes(data)
    fetching.fetch([source], out, None)
    assert list(archives.lines(out / "x.tgz", "wiki/ru-en/wiki.ru-en")) == ["один ||| one"]
    assert {path.name for path in out.iterdir()} == {"x.tgz", "SHA256SUMS"}


def test_an_unreachable_server_is_reported(place, tmp_path, serve, refused):
    server = serve(place)
    address = server.address
    server.shutdown()
    server.server_close()
    names = [[source.name, address, "cannot be downloaded"] for source in wanted(SUBTITLES)]
    refused(fetch(SUBTITLES, tmp_path, address), *names)


def test_a_recipe_keeps_the_parts_of_downloads(tmp_path):
    """It removes those of killed programs, NAME.PID.part."""
    kept, removed = tmp_path / "downloads" / "a-2.3.tgz.1.part", tmp_path / "text" / "train.en.123.part"
    for path in (kept, removed):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    shell(f"lock_out {tmp_path}")
    assert kept.exists() and not removed.exists()


# --- checksums ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["folder", "mirror"])
def test_wrong_checksums_are_refused(way, copy, place, tmp_path, serve, refused):
    """Files of a folder are kept; with its checksum mended the same command goes on."""
    folder, out = copy(SUBTITLES), tmp_path / "out"
    given = serve(folder).address if way == "mirror" else folder
    sums = (folder / "SHA256SUMS").read_text()
    zipped, alignment = wanted(SUBTITLES)
    true = sha256((folder / at(alignment)).read_bytes())
    (folder / "SHA256SUMS").write_text(sums.replace(true, "0123456789abcdef" * 4))
    before = contents(folder)
    refused(fetch(SUBTITLES, out, given), [alignment.name, true[:12], "0123456789ab", "SHA256SUMS"])
    assert contents(folder) == before and not os.path.lexists(out / alignment.name)
    assert zipped.name in (out / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").write_text(sums)
    assert fetch(SUBTITLES, out, given) == 0
    all_there(SUBTITLES, out, place)


@pytest.mark.parametrize("damage", [lambda d: b"", lambda d: d[:-1], lambda d: b"<html></html>\n"])
def test_files_that_do_not_open_are_refused_and_kept(damage, copy, place, tmp_path, refused):
    """Those of a .zip, .xml.gz and .tgz, each with a line, where no checksum is known."""
    for collection in (SUBTITLES, IWSLT):
        folder = copy(collection)
        (folder / "SHA256SUMS").unlink()
        for source in wanted(collection):
            (folder / at(source)).write_bytes(damage((place / at(source)).read_bytes()))
        before = contents(folder)
        refused(fetch(collection, tmp_path / "out", folder), *([s.name, str(folder)] for s in wanted(collection)))
        assert contents(folder) == before and not any((tmp_path / "out" / s.name).exists() for s in wanted(collection))


def test_no_changed_byte_of_an_archive_ends_in_a_traceback(tmp_path):
    """A change is found, or changes nothing that is read."""
    rng, path = random.Random(3), tmp_path / "x"
    text = {"a/b": "".join(f"{rng.random()}\n" for _ in range(40)), "c": "d\n"}
    for data in (mirrors.tgz(text), bz2.compress(gzip.decompress(mirrors.tgz(text))), mirrors.zipped(text)):
        found = 0
        for changed in [bytearray(data) for _ in range(60)]:
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            found += bool(archives.damage(path))
        assert found > 30
        path.write_bytes(data)
        assert archives.damage(path) == ""


def test_sets_that_sacrebleu_does_not_know_are_refused(copy, tmp_path, refused):
    """Unless a SHA256SUMS vouches for them."""
    folder, out = copy(WMT), tmp_path / "out"
    (folder / "SHA256SUMS").unlink()
    md5 = {"wmt13": "48eca5d02f637af44e85186847141f67", "wmt14": "84c597844c1542e29c2aff23aaee4310"}
    refused(fetch(WMT, out, folder), *[[f"{name}.test", "MD5", known, "sacrebleu"] for name, known in md5.items()])
    assert len((out / "SHA256SUMS").read_text().splitlines()) == 4


def test_the_checksums_of_another_user_are_checked(copy, tmp_path, refused):
    """And a file that is already there; neither it nor the checksums change."""
    folder, out = copy(IWSLT), tmp_path / "out"
    (source,) = wanted(IWSLT)
    out.mkdir()
    (out / "SHA256SUMS").write_text(f"{'5' * 64} *{source.name}\n")
    refused(fetch(IWSLT, out, folder), [source.name, "555555555555", "SHA256SUMS", "delete its line"])
    (out / "SHA256SUMS").unlink()
    (out / source.name).write_text("a letter to a friend")
    refused(fetch(IWSLT, out, folder), [str(out / source.name), "remove it"])
    assert (out / source.name).read_text() == "a letter to a friend"
