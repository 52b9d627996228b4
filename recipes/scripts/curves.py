"""Print BLEU over the fraction of removed heads as one table: a row for each curve, a column for each step.

CURVE.tsv is a file of `headgates curve --tsv`. A row is named by its checkpoint (checkpoint3.pt: epoch 3) if there are
several, else by its scores. --paper adds a column with the BLEU of the whole model in Michel et al. 2019, by epoch: of
the tokenised text of their validation set.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Sequence

import headgates_start  # noqa: F401  (with it fairseq_headgates imports fairseq and torch only where they are needed)
from fairseq_headgates.drawing.tables import text_table
from fairseq_headgates.files import lines_of, read_text
from script_errors import errors_in_one_line

# BLEU of Michel et al. 2019 by epoch, section 6, IWSLT14 German-English, without pruning.
MICHEL = {"1": 3.0, "2": 6.2, "3": 18.1, "5": 26.9, "10": 30.6, "20": 34.5, "30": 34.7, "40": 34.9}


def main(argv: Sequence[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("curves.py", description=__doc__, formatter_class=form)
    parser.add_argument("files", nargs="+", metavar="CURVE.tsv")
    parser.add_argument("--paper", action="store_true")
    args = parser.parse_args(argv)
    curves: dict[tuple[str, str], dict[float, float]] = {}
    for path in args.files:
        text = read_text(path, "the curve", "give a file of headgates curve --tsv")
        for row in csv.DictReader(lines_of(text), delimiter="\t"):
            if not row.get("bleu"):
                raise ValueError(f"{path} has no BLEU: run headgates curve with --metric bleu")
            if row["types"] == "all":
                curves.setdefault((row["checkpoint"], row["by"]), {})[float(row["removed"])] = float(row["bleu"])
    over_training = len({checkpoint for checkpoint, _ in curves}) > 1
    steps = sorted({step for curve in curves.values() for step in curve})
    rows = []
    for (checkpoint, scores), curve in curves.items():
        epoch = re.search(r"checkpoint(\d+)\.pt$", checkpoint)
        name = (epoch[1] if epoch else checkpoint) if over_training else scores
        cells = [f"{curve[step]:.2f}" if step in curve else "-" for step in steps]
        rows.append([name, *cells, str(MICHEL.get(name, "-"))] if args.paper else [name, *cells])
    paper = ["| paper, whole (tokenised, validation set)"] if args.paper else []
    print(text_table(["epoch" if over_training else "by", *(f"-{step:g}%" for step in steps), *paper], rows))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
