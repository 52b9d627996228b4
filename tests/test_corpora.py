"""Getting the files of the recipes' corpora, from folders and mirrors, and unpacking them."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import mirror_for_tests as mirror
import pytest

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
sys.path.append(str(RECIPES))

import corpora  # noqa: E402
import fetching  # noqa: E402

WMT, SUBTITLES, IWSLT = "wmt-en-ru", "opensubtitles-en-ru", "iwslt14-de-en"

# What would be mark-up in one of the formats, or looks like it, is text in the others.
THINGS = ["cat", "R&D", "a < b > c", "<laughs> bird", "x &amp; y", "doc, url", "&quot;", "<title> of a book"]


def made_up(start, number):
    return [
        (f"Number {n} is: {THINGS[n % len(THINGS)]} .", f"Номер {n} — «птица»!") for n in range(start, start + number)
    ]


TRAIN, VALID, TEST = made_up(0, 240), made_up(1000, 23), made_up(2000, 31)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three mirrors in one folder, and the pairs of each corpus, by collection and the name of the corpus."""
    folder = tmp_path_factory.mktemp("mirror")
    # sacrebleu takes all tags from its sets, whatever they are.
    plain = [[(en.replace("<", "("), ru) for en, ru in pairs] for pairs in (VALID, TEST)]
    wmt = mirror.make_wmt_mirror(folder, TRAIN, *plain)
    subtitles = mirror.make_subtitles_mirror(folder, TRAIN)
    talks = mirror.make_iwslt_mirror(folder, TRAIN, test=TEST)
    return folder, {
        WMT: {**wmt, "valid": plain[0], "test": plain[1]},
        SUBTITLES: {"opensubtitles": [(pair.english, pair.russian) for pair in subtitles], "alignment": []},
        IWSLT: {"talks": talks["train"], "test": [pair for name in mirror.IWSLT_SETS for pair in talks[name]]},
    }


@pytest.fixture(scope="module")
def place(made):
    """The folder with all mirrors: not to be changed."""
    return made[0]


@pytest.fixture
def copy(place, tmp_path):
    """copy(collection, sums=False) gives a folder of one's own that has the files of a collection."""

    def copy(collection, sums=False):
        folder = tmp_path / "place"
        for source in wanted(collection):
            (folder / source.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(place / source.path, folder / source.path)
        if sums:
            shutil.copy(place / "SHA256SUMS", folder)
        return folder

    return copy


def wanted(collection):
    return corpora.sources(corpora.collection(collection))


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def contents(folder):
    """Every file of a folder, by its path in it."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def call(*arguments):
    return corpora.main([str(argument) for argument in arguments])


def fetch(collection, folder, place=None):
    return call("fetch", collection, folder, *([] if place is None else ["--data-dir", place]))


def all_there(collection, folder, place):
    """Each file is what the mirror has, and the manifest says so; nothing else lies there."""
    rows = []
    for source in sorted(wanted(collection), key=lambda source: source.name):
        data = (place / source.path).read_bytes()
        assert (folder / source.name).read_bytes() == data, source.name
        rows.append(f"{source.name}\t{len(data)}\t{sha256(data)}\t{source.address}\n")
    assert (folder / "manifest.tsv").read_text() == "file\tbytes\tsha256\taddress\n" + "".join(rows)
    assert {path.name for path in folder.iterdir()} == {s.name for s in wanted(collection)} | {"manifest.tsv", ".lock"}


@pytest.fixture
def refused(capsys):
    """refused(code, *lines): exit code 2, and on stderr as many lines, each with all words of its own."""

    def refused(code, *lines):
        err = capsys.readouterr().err
        assert code == 2, err
        said = err.splitlines()
        assert len(said) == len(lines), err
        assert said[0].startswith("corpora.py: ")
        for line, words in zip(said, lines, strict=True):
            assert all(word in line for word in words), (line, words)
        return err

    return refused


@pytest.fixture
def in_child():
    """in_child(work) does it in a process of its own; gives its id."""
    children = []

    def in_child(work):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                work()
            finally:
                os._exit(99)
        return children[-1]

    yield in_child
    for child in children:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def was_killed(child):
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


# --- a mirror on the net ------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Serves a folder, well or badly; `seen` has the method, path and Range of each request, in order."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.seen, self.sent = folder, [], {}
        self.ranges = True  # whether it can begin in the middle
        self.answers = {}  # path: another status and body
        self.cut = {}  # path: after how many bytes the connection breaks
        self.go_on = threading.Event()  # with `hold`, half of a file is sent before this is set
        self.hold, self.held = False, 0
        self.together = None  # a barrier that all requests for files have to reach

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/a%20mirror"

    def asked(self, source, method="GET"):
        """The Range of each request for a file, None for the whole."""
        return [range_ for how, path, range_ in self.seen if (how, path) == (method, source.path)]

    def handle_error(self, request, client_address):
        pass  # the other side went away


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server, path = self.server, unquote(self.path).removeprefix("/a mirror/")
        asked = self.headers.get("Range")
        server.seen.append((self.command, path, asked))
        if server.together and self.command == "GET" and path != "SHA256SUMS":
            server.together.wait(timeout=20)
        file = server.folder / path
        status, data = server.answers.get(path) or ((200, file.read_bytes()) if file.is_file() else (404, b"no such"))
        headers = {}
        if asked and server.ranges and status == 200:
            first, size = int(asked.removeprefix("bytes=").rstrip("-")), len(data)
            if first >= size:
                status, data, headers = 416, b"<p>nothing more</p>", {"Content-Range": f"bytes */{size}"}
            else:
                status, data, headers = 206, data[first:], {"Content-Range": f"bytes {first}-{size - 1}/{size}"}
        self.send_response(status)
        for name, value in {"Content-Length": len(data), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            half = server.cut.get(path, len(data) // 2 if server.hold else len(data))
            self.wfile.write(data[:half])
            self.wfile.flush()
            if path not in server.cut:
                if server.hold and path != "SHA256SUMS":
                    server.held += 1
                    server.go_on.wait(30)
                self.wfile.write(data[half:])
            server.sent[path] = server.sent.get(path, 0) + min(half, len(data)) if path in server.cut else len(data)

    do_HEAD = do_GET


@pytest.fixture
def serve(monkeypatch):
    """serve(folder) starts a server."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    started = []

    def serve(folder):
        server = Server(folder)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        started.append(server)
        return server

    yield serve
    for server in started:
        server.go_on.set()
        server.shutdown()
        server.server_close()


# --- from a folder ------------------------------------------------------------------------------------------------


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
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in rows] == [
        "commoncrawl.tgz", "news-commentary-v13.tgz", "yandex-1m.zip", "wikititles-v2.ru-en.tsv.gz",
        "wmt18.test.tgz", "wmt20.test.tgz",
    ]  # fmt: skip
    assert rows[4:] == [
        ["wmt18.test.tgz", "https://data.statmt.org/wmt18/translation-task/test.tgz"],
        ["wmt20.test.tgz", "https://data.statmt.org/wmt20/translation-task/test.tgz"],
    ]
    found = {f"{urlsplit(address).hostname}{urlsplit(address).path}" for _, address in rows[:4]}
    assert found == {mirror.COMMONCRAWL, mirror.NEWS_COMMENTARY, mirror.YANDEX, mirror.WIKI_TITLES}


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


def test_a_bare_name_of_many_years_is_not_taken(tmp_path):
    """test.tgz may be that of wmt13 or of any other year; other bare names are of one file only."""
    (tmp_path / "out").mkdir()
    taken = set()
    for source in wanted("wmt-en-ru:wmt13,wmt14"):
        (tmp_path / source.path.rpartition("/")[2]).touch()
        if fetching.take(tmp_path / "out", source, str(tmp_path)):
            taken.add(source.name)
    assert taken == {"commoncrawl.tgz", "news-commentary-v13.tgz", "yandex-1m.zip", "wikititles-v2.ru-en.tsv.gz"}


def test_the_checksums_of_bare_names_count(place, tmp_path, refused):
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


def test_an_empty_data_dir_is_none(copy, tmp_path, serve, monkeypatch):
    """It is not the folder one happens to stand in."""
    server = serve(copy(IWSLT))
    source = fetching.Source("x.tgz", f"{server.address}/{mirror.IWSLT14}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tgz").write_text("something else")
    fetching.fetch([source], tmp_path / "out", "")
    assert not (tmp_path / "out" / "x.tgz").is_symlink()


def test_what_a_folder_does_not_have_is_downloaded(copy, tmp_path, serve):
    folder = copy(SUBTITLES)
    server = serve(folder)
    sources = [fetching.Source(s.name, f"{server.address}/{s.path}") for s in wanted(SUBTITLES)]
    half = tmp_path / "half"
    half.mkdir()
    shutil.copy(folder / mirror.SUBTITLES, half / sources[0].name)
    fetching.fetch(sources, tmp_path / "out", str(half))
    assert (tmp_path / "out" / sources[0].name).is_symlink()
    assert not (tmp_path / "out" / sources[1].name).is_symlink()
    assert (tmp_path / "out" / sources[1].name).read_bytes() == (folder / mirror.ALIGNMENT).read_bytes()
    assert {path.rpartition("/")[2] for _, path, _ in server.seen} == {"en-ru.xml.gz"}


def test_a_link_into_a_folder_that_is_gone_is_made_anew(copy, place, tmp_path, serve):
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


# --- from a mirror ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
def test_a_mirror_serves_all_files_at_once_and_once(ranges, place, tmp_path, serve):
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


def test_a_download_goes_on_in_the_middle(place, tmp_path, serve):
    server, out = serve(place), tmp_path / "out"
    out.mkdir()
    halves = {}
    for source in wanted(SUBTITLES):
        data = (place / source.path).read_bytes()
        halves[source] = len(data) // 2
        (out / f"{source.name}.part").write_bytes(data[: halves[source]])
    assert fetch(SUBTITLES, out, server.address) == 0
    all_there(SUBTITLES, out, place)
    for source, half in halves.items():
        assert server.asked(source) == [f"bytes={half}-"]
        assert server.sent[source.path] == len((place / source.path).read_bytes()) - half


def test_a_download_begins_anew_where_the_server_knows_no_ranges(place, tmp_path, serve):
    server, out = serve(place), tmp_path / "out"
    server.ranges = False
    out.mkdir()
    (source,) = wanted(IWSLT)
    (out / f"{source.name}.part").write_bytes((place / source.path).read_bytes()[:1000])
    assert fetch(IWSLT, out, server.address) == 0
    all_there(IWSLT, out, place)
    assert server.asked(source) == ["bytes=1000-", None]


def test_a_part_that_is_whole_becomes_the_file(place, tmp_path, serve):
    server, out = serve(place), tmp_path / "out"
    out.mkdir()
    (source,) = wanted(IWSLT)
    data = (place / source.path).read_bytes()
    (out / f"{source.name}.part").write_bytes(data)
    assert fetch(IWSLT, out, server.address) == 0
    all_there(IWSLT, out, place)
    assert server.asked(source) == [] and server.asked(source, "HEAD") == [None]


def test_a_part_that_is_too_long_is_begun_anew(place, tmp_path, serve):
    """The server has nothing from there on, and says so (416)."""
    server, out = serve(place), tmp_path / "out"
    out.mkdir()
    (source,) = wanted(IWSLT)
    (out / f"{source.name}.part").write_bytes(b"x" * 9999)
    assert fetch(IWSLT, out, server.address) == 0
    all_there(IWSLT, out, place)
    assert server.asked(source) == ["bytes=9999-", None]


@pytest.mark.parametrize("status", [403, 404])
def test_a_part_outlives_a_server_that_refuses(status, place, tmp_path, serve, refused):
    server, out = serve(place), tmp_path / "out"
    (source,) = wanted(IWSLT)
    server.answers[source.path] = status, b"<p>not now</p>"
    out.mkdir()
    part = (place / source.path).read_bytes()[:1000]
    (out / f"{source.name}.part").write_bytes(part)
    refused(
        fetch(IWSLT, out, server.address), [source.name, server.address, str(status), "run this again", "DATA_DIR="]
    )
    assert (out / f"{source.name}.part").read_bytes() == part
    server.answers.clear()
    server.seen.clear()
    assert fetch(IWSLT, out, server.address) == 0
    all_there(IWSLT, out, place)
    assert server.asked(source) == ["bytes=1000-"]


def test_a_broken_connection_is_taken_up_again(place, tmp_path, serve):
    """The connection breaks off after a third of the file, each time; the same run goes on from there."""
    server, out = serve(place), tmp_path / "out"
    _, broken = wanted(SUBTITLES)
    size = (place / broken.path).stat().st_size
    server.cut[broken.path] = size // 3 + 1
    assert fetch(SUBTITLES, out, server.address) == 0
    all_there(SUBTITLES, out, place)
    assert server.asked(broken)[1:] == [f"bytes={n * (size // 3 + 1)}-" for n in (1, 2)]


def test_a_broken_connection_loses_nothing(place, tmp_path, serve, refused, monkeypatch):
    """One of two files breaks off for good: the other is recorded, the part stays, and the same command goes on."""
    monkeypatch.setattr(fetching, "RETRIES", 0)
    server, out = serve(place), tmp_path / "out"
    whole, broken = wanted(SUBTITLES)
    server.cut[broken.path] = 700
    refused(fetch(SUBTITLES, out, server.address), [broken.name, "cannot be downloaded", "run this again"])
    assert (out / f"{broken.name}.part").stat().st_size == 700
    assert whole.name in (out / "manifest.tsv").read_text() and broken.name not in (out / "manifest.tsv").read_text()
    server.cut.clear()
    server.seen.clear()
    assert fetch(SUBTITLES, out, server.address) == 0
    all_there(SUBTITLES, out, place)
    assert server.asked(broken) == ["bytes=700-"] and server.asked(whole) == []


def test_a_server_that_is_gone(place, tmp_path, serve, refused):
    server, out = serve(place), tmp_path / "out"
    address = server.address
    server.shutdown()
    server.server_close()
    names = [[source.name, address, "cannot be downloaded"] for source in wanted(SUBTITLES)]
    refused(fetch(SUBTITLES, out, address), *names)
    assert fetch(SUBTITLES, out, serve(place).address) == 0
    all_there(SUBTITLES, out, place)


def test_a_page_instead_of_an_archive(place, tmp_path, serve, refused):
    server, out = serve(place), tmp_path / "out"
    lines = []
    for source in wanted(SUBTITLES):
        server.answers[source.path] = 200, b"<!DOCTYPE html>\n<title>Log in first</title>\n"
        lines.append([source.name, f"{server.address}/{source.path}", "does not open"])
    server.answers["SHA256SUMS"] = 200, b"<!DOCTYPE html>\n<title>Not\xff found</title>\n"
    refused(fetch(SUBTITLES, out, server.address), *lines)
    assert {path.name for path in out.iterdir()} <= {".lock", "manifest.tsv"}
    server.answers.clear()
    assert fetch(SUBTITLES, out, server.address) == 0
    all_there(SUBTITLES, out, place)


def test_a_small_disk_is_found_before_the_download(place, tmp_path, serve, refused, monkeypatch):
    """What is there in part needs no room again."""
    server, out = serve(place), tmp_path / "out"
    (source,) = wanted(IWSLT)
    data = (place / source.path).read_bytes()
    free = len(data) - 1000
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    refused(fetch(IWSLT, out, server.address), [str(out), "GB are free", "to be downloaded", "free some"])
    assert server.asked(source) == [] and server.asked(source, "HEAD") == [None]
    (out / f"{source.name}.part").write_bytes(data[:999])
    refused(fetch(IWSLT, out, server.address), ["GB are free"])
    (out / f"{source.name}.part").write_bytes(data[:1000])
    assert fetch(IWSLT, out, server.address) == 0
    all_there(IWSLT, out, place)


def test_without_curl_there_is_a_line(place, tmp_path, refused, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for address in (None, "http://127.0.0.1:1"):
        refused(fetch(IWSLT, tmp_path / "out", address), ["curl is not on the PATH", "DATA_DIR="])
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
    assert capsys.readouterr().err == "corpora.py: stopped; run it again and it goes on\n"
    server.hold = False  # for new requests; the old ones still wait
    until(lambda: "another run" not in first_line(capsys, fetch(SUBTITLES, out, server.address)), seconds=5)
    all_there(SUBTITLES, out, place)


def interrupt():
    raise KeyboardInterrupt


def test_two_runs_do_not_share_a_folder(place, tmp_path, refused):
    (tmp_path / "out").mkdir()
    with fetching.locked(tmp_path / "out"):
        refused(fetch(IWSLT, tmp_path / "out", place), ["another run is getting files", "wait for its end"])
    assert fetch(IWSLT, tmp_path / "out", place) == 0


# --- what is refused ----------------------------------------------------------------------------------------------


def test_files_that_are_cut_off_are_refused(copy, tmp_path, refused):
    """At any length, each with a line; the user's files stay as they are, and once mended the same command goes on."""
    folder, out = copy(WMT, sums=True), tmp_path / "out"
    assert fetch(WMT, out, folder) == 0  # the sacrebleu sets, which only their checksums let through
    (folder / "SHA256SUMS").unlink()
    (out / "manifest.tsv").unlink()
    three = [source for source in wanted(WMT) if source.name in ("commoncrawl.tgz", "yandex-1m.zip")]
    three += [source for source in wanted(WMT) if source.name.endswith(".tsv.gz")]
    whole = {source: (folder / source.path).read_bytes() for source in three}
    for cut in (0, 1, 2, 9, 10, 11, 0.3, 0.9, -9, -8, -1):
        for source, data in whole.items():
            (folder / source.path).write_bytes(data[: int(cut * len(data)) if isinstance(cut, float) else cut])
        before = contents(folder)
        shutil.rmtree(out)
        lines = [[s.name, str(folder / s.path), "does not open", "cut off", "DATA_DIR="] for s in three]
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
        patch.setattr(corpora, "collection", lambda name: [corpora.Corpus("x", s, corpora.whole) for s in sources])
        return fetch("some", out, place)


def test_no_single_changed_byte_ends_in_a_traceback(tmp_path):
    """Of archives of every kind: a change is found, or changes nothing that is read."""
    rng = random.Random(3)
    text = {"a/b": "".join(f"{rng.random()}\n" for _ in range(40)), "c": "d\n"}
    plain = io.BytesIO(gzip.decompress(mirror.tgz(text)))
    kinds = {
        "x.tgz": mirror.tgz(text),
        "x.tar.gz": mirror.tgz(text),
        "x.tar.bz2": bz2.compress(plain.getvalue()),
        "x.zip": mirror.zipped(text),
        "x.gz": mirror.gz(text["a/b"].encode()),
    }
    for name, data in kinds.items():
        path = tmp_path / name
        path.write_bytes(data)
        fetching.read_to_the_end(path)
        found = 0
        for _ in range(60):
            changed = bytearray(data)
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            try:
                fetching.read_to_the_end(path)
            except fetching.BROKEN_ARCHIVE:
                found += 1
        assert found > 30, name
        for cut in [*range(20), *(rng.randrange(len(data)) for _ in range(20)), len(data) - 1]:
            path.write_bytes(data[:cut])
            with pytest.raises(fetching.BROKEN_ARCHIVE):
                fetching.read_to_the_end(path)
        path.write_bytes(b"<html></html>\n")
        with pytest.raises(fetching.BROKEN_ARCHIVE):
            fetching.read_to_the_end(path)


def test_wrong_checksums_are_refused(copy, place, tmp_path, refused):
    folder, out = copy(SUBTITLES, sums=True), tmp_path / "out"
    sums = (folder / "SHA256SUMS").read_text()
    zipped, alignment = wanted(SUBTITLES)
    true = sha256((folder / alignment.path).read_bytes())
    (folder / "SHA256SUMS").write_text(sums.replace(true, "0123456789abcdef" * 4))
    before = contents(folder)
    refused(
        fetch(SUBTITLES, out, folder),
        [alignment.name, str(folder), true[:12], "0123456789ab", "SHA256SUMS", "get it anew"],
    )
    assert contents(folder) == before and not (out / alignment.name).is_symlink()
    assert (out / zipped.name).exists() and zipped.name in (out / "manifest.tsv").read_text()
    (folder / "SHA256SUMS").write_text(sums)
    assert fetch(SUBTITLES, out, folder) == 0
    all_there(SUBTITLES, out, place)


@pytest.mark.parametrize("form", ["{}  {}", "{} *{}", "{}  ./{}", "{}\t{}"])
def test_checksums_may_be_written_in_several_ways(form, copy, tmp_path, refused):
    """Lines that are none are passed over, as sha256sum does."""
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


def test_a_manifest_of_someone_else_has_to_agree(copy, place, tmp_path, refused):
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
    longer = mirror.tgz({"de-en/a": "b\n" * 10_000})
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
    refused(fetch(IWSLT, out, place), [str(out / "manifest.tsv"), "is no manifest", "remove it"])
    assert (out / "manifest.tsv").read_bytes() == damaged
    (out / "manifest.tsv").unlink()
    assert fetch(IWSLT, out, place) == 0
    all_there(IWSLT, out, place)


def test_a_file_that_lay_there_before_is_refused_and_stays(place, tmp_path, refused):
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


def test_a_data_dir_that_is_no_folder(tmp_path, refused):
    (tmp_path / "file").touch()
    for name in ("file", "nothing", "mirror.example.org"):
        refused(fetch(IWSLT, tmp_path / "out", tmp_path / name), [f"DATA_DIR={tmp_path / name} is no folder", "mirror"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["list", "fetch", "unpack"])
def test_collections_and_sets_that_there_are_not(command, tmp_path, refused):
    folders = [tmp_path / name for name in ("a", "b")][: ["list", "fetch", "unpack"].index(command)]
    for name in ("wmt-en-de", "", "wmt"):
        refused(call(command, name, *folders), [f"'{name}' is no collection", WMT, SUBTITLES, IWSLT])
    for name, wrong in (("wmt08,wmt14", "wmt08"), ("wmt13,none", "none"), ("wmt13", "")):
        refused(call(command, f"wmt-en-ru:{name}", *folders), [f"'{wrong}' is no set of sacrebleu", "en-ru", "wmt20"])
    refused(call(command, "iwslt14-de-en:wmt13,wmt14", *folders), ["iwslt14-de-en", "has no sets to choose"])
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_folders(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        call("unpack", IWSLT, tmp_path)
    assert stop.value.code == 2 and "takes 2 folders" in capsys.readouterr().err


# --- unpacking ----------------------------------------------------------------------------------------------------


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
def test_corpora_are_what_the_mirror_was_made_of(collection, made, all_unpacked):
    folder, said = all_unpacked
    truth = made[1][collection]
    for name, pairs in truth.items():
        assert unpacked(folder / collection, name, collection.split("-")[-2:]) == pairs, name
    assert said[collection] == "".join(f"{name}: {len(pairs):,} pairs\n" for name, pairs in truth.items())


def test_nothing_is_left_over(all_unpacked):
    folder, _ = all_unpacked
    assert not [path for path in folder.rglob("*") if path.is_dir() and path.name.endswith(".unpacked")]
    suffixes = {"en", "ru", "de", "count"}
    for collection in (WMT, SUBTITLES, IWSLT):
        assert {path.name.rpartition(".")[2] for path in (folder / collection).iterdir()} <= suffixes


@pytest.mark.parametrize("name", ["valid", "test"])
def test_the_sets_are_what_sacrebleu_says(name, place, all_unpacked, tmp_path):
    """sacrebleu finds the file where it would have downloaded it, and unpacks it itself."""
    data_set = {"valid": "wmt13", "test": "wmt14"}[name]
    source = next(s for s in wanted(WMT) if s.name.startswith(data_set))
    raw = tmp_path / data_set / "raw"
    raw.mkdir(parents=True)
    with tarfile.open(place / source.path) as archive:
        archive.extractall(raw, filter="data")
    shutil.copy(place / source.path, raw / source.name)
    command = [sys.executable, "-m", "sacrebleu", "-t", data_set, "-l", "en-ru", "--echo", "src", "ref"]
    env = {**os.environ, "SACREBLEU": str(tmp_path), "PYTHONUTF8": "1"}
    echo = subprocess.run(command, env=env, capture_output=True, check=True).stdout.decode()
    pairs = unpacked(all_unpacked[0] / WMT, name, ("en", "ru"))
    assert [tuple(line.split("\t")) for line in echo.split("\n")[:-1]] == pairs


def test_talks_are_what_grep_and_sed_leave(place, all_unpacked):
    """fairseq's preparation of the corpus: whole fields go, of titles and descriptions the tags."""
    for language in ("de", "en"):
        with tarfile.open(place / mirror.IWSLT14) as archive:
            data = archive.extractfile(f"de-en/train.tags.de-en.{language}").read()
        filters = "grep -v '<url>' | grep -v '<talkid>' | grep -v '<keywords>'"
        filters += " | sed -e 's/^<title>//' -e 's/<\\/title>$//' -e 's/^<description>//' -e 's/<\\/description>$//'"
        left = subprocess.run(["bash", "-c", filters], input=data, capture_output=True, check=True).stdout
        assert (all_unpacked[0] / IWSLT / f"talks.{language}").read_bytes() == left


def test_talks_of_later_years_have_more_fields(tmp_path):
    truth = mirror.make_iwslt_mirror(tmp_path / "place", TRAIN[:30], VALID, TEST, later_fields=True)
    assert fetch(IWSLT, tmp_path / "out", tmp_path / "place") == 0
    assert call("unpack", IWSLT, tmp_path / "out", tmp_path / "texts") == 0
    assert unpacked(tmp_path / "texts", "talks", ("de", "en")) == truth["train"]


def test_unpacking_again_changes_nothing(made, tmp_path, capsys):
    assert fetch(IWSLT, tmp_path / "out", made[0]) == 0
    assert call("unpack", IWSLT, tmp_path / "out", tmp_path / "texts") == 0
    first, stats = capsys.readouterr().out, {p: p.stat() for p in (tmp_path / "texts").iterdir()}
    assert call("unpack", IWSLT, tmp_path / "out", tmp_path / "texts") == 0
    assert capsys.readouterr().out == first
    assert {p: p.stat() for p in (tmp_path / "texts").iterdir()} == stats


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_killed_between_two_files_it_ends_the_same(moment, made, tmp_path, in_child):
    """Each output and the count come into being by a rename: before, between and after those of the two sides."""
    texts = tmp_path / "texts"
    assert fetch(IWSLT, tmp_path / "out", made[0]) == 0

    def work():
        rename, calls = Path.replace, []

        def deadly(path, target):
            calls.append(path)
            if len(calls) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(path, target)

        Path.replace = deadly
        call("unpack", IWSLT, tmp_path / "out", texts)

    assert was_killed(in_child(work))
    names = {path.name for path in texts.iterdir() if not path.name.endswith(".part")}
    assert len(names & {"talks.de", "talks.en"}) == moment - 1 and "talks.count" not in names
    assert call("unpack", IWSLT, tmp_path / "out", texts) == 0
    for name, pairs in made[1][IWSLT].items():
        assert unpacked(texts, name, ("de", "en")) == pairs


def subtitles_archive(folder, english, russian):
    """The file of OpenSubtitles with these bytes on its two sides, where `unpack` looks for it."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / wanted(SUBTITLES)[0].name, "w") as archive:
        archive.writestr("OpenSubtitles.en-ru.en", english)
        archive.writestr("OpenSubtitles.en-ru.ru", russian)
    (folder / wanted(SUBTITLES)[1].name).write_bytes(mirror.gz(b"<a/>"))
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


def test_bytes_that_are_no_text_are_counted(tmp_path, capsys):
    folder = subtitles_archive(
        tmp_path / "out", b"caf\xe9 au lait\nna\xefve \xff\nplain\n", "один\nдва\nтри\n".encode() + b"\xd1\n"
    )
    assert call("unpack", SUBTITLES, folder, tmp_path / "texts") == 2
    assert "3 lines in en and 4 lines in ru" in capsys.readouterr().err
    subtitles_archive(folder, b"caf\xe9 au lait\nna\xefve \xff\nplain\nlast\n", "один\nдва\nтри\n".encode() + b"\xd1\n")
    assert call("unpack", SUBTITLES, folder, tmp_path / "texts") == 0
    assert capsys.readouterr().out.startswith("opensubtitles: 4 pairs, 4 characters U+FFFD")
    assert unpacked(tmp_path / "texts", "opensubtitles", ("en", "ru")) == [
        ("caf\ufffd au lait", "один"), ("na\ufffdve \ufffd", "два"), ("plain", "три"), ("last", "\ufffd"),
    ]  # fmt: skip


@pytest.mark.parametrize(("english", "russian"), [(3, 2), (2, 3), (0, 1)])
def test_sides_of_different_length_are_refused(english, russian, tmp_path, refused):
    folder = subtitles_archive(tmp_path / "out", b"a\n" * english, b"b\n" * russian)
    refused(
        call("unpack", SUBTITLES, folder, tmp_path / "texts"),
        [str(folder), f"{english} lines in en and {russian} lines in ru", "aligned"],
    )
    assert list((tmp_path / "texts").iterdir()) == []
    subtitles_archive(folder, b"a\n", b"b\n")
    assert call("unpack", SUBTITLES, folder, tmp_path / "texts") == 0


def test_rows_have_two_columns(tmp_path):
    """Of a row with fewer or more it cannot be known what belongs together: both sides are empty, for clean.py."""
    path, read = tmp_path / "x.gz", corpora.columns(("ru", "en"))
    path.write_bytes(mirror.gz("один\tone\nтолько\nраз\tтаб\tone\n\tno\nдва\ttwo\t\nтри\tthree".encode()))
    assert list(read(path, "ru")) == ["один", "", "", "", "", "три"]
    assert list(read(path, "en")) == ["one", "", "", "no", "", "three"]
    path.write_bytes(mirror.gz(b"one\ntwo\n"))
    for language in ("ru", "en"):
        with pytest.raises(fetching.Refused, match=r"x.gz: none of 2 rows has two columns"):
            list(read(path, language))
    path.write_bytes(mirror.gz(b""))
    assert list(read(path, "ru")) == []


@pytest.mark.parametrize("collection", [SUBTITLES, IWSLT])
def test_a_member_that_is_missing(collection, tmp_path, refused):
    """An archive that is whole, but another one."""
    out = tmp_path / "out"
    out.mkdir()
    source = wanted(collection)[0]
    pack = mirror.zipped if source.name.endswith(".zip") else mirror.tgz
    (out / source.name).write_bytes(pack({"de-en/other.txt": "x\n"}))
    (out / wanted(collection)[-1].name).touch()
    refused(
        call("unpack", collection, out, tmp_path / "texts"),
        [str(out / source.name), "has no member", "de-en/other.txt", "right file?"],
    )


def test_a_set_without_its_files(made, tmp_path, refused):
    """sacrebleu says what is missing."""
    out = tmp_path / "out"
    assert fetch(WMT, out, made[0]) == 0
    (out / "wmt14.test-filtered.tgz").unlink()
    (out / "wmt14.test-filtered.tgz").write_bytes(mirror.tgz({"test/other.sgm": ""}))
    path = out / "wmt14.test-filtered.tgz"
    corpus = corpora.collection(WMT)[-1]
    with pytest.raises(fetching.Refused, match=r"sacrebleu cannot read .*wmt14.test-filtered.tgz: .*newstest2014"):
        list(corpus.read(path, "en"))
    assert not list(out.glob("*.unpacked"))


def test_a_set_whose_link_leads_to_another_name(place, tmp_path):
    """As in stores that keep files under their checksums."""
    source = next(s for s in wanted(WMT) if s.name.startswith("wmt13"))
    (tmp_path / "0123abcd").write_bytes((place / source.path).read_bytes())
    (tmp_path / source.name).symlink_to(tmp_path / "0123abcd")
    corpus = next(c for c in corpora.collection(WMT) if c.source == source)
    assert len(list(corpus.read(tmp_path / source.name, "en"))) == len(VALID)


def test_what_is_missing_or_broken_is_named(place, tmp_path, refused):
    out, texts = tmp_path / "out", tmp_path / "texts"
    out.mkdir()
    for collection in (WMT, SUBTITLES, IWSLT):
        source = wanted(collection)[0]
        refused(call("unpack", collection, out, texts), [str(out / source.name), "is missing", "corpora.py fetch"])
        data = (place / source.path).read_bytes()
        for broken in (data[: len(data) // 2], b"<html>"):
            (out / source.name).write_bytes(broken)
            refused(call("unpack", collection, out, texts), [str(out / source.name), "does not open"])
        assert list(texts.iterdir()) == []


def test_a_text_that_cannot_be_written(place, tmp_path, refused):
    assert fetch(IWSLT, tmp_path / "out", place) == 0
    (tmp_path / "texts" / "talks.en").mkdir(parents=True)
    refused(call("unpack", IWSLT, tmp_path / "out", tmp_path / "texts"), [str(tmp_path / "texts" / "talks.en")])


def test_archives_are_closed(place, tmp_path, monkeypatch):
    """Read to their end or not."""
    opened = []
    for module, name in ((tarfile, "open"), (zipfile, "ZipFile"), (gzip, "open")):
        monkeypatch.setattr(module, name, recording(getattr(module, name), opened))
    for read in (
        corpora.lines(place / mirror.IWSLT14, "de-en/train.tags.de-en.de"),
        corpora.lines(place / mirror.SUBTITLES, "OpenSubtitles.en-ru.en"),
        corpora.lines(place / mirror.ALIGNMENT),
    ):
        next(read)
        read.close()
        assert len(opened) == 1 and is_closed(opened.pop())
    assert len(list(corpora.lines(place / mirror.SUBTITLES, "OpenSubtitles.en-ru.en"))) > len(TRAIN)
    assert is_closed(opened.pop())


def recording(function, results):
    def recorded(*arguments):
        results.append(function(*arguments))
        return results[-1]

    return recorded


def is_closed(archive):
    return archive.fp is None if hasattr(archive, "fp") else archive.closed


# --- as a command -------------------------------------------------------------------------------------------------


def test_the_command_itself(place, tmp_path):
    """In a process of its own, all it says of a bad name is a line."""
    command = [sys.executable, str(RECIPES / "corpora.py"), "fetch", "iwslt14", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("corpora.py: 'iwslt14' is no collection") and result.stderr.count("\n") == 1
