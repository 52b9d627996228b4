"""Print the table of a recipe: a line for each model, means and ranges for several seeds.

A PLACE holds the folders of the models of one seed, each with the evaluation.json of `headgates evaluate`. The models
are the baseline and those of the lines of the plan. p-values are those of the differences from the control. For
classification a PLACE also has curves/METHOD.json of `headgates curve`.

The TSV has a line for each model and seed, with all decimals. The JSON is a sweep file, for `headgates report`. With
--sweep the table, the TSV and the plot show the models over the number of heads, means over the seeds, with a star for
those on the Pareto front.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from commands import ArgumentParser, whole
from fairseq_headgates.files import write_whole
from fairseq_headgates.report import Panel, sweep_panels
from results import classification, columns, language_model, sweep, translation
from results.columns import Column
from results.papers import VOITA
from results.plots import draw
from results.rows import Row, in_order, read

Seeds = Sequence[Sequence[Row]]


class Family(NamedTuple):
    """A kind of models: its columns, legend and plots, the score that is tested, and the papers it is compared with."""

    columns: Callable[[argparse.Namespace], list[Column]]
    legend: Callable[[Seeds, argparse.Namespace], str]
    panels: Callable[[Seeds], list[Panel]]
    tested: str = ""
    papers: tuple[str, ...] = ()


FAMILIES = {
    "translation": Family(
        translation.of_table,
        translation.legend,
        lambda seeds: sweep_panels(sweep.models(seeds)),
        "BLEU",
        tuple(VOITA),
    ),
    "language_model": Family(language_model.of_table, language_model.legend, language_model.panels, papers=("shim",)),
    "classification": Family(
        lambda args: classification.COLUMNS, classification.legend, classification.panels, "accuracy"
    ),
}


def read_seeds(args: argparse.Namespace) -> list[list[Row]]:
    """Return the rows of each seed, in the order of the table."""
    runs = in_order(args.run, control_of_itself=args.family != "translation")
    seeds = []
    for place in args.places:
        seed = place.name.removeprefix("seed") if len(args.places) > 1 else args.seed
        rows = read(place, runs, seed, FAMILIES[args.family].tested, args.metric)
        rows[1:1] = [point for method in args.curves.split() for point in classification.curve(place, method, rows[0])]
        seeds.append(rows)
    first = [row.run.name for row in seeds[0]]
    for place, rows in zip(args.places, seeds, strict=True):
        if [row.run.name for row in rows] != first:
            raise ValueError(f"the curves of {place} have other points than those of {args.places[0]}: repeat them")
    return seeds


def work(args: argparse.Namespace) -> None:
    family, seeds = FAMILIES[args.family], read_seeds(args)
    swept = sweep.models(seeds) if args.json or args.sweep else []
    if args.sweep:
        table, legend, tsv = sweep.table(swept), sweep.LEGEND, sweep.tsv(swept)
    else:
        shown = [*family.columns(args), *map(columns.metric, args.metric)]
        table, legend = columns.table(seeds, shown), family.legend(seeds, args)
        tsv = columns.tsv([row for rows in seeds for row in rows], shown)
    print(table, legend, sep="\n")
    if args.tsv:
        write_whole(args.tsv, tsv, force=True)
    if args.json:
        write_whole(args.json, json.dumps({"format": sweep.FORMAT, "models": swept}, indent=1) + "\n", force=True)
    if args.plot:
        draw(args.plot, family.panels(seeds))


def check(args: argparse.Namespace) -> None:
    """Raise ValueError for options that the family does not have."""
    papers = FAMILIES[args.family].papers
    args.paper = "" if args.paper == "none" else args.paper
    if args.paper and args.paper not in papers:
        raise ValueError(f"--paper {args.paper} is not for {args.family}: choose from {', '.join((*papers, 'none'))}")
    for option, family in (("sweep", "translation"), ("json", "translation"), ("curves", "classification")):
        if getattr(args, option) and args.family != family:
            raise ValueError(f"--{option} is not for {args.family}, only for {family}: leave it out")


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("family", choices=list(FAMILIES), metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("places", nargs="+", type=Path, metavar="PLACE")
    parser.add_argument(
        "--run", action="append", default=[], metavar="LINE", help="a model: NAME METHOD CONTROL TYPES VALUE STEPS..."
    )
    parser.add_argument("--curves", default="", metavar="METHODS", help="methods of the curves, separated by spaces")
    parser.add_argument("--seed", default="-", metavar="N", help="the seed of one PLACE, for the TSV")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="show metric.NAME.json")
    parser.add_argument("--paper", default="none", metavar="P", help="compare with a paper")
    parser.add_argument("--bpe", type=whole(0), default=0, metavar="N", help="BPE merges; 0: tokens are words")
    parser.add_argument("--sweep", action="store_true", help="a sweep of translation models: the Pareto front")
    parser.add_argument("--tsv", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args(argv)
    check(args)
    work(args)
