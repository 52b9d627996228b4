"""Corpora for tests: miniature mirrors of all collections, a server for them, and the program corpora.get."""

from __future__ import annotations

import hashlib
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from corpora.collection import collection, sources
from corpora.fetching import path_of
from support import mirror as mirrors
from support import recipes

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
    """copy(collection) gives a folder of one's own that has the files of a collection, and all checksums."""

    def copy(collection):
        folder = tmp_path / "place"
        for source in wanted(collection):
            (folder / at(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(place / at(source), folder / at(source))
        shutil.copy(place / "SHA256SUMS", folder)
        return folder

    return copy


def wanted(name):
    return sources(collection(name))


def at(source):
    """The path of a file in a mirror."""
    return path_of(source.address)


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
    """Each file is what the mirror has, and SHA256SUMS says so; nothing else lies there."""
    found, names = contents(folder), sorted(source.name for source in wanted(collection))
    for source in wanted(collection):
        assert found[source.name] == (place / at(source)).read_bytes(), source.name
    assert found.pop("SHA256SUMS").decode() == "".join(f"{sha256(found[name])}  {name}\n" for name in names)
    assert sorted(found) == names


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


class Server(ThreadingHTTPServer):
    """Serves a folder, well or badly; `seen` has the path and Range of each request, in order."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.seen = folder, []
        self.ranges = True  # whether it can begin in the middle
        self.cut = {}  # path: after how many bytes the connection breaks

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/a%20mirror"

    def asked(self, source):
        """The Range of each request for a file, None for the whole."""
        return [range_ for path, range_ in self.seen if path == at(source)]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server, path = self.server, unquote(self.path).removeprefix("/a mirror/")
        asked = self.headers.get("Range")
        server.seen.append((path, asked))
        file = server.folder / path
        status, data = (200, file.read_bytes()) if file.is_file() else (404, b"no such")
        if asked and server.ranges and status == 200:
            first = int(asked.removeprefix("bytes=").rstrip("-"))
            status, data = (416, b"") if first >= len(data) else (206, data[first:])
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: server.cut.get(path, len(data))])


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
        server.shutdown()
        server.server_close()
