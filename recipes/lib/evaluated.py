"""The results in the folders of evaluated models, and which model each is compared with."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairseq_headgates.files import decode
from fairseq_headgates.heads import TYPES

SCRATCH = "_scratch"
BASELINE = "baseline"
REPEAT = "run the recipe again, in another OUT_DIR if it refuses this one"


@dataclass(frozen=True)
class Run:
    """The results in one folder.

    Attributes:
        name: name of the folder
        heads: {attention type or "total": (heads kept, heads)}
        parameters: number of parameters
        scores: {"BLEU" or "chrF2": {"score", "signature"}}
        nll: bits per token on the validation set
        compared: {"control": name, "BLEU": {"p"}, "chrF2": {"p"}}; None for a control, and a baseline without one
        metrics: {name: score} of the user's metrics
        seed: random seed of training
        folder: the folder
    """

    name: str
    heads: dict[str, tuple[int, int]]
    parameters: int
    scores: dict[str, dict[str, Any]]
    nll: float = math.nan
    compared: dict[str, Any] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    seed: str = "-"
    folder: Path = Path()

    @classmethod
    def read(cls, folder: Path, metrics: Sequence[str] = (), seed: str = "-") -> Run:
        """Read the files of a folder. Raise ValueError, in one line, if one is missing or has other content."""
        try:
            shown, listed = (read_json(folder / name) for name in ("heads.json", "scores.json"))
            scores = {score["name"]: score for score in listed}
            heads = {kind: (kept, total) for kind, (kept, total) in shown["heads"].items()}
            for name in ("BLEU", "chrF2"):
                float(scores[name]["score"]), scores[name]["signature"]
            heads["total"], int(shown["parameters"])
        except (ValueError, TypeError, KeyError, AttributeError, OSError):
            raise ValueError(
                f"{folder} has no heads.json of `headgates show --json`, or no scores.json of `sacrebleu -m bleu chrf "
                "--format json`: give the folder of a finished run"
            ) from None
        return cls(
            folder.name,
            heads,
            int(shown["parameters"]),
            scores,
            _number(folder / "nll.json", "nll", "the loss on the validation set"),
            _comparison(folder),
            {name: _number(folder / f"metric.{name}.json", "score", "the user's metric") for name in metrics},
            seed,
            folder,
        )

    @property
    def bleu(self) -> float:
        return self.scores["BLEU"]["score"]

    @property
    def chrf(self) -> float:
        return self.scores["chrF2"]["score"]

    @property
    def control(self) -> str:
        """The name of the run that this one is compared with: a control, or itself."""
        return self.compared["control"] if self.compared else self.name

    @property
    def p(self) -> float | None:
        """The p-value of the difference in BLEU; None for a control."""
        return self.compared["BLEU"]["p"] if self.compared else None

    @property
    def kind(self) -> str:
        """The attention types with gates; the name of a run without gates."""
        return types_and_method(self.name)[0] or self.name

    @property
    def is_from_scratch(self) -> bool:
        return self.name.endswith(SCRATCH)

    def kept(self) -> list[int | str]:
        return [self.heads.get(kind, "-")[0] for kind in TYPES]


def types_and_method(name: str) -> tuple[str, str]:
    """Return types and method of a run by its name: all_lambda0.02 -> all, l0; all_heads36 -> all, lagrangian."""
    found = re.fullmatch(r"(.+?)_(lambda|heads)[^_]+(?:_rate[^_]+)?(?:_(.+))?", name)
    if not found:
        return "", ""
    return found[1], found[3] or ("l0" if found[2] == "lambda" else "lagrangian")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(decode(path.read_bytes(), str(path)))


def _number(path: Path, key: str, what: str) -> float:
    try:
        return float(read_json(path)[key])
    except (ValueError, TypeError, KeyError, OSError):
        raise ValueError(f"{path} is missing or has no number, {what}: {REPEAT}") from None


def _comparison(folder: Path) -> dict[str, Any] | None:
    path = folder / "significance.json"
    if not path.exists() and (folder.name == BASELINE or folder.name.startswith(BASELINE + "+")):
        return None
    try:
        found = read_json(path)
        for name in ("BLEU", "chrF2"):
            float(found[name]["p"]), found[name]["signature"]
        return {**found, "control": str(found["control"])}
    except (ValueError, TypeError, KeyError, OSError):
        raise ValueError(f"{path} is missing or has no p-values, the comparison with the control: {REPEAT}") from None


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Return the runs of one seed in the order of the table: the baseline, then each control and its runs.

    A baseline whose control is not given is compared with itself.

    Raises:
        ValueError: if a run is compared with one that is not given
    """
    baselines, others = [], []
    for run in runs:
        (baselines if run.name == BASELINE else others).append(run)
    names = [run.name for run in (*baselines, *others)]
    baselines = [run if run.control in names else replace(run, compared=None) for run in baselines]
    for run in others:
        if run.control not in names:
            raise ValueError(f"{run.name} is compared with {run.control}, which is not given: give its folder too")
    controls = [run for run in others if run.control == run.name]
    found = list(baselines)
    for control in controls or baselines:
        found += [control] * (control not in found)
        found += [run for run in others if run.control == control.name and run is not control]
    return found


def difference(run: Run, runs: Iterable[Run]) -> float:
    """Return BLEU of a run minus BLEU of its control, which is among `runs`, of the same seed."""
    return run.bleu - next(other.bleu for other in runs if other.name == run.control)
