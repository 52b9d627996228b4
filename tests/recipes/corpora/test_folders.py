"""Files of corpora in a folder of the user (corpora.get fetch)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from support import mirrors
from support.corpora import IWSLT, SUBTITLES, WMT, all_there, call, fetch, sha256, wanted
from support.recipes import RECIPES

from corpora import fetching
from corpora.fetching import Source

pytest_plugins = ["support.corpora"]


@pytest.mark.parametrize("collection", [WMT, SUBTITLES, IWSLT])
def test_files_of_a_mirror_in_a_folder_are_found_and_recorded(collection, place, tmp_path, capsys):
    folder = tmp_path / "down loads"
    assert fetch(collection, folder, place) == 0
    all_there(collection, folder, place)
    assert all((folder / source.name).is_symlink() for source in wanted(collection))
    before = (folder / "manifest.tsv").stat()
    assert fetch(collection, folder, place) == 0 and fetch(collection, folder) == 0
    assert (folder / "manifest.tsv").stat() == before
    assert capsys.readouterr() == ("", "")


def test_the_list_has_every_address_once(capsys):
    assert call("list", "wmt-en-ru:wmt18,wmt20") == 0
    listed = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len({address for _, address in listed}) == len(listed)
    assert [name for name, _ in listed].count("wiki-titles.tgz") == 3  # with alternatives
    rows = [row for before, row in zip([["", ""], *listed], listed, strict=False) if row[0] != before[0]]
    assert [name for name, _ in rows] == [
        "commoncrawl.tgz", "news-commentary-v13.tgz", "yandex-1m.zip", "wiki-titles.tgz",
        "wmt18.test.tgz", "wmt20.test.tgz",
    ]  # fmt: skip
    assert rows[4:] == [
        ["wmt18.test.tgz", "https://data.statmt.org/wmt18/translation-task/test.tgz"],
        ["wmt20.test.tgz", "https://data.statmt.org/wmt20/translation-task/test.tgz"],
    ]
    found = {f"{urlsplit(address).hostname}{urlsplit(address).path}" for _, address in rows[:4]}
    assert found == {mirrors.COMMONCRAWL, mirrors.NEWS_COMMENTARY, mirrors.YANDEX, mirrors.HEADLINES}


@pytest.mark.parametrize(
    ("titles", "address"), [("", mirrors.HEADLINES), (",wmt15", mirrors.HEADLINES), (",v2", mirrors.WIKI_TITLES)]
)
def test_the_titles_of_wikipedia_can_be_chosen(titles, address, capsys):
    assert call("list", f"wmt-en-ru:wmt13,wmt14{titles}") == 0
    addresses = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert sum(found.endswith((mirrors.HEADLINES, mirrors.WIKI_TITLES)) for found in addresses) == 1
    assert any(found.endswith(address) for found in addresses)


@pytest.mark.parametrize("by_name", [True, False])
def test_files_may_lie_in_a_folder_under_their_bare_names(by_name, place, tmp_path):
    """As they are called here, or as a browser would save them."""
    flat = tmp_path / "flat"
    flat.mkdir()
    sums = []
    for source in wanted(WMT):
        data = (place / source.path).read_bytes()
        name = source.name if by_name or source.md5 else source.path.rpartition("/")[2]
        (flat / name).write_bytes(data)
        sums.append(f"{sha256(data)}  {name}\n")
    (flat / "SHA256SUMS").write_text("".join(sums))
    assert fetch(WMT, tmp_path / "out", flat) == 0
    all_there(WMT, tmp_path / "out", place)


def test_an_ambiguous_bare_file_name_is_not_used(tmp_path):
    """test.tgz may be that of wmt13 or of any other year; other bare names are of one file only."""
    (tmp_path / "out").mkdir()
    taken = set()
    for source in wanted("wmt-en-ru:wmt13,wmt14"):
        (tmp_path / source.path.rpartition("/")[2]).touch()
        if fetching.take(tmp_path / "out", source, str(tmp_path)):
            taken.add(source.name)
    assert taken == {"commoncrawl.tgz", "news-commentary-v13.tgz", "yandex-1m.zip", "wiki-titles.tgz"}


def test_checksums_of_bare_file_names_are_checked(place, tmp_path, refused):
    flat = tmp_path / "flat"
    flat.mkdir()
    (source,) = wanted(IWSLT)
    shutil.copy(place / source.path, flat)
    (flat / "SHA256SUMS").write_text(f"{'0' * 64}  de-en.tgz\n")
    refused(fetch(IWSLT, tmp_path / "out", flat), [source.name, "of SHA256SUMS"])


@pytest.mark.parametrize("way", ["relative", "with a slash", "from within"])
def test_a_folder_may_be_named_in_any_way(way, copy, tmp_path, monkeypatch):
    folder = copy(IWSLT).rename(tmp_path / "a b")
    monkeypatch.chdir(folder if way == "from within" else tmp_path)
    named = {"relative": "a b", "with a slash": f"{folder}/", "from within": "."}[way]
    assert fetch(IWSLT, "../out" if way == "from within" else "out", named) == 0
    monkeypatch.chdir("/")  # links hold wherever one stands
    all_there(IWSLT, tmp_path / "out", folder)


def test_an_empty_data_dir_counts_as_unset(copy, tmp_path, serve, monkeypatch):
    """It is not the folder one happens to stand in."""
    server = serve(copy(IWSLT))
    source = Source("x.tgz", f"{server.address}/{mirrors.IWSLT14}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tgz").write_text("something else")
    fetching.fetch([source], tmp_path / "out", "")
    assert not (tmp_path / "out" / "x.tgz").is_symlink()


def test_what_a_folder_does_not_have_is_downloaded(copy, tmp_path, serve):
    folder = copy(SUBTITLES)
    server = serve(folder)
    sources = [Source(s.name, f"{server.address}/{s.path}") for s in wanted(SUBTITLES)]
    half = tmp_path / "half"
    half.mkdir()
    shutil.copy(folder / mirrors.SUBTITLES, half / sources[0].name)
    fetching.fetch(sources, tmp_path / "out", str(half))
    assert (tmp_path / "out" / sources[0].name).is_symlink()
    assert not (tmp_path / "out" / sources[1].name).is_symlink()
    assert (tmp_path / "out" / sources[1].name).read_bytes() == (folder / mirrors.ALIGNMENT).read_bytes()
    assert {path.rpartition("/")[2] for _, path, _ in server.seen} == {"en-ru.xml.gz"}


def test_a_broken_link_is_replaced(copy, place, tmp_path, serve):
    old, out = copy(SUBTITLES), tmp_path / "out"
    assert fetch(SUBTITLES, out, old) == 0
    shutil.rmtree(old)
    assert fetch(SUBTITLES, out, place) == 0
    all_there(SUBTITLES, out, place)
    for source in wanted(SUBTITLES):
        assert (out / source.name).resolve() == (place / source.path).resolve()
        (out / source.name).unlink()
        (out / source.name).symlink_to(old / source.path)
    assert fetch(SUBTITLES, out, serve(place).address) == 0
    all_there(SUBTITLES, out, place)
    assert not any((out / source.name).is_symlink() for source in wanted(SUBTITLES))


def test_the_command_refuses_an_unknown_collection_in_one_line(place, tmp_path):
    """In a process of its own, all it says of a bad name is a line."""
    command = [sys.executable, str(RECIPES / "corpora.py"), "fetch", "iwslt14", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("corpora.py: 'iwslt14' is not a collection") and result.stderr.count("\n") == 1
