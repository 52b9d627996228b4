"""Types of settings: which texts are valid, and their values. A type raises ValueError with a rule, "must be ..."."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

Whole = Annotated[int, Field(ge=1, lt=10**18)]
Count = Annotated[int, Field(ge=0, lt=10**18)]  # 0 included
Port = Annotated[int, Field(ge=1, le=65535)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
From0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Switch = Literal["0", "1"]


def _each_once(values: list[Any]) -> list[Any]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"must not name {str(value)!r} twice")
    return values


def check(function: Callable[[str], Any]) -> AfterValidator:
    """Return the check of a text by a function, which raises ValueError."""
    return AfterValidator(lambda text: (function(text), text)[1])


def matching(pattern: str, rule: str) -> AfterValidator:
    """Return the check that a text matches a regular expression as a whole."""

    def match(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(rule)
        return text

    return AfterValidator(match)


# Lists: separated by blanks, or by commas; values that may not be repeated; lists that may not be empty.
BLANKS = BeforeValidator(str.split)
COMMAS = BeforeValidator(lambda text: text.split(","))
ONCE = AfterValidator(_each_once)
SOME = Field(min_length=1)


def _exists(text: str, address: bool = False, file: str = "") -> None:
    if not (os.path.isfile(os.path.join(text, file)) if file else os.path.isdir(text)) and not (
        address and "://" in text
    ):
        if file:
            raise ValueError("must be the folder of the plugin, as `headgates path` prints it")
        raise ValueError("must be a folder that exists" + (", or the address of a mirror" if address else ""))


def _epochs(epochs: list[int]) -> list[int]:
    if epochs[-1] != max(epochs):
        raise ValueError("must be epochs with the largest one last: 1 2 3 5 10")
    return epochs


def _cutoffs(cutoffs: list[int]) -> list[int]:
    if cutoffs != sorted(set(cutoffs)):
        raise ValueError("must be rising whole numbers, separated by commas: 20000,60000")
    return cutoffs


def _optimizer(text: str) -> None:
    if text == "lamb" and not importlib.util.find_spec("apex"):
        raise ValueError("needs NVIDIA's apex, which is not installed: install it, or use adam")


def _program(text: str) -> None:
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"must be a command: {error}") from None
    if not found or not shutil.which(found[0]):
        raise ValueError("must be a command whose program is on the PATH, for example: python3 my_metric.py")


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(f"must be options of text.clean; {message}")


def _cleaning(text: str) -> None:
    from text.clean import add_options

    parser = _Options(add_help=False)
    add_options(parser)
    parser.parse_args(text.split())


def _english_russian_set(text: str) -> None:
    from corpora.collection import sacrebleu_sets

    if text not in (sets := sacrebleu_sets("en-ru")):
        raise ValueError(f"must be a test set of sacreBLEU: {', '.join(sets)}")


def heads_to_keep(text: str) -> str:
    """Check a number of heads, as `headgates prune --keep`: with a decimal point it is a fraction of them."""
    if not re.fullmatch(r"[0-9]{1,18}|0?\.[0-9]+|0\.|1\.0*", text):
        raise ValueError("must be a number of heads (12) or a fraction of them with a decimal point, from 0.0 to 1.0")
    return text


def column(own: tuple[str, ...], text: str) -> None:
    """Check the name of a column beside those of the table; it is a part of a file name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", text) or text in own:
        raise ValueError(
            f"must be letters and digits, for example COMET, and no column of the table ({', '.join(own)})"
        )


COLUMNS = ("model", "enc-self", "dec-self", "dec-enc", "total", "params", "BLEU", "diff", "p", "chrF", "nll")

Text = str
Word = Annotated[str, matching(r"\S+", "must be one word")]
Words = Annotated[str, matching(r".*\S.*", "must have at least one word")]
Language = Annotated[
    str,
    matching(r"[A-Za-z0-9_][A-Za-z0-9_@.+-]*", "must be a language as in the file names, for example en or pt-br"),
]
Part = Annotated[
    str, matching(r"[1-9][0-9]{0,5}/[1-9][0-9]{0,5}", "must be I/N, the I-th of N shares, for example 1/4")
]
Wholes = Annotated[list[Whole], COMMAS]
Rates = Annotated[list[Above0], COMMAS]
Percents = Annotated[list[Percent], COMMAS]
Weights = Annotated[list[From0], BLANKS, ONCE]
Seeds = Annotated[list[Seed], BLANKS, ONCE, SOME]
Epochs = Annotated[list[Whole], BLANKS, ONCE, SOME, AfterValidator(_epochs)]
Cutoffs = Annotated[list[Whole], COMMAS, AfterValidator(_cutoffs)]
Heads = Annotated[str, check(heads_to_keep)]
Folder = Annotated[str, check(_exists)]
Place = Annotated[str, check(partial(_exists, address=True))]
Plugin = Annotated[str, check(partial(_exists, file="__init__.py"))]
Optimizer = Annotated[Literal["adam", "lamb"], check(_optimizer)]
Program = Annotated[str, check(_program)]
Cleaning = Annotated[str, check(_cleaning)]
EnglishRussianSet = Annotated[str, check(_english_russian_set)]
Column = Annotated[str, check(partial(column, COLUMNS))]
