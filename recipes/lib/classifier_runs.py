#!/usr/bin/env python3
"""Print what classification.sh trains after its baseline, from the settings GATES, CURVES and FINETUNE.

    classifier_runs.py

prints a line for each model, NAME METHOD VALUE. VALUE depends on METHOD:

- l0: lambda
- lagrangian, subset: the heads to keep, as fairseq-train --target-heads
- gradient, ablation, random: the heads to keep by these scores, as headgates prune --keep
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from commands import exit_code
from rules import heads_to_keep, number, one_of
from runs import GATED

CURVES = ("gradient", "ablation", "random")


class Entry(NamedTuple):
    """An entry of GATES: :LAMBDA (method l0), N (method lagrangian) or N@METHOD."""

    value: str
    method: str

    def __str__(self) -> str:
        if self.method == "l0":
            return f":{self.value}"
        return self.value if self.method == GATED[0] else f"{self.value}@{self.method}"

    @property
    def name(self) -> str:
        """The name of the folder."""
        if self.method == "l0":
            return f"lambda{self.value}"
        return f"heads{self.value}" + ("" if self.method == GATED[0] else f"_{self.method}")


def entries(text: str) -> list[Entry]:
    """The rule for GATES."""
    found = []
    for part in text.split():
        try:
            found.append(_entry(part))
        except ValueError as error:
            raise ValueError(f"must be N, N@METHOD or :LAMBDA, separated by spaces: {part!r} {error}") from None
    return _each_once(found)


def _entry(text: str) -> Entry:
    if text.startswith(":"):
        number(0)(text[1:])
        return Entry(text[1:], "l0")
    heads, at, method = text.partition("@")
    heads_to_keep(heads)
    if at:
        one_of(*GATED)(method)
    return Entry(heads, method or GATED[0])


def curves(text: str) -> list[str]:
    """The rule for CURVES."""
    return _each_once([one_of(*CURVES)(part) for part in text.split()])


def _each_once(found: list) -> list:
    for entry, times in Counter(found).items():
        if times > 1:
            raise ValueError(f"must not name {str(entry)!r} twice")
    return found


def plan(settings: Mapping[str, str]) -> list[str]:
    """Return the lines that the program prints."""
    gated = entries(settings["GATES"])
    lines = [f"{entry.name} {entry.method} {entry.value}" for entry in gated]
    if settings["FINETUNE"] == "1":
        shares = dict.fromkeys(entry.value for entry in gated if entry.method != "l0")
        lines += [f"heads{share}_{by} {by} {share}" for by in curves(settings["CURVES"]) for share in shares]
    return lines


if __name__ == "__main__":
    sys.exit(exit_code("classifier_runs.py", lambda: sys.stdout.writelines(line + "\n" for line in plan(os.environ))))
