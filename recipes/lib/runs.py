"""The setting RUNS: one grammar for every family of models, and the lines of the plan that follows from it.

An entry is TYPES:LAMBDA[@SCALE], gates with an L0 penalty, TYPES=N[@METHOD], a number of heads to keep, or
params=N[@only] or speed=X[@only], a size or speed to compress to. TYPES are attention types separated by commas, or
all; without them (`:0.1`, `=0.5`) it is all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from commands import quoted

UNSIGNED = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"

TYPES = ("enc-self", "dec-self", "dec-enc")
GATED = ("lagrangian", "subset")
# By which scores each of the other methods removes heads.
SCORES = {
    "gradient": "gradient",
    "ablation": "ablation",
    "random": "random",
    "iterative": "gradient",
    "gradient-only": "gradient",
    "ablation-only": "ablation",
    "gradient-refit": "gradient",
    "ablation-refit": "ablation",
    "refit": "refit",
}
# Methods of runs with a budget instead of attention types: heads and neurons of the feed-forward blocks are removed.
COMPRESS, COMPRESS_ONLY = "compress", "compress-only"
BUDGETS = ("params", "speed")


def trains(method: str) -> bool:
    """Return whether a run of this method is trained."""
    return not method.endswith(("-only", "refit"))


UNTRAINED = [name for name in SCORES if not trains(name)]
TRAINED = [name for name in SCORES if trains(name)]
BASELINE, PLAIN, FROZEN = "baseline", "baseline+", "baseline+frozen"


@dataclass(frozen=True)
class Run:
    """A model that is pruned, starting from the baseline.

    Attributes:
        types: attention types separated by commas, "all", or one of BUDGETS
        value: lambda with the method "l0", the budget of a compression, otherwise heads to keep: a number, or a
            fraction with a decimal point
        method: "l0", one of GATED or of SCORES, COMPRESS, COMPRESS_ONLY, or "" for the default
        scale: --gate-lr-scale of the method "l0", or ""
    """

    types: str
    value: str
    method: str = ""
    scale: str = ""

    def __str__(self) -> str:
        if self.method == "l0":
            return f"{self.types}:{self.value}" + (f"@{self.scale}" if self.scale else "")
        if self.compresses:
            return f"{self.types}={self.value}" + ("" if trains(self.method) else "@only")
        return f"{self.types}={self.value}" + (f"@{self.method}" if self.method else "")

    @property
    def compresses(self) -> bool:
        """Whether neurons are removed, too."""
        return self.types in BUDGETS


@dataclass(frozen=True)
class Heads:
    """The heads of a model: {attention type: number}, in the order of the types."""

    sizes: Mapping[str, int]

    def of(self, run: Run) -> list[str]:
        """Return the attention types of a run."""
        return list(self.sizes) if run.types == "all" or run.compresses else run.types.split(",")

    def total(self, run: Run) -> int:
        """Return the number of heads of the types of a run."""
        return sum(self.sizes[attention_type] for attention_type in self.of(run))

    def name(self, run: Run) -> str:
        """Return the name of the folder of a run; without the types where the model has only one."""
        if run.compresses:
            return f"{run.types}{run.value}" + ("" if trains(run.method) else "_only")
        types = "" if len(self.sizes) == 1 else run.types.replace(",", "+") + "_"
        if run.method == "l0":
            return f"{types}lambda{run.value}" + (f"_rate{run.scale}" if run.scale else "")
        return f"{types}heads{run.value}" + ("" if run.method == "lagrangian" else f"_{run.method}")

    def control(self, run: Run) -> str:
        """Return the control; the decoder is frozen where only encoder heads are removed in training."""
        alone = run.types == "enc-self" and len(self.sizes) > 1
        return FROZEN if alone and trains(run.method) else PLAIN

    def steps(self, run: Run, iterations: int) -> list[int]:
        """Return the numbers of heads after each step of removal."""
        total, kept = self.total(run), self.kept(run)
        steps = iterations if run.method == "iterative" else 1
        return [total - (total - kept) * (step + 1) // steps for step in range(steps)]

    def kept(self, run: Run) -> int:
        """Return the number of heads to keep."""
        if "." not in run.value:
            return int(run.value)
        from fairseq_headgates.heads import number_of_heads  # settings are checked where it is not installed

        return number_of_heads(float(run.value), self.total(run))


def parse(word: str) -> Run:
    """Parse an entry. Raise ValueError, "must be ...", for another text."""
    try:
        return _parse(word)
    except ValueError as error:
        rule = "must be TYPES:LAMBDA[@SCALE], TYPES=N[@METHOD], params=N[@only] or speed=X[@only]"
        raise ValueError(f"{rule}: in {quoted(word)} {error}") from None


def _parse(word: str) -> Run:
    types, sign, rest = re.fullmatch("([^=:]*)([=:]?)(.*)", word).groups()  # type: ignore[union-attr]
    if not sign:
        raise ValueError("a colon or an equals sign is missing")
    value, at, option = rest.partition("@")
    if types in BUDGETS:
        return _compression(types, sign, value, rest[len(value) :])
    types = _types(types or "all")
    if sign == ":":
        _part("lambda", value, weight)
        if at:
            _part("scale", option, _scale)
        return Run(types, value, "l0", option)
    _part("N", value, heads_to_keep)
    if at:
        _part("method", option, method)
    return Run(types, value, option)


def _compression(budget: str, sign: str, value: str, option: str) -> Run:
    if sign == ":":
        raise ValueError(f"{budget} has a colon instead of an equals sign")
    _part(budget, value, _parameters_to_keep if budget == "params" else _speedup)
    if option not in ("", "@only"):
        raise ValueError(f"{quoted(option)} must be @only, without training, or left out")
    return Run(budget, value, COMPRESS_ONLY if option else COMPRESS)


def heads_to_keep(text: str) -> None:
    """Check a number of heads, as `headgates prune --keep`: with a decimal point it is a fraction of them."""
    _number_or_fraction(
        text, "must be a number of heads (12) or a fraction of them with a decimal point, from 0.0 to 1.0"
    )


def _number_or_fraction(text: str, rule: str) -> None:
    if not re.fullmatch(r"[0-9]{1,18}|0?\.[0-9]+|0\.|1\.0*", text):
        raise ValueError(rule)


def _parameters_to_keep(text: str) -> None:
    _number_or_fraction(text, "must be a number of parameters (40000000) or a share of them (0.7), up to 1.0")


def _part(name: str, text: str, check: Callable[[str], None]) -> None:
    try:
        check(text)
    except ValueError as error:
        raise ValueError(f"{name} {quoted(text)} {error}") from None


def method(text: str) -> None:
    """Check the METHOD of an entry. Raise ValueError, "must be ...", for another text."""
    if text not in (*GATED, *SCORES):
        raise ValueError(f"must be one of {', '.join((*GATED, *SCORES))}")


def weight(text: str) -> None:
    """Check the LAMBDA of an entry. Raise ValueError, "must be ...", for another text."""
    if not re.fullmatch(UNSIGNED, text) or math.isinf(float(text)):
        raise ValueError("must be a finite number, 0 or more")


def _scale(text: str) -> None:
    weight(text)
    if float(text) == 0:
        raise ValueError("must be above 0")


def _speedup(text: str) -> None:
    weight(text)
    if float(text) <= 1:
        raise ValueError("must be above 1, for example 1.5")


def _types(text: str) -> str:
    names = text.split(",")
    for name in names:
        if name not in TYPES and text != "all":
            raise ValueError(f"{quoted(name)} is not an attention type: choose from {', '.join(TYPES)}, or all")
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is named twice: name each attention type once")
    return text


def types_of_runs(text: str) -> str:
    """Check attention types as in RUNS. Raise ValueError, "must be ...", for another text."""
    try:
        return _types(text)
    except ValueError as error:
        raise ValueError(f"must be attention types as in RUNS; {error}") from None


def with_method(runs: list[Run], method: str) -> list[Run]:
    """Return the runs with the default method where they name none."""
    return [replace(run, method=run.method or method) for run in runs]


def check(runs: list[Run], heads: Heads, updates: int, iterations: int) -> None:
    """Raise ValueError, in one line, for runs that are named twice or keep more heads than there are."""
    names: list[str] = []
    for run in runs:
        other = [attention_type for attention_type in heads.of(run) if attention_type not in heads.sizes]
        if other:
            raise ValueError(
                f"RUNS names {quoted(str(run))}: this model has no {', '.join(other)}, only {', '.join(heads.sizes)}"
            )
        if heads.name(run) in names:
            raise ValueError(f"RUNS must not name {str(run)!r} twice")
        names.append(heads.name(run))
        total = heads.total(run)
        counted = run.method != "l0" and not run.compresses
        if counted and "." not in run.value and int(run.value) > total:
            sizes = ", ".join(f"{attention_type} {heads.sizes[attention_type]}" for attention_type in heads.of(run))
            raise ValueError(
                f"RUNS names {str(run)!r}, more heads than there are: it must be at most {total} ({sizes})"
            )
        if run.method == "iterative" and iterations > updates:
            raise ValueError(f"ITERATIONS={iterations} must be at most PRUNE_UPDATES={updates}")


def plan(runs: list[Run], heads: Heads, scratch: list[str], iterations: int) -> list[str]:
    """Return what is trained besides the baseline: a line NAME METHOD CONTROL TYPES VALUE STEPS... for each model.

    VALUE depends on METHOD:

    - control: a control itself, no value
    - l0: lambda, and then, if the run gives one, its --gate-lr-scale
    - lagrangian, subset: the heads to keep, as fairseq-train --target-heads
    - those of SCORES: the scores by which heads are removed; STEPS has the number of heads of TYPES after each step
    - compress, compress-only: params or speed; STEPS is the number, share or factor
    - scratch: the run whose heads and neurons the model has
    """
    lines = [line for run in runs for line in _lines(run, heads, scratch, iterations)]
    needed = {line.split()[2] for line in lines}
    return [f"{control} control {control} - -" for control in (PLAIN, FROZEN) if control in needed] + lines


def _lines(run: Run, heads: Heads, scratch: list[str], iterations: int) -> Iterator[str]:
    attention_types, name = ",".join(heads.of(run)), heads.name(run)
    words = [name, run.method, heads.control(run), attention_types]
    if run.compresses:
        words += [run.types, run.value]
    elif run.method in SCORES:
        words += [SCORES[run.method], *map(str, heads.steps(run, iterations))]
    else:
        words += [run.value, run.scale]
    yield " ".join(words).rstrip()
    if run.types in scratch:
        yield f"{name}_scratch scratch {PLAIN} {attention_types} {name}"


class Model(NamedTuple):
    """A model of the plan, read from its line.

    Attributes:
        name: the name of its folder
        method: how its heads are chosen; "" for the baseline and its controls
        control: the name of the model that it is compared with; its own for a control
        types: the attention types whose heads are chosen, "all" or joined by "+"; "" for the baseline and its controls
        value: lambda, heads to keep, scores, budget, or the run whose heads the model has
    """

    name: str
    method: str
    control: str
    types: str = ""
    value: str = ""

    @property
    def is_trained(self) -> bool:
        """Whether it is trained further than the baseline."""
        return self.control != BASELINE and trains(self.method)

    @classmethod
    def parse(cls, line: str) -> Model:
        """Read a line of `plan`."""
        name, method, control, types, value = line.split()[:5]
        if method == "control":
            return cls(name, "", name)
        return cls(name, method, control, "all" if types == ",".join(TYPES) else types.replace(",", "+"), value)
