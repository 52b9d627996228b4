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
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import headgates_start  # noqa: F401  (before fairseq_headgates, which then does not import fairseq and torch)
from commands import ArgumentParser, exit_code
from fairseq_headgates.files import write_whole
from fairseq_headgates.report import sweep_panels, text_table
from plots import draw
from results import read
from swept import WORDS, Model, as_json, front, models

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
    """Return a row for each model: means, lowest and highest values."""
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
        draw(args.plot, sweep_panels(as_json(found)["models"]))


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
