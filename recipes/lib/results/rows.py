"""The models of one seed in the order of the table, with their evaluations and the differences from their controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairseq_headgates.data.results import Difference, Evaluation, differences, read_evaluations
from runs import BASELINE, Model

EVALUATION, TIMED = "evaluation.json", "speed.json"
REPEAT = "remove it and run the recipe again"


def in_order(lines: Sequence[str], own_control: bool) -> list[Model]:
    """Return the models of a plan in the order of the table: the baseline, then each control and its runs.

    Args:
        lines: the lines of the plan, without the baseline
        own_control: compare the baseline with itself, and not with the first control
    """
    runs = [Model.parse(line) for line in lines]
    controls = [run for run in runs if not run.method]
    baseline = Model(BASELINE, "", BASELINE if own_control or not controls else controls[0].name)
    found = [baseline]
    for control in (baseline, *controls):
        found += [control] * (control is not baseline)
        found += [run for run in runs if run.method and run.control == control.name]
    return found


@dataclass(frozen=True)
class Row:
    """A model of one seed.

    Attributes:
        run: the model in the plan
        seed: random seed of the training
        folder: its folder
        evaluation: its evaluation
        control: the evaluation of its control
        differences: from the control, by score; empty for a control
    """

    run: Model
    seed: str
    folder: Path
    evaluation: Evaluation
    control: Evaluation
    differences: Mapping[str, Difference]

    @property
    def heads(self) -> tuple[int, int]:
        """The number of heads kept, and of all heads."""
        return self.evaluation.heads["total"]

    def p(self, score: str) -> float | None:
        """Return the p-value of a difference; None for a control."""
        return self.differences[score].p if self.differences else None


def read(place: Path, runs: Sequence[Model], seed: str, tested: bool) -> list[Row]:
    """Read the models of one seed, whose folders are in `place`; `tested`: with differences from the controls."""
    evaluations = {run.name: _evaluation(place / run.name) for run in runs}
    found: dict[str, Mapping[str, Difference]] = {}
    for control in dict.fromkeys(run.control for run in runs if tested):
        names = [run.name for run in runs if run.control == control != run.name]
        others = [evaluations[name] for name in names]
        found |= zip(names, differences(evaluations[control], others), strict=True)
    return [
        Row(run, seed, place / run.name, evaluations[run.name], evaluations[run.control], found.get(run.name, {}))
        for run in runs
    ]


def by_model(seeds: Sequence[Sequence[Row]]) -> list[tuple[Row, ...]]:
    """Return the rows of all seeds for each model; each seed has the same models."""
    return list(zip(*seeds, strict=True))


def _evaluation(folder: Path) -> Evaluation:
    """Read the evaluation in a folder, with the speed of the one that was timed, if there is one."""
    found = _one(folder / EVALUATION)
    timed = folder / TIMED
    return replace(found, speed=_one(timed).speed) if timed.exists() else found


def _one(path: Path) -> Evaluation:
    (evaluation,) = read_evaluations(str(path))
    return evaluation
