r"""Read arguments and settings of a recipe, check them, and print them as assignments for the shell.

    python3 recipes/lib settings.configure SCRIPT [NAME=DEFAULT ...] -- ARGUMENTS...

SCRIPT is a recipe; NAME=DEFAULT are its own defaults. A setting has the value of the environment, otherwise that
default, otherwise that of its family. An empty one means the default, except for lists, where it means none. The output
is shell code: `arguments`, every setting, exported, and `record_NAME`, the settings that OUT_DIR/NAME.txt records.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from pydantic import ValidationError

from commands import quoted
from settings.declared import GROUPS, RECIPES, Default, Settings

FIRST = "to begin with"  # title of the settings that matter first


def read(recipe: str, given: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of a recipe.

    Raises:
        ValueError: for an invalid setting, in one line with its name, value and rule
    """
    kind = RECIPES[recipe]
    texts: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        for source in (given, defaults or {}, {} if later(kind.DEFAULTS.get(name)) else kind.DEFAULTS):
            text = source.get(name)
            if isinstance(text, str) and (text or extra(field).get("none")):
                texts[name] = text
                break
    for name, text in texts.items():
        if text.splitlines() not in ([], [text]):
            raise ValueError(f"{name}={quoted(text)} must be one line")
    found = _validated(kind, texts)
    for name, default in kind.DEFAULTS.items():
        if not later(default) or name in texts:
            continue
        value = texts.get(default[1:]) if isinstance(default, str) else default(found)
        if value is not None:
            texts[name] = str(value)
            found = _validated(kind, texts)
    found.problems()
    return found


def later(default: Default | None) -> bool:
    """Return whether a default depends on other settings."""
    return callable(default) or (default or "").startswith("$")


def extra(field: Any) -> dict[str, Any]:
    """Return what `setting` declares of a field besides its type and meaning."""
    return dict(field.json_schema_extra or {})


def _validated(kind: type[Settings], texts: Mapping[str, str]) -> Settings:
    try:
        found = kind.model_validate(texts)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        name, *inside = error["loc"]
        where = f"{quoted(error['input'])} " if inside else ""
        rule = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
        raise ValueError(f"{name}={quoted(texts[str(name)])} {where}{rule}") from None
    for name, text in texts.items():
        found.texts[name] = " ".join(text.split()) if isinstance(getattr(found, name), list) else text
    return found


def recorded(found: Settings, record: str) -> str:
    """Return the settings that OUT_DIR/RECORD.txt records, NAME=VALUE separated by blanks.

    To several seeds more can be added. With TOKENS_PER_UPDATE or BATCH the batches depend on the machine, and are not
    part of the experiment.
    """
    texts, lines = found.texts, []
    planned = bool(texts.get("TOKENS_PER_UPDATE") or "BATCH" in texts)
    unused = ("MAX_TOKENS", "UPDATE_FREQ") if planned else ("TOKENS_PER_UPDATE",)
    for name, field in type(found).model_fields.items():
        own = extra(field).get("record", "")
        text = re.sub(r"\s*[,\s]\s*", ",", texts.get(name, "").removeprefix(f"{found.OUT_DIR}/"))
        usual = own.endswith("?") and text == (type(found).DEFAULTS.get(name) or "")
        if own.rstrip("?") == record and name not in unused and not usual:
            lines.append(f"{name}={'several' if name == 'SEEDS' and ',' in text else text}")
    return " ".join(lines)


def assignments(found: Settings) -> Iterator[str]:
    """Yield the lines of shell code."""
    fields = type(found).model_fields
    yield f"arguments=({' '.join(shlex.quote(found.texts[name]) for name in found.ARGUMENTS)})"
    for name in fields:
        if name not in found.ARGUMENTS:
            yield f"export {name}={shlex.quote(found.texts.get(name, ''))}"
    for name, words in found.arrays().items():
        yield f"{name}=({' '.join(map(shlex.quote, words))})"
    for record in sorted({extra(field).get("record", "").rstrip("?") for field in fields.values()} - {""}):
        yield f"record_{record}={shlex.quote(recorded(found, record))}"


def arguments(recipe: str, given: list[str]) -> tuple[dict[str, str], bool]:
    """Return the arguments by name, and whether it is a dry run. Raise ValueError for others."""
    names = RECIPES[recipe].ARGUMENTS
    usage = f"{recipe} [--dry-run] {' '.join(names)}"
    dry = given[:1] == ["--dry-run"]
    given = given[dry:]
    for argument in given:
        if argument.startswith("-"):
            raise ValueError(f"unknown option {quoted(argument)}: {usage} (write ./ before the name of a file)")
    if len(given) != len(names):
        raise ValueError(f"got {len(given)} arguments, needs {len(names)}: {usage}")
    if "" in given:
        raise ValueError(f"an argument is empty: {usage}")
    return dict(zip(names, given, strict=True)), dry


def describe(script: Path, environment: Mapping[str, str], defaults: Mapping[str, str]) -> str:
    """Return the help of a recipe: the comment at its top, and its settings by group, with their values."""
    recipe = script.name
    comment = re.match(r"#!.*\n((?:#.*\n)+)", script.read_text(encoding="utf-8"))
    assert comment
    kind = RECIPES[recipe]
    texts = {name: text for name, text in kind.DEFAULTS.items() if isinstance(text, str) and not later(text)}
    texts |= {name: text for name, text in {**defaults, **environment}.items() if text}
    lines = [re.sub("^# ?", "", comment[1], flags=re.M)]
    lines.append(f"Settings are environment variables, NAME=VALUE recipes/{recipe} ..., here with their values.")
    try:
        needed = dict.fromkeys(kind.ARGUMENTS, "x") | dict(environment)
        texts = read(recipe, needed, defaults).texts
    except ValueError:
        pass  # the settings as they are given
    fields = {
        name: field
        for name, field in kind.model_fields.items()
        if field.description and name not in (*kind.HIDDEN, *kind.ARGUMENTS)
    }
    titles = {name: FIRST if extra(field).get("first") else extra(field)["group"] for name, field in fields.items()}
    for title in (FIRST, *GROUPS):
        lines += ["", f"{title}:"] * (title in titles.values())
        for name in (name for name in fields if titles[name] == title):
            text = texts.get(name, "")
            lines += [
                f"  {name}={text!r}" if " " in text else f"  {name}={text}",
                fill(fields[name].description or "", 112, initial_indent=" " * 6, subsequent_indent=" " * 6),
            ]
    if kind.HIDDEN:
        lines += ["", "The other settings of recipes/translation.sh work, too."]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> None:
    sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # paths that are not UTF-8
    script, rest = Path(argv[0]).resolve(), argv[1:]  # a link may have another name
    split = rest.index("--")
    defaults = dict(word.split("=", 1) for word in rest[:split])
    given = rest[split + 1 :]
    if given[:1] in (["--help"], ["-h"]):
        print(f"printf %s {shlex.quote(describe(script, os.environ, defaults))}; exit 0")
        return
    recipe = script.name
    named, dry = arguments(recipe, given)
    environment = {**os.environ, **named, **({"DRY_RUN": "1"} if dry else {})}
    print("\n".join(assignments(read(recipe, environment, defaults))))
