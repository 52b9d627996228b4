"""Rules for settings and arguments: which texts are valid, and their values. Standard library only."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable
from typing import Any

TYPES = ("enc-self", "dec-self", "dec-enc")
# A rule returns the value of a text, or raises ValueError with a message that continues "NAME='text' ".
Rule = Callable[[str], Any]


def whole(low: int = 1, high: int | None = None) -> Rule:
    """Return the rule for a whole number. A leading zero is invalid, because the shell reads 010 as 8."""
    bounds = f"{low} or more" if high is None else f"from {low} to {high}"

    def rule(text: str) -> int:
        if not re.fullmatch("0|[1-9][0-9]{0,17}", text) or not low <= int(text) <= (high or int(text)):
            raise ValueError(f"must be a whole number, {bounds}")
        return int(text)

    return rule


def share(text: str) -> tuple[int, int]:
    """I/N, the I-th of N shares."""
    found = re.fullmatch("([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if not found or int(found[1]) > int(found[2]):
        raise ValueError("must be I/N, the I-th of N shares, for example 1/4")
    return int(found[1]), int(found[2])


def number(low: float = -math.inf, high: float = math.inf, above: float = -math.inf) -> Rule:
    """Return the rule for a finite number: low <= number <= high, or number > above."""
    bounds = f"from {low:g} to {high:g}" if high < math.inf else f"{low:g} or more" if low > -math.inf else ""
    bounds = f"above {above:g}" if above > -math.inf else bounds

    def rule(text: str) -> float:
        plain = re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text)
        value = float(text) if plain else math.nan
        if not (math.isfinite(value) and low <= value <= high and value > above):
            raise ValueError(f"must be a finite number{bounds and ', '}{bounds}")
        return value

    return rule


def one_of(*words: str) -> Rule:
    """Return the rule for one of several words."""

    def rule(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}")
        return text

    return rule


def each(rule: Rule, spaces: bool = False) -> Rule:
    """Return the rule for values separated by commas, or by spaces, each valid under `rule`."""

    def rule_of_all(text: str) -> list:
        try:
            return [rule(part.strip()) for part in text.split(None if spaces else ",")]
        except ValueError as error:
            raise ValueError(f"{error}, or several of them, separated by {'spaces' if spaces else 'commas'}") from None

    return rule_of_all


def anything(text: str) -> str:
    return text


def words(text: str) -> list[str]:
    if not text.split():
        raise ValueError("must have at least one word")
    return text.split()


def word(text: str) -> str:
    if len(text.split()) != 1:
        raise ValueError("must be one word")
    return text


def language(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_@.+-]*", text):
        raise ValueError("must be a language as in the file names, for example en or pt-br")
    return text


def plugin_folder(text: str) -> str:
    if not os.path.isfile(os.path.join(text, "__init__.py")):
        raise ValueError("must be the folder of the plugin, as `headgates path` prints it")
    return text


def place(text: str) -> str:
    if "://" not in text and not os.path.isdir(text):
        raise ValueError("must be a folder that exists, or the address of a mirror")
    return text


def folder(text: str) -> str:
    if not os.path.isdir(text):
        raise ValueError("must be a folder that exists")
    return text


def heads_to_keep(text: str) -> float:
    """As `headgates prune --keep`: a number with a decimal point is a fraction."""
    rule = number(0, 1) if "." in text else whole(0)
    try:
        return rule(text)
    except ValueError:
        raise ValueError(
            "must be a number of heads (12) or a fraction of them with a decimal point, from 0.0 to 1.0"
        ) from None


def epochs(text: str) -> list[int]:
    """Epochs in any order, with the largest one last."""
    found = [int(word) if re.fullmatch("[1-9][0-9]{0,8}", word) else 0 for word in text.split()]
    if not found or 0 in found or found[-1] != max(found):
        raise ValueError("must be epochs, whole numbers from 1 up with the largest one last: 1 2 3 5 10")
    return found


def types_of_run(text: str) -> str:
    names = text.split(",")
    for name in names:
        if name not in TYPES and text != "all":
            raise ValueError(f"{name!r} is not an attention type: choose from {', '.join(TYPES)}, or all")
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is named twice: name each attention type once")
    return text


def types_of_runs(text: str) -> list[str]:
    try:
        return [types_of_run(word) for word in text.split()]
    except ValueError as error:
        raise ValueError(f"must be attention types as in RUNS; {error}") from None


def seeds(text: str) -> list[int]:
    """Random seeds, each once."""
    rule = whole(0, 2**32 - 1)
    try:
        found = [rule(word) for word in text.split()]
    except ValueError as error:
        raise ValueError(f"must be random seeds, separated by spaces; each {error}") from None
    if not found or len(set(found)) < len(found):
        raise ValueError("must be one or more random seeds, each once, separated by spaces: 1 2 3")
    return found


def lambdas(text: str) -> list[float]:
    """Weights of the penalty, each once: their texts are names of folders."""
    found = each(number(0), spaces=True)(text)
    if not found or len(set(found)) < len(found):
        raise ValueError("must be one or more numbers, each once, separated by spaces: 0.02 0.04")
    return found


def cutoffs(text: str) -> list[int]:
    """Cut-offs of an adaptive softmax, as fairseq takes them."""
    try:
        found = [whole()(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or found != sorted(set(found)):
        raise ValueError("must be rising whole numbers, separated by commas without blanks: 20000,60000")
    return found


def optimizer(text: str) -> str:
    """An optimizer of fairseq; its LAMB is that of NVIDIA's apex."""
    one_of("adam", "lamb")(text)
    if text == "lamb" and not importlib.util.find_spec("apex"):
        raise ValueError("needs NVIDIA's apex, which is not installed: install it, or use adam")
    return text


def program(text: str) -> list[str]:
    """A command whose program exists, split as a shell does."""
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"must be a command: {error}") from None
    if not found or not shutil.which(found[0]):
        raise ValueError("must be a command whose program is on the PATH, for example: python3 my_metric.py")
    return found


# Titles of Wikipedia articles: the headlines of WMT15 (515 thousand pairs), and wiki titles v2 (1.2 million).
TITLES = ("wmt15", "v2")


def sacrebleu_sets(pair: str) -> list[str]:
    """Return the names of sacrebleu's test sets that have a language pair such as en-ru."""
    from sacrebleu.dataset import DATASETS

    return [name for name, data in DATASETS.items() if pair in data.langpairs]


def english_russian_set(text: str) -> str:
    return one_of(*sacrebleu_sets("en-ru"))(text)


def shown(text: str) -> str:
    """Return the text in quotes, on one line, cut after 200 characters."""
    return repr(text if len(text) <= 200 else text[:197] + "...")


def option(rule: Rule) -> Rule:
    """Return the rule as a `type` of argparse."""

    def value(text: str) -> Any:
        try:
            return rule(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{shown(text)} {error}") from None

    return value
