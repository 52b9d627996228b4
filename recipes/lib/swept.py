"""The models of a sweep, each over all seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from evaluated import Run, difference, types_and_method
from fairseq_headgates.heads import TYPES

WORDS = "words_per_second"
FORMAT = "headgates.sweep/1"


@dataclass(frozen=True)
class Model:
    """A model of a sweep, over all seeds.

    Attributes:
        name: name of its folders
        types: its attention types with gates or removed heads; "" for the baseline and its controls
        method: how its heads were chosen; "" for the baseline and its controls
        heads: {attention type: heads kept}, means
        layers: {attention type: heads kept in each layer}, means
        total: heads kept of all types, mean
        scores: {"BLEU", "diff", "chrF2", "nll", "parameters", "words_per_second": value of each seed}
    """

    name: str
    types: str
    method: str
    heads: dict[str, float]
    layers: dict[str, list[float]]
    total: float
    scores: dict[str, list[float]]

    def mean(self, score: str) -> float:
        return mean(self.scores[score])


def models(seeds: Sequence[Sequence[Run]]) -> list[Model]:
    """Return the models of all seeds, in the order of the first one."""
    found = []
    for first in seeds[0]:
        runs = [(run, of_seed) for of_seed in seeds for run in of_seed if run.name == first.name]
        shown = [_gates(run.folder) for run, _ in runs]
        kinds = [kind for kind in TYPES if kind in first.heads]
        found.append(
            Model(
                first.name,
                *types_and_method(first.name),
                {kind: mean(run.heads[kind][0] for run, _ in runs) for kind in kinds},
                {kind: [mean(layer) for layer in zip(*(each[kind] for each in shown), strict=True)] for kind in kinds},
                mean(run.heads["total"][0] for run, _ in runs),
                {
                    "BLEU": [run.bleu for run, _ in runs],
                    "diff": [difference(run, of_seed) for run, of_seed in runs],
                    "chrF2": [run.chrf for run, _ in runs],
                    "nll": [run.nll for run, _ in runs],
                    "parameters": [float(run.parameters) for run, _ in runs],
                    WORDS: [_speed(run.folder) for run, _ in runs],
                },
            )
        )
    return found


def front(found: Iterable[Model]) -> set[str]:
    """Return the names of the models on the Pareto front of few heads and high BLEU."""
    everything = list(found)
    return {
        model.name
        for model in everything
        if not any(
            other.total <= model.total
            and other.mean("BLEU") >= model.mean("BLEU")
            and (other.total, other.mean("BLEU")) != (model.total, model.mean("BLEU"))
            for other in everything
        )
    }


def as_json(found: Sequence[Model]) -> dict[str, Any]:
    """Return the content of a sweep file, with the values of every seed; null for a speed that is missing."""
    best = front(found)
    return {
        "format": FORMAT,
        "models": [
            {
                "name": model.name,
                "types": model.types or None,
                "method": model.method or None,
                "front": model.name in best,
                "heads": {**model.heads, "total": model.total},
                "layers": model.layers,
                **{
                    score: [None if math.isnan(value) else value for value in values]
                    for score, values in model.scores.items()
                },
            }
            for model in found
        ],
    }


def _gates(folder: Path) -> dict[str, list[int]]:
    """Return the number of open heads in each layer: {type: [L]}."""
    gates = json.loads((folder / "heads.json").read_text(encoding="utf-8"))["gate"]
    return {kind: [sum(gate > 0 for gate in layer) for layer in rows] for kind, rows in gates.items()}


def _speed(folder: Path) -> float:
    try:
        return float(json.loads((folder / "speed.json").read_text(encoding="utf-8"))[WORDS])
    except FileNotFoundError:
        return math.nan
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{folder}/speed.json has no {WORDS}: remove it and run the sweep again") from None
