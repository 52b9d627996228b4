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

from commands import quoted
from runs import heads_to_keep


def check(function: Callable[[str], Any]) -> BeforeValidator:
    """Return the check of a text by a function, which raises ValueError."""
    return BeforeValidator(lambda text: (function(text), text)[1])


def rule(holds: Callable[[Any], Any], message: str) -> AfterValidator:
    """Return the check that a value fulfils a condition, with the message for others."""

    def check_rule(value: Any) -> Any:
        if not holds(value):
            raise ValueError(message)
        return value

    return AfterValidator(check_rule)


def matching(pattern: str, message: str) -> BeforeValidator:
    """Return the check that a text matches a regular expression as a whole."""
    return BeforeValidator(rule(lambda text: re.fullmatch(pattern, text), message).func)


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
            raise ValueError(f"must not name {quoted(str(value))} twice")
    return values


# Lists: separated by blanks, or by commas; values that may not be repeated; lists that may not be empty.
BLANKS = BeforeValidator(str.split)
COMMAS = BeforeValidator(lambda text: [part.strip() for part in text.split(",")])
ONCE = AfterValidator(_each_once)
SOME = Field(min_length=1)


def _program(text: str) -> None:
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"must be a command: {error}") from None
    if not found or not shutil.which(found[0]):
        raise ValueError("must be a command whose program is on the PATH, for example: python3 my_metric.py")


def _is_share(text: str) -> bool:
    found = re.fullmatch("([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    return found is not None and int(found[1]) <= int(found[2])


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
Part = Annotated[str, rule(_is_share, "must be I/N, the I-th of N shares, for example 1/4")]
Wholes = Annotated[list[Whole], COMMAS]
Rates = Annotated[list[Above0], COMMAS]
Percents = Annotated[list[Percent], COMMAS]
Seeds = Annotated[list[Seed], BLANKS, ONCE, SOME]
LAST = rule(lambda epochs: epochs[-1] == max(epochs), "must be epochs with the largest one last: 1 2 3 5 10")
Epochs = Annotated[list[Whole], BLANKS, ONCE, SOME, LAST]
RISING = rule(lambda all: all == sorted(set(all)), "must be rising whole numbers, separated by commas: 20000,60000")
Cutoffs = Annotated[list[Whole], COMMAS, RISING]
Heads = Annotated[str, check(heads_to_keep)]
Folder = Annotated[str, rule(os.path.isdir, "must be a folder that exists")]
Place = Annotated[
    str,
    rule(lambda text: "://" in text or os.path.isdir(text), "must be a folder that exists, or the address of a mirror"),
]
Plugin = Annotated[
    str,
    rule(
        lambda text: os.path.isfile(os.path.join(text, "__init__.py")),
        "must be the folder of the plugin, as `headgates path` prints it",
    ),
]
Program = Annotated[str, check(_program)]
Cleaning = Annotated[str, check(_cleaning)]
Column = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", "must be letters and digits, for example COMET")
]  # a part of a file name
