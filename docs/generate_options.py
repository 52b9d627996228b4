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

import fairseq_headgates  # noqa: F401  (before headgates_start, with which it exports nothing)
import headgates_start
from fairseq_headgates.cli.options import all_attention_options, criterion_options, model_options, task_options


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
    texts = {
        "model": table(model_options()),
        "criterion": table(criterion_options()),
        "all_attention": table([*all_attention_options(), *task_options()]),
        "commands": command_pages(),
    }
    for name, text in texts.items():
        file = folder / f"{name}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
