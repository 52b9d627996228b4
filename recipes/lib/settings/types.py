"""Types of settings: which texts are valid, and their values. A type raises ValueError with a rule, "must be ..."."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from commands import shown
from runs import heads_to_keep


def check(function: Callable[[str], Any]) -> BeforeValidator:
    """Return the check of a text by a function, which raises ValueError."""
    return BeforeValidator(lambda text: (function(text), text)[1])


def matching(pattern: str, rule: str) -> BeforeValidator:
    """Return the check that a text matches a regular expression as a whole."""

    def match(text: str) -> None:
        if not re.fullmatch(pattern, text):
            raise ValueError(rule)

    return check(match)


# Plainer than the texts that pydantic takes: to the shell 010 is 8, and 1_000 and Unicode digits are no numbers.
DIGITS = matching("-?(0|[1-9][0-9]*)", "must be a whole number, for example 12")

Whole = Annotated[int, DIGITS, Field(ge=1, lt=10**18)]
Count = Annotated[int, DIGITS, Field(ge=0, lt=10**18)]  # 0 included
Port = Annotated[int, DIGITS, Field(ge=1, le=65535)]
Seed = Annotated[int, DIGITS, Field(ge=0, le=2**32 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
From0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100)]
Switch = Literal["0", "1"]


def _each_once(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"must not name {shown(str(value))} twice")
    return values


# Lists: separated by blanks, or by commas; values that may not be repeated; lists that may not be empty.
BLANKS = BeforeValidator(str.split)
COMMAS = BeforeValidator(lambda text: [part.strip() for part in text.split(",")])
ONCE = AfterValidator(_each_once)
SOME = Field(min_length=1)


def _folder(text: str) -> None:
    if not os.path.isdir(text):
        raise ValueError("must be a folder that exists")


def _place(text: str) -> None:
    if "://" not in text and not os.path.isdir(text):
        raise ValueError("must be a folder that exists, or the address of a mirror")


def _plugin(text: str) -> None:
    if not os.path.isfile(os.path.join(text, "__init__.py")):
        raise ValueError("must be the folder of the plugin, as `headgates path` prints it")


def _part(text: str) -> None:
    found = re.fullmatch("([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if not found or int(found[1]) > int(found[2]):
        raise ValueError("must be I/N, the I-th of N shares, for example 1/4")


def _epochs(epochs: list[int]) -> list[int]:
    if epochs[-1] != max(epochs):
        raise ValueError("must be epochs with the largest one last: 1 2 3 5 10")
    return epochs


def _cutoffs(cutoffs: list[int]) -> list[int]:
    if cutoffs != sorted(set(cutoffs)):
        raise ValueError("must be rising whole numbers, separated by commas: 20000,60000")
    return cutoffs


def _program(text: str) -> None:
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"must be a command: {error}") from None
    if not found or not shutil.which(found[0]):
        raise ValueError("must be a command whose program is on the PATH, for example: python3 my_metric.py")


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(f"must be options of text.clean; {message[:200]}")


def _cleaning(text: str) -> None:
    from text.clean import add_options

    parser = _Options(add_help=False)
    add_options(parser)
    parser.parse_args(text.split())


Text = str
Word = Annotated[str, matching(r"\S+", "must be one word")]
Words = Annotated[str, matching(r".*\S.*", "must have at least one word")]
Language = Annotated[
    str,
    matching(r"[A-Za-z0-9_][A-Za-z0-9_@.+-]*", "must be a language as in the file names, for example en or pt-br"),
]
Part = Annotated[str, check(_part)]
Wholes = Annotated[list[Whole], COMMAS]
Rates = Annotated[list[Above0], COMMAS]
Percents = Annotated[list[Percent], COMMAS]
Seeds = Annotated[list[Seed], BLANKS, ONCE, SOME]
Epochs = Annotated[list[Whole], BLANKS, ONCE, SOME, AfterValidator(_epochs)]
Cutoffs = Annotated[list[Whole], COMMAS, AfterValidator(_cutoffs)]
Heads = Annotated[str, check(heads_to_keep)]
Folder = Annotated[str, check(_folder)]
Place = Annotated[str, check(_place)]
Plugin = Annotated[str, check(_plugin)]
Program = Annotated[str, check(_program)]
Cleaning = Annotated[str, check(_cleaning)]
Column = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", "must be letters and digits, for example COMET")
]  # a part of a file name
