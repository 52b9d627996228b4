"""Print BLEU over the fraction of removed heads as one table: a row for each curve, a column for each step.

CURVE.tsv is a file of `headgates curve --tsv`. A row is named by its checkpoint (checkpoint3.pt: epoch 3) if there are
several, else by its scores. --paper adds a column with the BLEU of the whole model in Michel et al. 2019, by epoch: of
the tokenised text of their validation set.
"""

from __future__ import annotations

import csv
import re

from commands import ArgumentParser
from fairseq_headgates.drawing.tables import text_table
from fairseq_headgates.files import lines_of, read_text
from results.papers import MICHEL


def read(paths: list[str]) -> dict[tuple[str, str], dict[float, float]]:
    """Return BLEU by (checkpoint, scores) and percent of heads removed."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    for path in paths:
        text = read_text(path, "the curve", "give a file of headgates curve --tsv")
        for row in csv.DictReader(lines_of(text), delimiter="\t"):
            if not row.get("bleu"):
                raise ValueError(f"{path} has no BLEU: run headgates curve with --metric bleu")
            if row["types"] == "all":
                curve = found.setdefault((row["checkpoint"], row["by"]), {})
                curve[float(row["removed"])] = float(row["bleu"])
    return found


def epoch(checkpoint: str) -> str:
    """Return the epoch if the file name contains it, else the file name."""
    named = re.search(r"checkpoint(\d+)\.pt$", checkpoint)
    return named[1] if named else checkpoint


def table(curves: dict[tuple[str, str], dict[float, float]], paper: bool) -> str:
    over_training = len({checkpoint for checkpoint, _ in curves}) > 1
    steps = sorted({step for curve in curves.values() for step in curve})
    header = ["epoch" if over_training else "by", *(f"-{step:g}%" for step in steps)]
    rows = []
    for (checkpoint, scores), curve in curves.items():
        name = epoch(checkpoint) if over_training else scores
        rows.append([name, *(f"{curve[step]:.2f}" if step in curve else "-" for step in steps)])
        if paper:
            rows[-1].append(str(MICHEL.get(name, "-")))
    return text_table([*header, *(["| paper, whole (tokenised, validation set)"] if paper else [])], rows)


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("files", nargs="+", metavar="CURVE.tsv")
    parser.add_argument("--paper", action="store_true")
    args = parser.parse_args(argv)
    print(table(read(args.files), args.paper))
