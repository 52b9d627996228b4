"""Files of corpora in a folder of the user (corpora.get fetch)."""

from __future__ import annotations

import shutil
from urllib.parse import urlsplit

import pytest
from support import mirrors
from support.corpora import IWSLT, SUBTITLES, WMT, all_there, call, fetch, sha256, wanted

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


def listed(collection, capsys):
    assert call("list", collection) == 0
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def test_the_list_has_every_address_once(capsys):
    rows = listed("wmt-en-ru:wmt18,wmt20", capsys)
    assert len({address for _, address in rows}) == len(rows)
    assert [name for name, _ in rows].count("wiki-titles.tgz") == 3  # with alternatives
    first = dict(reversed(rows))
    paths = {name: f"{urlsplit(address).hostname}{urlsplit(address).path}" for name, address in first.items()}
    assert paths == {
        "commoncrawl.tgz": mirrors.COMMONCRAWL,
        "news-commentary-v13.tgz": mirrors.NEWS_COMMENTARY,
        "yandex-1m.zip": mirrors.YANDEX,
        "wiki-titles.tgz": mirrors.HEADLINES,
        "wmt18.test.tgz": "data.statmt.org/wmt18/translation-task/test.tgz",
        "wmt20.test.tgz": "data.statmt.org/wmt20/translation-task/test.tgz",
    }


@pytest.mark.parametrize(
    ("titles", "address"), [("", mirrors.HEADLINES), (",wmt15", mirrors.HEADLINES), (",v2", mirrors.WIKI_TITLES)]
)
def test_the_titles_of_wikipedia_can_be_chosen(titles, address, capsys):
    addresses = [address for _, address in listed(f"wmt-en-ru:wmt13,wmt14{titles}", capsys)]
    both = [found for found in addresses if found.endswith((mirrors.HEADLINES, mirrors.WIKI_TITLES))]
    assert len(both) == 1 and both[0].endswith(address)


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
