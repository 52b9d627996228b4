#!/usr/bin/env python3
"""Writes the options of models, criterion and commands as Markdown, from the parsers themselves.

    python docs/generate_options.py FOLDER

`make docs` calls it; docs/options.md includes the files.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import MODEL_REGISTRY

import fairseq_headgates  # noqa: F401  (registers architectures and criterions)
import headgates_start


def plugin_options(ours: type, stock: type) -> list[argparse.Action]:
    """Return the options that a class of this plugin adds to those of the stock class."""
    parsers = [argparse.ArgumentParser(add_help=False, conflict_handler="resolve") for _ in range(2)]
    for cls, parser in zip((ours, stock), parsers, strict=True):
        cls.add_args(parser)
    known = {name for action in parsers[1]._actions for name in action.option_strings}
    return [action for action in parsers[0]._actions if not known & set(action.option_strings)]


def model_options() -> list[argparse.Action]:
    """Return the options of `--arch transformer_head_gates`."""
    return plugin_options(MODEL_REGISTRY["transformer_head_gates"], MODEL_REGISTRY["transformer"])


def criterion_options() -> list[argparse.Action]:
    """Return the options of `--criterion label_smoothed_cross_entropy_l0`."""
    name = "label_smoothed_cross_entropy"
    return plugin_options(CRITERION_REGISTRY[f"{name}_l0"], CRITERION_REGISTRY[name])


def table(actions: Iterable[argparse.Action]) -> str:
    """Return a Markdown table with a row per option."""
    rows = ["| option | meaning | default |", "|---|---|---|"]
    for action in actions:
        name = action.option_strings[0]
        value = "" if action.nargs == 0 else " " + str(action.metavar or action.dest.upper())
        text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        meaning = re.sub(r" \(default: [^)]*\)", "", text).replace("\\", r"\\")
        rows.append(f"| `{name}{value}` | {meaning.replace('|', chr(92) + '|')} | {_default(action)} |")
    return "\n".join(rows) + "\n"


def _default(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "off"
    return "none" if action.default in (None, "") else f"`{action.default}`"


def headgates_help(*arguments: str) -> str:
    """Return what `headgates ... --help` prints."""
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["headgates", *arguments, "--help"]),
        mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        headgates_start.main()
    return printed.getvalue().strip("\n")


def commands() -> list[str]:
    """Return the names of the subcommands of `headgates`, in the order of its help."""
    return re.findall(r"^ {4}([a-z-]+)(?: |$)", headgates_help(), re.MULTILINE)


def command_pages() -> str:
    """Return a Markdown section per command with its help."""
    sections = [f"```text\n{headgates_help()}\n```\n"]
    sections += [f"### headgates {name}\n\n```text\n{headgates_help(name)}\n```\n" for name in commands()]
    return "\n".join(sections)


def write(folder: Path) -> None:
    """Write the generated parts of docs/options.md into `folder`."""
    folder.mkdir(exist_ok=True)
    texts = {"model": table(model_options()), "criterion": table(criterion_options()), "commands": command_pages()}
    for name, text in texts.items():
        file = folder / f"{name}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
