"""Formats of the corpora: each function returns `read(path, language)`, which yields one side of parallel text."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from commands import Refused
from corpora.archives import BROKEN_ARCHIVE, does_not_open, lines, unpack

Reader = Callable[[Path, str], Iterable[str]]


def members(pattern: str) -> Reader:
    """One member of an archive for each language."""
    return lambda path, language: lines(path, pattern.format(language))


def columns(order: tuple[str, str], parts: Iterable[str | None] = (None,), separator: str = "\t") -> Reader:
    """Two columns of text, in one or several members. Other rows become empty pairs."""
    name = "a tab" if separator == "\t" else separator

    def read(path: Path, language: str) -> Iterator[str]:
        rows = pairs = 0
        for part in parts:
            for line in lines(path, part):
                cells = line.split(separator)
                rows += 1
                pairs += len(cells) == 2
                yield cells[order.index(language)] if len(cells) == 2 else ""
        if rows and not pairs:
            raise Refused(f"{path}: none of {rows:,} rows has two columns separated by {name}: is it the right file?")

    return read


def no_text(path: Path, language: str) -> Iterable[str]:
    """A file that is not unpacked."""
    return ()


TALK_FIELDS_WITHOUT_TEXT = re.compile(r"\s*</?(url|talkid|keywords|speaker|reviewer|translator|transcript|doc)\b")
TAGS_OF_TEXT = re.compile(r"^\s*<(title|description)>|</(title|description)>\s*$")
SEGMENT = re.compile(r"\s*<seg\b[^>]*>(.*?)(</seg>\s*)?")


def talk_sentences(pattern: str) -> Reader:
    """Sentences of talks with titles and descriptions, without the other fields."""

    def read(path: Path, language: str) -> Iterator[str]:
        for line in lines(path, pattern.format(language)):
            if not TALK_FIELDS_WITHOUT_TEXT.match(line):
                yield TAGS_OF_TEXT.sub("", line).strip()

    return read


def segments(patterns: Iterable[str]) -> Reader:
    """The <seg> lines of several members, which are XML: &amp; means &."""

    def read(path: Path, language: str) -> Iterator[str]:
        for pattern in patterns:
            for line in lines(path, pattern.format(language)):
                if found := SEGMENT.fullmatch(line):
                    yield html.unescape(found[1]).strip()

    return read


def sacrebleu_set(data_set: str, pair: str, file: str) -> Reader:
    """A test set of sacrebleu, whose command reads the archive `file`."""

    def read(path: Path, language: str) -> Iterable[str]:
        field = "src" if language == pair.partition("-")[0] else "ref"
        with TemporaryDirectory(dir=path.parent) as folder:
            raw = Path(folder, data_set, "raw")
            raw.mkdir(parents=True)
            try:
                unpack(path, raw)
            except BROKEN_ARCHIVE as error:
                raise Refused(f"{path} {does_not_open(error)}") from None
            # sacrebleu does not download or unpack an archive that exists.
            (raw / file).symlink_to(path.resolve())
            command = [sys.executable, "-m", "sacrebleu", "-t", data_set, "-l", pair, "--echo", field]
            env = os.environ | {"SACREBLEU": os.path.realpath(folder), "PYTHONUTF8": "1"}
            result = subprocess.run(command, env=env, capture_output=True, check=False)
        if result.returncode:
            raise Refused(f"sacrebleu cannot read {path}: {result.stderr.decode().strip().splitlines()[-1]}")
        return result.stdout.decode("utf-8").split("\n")[:-1]

    return read
