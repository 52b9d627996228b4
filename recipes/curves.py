#!/usr/bin/env python3
"""Prints the BLEU of heads removed step by step as one table: a row for each curve, a column for each step.

    curves.py CURVE.tsv [CURVE.tsv ...] [--paper]      what `headgates curve --tsv` wrote

A row is named after what its curve differs in, the checkpoint (checkpoint3.pt: epoch 3) or the scores. --paper sets the
BLEU of Michel et al. 2019 beside that of the whole model, by epoch.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys

from fairseq_headgates.cli.parser import ArgumentParser
from fairseq_headgates.report import text_table

# Section 6, IWSLT14 German-English, without pruning.
MICHEL = {"1": 3.0, "2": 6.2, "3": 18.1, "5": 26.9, "10": 30.6, "20": 34.5, "30": 34.7, "40": 34.9}


def read(paths: list[str]) -> dict[tuple[str, str], dict[float, float]]:
    """BLEU by (checkpoint, scores) and percent of heads removed."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                if row["types"] == "all":
                    curve = found.setdefault((row["checkpoint"], row["by"]), {})
                    curve[float(row["removed"])] = float(row["bleu"])
    if not found:
        raise ValueError(f"{', '.join(paths)}: no curve over all attention types (headgates curve --types all)")
    return found


def epoch(checkpoint: str) -> str:
    """The epoch, where the name of the file says it."""
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
    return text_table([*header, *(["| paper, whole"] if paper else [])], rows)


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="CURVE.tsv")
    parser.add_argument("--paper", action="store_true")
    args = parser.parse_args()
    try:
        print(table(read(args.files), args.paper))
    except (OSError, ValueError, KeyError) as error:
        print(f"curves.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
