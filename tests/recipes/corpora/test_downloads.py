"""Files of corpora from a mirror: downloads that resume (corpora.get fetch)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading

import pytest
from support import mirrors
from support.corpora import IWSLT, SUBTITLES, WMT, all_there, fetch, until, wanted, was_killed
from support.recipes import shell

from commands import Refused
from corpora import archives, fetching
from corpora.fetching import Source

pytest_plugins = ["support.corpora"]


@pytest.mark.parametrize("ranges", [True, False])
def test_files_are_downloaded_in_parallel_and_only_once(ranges, place, tmp_path, serve):
    server, out = serve(place), tmp_path / "out"
    server.ranges = ranges
    server.together = threading.Barrier(len(wanted(WMT)))  # one after the other, they would wait for ever
    assert fetch(WMT, out, server.address + "/") == 0
    all_there(WMT, out, place)
    assert all(server.asked(source) == [None] for source in wanted(WMT))
    server.seen.clear()
    before = (out / "manifest.tsv").stat()
    assert fetch(WMT, out, server.address) == 0
    assert server.seen == [] and (out / "manifest.tsv").stat() == before


@pytest.mark.parametrize(
    ("part", "ranges", "asked"),
    [
        (lambda data: data[:1000], True, ["bytes=1000-"]),
        (lambda data: data[:1000], False, ["bytes=1000-", None]),  # the server does not support ranges
        (lambda data: data, True, []),
        (lambda data: b"x" * 9999, True, ["bytes=9999-", None]),  # the server has nothing after it (416)
    ],
    ids=["the beginning", "no ranges", "complete", "too long"],
)
def test_a_partial_download_is_resumed(part, ranges, asked, place, tmp_path, serve):
    server, (source,) = serve(place), wanted(IWSLT)
    server.ranges = ranges
    data = (place / source.path).read_bytes()
    (tmp_path / f"{source.name}.part").write_bytes(part(data))
    assert fetch(IWSLT, tmp_path, server.address) == 0
    all_there(IWSLT, tmp_path, place)
    assert server.asked(source) == asked and server.asked(source, "HEAD") == [None]
    if len(asked) == 1:
        assert server.sent[source.path] == len(data) - 1000


def test_where_an_address_fails_the_next_one_is_tried(tmp_path, serve):
    """Also one whose archive is packed otherwise; the manifest has the address that the file came from."""
    server, out = serve(tmp_path / "server"), tmp_path / "out"
    members = {"wiki/ru-en/wiki.ru-en": "один ||| one\n"}
    for name, data in (("b/x.zip", mirrors.zipped(members)), ("c/x.tgz", mirrors.tgz(members))):
        (tmp_path / "server" / name).parent.mkdir(parents=True)
        (tmp_path / "server" / name).write_bytes(data)
    address = server.address
    source = Source("x.tgz", f"{address}/a/x.tgz", others=(f"{address}/b/x.zip", f"{address}/c/x.tgz"))
    fetching.fetch([source], out, None)
    assert list(archives.lines(out / "x.tgz", "wiki/ru-en/wiki.ru-en")) == ["один ||| one"]
    assert f"\t{address}/b/x.zip\n" in (out / "manifest.tsv").read_text()
    assert {path.name for path in out.iterdir()} == {"x.tgz", "manifest.tsv", ".lock"}
    assert [path for how, path, _ in server.seen if how == "GET"] == ["a/x.tgz", "b/x.zip"]
    fetching.fetch([source], out, None)  # nothing is left to do
    assert len([how for how, *_ in server.seen if how == "GET"]) == 2


def test_each_address_resumes_its_own_part_and_all_reasons_are_given(tmp_path, serve):
    data = mirrors.tgz({"a": "".join(f"{random.random()}\n" for _ in range(900))})
    (tmp_path / "server" / "b").mkdir(parents=True)
    (tmp_path / "server" / "b" / "x.tgz").write_bytes(data)
    server, out = serve(tmp_path / "server"), tmp_path / "out"
    server.cut["b/x.tgz"] = 40
    source = Source("x.tgz", f"{server.address}/a/x.tgz", others=(f"{server.address}/b/x.tgz",))
    with pytest.raises(Refused, match=r"a/x.tgz cannot be downloaded .*404.*, .*b/x.tgz cannot be downloaded"):
        fetching.fetch([source], out, None)
    part = (out / "x.tgz.address2.part").read_bytes()
    assert part and data.startswith(part) and len(part) < len(data) and not (out / "x.tgz").exists()
    server.cut.clear()
    server.seen.clear()
    fetching.fetch([source], out, None)
    assert (out / "x.tgz").read_bytes() == data and not list(out.glob("*.part"))
    assert ("GET", "b/x.tgz", f"bytes={len(part)}-") in server.seen


def test_a_recipe_keeps_the_parts_of_downloads(tmp_path):
    """It removes those of killed programs, NAME.PID.part."""
    kept = [tmp_path / "downloads" / name for name in ("a-2.3.tgz.part", "a-2.3.tgz.address2.part")]
    removed = tmp_path / "text" / "train.en.123.part"
    for path in (*kept, removed):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    shell(f"lock_out {tmp_path}")
    assert all(path.exists() for path in kept) and not removed.exists()


def test_another_file_than_expected_leads_to_the_next_address(tmp_path, serve):
    """A server may answer with a page; and with a checksum of one address, another one is not tried."""
    data, server, out = mirrors.tgz({"a": "text\n"}), serve(tmp_path / "server"), tmp_path / "out"
    for name, content in (("a/x.tgz", b"<p>moved</p>"), ("b/x.tgz", data)):
        (tmp_path / "server" / name).parent.mkdir(parents=True)
        (tmp_path / "server" / name).write_bytes(content)
    one, two = (f"{server.address}/{folder}/x.tgz" for folder in "ab")
    source = Source("x.tgz", one, others=(two,))
    fetching.fetch([source], out, None)
    assert (out / "x.tgz").read_bytes() == data and f"\t{two}\n" in (out / "manifest.tsv").read_text()
    (out / "x.tgz").unlink()
    server.seen.clear()
    (tmp_path / "server" / "b/x.tgz").write_bytes(mirrors.tgz({"a": "other\n"}))
    with pytest.raises(Refused, match=rf"x.tgz: {two} has .* not the .* of manifest.tsv.*: run the same command again"):
        fetching.fetch([source], out, None)
    assert {path for _, path, _ in server.seen} == {"b/x.tgz"} and not (out / "x.tgz").exists()


@pytest.mark.parametrize("name", ["two.example.org/deep/y.zip", "y.zip"])
def test_a_folder_may_hold_the_file_of_another_address(name, tmp_path):
    """Its own checksum is checked."""
    source = Source("x.tgz", "https://one.example.org/x.tgz", others=("https://two.example.org/deep/y.zip",))
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(mirrors.zipped({"a": "text\n"}))
    fetching.fetch([source], tmp_path / "out", str(tmp_path))
    assert list(archives.lines(tmp_path / "out" / "x.tgz", "a")) == ["text"]
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    with pytest.raises(Refused, match="not the 000000000000... of SHA256SUMS"):
        fetching.fetch([source], tmp_path / "again", str(tmp_path))


@pytest.mark.parametrize("status", [403, 404])
def test_a_partial_download_is_kept_if_the_server_refuses(status, place, tmp_path, serve, refused):
    server, (source,) = serve(place), wanted(IWSLT)
    server.answers[source.path] = status, b"<p>not now</p>"
    part = (place / source.path).read_bytes()[:1000]
    (tmp_path / f"{source.name}.part").write_bytes(part)
    words = [source.name, server.address, str(status), "run the same command again", "DATA_DIR"]
    refused(fetch(IWSLT, tmp_path, server.address), words)
    assert (tmp_path / f"{source.name}.part").read_bytes() == part


def test_a_broken_connection_is_taken_up_again(place, tmp_path, serve, refused, monkeypatch):
    """It breaks off after a third of the file, each time; with one attempt the next run resumes it."""
    server, (whole, broken) = serve(place), wanted(SUBTITLES)
    third = (place / broken.path).stat().st_size // 3 + 1
    server.cut[broken.path] = third
    assert fetch(SUBTITLES, tmp_path / "out", server.address) == 0
    all_there(SUBTITLES, tmp_path / "out", place)
    assert server.asked(broken) == [None, *(f"bytes={n * third}-" for n in (1, 2))]

    monkeypatch.setattr(fetching, "ATTEMPTS", 1)
    out = tmp_path / "once"
    refused(fetch(SUBTITLES, out, server.address), [broken.name, "cannot be downloaded", "run the same command again"])
    assert (out / f"{broken.name}.part").stat().st_size == third
    assert whole.name in (out / "manifest.tsv").read_text() and broken.name not in (out / "manifest.tsv").read_text()
    server.cut.clear()
    server.seen.clear()
    assert fetch(SUBTITLES, out, server.address) == 0
    all_there(SUBTITLES, out, place)
    assert server.asked(broken) == [f"bytes={third}-"] and server.asked(whole) == []


def test_an_unreachable_server_is_reported(place, tmp_path, serve, refused):
    server = serve(place)
    address = server.address
    server.shutdown()
    server.server_close()
    names = [[source.name, address, "cannot be downloaded"] for source in wanted(SUBTITLES)]
    refused(fetch(SUBTITLES, tmp_path, address), *names)


def test_a_page_instead_of_an_archive_is_refused(place, tmp_path, serve, refused):
    server, lines = serve(place), []
    for source in wanted(SUBTITLES):
        server.answers[source.path] = 200, b"<!DOCTYPE html>\n<title>Log in first</title>\n"
        lines.append([source.name, f"{server.address}/{source.path}", "does not open"])
    server.answers["SHA256SUMS"] = 200, b"<!DOCTYPE html>\n<title>Not\xff found</title>\n"
    refused(fetch(SUBTITLES, tmp_path, server.address), *lines)
    assert {path.name for path in tmp_path.iterdir()} <= {".lock", "manifest.tsv"}


def test_a_small_disk_is_found_before_the_download(place, tmp_path, serve, refused, monkeypatch):
    """A part that exists needs no room again."""
    server, (source,) = serve(place), wanted(IWSLT)
    data = (place / source.path).read_bytes()
    usage = shutil.disk_usage(tmp_path)._replace(free=len(data) - 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    (tmp_path / f"{source.name}.part").write_bytes(data[:999])
    words = [str(tmp_path), "GB are free", "to be downloaded", "free some"]
    refused(fetch(IWSLT, tmp_path, server.address), words)
    assert server.asked(source) == []
    (tmp_path / f"{source.name}.part").write_bytes(data[:1000])
    assert fetch(IWSLT, tmp_path, server.address) == 0


def test_missing_curl_is_reported_in_one_line(place, tmp_path, refused, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for address in (None, "http://127.0.0.1:1"):
        refused(fetch(IWSLT, tmp_path / "out", address), ["curl is not on the PATH", "DATA_DIR"])
    assert fetch(IWSLT, tmp_path / "out", place) == 0  # a folder needs none


def test_a_run_that_is_killed_goes_on_where_it_was(place, tmp_path, serve, refused, capsys, in_child):
    """Its curl lives on and keeps the folder to itself until its end; then the same command has all files."""
    server, out = serve(place), tmp_path / "out"
    server.hold = True
    child = in_child(lambda: fetch(SUBTITLES, out, server.address))
    until(lambda: server.held == len(wanted(SUBTITLES)))
    os.kill(child, signal.SIGKILL)
    assert was_killed(child)
    refused(fetch(SUBTITLES, out, server.address), ["another run", str(out), "wait"])
    server.hold = False
    server.go_on.set()
    until(lambda: "another run" not in first_line(capsys, fetch(SUBTITLES, out, server.address)))
    all_there(SUBTITLES, out, place)
    assert all(server.asked(source) == [None] for source in wanted(SUBTITLES))  # nothing was sent twice


def first_line(capsys, code):
    err = capsys.readouterr().err
    assert (code == 0) == (err == ""), err
    return err


def test_an_interrupted_run_stops_its_downloads(place, tmp_path, serve, capsys, monkeypatch):
    """It leaves what has arrived, nobody who holds the folder, and the way to go on."""
    server, out = serve(place), tmp_path / "out"
    server.hold = True
    with monkeypatch.context() as patch:
        patch.setattr(fetching.time, "sleep", lambda seconds: interrupt() if server.held == 2 else None)
        assert fetch(SUBTITLES, out, server.address) == 130
    assert capsys.readouterr().err == "corpora.get: stopped; run the same command again to resume\n"
    server.hold = False  # for new requests; the old ones still wait
    until(lambda: "another run" not in first_line(capsys, fetch(SUBTITLES, out, server.address)), seconds=5)
    all_there(SUBTITLES, out, place)


def interrupt():
    raise KeyboardInterrupt
