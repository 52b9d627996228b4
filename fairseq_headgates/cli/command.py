"""Declare commands: a class with its options and what it does (no torch).

A command is one file, `cli/commands/NAME.py` or `command.py` of an extension. It has a class whose attributes are made
by `argument` and `option`, and whose method `run` does the work; `command` registers it. The files of all commands are
imported for each help, so `run` itself imports what takes long: help and wrong options take a tenth of a second.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from fairseq_headgates.cli.parser import filled
from fairseq_headgates.files.writing import check_place
from fairseq_headgates.messages import quoted

FOLDERS = ("the data in", "the dictionaries in", "the input")  # what may be folders, as messages call it
NO_FILE = re.compile(r"-$|\s*\{|[a-z-]+:\S")  # standard input, JSON, heads such as dec-enc:1.3
Group = Callable[[argparse.ArgumentParser], Any]  # adds a group of options to a parser, and returns the group


@dataclass(frozen=True)
class Declared:
    """An option, or a positional argument.

    Attributes:
        keywords: those of `argparse.ArgumentParser.add_argument`
        reads: for a file to read, which must exist: what messages call it ("the mask")
        writes: whether the value names a file to write; whether it can be written is checked before the work
        within: the group that it belongs to
        positional: whether it is a positional argument
    """

    keywords: dict[str, Any]
    reads: str = ""
    writes: bool = False
    within: Group | None = None
    positional: bool = False


def argument(*, reads: str = "", writes: bool = False, **keywords: Any) -> Any:
    """Declare a positional argument; see `Declared`."""
    return Declared(keywords, reads, writes, positional=True)


def option(*, reads: str = "", writes: bool = False, within: Group | None = None, **keywords: Any) -> Any:
    """Declare an option, which has the name of the attribute, or with `default=False` a switch; see `Declared`."""
    if keywords.get("default") is False:
        keywords["action"] = "store_true"
    if writes:
        keywords["type"] = filled
    return Declared(keywords, reads, writes, within)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command found; `output.deliver` prints it and writes its files.

    Attributes:
        text: what is printed; nothing if it is empty
        json: what is printed with --json
        files: the contents of the files that options name, by the option
        figure: draws the picture of --plot
        page: makes the web page of --plot FILE.html
        next_command: the command that comes next
        missed: what is wrong with the results: an error, once they are printed and written
    """

    text: str = ""
    json: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    figure: Callable[[], Any] = lambda: None
    page: Callable[[], str] | None = None
    next_command: str = ""
    missed: str = ""


class Options:
    """A command: the values of its options, which its subclasses declare, and what it does.

    The docstring of a command is its help: the first line is in the list of commands, the paragraphs after it, or the
    line itself where there are none, in the help of the command.

    Attributes:
        command: the name of the command
        rest: words that are not options of the command, but of fairseq-generate
        examples: two commands that its help ends with
        epilog: what its help ends with
        usage: how it is called (default: by its options)
        needs_models: whether it works with models, for which fairseq and torch are imported
        force: whether files that exist are overwritten, of commands with --force
    """

    command: str
    rest: list[str]
    examples: ClassVar[tuple[str, ...]]
    epilog: ClassVar[str | None] = None
    usage: ClassVar[str | None] = None
    needs_models: ClassVar[bool] = True
    force: bool = False
    debug: bool = option(default=False, help="show the traceback of an error")

    def __init__(self, **values: Any):
        vars(self).update(values)

    @classmethod
    def declared(cls) -> dict[str, Declared]:
        """Return the options by name: its own, then those of its bases from left to right."""
        found: dict[str, Declared] = {}
        for base in cls.__mro__:
            for name, each in vars(base).items():
                if isinstance(each, Declared):
                    found.setdefault(name, each)
        return found

    def fairseq_arguments(self) -> list[str] | None:
        """Return the arguments for the parser of fairseq-generate, None if the command takes none."""
        return None

    def unrecognized(self) -> list[str]:
        """Return the words that the command does not take."""
        return self.rest if self.fairseq_arguments() is None else []

    def files_to_read(self) -> Iterator[tuple[str, str]]:
        """Yield what the files are that the options name, those of fairseq included, and their paths."""
        for name, each in self.declared().items():
            values = getattr(self, name) if each.reads else None
            for value in values if isinstance(values, list) else [values]:
                path = value[1] if isinstance(value, tuple) else value  # --words SUBSET=FILE
                if path and not NO_FILE.match(path):
                    yield each.reads, path
        words = self.fairseq_arguments() or []
        if words and not words[0].startswith("-"):
            yield from (("the data in", path) for path in _split(words[0]))
        for word, value in zip(words, [*words[1:], ""], strict=False):
            if word == "--path" or word.startswith("--path="):
                yield from (("the checkpoint", path) for path in _split(word.partition("=")[2] or value))

    def check(self) -> None:
        """Raise ValueError for options that contradict each other, before anything is read."""

    def run(self, session: Any) -> Answer:
        """Do the work.

        Args:
            session: the `Session` of a command that reads data, otherwise None
        """
        raise NotImplementedError

    def check_paths(self) -> None:
        """Raise ValueError if a file to read or the folder of a file to write does not exist, or they are the same."""
        for what, path in self.files_to_read():
            try:
                mode = os.stat(path).st_mode
            except OSError as error:
                several = "," in path and what == "the checkpoint"
                hint = f"separate checkpoints by colons, {path.replace(',', ':')}" if several else "check the path"
                raise ValueError(f"cannot read {what} {quoted(path)} ({error.strerror}): {hint}") from None
            if stat.S_ISDIR(mode) and what not in FOLDERS:
                raise ValueError(f"cannot read {what} {quoted(path)} (it is a folder): give a file")
        for path in self.files_to_write().values():
            self.keep_inputs(path)
            check_place(path, self.force)

    def keep_inputs(self, output: str) -> None:
        """Raise ValueError if a file or folder to write is, or has in it, one that the command reads."""
        target = Path(os.path.realpath(output))  # resolve() fails for a link to itself
        for what, path in self.files_to_read():
            if target in (source := Path(path).resolve(), *source.parents):
                raise ValueError(
                    f"the output {output} would replace {what} {quoted(path)}, which this command reads: choose "
                    "another name for the output"
                )

    def files_to_write(self) -> dict[str, str]:
        """Return the files to write, by the names of the options that name them."""
        names = [name for name, each in self.declared().items() if each.writes]
        return {name.replace("_", "-"): path for name in names if (path := getattr(self, name)) is not None}


def _split(paths: str) -> list[str]:
    """Return the paths of an argument of fairseq, none for an address or an empty text."""
    return [] if "://" in paths else [path for path in paths.split(os.pathsep) if path]


COMMANDS: dict[str, type[Options]] = {}
T = TypeVar("T", bound=type[Options])


def command(name: str, *examples: str) -> Callable[[T], T]:
    """Return a decorator that registers a class of options as a command. Raise ValueError for a name that is taken."""

    def register(options: T) -> T:
        if name in COMMANDS:
            raise ValueError(f"two commands are called {name}: {COMMANDS[name].__module__}, {options.__module__}")
        options.examples = examples
        COMMANDS[name] = options
        return options

    return register


def add_options(parser: argparse.ArgumentParser, options: type[Options]) -> None:
    """Add the options of a command to its parser."""
    groups: dict[Group | None, Any] = {None: parser}
    for name, each in options.declared().items():
        if each.within and each.within not in groups:
            groups[each.within] = each.within(parser)
        flag = name if each.positional else f"--{name.replace('_', '-')}"
        groups[each.within].add_argument(flag, **each.keywords)
