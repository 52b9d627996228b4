"""The models of one seed in the order of the table, with their evaluations and the differences from their controls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from commands import shown
from fairseq_headgates.evaluation import Difference, Evaluation, differences, read_evaluations
from fairseq_headgates.evaluation.results import Loss
from fairseq_headgates.files import read_text
from fairseq_headgates.heads import TYPES

BASELINE = "baseline"
EVALUATION = "evaluation.json"
REPEAT = "remove it and run the recipe again"


class Run(NamedTuple):
    """A model of the plan of a recipe.

    Attributes:
        name: the name of its folder
        method: how its heads are chosen; "" for the baseline and its controls
        control: the name of the model that it is compared with; its own for a control
        types: the attention types whose heads are chosen, "all" or joined by "+"; "" for the baseline and its controls
        value: lambda, heads to keep, scores, or the run whose heads the model has
    """

    name: str
    method: str
    control: str
    types: str = ""
    value: str = ""

    @classmethod
    def parse(cls, line: str) -> Run:
        """Read a line of the plan, NAME METHOD CONTROL TYPES VALUE STEPS..."""
        words = line.split()
        if len(words) < 5:
            raise ValueError(f"--run {shown(line)}: a line of the plan has NAME METHOD CONTROL TYPES VALUE")
        name, method, control, types, value = words[:5]
        if method == "control":
            return cls(name, "", name)
        return cls(name, method, control, "all" if types == ",".join(TYPES) else types.replace(",", "+"), value)


def in_order(lines: Sequence[str], control_of_itself: bool) -> list[Run]:
    """Return the models of a plan in the order of the table: the baseline, then each control and its runs.

    Args:
        lines: the lines of the plan, without the baseline
        control_of_itself: compare the baseline with itself, not with the first control of the plan
    """
    runs = [Run.parse(line) for line in lines]
    controls = [run.name for run in runs if run.name == run.control]
    first = BASELINE if control_of_itself or not controls else controls[0]
    for run in runs:
        if run.control not in (BASELINE, *controls):
            raise ValueError(f"--run {run.name} is compared with {run.control}, which is not in the plan: add its line")
    groups = [[run for run in runs if run.control == name] for name in (BASELINE, *controls)]
    return [Run(BASELINE, "", first), *(run for group in groups for run in sorted(group, key=lambda r: bool(r.method)))]


@dataclass(frozen=True)
class Row:
    """A model of one seed.

    Attributes:
        run: the model in the plan
        seed: random seed of the training
        folder: the folder of the model
        evaluation: its evaluation
        control: the evaluation of its control
        differences: from the control, by score; empty for a control
        metrics: the scores of the user's metrics
    """

    run: Run
    seed: str
    folder: Path
    evaluation: Evaluation
    control: Evaluation
    differences: Mapping[str, Difference] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """The number of heads of the model."""
        return self.evaluation.heads["total"][0]

    def score(self, name: str) -> float:
        return score_of(self.evaluation, name, self.folder)

    def score_of_control(self, name: str) -> float:
        return score_of(self.control, name, self.folder.parent / self.run.control)

    def p(self, name: str) -> float | None:
        """Return the p-value of a difference; None for a control."""
        return self.differences[name].p if name in self.differences else None

    def loss(self, subset: str) -> Loss:
        if subset not in self.evaluation.losses:
            raise lacks(self.folder, f"loss on the subset {subset}")
        return self.evaluation.losses[subset]

    def speed(self) -> float | None:
        return self.evaluation.speed.per_second if self.evaluation.speed else None


def score_of(evaluation: Evaluation, name: str, folder: Path) -> float:
    if name not in evaluation.scores:
        raise lacks(folder, name)
    return evaluation.scores[name].score


def lacks(folder: Path, what: str) -> ValueError:
    return ValueError(f"{folder / EVALUATION} has no {what}: {REPEAT}")


def read(place: Path, runs: Sequence[Run], seed: str, tested: str, metrics: Sequence[str]) -> list[Row]:
    """Read the models of one seed.

    Args:
        place: the folder with a folder of each model
        runs: the models
        seed: the seed
        tested: a score whose differences from the control are tested; "" for none
        metrics: names of the user's metrics
    """
    evaluations = {run.name: _evaluation(place / run.name) for run in runs}
    found: dict[str, Mapping[str, Difference]] = {}
    for control in dict.fromkeys(run.control for run in runs if tested):
        names = [run.name for run in runs if run.control == control != run.name]
        for name in (control, *names):
            score_of(evaluations[name], tested, place / name)
        if names:
            compared = differences(evaluations[control], [evaluations[name] for name in names])
            found |= dict(zip(names, compared, strict=True))
    return [
        Row(
            run,
            seed,
            place / run.name,
            evaluations[run.name],
            evaluations[run.control],
            found.get(run.name, {}),
            {name: number(place / run.name / f"metric.{name}.json", "score") for name in metrics},
        )
        for run in runs
    ]


def _evaluation(folder: Path) -> Evaluation:
    evaluation, *others = read_evaluations(str(folder / EVALUATION))
    if others:
        raise ValueError(f"{folder / EVALUATION} has {len(others) + 1} models, not one: {REPEAT}")
    return evaluation


def number(path: Path, name: str) -> float:
    """Read a number of a JSON file."""
    try:
        return float(json.loads(read_text(str(path), "the score", REPEAT))[name])
    except (KeyError, TypeError, json.JSONDecodeError):
        raise ValueError(f"{path} has no number {name!r}: {REPEAT}") from None
