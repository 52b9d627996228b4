"""Settings of recipes in this process, with the defaults that their scripts give."""

from __future__ import annotations

import os
import subprocess
from functools import cache

import pytest

from settings import configure
from settings.declared import RECIPES as DECLARED
from settings.declared import Settings
from support.recipes import RECIPES

# Instead of Python: print the words and the environment with which a recipe calls settings.configure.
SPY = 'python3() { { printf "%s\\0" "$@"; env -0; } >&2; return 1; }; export -f python3; exec bash "$0"'


@cache
def of_script(recipe: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the defaults that the script of a recipe gives, and the settings that it overrides."""
    command = ["bash", "-c", SPY, str(RECIPES / recipe)]
    printed = subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, check=False).stderr
    words = printed.decode().split("\0")
    end = words.index("--")
    defaults, exported = ([word.split("=", 1) for word in part if "=" in word] for part in (words[3:end], words[end:]))
    return dict(defaults), {name: value for name, value in exported if name in DECLARED[recipe].model_fields}


def read(recipe: str, **given: str) -> Settings:
    """Return the settings of a recipe with these in the environment."""
    defaults, exported = of_script(recipe)
    arguments = {name: "en" if name in ("SRC", "TGT") else "x" for name in DECLARED[recipe].ARGUMENTS}
    return configure.read(recipe, arguments | given | exported, defaults)


def exported(recipe: str, **given: str) -> dict[str, str]:
    """Return all settings of a recipe as texts, empty ones included."""
    found = read(recipe, **given)
    return {name: found.texts.get(name, "") for name in type(found).model_fields}


def refusal(recipe: str, **given: str) -> str:
    """Return the message for settings, which must be one line."""
    with pytest.raises(ValueError) as error:
        read(recipe, **given)
    message = str(error.value)
    assert len(message.splitlines()) == 1 and len(message) < 800, message
    return message
