#!/usr/bin/env python3
"""Write the table of a sweep as TSV and JSON, and its plots: BLEU, and which heads are left, over the number of heads.

    pareto.py RUN_DIR [RUN_DIR ...] [--seed N] [--tsv FILE] [--json FILE] [--plot FILE]

Each folder holds what translation.sh writes, and speed.json. A row is a model: means over the seeds, whose folders are
in several parent folders (OUT_DIR/seed1, ...). A model is on the Pareto front if no other model has at most as many
heads and higher BLEU. The plots show BLEU with the range over the seeds, the heads kept of each attention type, and the
heads kept in each layer, or pair of layers if there are more than three.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from commands import ArgumentParser, exit_code
from evaluated import Run, difference, types_and_method
from fairseq_headgates.cli.output import picture
from fairseq_headgates.files import replacing, write_whole
from fairseq_headgates.heads import TYPES
from fairseq_headgates.report import text_table
from results import read

FORMAT = "headgates.sweep/1"
WORDS = "words_per_second"


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


COLUMNS = {
    "params": ("parameters", lambda value: f"{value / 1e6:.2f}M"),
    "BLEU": ("BLEU", "{:.2f}".format),
    "diff": ("diff", "{:+.2f}".format),
    "chrF": ("chrF2", "{:.2f}".format),
    "nll": ("nll", "{:.3f}".format),
    "words/s": (WORDS, "{:.0f}".format),
}


def table(found: Sequence[Model]) -> str:
    """Return the table that is printed: fewest heads last, a star for models on the front."""
    best = front(found)
    rows = [
        [
            model.name + (" *" if model.name in best else ""),
            *(f"{model.heads[kind]:g}" for kind in model.heads),
            f"{model.total:g}",
            *(form(model.mean(score)) for score, form in COLUMNS.values()),
        ]
        for model in sorted(found, key=lambda model: (-model.total, -model.mean("BLEU")))
    ]
    return text_table(["model", *found[0].heads, "total", *COLUMNS], rows)


def tsv(found: Sequence[Model]) -> str:
    """Return a row for each model: means, lowest and highest values, full precision."""
    scores = list(found[0].scores)
    header = ["model", "method", *found[0].heads, "total", "seeds", "front"]
    header += [f"{score}{part}" for score in scores for part in ("", " min", " max")]
    lines = ["\t".join(header)]
    best = front(found)
    for model in found:
        cells: list[Any] = [model.name, model.method or "-", *model.heads.values(), model.total]
        cells += [len(model.scores["BLEU"]), int(model.name in best)]
        for score in scores:
            values = model.scores[score]
            cells += [round(number, 6) for number in (mean(values), min(values), max(values))]
        lines.append("\t".join(map(str, cells)))
    return "\n".join([*lines, ""])


def as_json(found: Sequence[Model]) -> dict[str, Any]:
    """Return the same with the values of every seed and the heads of every layer; null for a speed that is missing."""
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


def plot(found: Sequence[Model], path: str) -> None:
    """Draw the plots; the kind of file is that of the name (.svg, .png, .pdf)."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq sets the level of all loggers
    from pareto_plot import figure

    with replacing(path, force=True) as part:
        part.write_bytes(picture(path, lambda: figure(found)))


def work(args: argparse.Namespace) -> None:
    seeds = read(args.folders, [], args.seed)
    found = models(seeds)
    print(table(found))
    print("*: on the Pareto front, no model has at most as many heads and higher BLEU")
    if args.tsv:
        write_whole(args.tsv, tsv(found), force=True)
    if args.json:
        write_whole(args.json, json.dumps(as_json(found), indent=1) + "\n", force=True)
    if args.plot:
        plot(found, args.plot)


def main() -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--seed", default="-", metavar="N", help="the seed of the folders, if there is one")
    parser.add_argument("--tsv", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    return exit_code("pareto.py", work, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
