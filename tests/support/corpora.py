"""Corpora for tests: miniature mirrors of all collections, a server for them, and the program corpora.get."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from corpora.collection import collection, sources
from support import mirrors, recipes

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
    wmt = mirrors.make_wmt_mirror(folder, TRAIN, *plain)
    subtitles = mirrors.make_subtitles_mirror(folder, TRAIN)
    talks = mirrors.make_iwslt_mirror(folder, TRAIN, test=TEST)
    return folder, {
        WMT: {**wmt, "valid": plain[0], "test": plain[1]},
        SUBTITLES: {"opensubtitles": [(pair.english, pair.russian) for pair in subtitles], "alignment": []},
        IWSLT: {"talks": talks["train"], "test": [pair for name in mirrors.IWSLT_SETS for pair in talks[name]]},
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


def wanted(name):
    return sources(collection(name))


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def contents(folder):
    """Every file of a folder, by its path in it."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def call(*arguments):
    return recipes.call("corpora.get", *arguments)


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
        assert said[0].startswith("corpora.get: ")
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
