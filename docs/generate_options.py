#!/usr/bin/env python3
"""Writes the options of models, criterion and commands, and the settings of the recipes, as Markdown.

    python docs/generate_options.py FOLDER

The options come from the parsers, the settings from recipes/lib/settings. `make docs` calls it; docs/options.md and
docs/recipes.md include the files.
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
from typing import Any, Literal, get_args, get_origin
from unittest import mock

import fairseq_headgates  # noqa: F401  (before headgates_start, with which it exports nothing)
import headgates_start
from fairseq_headgates.cli.options import all_attention_options, criterion_options, model_options, task_options

sys.path.append(str(Path(__file__).resolve().parents[1] / "recipes" / "lib"))
from settings import declared
from settings.configure import FIRST, extra, later, read

FAMILIES = ("translation.sh", "language_model.sh", "classification.sh")
HEADER = ("setting", "meaning", "default")


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


# --- settings of the recipes ------------------------------------------------------------------------------------------


def settings_of_family(recipe: str) -> str:
    """Return tables of the settings of a recipe, but for those of every recipe: the first to set, then by group."""
    kind = declared.RECIPES[recipe]
    texts = read(recipe, dict.fromkeys(kind.ARGUMENTS, "x")).texts
    tables: dict[str, list[tuple[str, ...]]] = {group: [] for group in (FIRST, *declared.GROUPS)}
    for name, field in own_settings(kind, declared.Settings).items():
        meaning, default = _meaning(field)
        if texts.get(name):
            default = f"`{texts[name]}`" + (" *" if later(kind.DEFAULTS.get(name)) else "")
        group = FIRST if extra(field).get("first") else extra(field)["group"]
        tables[group].append((name, meaning, default))
    parts = (f"**{group.capitalize()}**\n\n{_rows(HEADER, rows)}" for group, rows in tables.items() if rows)
    return f"### Settings of {recipe}\n\n" + "\n".join(parts)


def settings_of_every_recipe() -> str:
    """Return a table of the settings that every recipe has."""
    rows = []
    for name, field in own_settings(declared.Settings).items():
        meaning, default = _meaning(field)
        known = declared.Settings.DEFAULTS.get(name)
        rows.append((name, meaning, f"`{known}`" if known else default))
    return "### Settings of every recipe\n\n" + _rows(HEADER, rows)


def settings_of_single_recipes() -> str:
    """Return a table of the settings that only some recipes have, and neither their family nor every recipe."""
    found: dict[tuple[str, str], list[str]] = {}
    families = tuple(declared.RECIPES[name] for name in FAMILIES)
    for recipe, kind in declared.RECIPES.items():
        family = next((family for family in families if issubclass(kind, family)), declared.Settings)
        for name, field in own_settings(kind, family).items():
            found.setdefault((name, field.description or ""), []).append(f"`{recipe}`")
    rows = [(name, ", ".join(recipes), meaning) for (name, meaning), recipes in found.items()]
    return "### Settings of single recipes\n\n" + _rows(("setting", "recipes", "meaning"), rows)


def own_settings(kind: type[declared.Settings], general: type[Any] = object) -> dict[str, Any]:
    """Return the settings of a recipe, without its arguments and without those of a more general one."""
    known = {(name, field.description) for name, field in getattr(general, "model_fields", {}).items()}
    return {
        name: field
        for name, field in kind.model_fields.items()
        if field.description and name not in kind.ARGUMENTS and (name, field.description) not in known
    }


def _meaning(field: Any) -> tuple[str, str]:
    """Return the meaning of a setting, after the values to choose from, and what it says of the default."""
    text = field.description
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if choices != ("0", "1") and any(choice not in text for choice in choices if choice != "none"):
        text = f"{', '.join(choices)}: {text}"
    default = re.search(r" \(default: ([^()]*)\)(?=$|;)", text)
    return (text.replace(default[0], ""), default[1]) if default else (text, "none")


def _rows(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [header, ("---",) * len(header), *((f"`{name}`", *others) for name, *others in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def write(folder: Path) -> None:
    """Write the generated parts of docs/options.md and docs/recipes.md into `folder`."""
    folder.mkdir(exist_ok=True)
    texts = {
        "model": table(model_options()),
        "criterion": table(criterion_options()),
        "all_attention": table([*all_attention_options(), *task_options()]),
        "commands": command_pages(),
        **{f"settings-{name.removesuffix('.sh')}": settings_of_family(name) for name in FAMILIES},
        "settings-every": settings_of_every_recipe(),
        "settings-single": settings_of_single_recipes(),
    }
    for name, text in texts.items():
        file = folder / f"{name}.md"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
