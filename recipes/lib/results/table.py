"""Print the table of a recipe: a line for each model, means and ranges for several seeds.

A PLACE holds the folders of the models of one seed, each with the evaluation.json of `headgates evaluate`. The models
are the baseline and those of the lines of the plan. p-values are those of the differences from the control. For
classification a PLACE also has curves/METHOD.json of `headgates curve`.

The TSV has a line for each model and seed, with all decimals. The JSON is a sweep file, for `headgates report`. With
--sweep the table and the TSV have a line for each model, means over the seeds, with a star for those on the Pareto
front.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands import ArgumentParser, whole
from fairseq_headgates.files import write_whole
from results import classification, columns, language_model, translation
from results.plots import draw
from results.rows import Row, by_model, in_order, read

Seeds = Sequence[Sequence[Row]]


# Of each kind of models a module with its columns, by paper one more, the text below the table, and the plots.
FAMILIES: dict[str, Any] = {
    "translation": translation,
    "language_model": language_model,
    "classification": classification,
}


def read_seeds(args: argparse.Namespace) -> Seeds:
    """Return the rows of each seed, in the order of the table."""
    runs, seeds = in_order(args.run, own_control=args.family != "translation"), []
    tested = args.family != "language_model" and not args.sweep
    for place in args.places:
        seed = place.name.removeprefix("seed") if len(args.places) > 1 else args.seed
        rows = read(place, runs, seed, tested)
        rows[1:1] = [point for method in args.curves.split() for point in classification.curve(place, method, rows[0])]
        seeds.append(rows)
        if [row.run.name for row in rows] != [row.run.name for row in seeds[0]]:
            raise ValueError(f"the curves of {place} have other points than those of {args.places[0]}: repeat them")
    return seeds


def work(args: argparse.Namespace) -> None:
    family, paper = FAMILIES[args.family], "" if args.paper == "none" else args.paper
    shown = [*family.COLUMNS, *map(columns.metric, args.metric)]
    if paper:
        shown.insert(1, family.PAPERS[paper])
    seeds = read_seeds(args)
    swept = translation.models(seeds) if args.family == "translation" else []
    if args.sweep:
        print(translation.sweep_table(swept), translation.SWEEP_LEGEND, sep="\n")
        tsv = translation.sweep_tsv(swept)
    else:
        print(columns.table(seeds, shown), family.legend(seeds, paper, args.bpe), sep="\n")
        ordered = by_model(seeds) if args.family == "language_model" else seeds
        tsv = columns.tsv([row for rows in ordered for row in rows], shown)
    if args.tsv:
        write_whole(args.tsv, tsv, force=True)
    if args.json:
        content = {"format": translation.SWEEP_FORMAT, "models": swept}
        write_whole(args.json, json.dumps(content, indent=1) + "\n", force=True)
    if args.plot:
        draw(args.plot, family.panels(seeds))


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("family", choices=list(FAMILIES), metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("places", nargs="+", type=Path, metavar="PLACE")
    line = "a model, NAME METHOD CONTROL TYPES VALUE STEPS..."
    parser.add_argument("--run", action="append", default=[], metavar="LINE", help=line)
    parser.add_argument("--curves", default="", metavar="METHODS", help="methods of the curves, separated by spaces")
    parser.add_argument("--seed", default="-", metavar="N", help="the seed of one PLACE, for the TSV")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="show metric.NAME.json")
    parser.add_argument("--paper", default="none", metavar="P", help="compare with a paper")
    parser.add_argument("--bpe", type=whole(0), default=0, metavar="N", help="BPE merges; 0: tokens are words")
    parser.add_argument("--sweep", action="store_true", help="of translation models: the Pareto front")
    for kind in ("tsv", "json", "plot"):
        parser.add_argument(f"--{kind}", metavar="FILE")
    args = parser.parse_args(argv)
    work(args)
