#!/usr/bin/env python3
"""Writes the reference of options, commands and Python names, as Markdown.

    python docs/generate_options.py FOLDER

They come from the parsers and the docstrings. `make docs` writes to docs/reference.
"""

from __future__ import annotations

import argparse
import inspect
import pkgutil
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fairseq_headgates  # noqa: F401
from fairseq_headgates.cli.commands.options import added_options
from fairseq_headgates.cli.main import build_parser

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
    summary, remark = PARSER.description.partition("\n")[0], " ".join(PARSER.epilog.split())
    sections = [f"# Commands\n\n{summary} {remark[0].upper()}{remark[1:]}.\n"]
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
    for section in page.split("\n## ")[2:]:  # after the example
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


def write(folder: Path) -> None:
    """Write the pages into `folder`."""
    folder.mkdir(exist_ok=True)
    pages = {"options": option_page(), "commands": command_page(), "python": python_page()}
    for name, text in pages.items():
        file = folder / f"{name}.md"
        text = f"<!-- written by docs/generate_options.py -->\n\n{text}"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    write(parser.parse_args().folder)
