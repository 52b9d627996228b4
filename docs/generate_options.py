#!/usr/bin/env python3
"""Writes the reference of options, commands and settings of the recipes, as Markdown.

    python docs/generate_options.py FOLDER

The options come from the parsers, the settings from recipes/lib/settings. `make docs` writes to docs/reference.
"""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import fairseq_headgates  # noqa: F401
from fairseq_headgates.cli.commands.options import added_options
from fairseq_headgates.cli.main import build_parser

sys.path.append(str(Path(__file__).resolve().parents[1] / "recipes" / "lib"))
from settings import declared
from settings.configure import FIRST, extra, later, read

FAMILIES = ("translation.sh", "language_model.sh", "classification.sh")
HEADER = ("setting", "meaning", "default")
PARSER: Any = build_parser()


def table(actions: Iterable[argparse.Action]) -> str:
    """Return a Markdown table with a row per option or argument."""
    rows = ["| option | meaning | default |", "|---|---|---|"]
    for action in actions:
        name = action.option_strings[-1] if action.option_strings else ""
        value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
        if not action.metavar and action.choices:
            value = "{" + ",".join(map(str, action.choices)) + "}"
        text = argparse.HelpFormatter("headgates")._expand_help(action)
        meaning = _escaped(re.sub(r" \(default: [^)]*\)", "", text).replace("\\", r"\\"))
        shown = _default(action, text)
        rows.append(f"| `{f'{name} {value}'.strip()}` | {meaning.replace('|', chr(92) + '|')} | {shown} |")
    return "\n".join(rows) + "\n"


def _escaped(text: str) -> str:
    """Escape what Markdown would read as emphasis or HTML, outside of code."""
    parts = text.split("`")
    return "`".join(part if i % 2 else re.sub(r"([*<>])", r"\\\1", part) for i, part in enumerate(parts))


def _default(action: argparse.Action, text: str) -> str:
    if not action.option_strings:
        return "required" if action.nargs != "*" else ""
    if action.required:
        return "required"
    if action.nargs == 0 or action.nargs == "?" and action.default is None:
        return "off"
    said = re.search(r" \(default: ([^)]*)\)", text)  # where the parser itself has none
    if action.default in (None, "", []):
        return said[1] if said else "none"
    return f"`{action.default}`"


def command_page() -> str:
    """Return a section for each command: examples, options, remarks."""
    sections = [f"# Commands\n\n{PARSER.description} {PARSER.epilog[0].upper()}{PARSER.epilog[1:]}.\n"]
    for name, command in commands().items():
        examples = "\n".join(command.examples)
        parts = [f"## headgates {name}", _escaped(command.description), f"```bash\n{examples}\n```"]
        arguments, options, *groups = (_shown(group) for group in command._action_groups)
        parts += [table([*arguments, *options])] if [*arguments, *options] else []
        for group, actions in zip(command._action_groups[2:], groups, strict=True):
            parts.append(f"**{group.title[0].upper()}{group.title[1:]}**\n\n{table(actions)}")
        sections.append(
            "\n\n".join(part.rstrip("\n") for part in [*parts, _escaped(command.epilog or "")]).rstrip() + "\n"
        )
    return "\n".join(sections)


def commands() -> dict[str, Any]:
    """Return the parsers of the subcommands by name."""
    return next(action.choices for action in PARSER._actions if action.nargs == argparse.PARSER)


def _shown(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    actions = group._group_actions
    return [each for each in actions if each.help != argparse.SUPPRESS and "--help" not in each.option_strings]


OPTION_PAGE = """# Options of fairseq-train

`headgates options` prints them, too. (`fairseq-train --help` exits before fairseq adds the options of an architecture
or a criterion.)

## Model

With every [architecture with gates](../any-model.md#architectures-with-gates) (`*_head_gates`), besides the options of
fairseq's architecture:

{model}
## Criterion

With every criterion `*_l0`, besides the options of fairseq's criterion:

{criterion}
## The all-attention model

With `--arch transformer_lm_all_attention` and `--task language_modeling_segments`
([language models](../language-models.md#the-all-attention-model)), besides the options above and those of fairseq's
`transformer_lm` and `language_modeling`:

{all_attention}"""


def option_page() -> str:
    """Return the options that this plugin adds to fairseq-train."""
    model, criterion, *further = added_options().values()
    all_attention = table([action for actions in further for action in actions])
    return OPTION_PAGE.format(model=table(model), criterion=table(criterion), all_attention=all_attention)


# --- Python ----------------------------------------------------------------------------------------------------------


def python_page() -> str:
    """Return a table of the names that docs/api.md documents: how they are called, and what they do."""
    page = (Path(__file__).parent / "api.md").read_text(encoding="utf-8")
    start = "# Python names\n\n[The API page](../api.md) has the full docstrings, once it is built. Shapes: B batch, "
    start += "T target length, S source length, N predictions, L layers, H heads, D head size.\n"
    parts = [start]
    for section in page.split("\n## ")[1:]:
        rows = [("name", "meaning"), ("---", "---")]
        for path in re.findall(r"auto(?:function|class):: (\S+)", section):
            documented = pkgutil.resolve_name(path)
            meaning = _escaped(inspect.getdoc(documented).partition("\n\n")[0].replace("\n", " ").replace("|", "\\|"))
            meaning += "".join(f"<br>`{name}`: {_escaped(said)}" for name, said in _arguments(documented))
            rows.append((f"`{path.removeprefix('fairseq_headgates.')}({_parameters(documented)})`", meaning))
        parts.append(f"## {section.partition(chr(10))[0]}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows))
    return "\n".join(parts)


def _arguments(documented: Any) -> list[tuple[str, str]]:
    """Return the arguments of a docstring, or the attributes, with what it says of them."""
    section = re.search(r"^(?:Args|Attributes):\n((?: +.*\n?)+)", inspect.getdoc(documented) or "", re.MULTILINE)
    if section is None:
        return []
    text = re.sub(r"\n {8,}", " ", section[1]).replace("|", "\\|")
    return re.findall(r"^ +(\w+(?:, \w+)*): (.*)$", text, re.MULTILINE)


def _parameters(documented: Any) -> str:
    """Return the parameters of a function or a class, with defaults that are plain values."""
    shown = []
    for parameter in inspect.signature(documented).parameters.values():
        default = parameter.default
        if default is inspect.Parameter.empty:
            shown.append(parameter.name)
        else:
            plain = default is None or isinstance(default, (bool, int, float, str))
            shown.append(f"{parameter.name}={default!r}" if plain else f"{parameter.name}=...")
    return ", ".join(shown)


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
    return f"## Settings of {recipe}\n\n" + "\n".join(parts)


def settings_of_every_recipe() -> str:
    """Return a table of the settings that every recipe has."""
    rows = []
    for name, field in own_settings(declared.Settings).items():
        meaning, default = _meaning(field)
        known = declared.Settings.DEFAULTS.get(name)
        rows.append((name, meaning, f"`{known}`" if known else default))
    return "## Settings of every recipe\n\n" + _rows(HEADER, rows)


def settings_of_single_recipes() -> str:
    """Return a table of the settings that only some recipes have, and neither their family nor every recipe."""
    found: dict[tuple[str, str], list[str]] = {}
    families = tuple(declared.RECIPES[name] for name in FAMILIES)
    for recipe, kind in declared.RECIPES.items():
        family = next((family for family in families if issubclass(kind, family)), declared.Settings)
        for name, field in own_settings(kind, family).items():
            found.setdefault((name, field.description or ""), []).append(recipe)
    rows = []
    for (name, text), recipes in found.items():
        known = {declared.RECIPES[recipe].DEFAULTS.get(name) for recipe in recipes}
        meaning, default = _split(text)
        if len(known) == 1 and isinstance(value := known.pop(), str) and value and not later(value):
            default = f"`{value}`"
        elif default == "none" and recipes != ["sweep.sh"]:  # the script sets it
            default = "see `--help`"
        rows.append((name, ", ".join(f"`{recipe}`" for recipe in recipes), meaning, default))
    return "## Settings of single recipes\n\n" + _rows(("setting", "recipes", "meaning", "default"), rows)


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
    return _split(text)


def _split(text: str) -> tuple[str, str]:
    """Return the meaning of a setting, and what it says of the default."""
    default = re.search(r" \(default: ([^()]*)\)(?=$|;)", text)
    return (text.replace(default[0], ""), default[1]) if default else (text, "none")


def _rows(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [header, ("---",) * len(header), *((f"`{name}`", *others) for name, *others in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def setting_page() -> str:
    """Return the settings of the recipes."""
    start = "# Settings of the recipes\n\n[Settings](../recipes.md#settings) says how they are given. "
    start += "* in a default: it follows from other settings.\n"
    families = map(settings_of_family, FAMILIES)
    return "\n".join((start, *families, settings_of_single_recipes(), settings_of_every_recipe()))


def write(folder: Path) -> None:
    """Write the pages into `folder`."""
    folder.mkdir(exist_ok=True)
    pages = {"options": option_page(), "commands": command_page(), "settings": setting_page(), "python": python_page()}
    for name, text in pages.items():
        file = folder / f"{name}.md"
        text = f"<!-- written by docs/generate_options.py -->\n\n{text}"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    write(parser.parse_args().folder)
