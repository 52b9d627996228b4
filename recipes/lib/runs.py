#!/usr/bin/env python3
"""Print what translation.sh trains besides the baseline, from the setting RUNS and others in the environment.

    runs.py

prints a line for each model: NAME METHOD CONTROL TYPES VALUE STEPS...
The control is `baseline+`, or `baseline+frozen` for runs with a frozen decoder. VALUE depends on METHOD:

- control: a control itself, no value
- l0: lambda, and then, if the run gives one, its --gate-lr-scale
- lagrangian, subset: the heads to keep, as fairseq-train --target-heads
- gradient, ablation, random, iterative, gradient-only, ablation-only: the scores by which heads are removed; STEPS has
  the number of heads of TYPES after each step
- scratch: the run whose heads the model has
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from commands import exit_code
from rules import TYPES, heads_to_keep, number, one_of, types_of_run, types_of_runs

GATED = ("lagrangian", "subset")
# By which scores each of the other methods removes heads.
SCORES = {
    "gradient": "gradient",
    "ablation": "ablation",
    "random": "random",
    "iterative": "gradient",
    "gradient-only": "gradient",
    "ablation-only": "ablation",
}
PLAIN, FROZEN = "baseline+", "baseline+frozen"


class Run(NamedTuple):
    """An entry of RUNS: TYPES:LAMBDA or TYPES:LAMBDA@SCALE (method l0), TYPES=N (method '', the default) or
    TYPES=N@METHOD.
    """

    types: str
    value: str
    method: str
    lr_scale: str = ""

    def __str__(self) -> str:
        if self.method == "l0":
            return f"{self.types}:{self.value}" + (f"@{self.lr_scale}" if self.lr_scale else "")
        return f"{self.types}={self.value}" + (f"@{self.method}" if self.method else "")

    @property
    def name(self) -> str:
        """The name of the folder."""
        types = self.types.replace(",", "+")
        if self.method == "l0":
            return f"{types}_lambda{self.value}" + (f"_rate{self.lr_scale}" if self.lr_scale else "")
        return f"{types}_heads{self.value}" + ("" if self.method == "lagrangian" else f"_{self.method}")

    @property
    def kinds(self) -> tuple[str, ...]:
        return TYPES if self.types == "all" else tuple(self.types.split(","))

    @property
    def control(self) -> str:
        """The control; a decoder is frozen where only encoder heads are removed in training."""
        return FROZEN if self.types == "enc-self" and not self.method.endswith("-only") else PLAIN

    def total(self, sizes: Mapping[str, int]) -> int:
        """Return the number of heads of its attention types; `sizes` has that of each type."""
        return sum(sizes[kind] for kind in self.kinds)

    def heads(self, sizes: Mapping[str, int]) -> int:
        """Return the number of heads to keep."""
        if "." not in self.value:
            return int(self.value)
        import headgates_start  # noqa: F401  (before fairseq_headgates, which then does not import fairseq and torch)
        from fairseq_headgates.heads import number_of_heads  # settings are checked where it is not installed

        return number_of_heads(float(self.value), self.total(sizes))

    def steps(self, sizes: Mapping[str, int], iterations: int) -> list[int]:
        """Return the numbers of heads after each step of removal."""
        total, kept = self.total(sizes), self.heads(sizes)
        steps = iterations if self.method == "iterative" else 1
        return [total - (total - kept) * (step + 1) // steps for step in range(steps)]


def runs(text: str) -> list[Run]:
    """The rule for RUNS."""
    found = []
    for word in text.split():
        try:
            found.append(_run(word))
        except ValueError as error:
            raise ValueError(
                f"must be one or more TYPES:LAMBDA[@SCALE] or TYPES=N[@METHOD], separated by spaces: {word!r} {error}"
            ) from None
    for run, times in Counter(found).items():
        if times > 1:
            raise ValueError(f"must not name {str(run)!r} twice")
    return found


def _run(word: str) -> Run:
    if "=" in word:
        types, _, rest = word.partition("=")
        heads, at, method = rest.partition("@")
        types_of_run(types)
        _checked("N", heads_to_keep, heads)
        if at:
            _checked("method", one_of(*GATED, *SCORES), method)
        return Run(types, heads, method)
    types, colon, rest = word.rpartition(":")
    if not colon:
        raise ValueError("has no colon and no equals sign")
    types_of_run(types)
    weight, at, lr_scale = rest.partition("@")
    _checked("lambda", number(0), weight)
    if at:
        _checked("scale", number(above=0), lr_scale)
    return Run(types, weight, "l0", lr_scale)


def _checked(name: str, rule, text: str) -> None:
    try:
        rule(text)
    except ValueError as error:
        raise ValueError(f"{name} {text!r} {error}") from None


def with_method(found: list[Run], method: str) -> list[Run]:
    """Return the runs with the default method where they name none."""
    return [run._replace(method=run.method or method) for run in found]


def sizes_of(layers: int, decoder_layers: int | None, heads: int) -> dict[str, int]:
    """Return the number of heads of each attention type; without `decoder_layers` the decoder has `layers`."""
    return {kind: heads * (layers if kind == "enc-self" else decoder_layers or layers) for kind in TYPES}


def plan(settings: Mapping[str, str]) -> list[str]:
    """Return the lines that the program prints."""
    found = with_method(runs(settings["RUNS"]), settings["SPARSITY_METHOD"])
    scratch = types_of_runs(settings["SCRATCH"])
    decoder_layers, iterations = int(settings.get("DECODER_LAYERS") or 0), int(settings["ITERATIONS"])
    sizes = sizes_of(int(settings["LAYERS"]), decoder_layers, int(settings["HEADS"]))
    lines = [line for run in found for line in _lines(run, scratch, sizes, iterations)]
    needed = {line.split()[2] for line in lines}
    return [f"{control} control {control} - -" for control in (PLAIN, FROZEN) if control in needed] + lines


def _lines(run: Run, scratch: list[str], sizes: Mapping[str, int], iterations: int) -> Iterator[str]:
    value = SCORES.get(run.method, run.value)
    steps = run.steps(sizes, iterations) if run.method in SCORES else [run.lr_scale]
    yield " ".join([run.name, run.method, run.control, ",".join(run.kinds), value, *map(str, steps)])
    if run.types in scratch:
        yield f"{run.name}_scratch scratch {PLAIN} {','.join(run.kinds)} {run.name}"


if __name__ == "__main__":
    sys.exit(exit_code("runs.py", lambda: sys.stdout.writelines(line + "\n" for line in plan(os.environ))))
