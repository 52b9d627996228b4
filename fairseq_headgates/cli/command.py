"""Declare commands: a dataclass of options, and the module that does the work (no torch).

A command is two files. `cli/commands/NAME.py` has the dataclass, whose fields are made by `argument` and `option`, and
registers it with `command`. `cli/actions/NAME.py` has `run(options)`, which returns the exit code; it is imported only
when the command runs, so help and wrong options take a tenth of a second. The files of an extension are `command.py`
and `action.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from fairseq_headgates.cli.parser import filled


@dataclass(frozen=True, eq=False)
class Group:
    """Options that belong together.

    Attributes:
        title: their heading in the help
        exclusive: whether at most one of them can be given
        required: whether one of exclusive options must be given
    """

    title: str = ""
    exclusive: bool = False
    required: bool = False


def argument(*, reads: str = "", **keywords: Any) -> Any:
    """Declare a positional argument, a field of `Options`; see `option`."""
    return _declare(MISSING, {"flags": (), "reads": reads, "writes": False, "within": None}, keywords)


def option(
    *flags: str,
    default: Any = None,
    reads: str = "",
    writes: bool = False,
    within: Group | None = None,
    required: bool = False,
    **keywords: Any,
) -> Any:
    """Declare an option, a field of `Options`.

    Args:
        flags: its names (default: that of the field, such as --out)
        default: its value if it is not given; False for a switch
        reads: what the file is that the value names, if it is read: "the mask"
        writes: whether the value names a file to write, which is checked before the work
        within: the group that it belongs to
        required: whether it must be given
        keywords: those of `argparse.ArgumentParser.add_argument`
    """
    if default is False:
        keywords["action"] = "store_true"
    if required:
        keywords["required"] = True
    if writes:
        keywords["type"] = filled
    default = MISSING if required else default
    return _declare(default, {"flags": flags or ("",), "reads": reads, "writes": writes, "within": within}, keywords)


def _declare(default: Any, metadata: dict[str, Any], keywords: dict[str, Any]) -> Any:
    metadata["keywords"] = keywords
    if isinstance(default, (list, tuple, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(kw_only=True)
class Options:
    """The values of the options of a command, declared by its subclasses.

    Attributes:
        command: the name of the command
        rest: words that are not options of the command, but of fairseq-generate
        description: what the command does (default: its help)
        epilog: what its help ends with
        usage: how it is called (default: by its options)
        needs_models: whether it works with models, for which fairseq and torch are imported
    """

    command: str = ""
    rest: list[str] = field(default_factory=list)
    description: ClassVar[str] = ""
    epilog: ClassVar[str] = ""
    usage: ClassVar[str | None] = None
    needs_models: ClassVar[bool] = True

    def fairseq_arguments(self) -> list[str] | None:
        """Return the arguments for the parser of fairseq-generate, None if the command takes none."""
        return None

    def files_to_read(self) -> Iterator[tuple[str, Any]]:
        """Yield what the files are that options name, and the values of these options."""
        for each in fields(self):
            if each.metadata.get("reads"):
                value = getattr(self, each.name)
                yield from ((each.metadata["reads"], one) for one in (value if isinstance(value, list) else [value]))

    def files_to_write(self) -> dict[str, str]:
        """Return the files to write, by the names of the options that name them."""
        names = [each.name for each in fields(self) if each.metadata.get("writes")]
        return {name.replace("_", "-"): path for name in names if (path := getattr(self, name)) is not None}


T = TypeVar("T", bound=type[Options])


@dataclass(frozen=True)
class Command:
    """A subcommand of `headgates`.

    Attributes:
        name: its name
        text: what it does, in the list of commands
        examples: two commands that its help ends with
        options: the dataclass of its options
    """

    name: str
    text: str
    examples: tuple[str, ...]
    options: type[Options]

    def run(self, options: Options) -> int:
        """Import the module that does the work, run it, and return the exit code."""
        module = self.options.__module__.replace(".commands.", ".actions.")
        if module.endswith(".command"):  # of an extension
            module = module.removesuffix("command") + "action"
        return import_module(module).run(options)


COMMANDS: dict[str, Command] = {}


def command(name: str, text: str, *examples: str) -> Callable[[T], T]:
    """Return a decorator that registers a dataclass of options as a command; see `Command`."""

    def register(options: T) -> T:
        COMMANDS[name] = Command(name, text, examples, options)
        return options

    return register


def add_options(parser: argparse.ArgumentParser, options: type[Options]) -> None:
    """Add the options of a command: its arguments, its own options, and those of its bases from left to right."""
    declared = {each.name: each for each in fields(options) if "flags" in each.metadata}
    arguments = [name for name, each in declared.items() if not each.metadata["flags"]]
    by_class = (name for each in options.__mro__ for name in vars(each).get("__annotations__", ()))
    groups: dict[Group | None, Any] = {None: parser}
    for name in dict.fromkeys([*arguments, *by_class]):
        if name in declared:
            within = declared[name].metadata["within"]
            if within not in groups:
                groups[within] = _add_group(parser, within)
            _add_option(groups[within], declared[name])


def _add_group(parser: argparse.ArgumentParser, group: Group) -> Any:
    if group.exclusive:
        return parser.add_mutually_exclusive_group(required=group.required)
    return parser.add_argument_group(group.title)


def _add_option(parser: Any, declared: Field) -> None:
    flags, keywords = declared.metadata["flags"], dict(declared.metadata["keywords"])
    if not flags:
        parser.add_argument(declared.name, **keywords)
        return
    default = declared.default_factory() if declared.default_factory is not MISSING else declared.default
    if default is not MISSING:
        keywords["default"] = default
    flags = [flag or f"--{declared.name.replace('_', '-')}" for flag in flags]
    parser.add_argument(*flags, dest=declared.name, **keywords)


def parsed(command: Command, values: argparse.Namespace, rest: list[str]) -> Options:
    """Return the options of a command with the values that its parser has found."""
    names = [each.name for each in fields(command.options) if "flags" in each.metadata]
    return command.options(command=command.name, rest=rest, **{name: getattr(values, name) for name in names})
