#!/usr/bin/env python3
"""Print the table of classification.sh: model, heads kept, parameters, accuracy on the test set, difference, p-value.

    classifier_results.py PLACE [PLACE ...] [--runs NAMES] [--curves METHODS] [--seed N] [--tsv FILE]
        [--plot FILE]

PLACE has the folders of the models of one seed, with predictions.json and heads.json, and curves/METHOD.json of
`headgates curve`. The baseline is the control of the curves, `baseline+` that of the runs. The p-value is that of
McNemar's exact test on the sentences of the test set. With several places, those of several seeds, the table has means
and ranges. The TSV has a row for each model and seed. The plot shows accuracy over the heads kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import headgates_start  # noqa: F401  (before fairseq_headgates, which then does not import fairseq and torch)
from commands import ArgumentParser, exit_code
from evaluated import BASELINE, REPEAT, read_json
from fairseq_headgates.evaluation import mcnemar
from fairseq_headgates.files import write_whole
from fairseq_headgates.report import Panel, results_table, rounded, score_panel
from plots import draw
from seeds import mean_heads, significant, with_range

CONTROL = "baseline+"


@dataclass(frozen=True)
class Row:
    """A model of one seed.

    Attributes:
        name: name of the folder, or METHOD-P% for a point of a curve with P percent of the heads removed
        control: name of the model that it is compared with; its own for a control
        kept: heads kept, of `heads`
        accuracy: percent of the test set
        diff: difference in accuracy from the control
        p: p-value of this difference; None for a control
    """

    name: str
    seed: str
    control: str
    kept: int
    heads: int
    parameters: int
    accuracy: float
    diff: float = 0.0
    p: float | None = None


def model(place: Path, name: str, seed: str, control: str) -> Row:
    """Read the folder of a model, and of its control if that is another one."""
    found, shown = read_json(place / name / "predictions.json"), read_json(place / name / "heads.json")
    kept, heads = shown["heads"]["total"]
    row = Row(name, seed, control, kept, heads, int(shown["parameters"]), float(found["accuracy"]))
    if name == control:
        return row
    other = read_json(place / control / "predictions.json")
    p = mcnemar(other["predictions"], found["predictions"], found["labels"])
    return Row(**{**vars(row), "diff": row.accuracy - other["accuracy"], "p": p})


def curve(place: Path, method: str, baseline: Row) -> list[Row]:
    """Return the points of a curve without that of the whole model."""
    head = int(read_json(place / BASELINE / "predictions.json")["head_parameters"])
    return [
        Row(
            f"{method}-{point['removed']:g}%",
            baseline.seed,
            BASELINE,
            point["heads"],
            baseline.heads,
            baseline.parameters - head * (baseline.kept - point["heads"]),
            point["accuracy"],
            point["accuracy"] - baseline.accuracy,
            point["p_value"],
        )
        for point in read_json(place / "curves" / f"{method}.json")["points"]
        if point["removed"]
    ]


def read(place: Path, seed: str, runs: Sequence[str], curves: Sequence[str]) -> list[Row]:
    """Return the models of one seed in the order of the table: each control, then what is compared with it."""
    try:
        baseline = model(place, BASELINE, seed, BASELINE)
        rows = [baseline, *(row for method in curves for row in curve(place, method, baseline))]
        return rows + [model(place, name, seed, CONTROL) for name in ([CONTROL, *runs] if runs else [])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{place} has no complete results ({type(error).__name__}: {error}): {REPEAT}") from None


def one_by_one(rows: Sequence[Row]) -> str:
    """Return the table of one seed."""
    return results_table(
        {
            row.name: {
                "heads": f"{row.kept}/{row.heads}",
                "params": f"{row.parameters / 1e6:.2f}M",
                "accuracy": f"{row.accuracy:.2f}",
                "diff": rounded(row.diff, "+.2f"),
                "p": "-" if row.p is None else f"{row.p:.3f}",
            }
            for row in rows
        }
    )


def over_seeds(seeds: Sequence[Sequence[Row]]) -> str:
    """Return the table with a row for each model; each seed has the same models."""
    return results_table({rows[0].name: _means(rows) for rows in zip(*seeds, strict=True)})


def _means(rows: Sequence[Row]) -> dict[str, str]:
    return {
        "heads": mean_heads([row.kept for row in rows], rows[0].heads),
        "params": f"{mean(row.parameters for row in rows) / 1e6:.2f}M",
        "accuracy": with_range((row.accuracy for row in rows), ".2f"),
        "diff": with_range((row.diff for row in rows), "+.2f"),
        **significant(row.p for row in rows),
    }


def tsv(rows: Sequence[Row]) -> str:
    """Return a row for each model and seed, with all decimals."""
    names = ("name", "seed", "kept", "heads", "parameters", "accuracy", "control", "diff", "p")
    header = ("model", *names[1:3], "of", *names[4:])
    cells = [["-" if (value := getattr(row, name)) is None else str(value) for name in names] for row in rows]
    return "".join("\t".join(line) + "\n" for line in [header, *cells])


def plot(seeds: Sequence[Sequence[Row]]) -> Panel:
    """Return the plot of accuracy over heads kept, a line for each method; controls are horizontal lines."""
    lines: dict[str, list[tuple[float, list[float]]]] = {}
    controls: dict[str, list[float]] = {}
    for rows in zip(*seeds, strict=True):
        first, accuracy = rows[0], [row.accuracy for row in rows]
        if first.name == first.control:
            controls[first.name] = accuracy
        else:
            lines.setdefault(_line(first), []).append((mean(row.kept for row in rows), accuracy))
    return score_panel("accuracy (test)", {name: sorted(points) for name, points in lines.items()}, controls)


def _line(row: Row) -> str:
    """Return the method of a row: that of its curve, how its gates were trained, or the scores and the training."""
    if row.control == BASELINE:
        return row.name.rpartition("-")[0]
    method = row.name.partition("_")[2]
    if row.name.startswith("lambda"):
        return "gates (l0)"
    return "gates" if not method else "gates (subset)" if method == "subset" else f"{method}, trained further"


def work(args: argparse.Namespace) -> None:
    several = len(args.places) > 1
    seeds = [
        read(place, place.name.removeprefix("seed") if several else args.seed, args.runs.split(), args.curves.split())
        for place in args.places
    ]
    print(over_seeds(seeds) if several else one_by_one(seeds[0]))
    controls = ", ".join(dict.fromkeys(row.control for row in seeds[0]))
    print(f"diff, p: accuracy against the control ({controls}), McNemar's exact test")
    print(read_json(args.places[0] / BASELINE / "predictions.json")["signature"])
    if args.tsv:
        write_whole(args.tsv, tsv([row for rows in seeds for row in rows]), force=True)
    if args.plot:
        draw(args.plot, [plot(seeds)])


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("places", nargs="+", type=Path, metavar="PLACE")
    parser.add_argument("--runs", default="", metavar="NAMES", help="names of the runs, separated by spaces")
    parser.add_argument("--curves", default="", metavar="METHODS", help="methods of the curves, separated by spaces")
    parser.add_argument("--seed", default="-", metavar="N", help="the seed of one place")
    parser.add_argument("--tsv", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    return exit_code("classifier_results.py", work, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
