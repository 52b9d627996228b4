"""`headgates report`: write one web page about an experiment."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from pathlib import Path

from fairseq_headgates import __version__
from fairseq_headgates.cli.output import check_matplotlib, say, warn, write
from fairseq_headgates.cli.parser import add_trust, filled
from fairseq_headgates.extensions.page.page import gates_gif, report_page
from fairseq_headgates.files import check_writable, write_whole
from fairseq_headgates.messages import logging_only

NAME = "report"
HELP = "write a web page about an experiment"
EXAMPLES = (
    "headgates report report.html gated baseline/checkpoint_best.pt",
    "headgates report scores.html gated scores.json functions.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates report`."""
    parser.description = (
        "Write a report: one HTML file that opens from disk, without network, with figures and tables of the inputs, "
        "in any combination."
    )
    parser.add_argument("out", metavar="OUT.html", type=filled, help="the page to write")
    parser.add_argument(
        "inputs",
        metavar="INPUT",
        nargs="+",
        type=filled,
        help="checkpoints (.pt); run folders, logs and gate logs (gates.jsonl) of fairseq-train; JSON files of "
        "headgates score, ablate, curve, functions, evaluate, compare and attention; sweep.json or results.json of a "
        "recipe",
    )
    parser.add_argument(
        "--gif",
        metavar="FILE",
        type=filled,
        help="also write P(gate = 0) over the updates as an animated GIF, for the first INPUT with a gate log",
    )
    add_trust(parser)
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def run(args: argparse.Namespace) -> int:
    """Run `headgates report` and return its exit code."""
    from fairseq_headgates.extensions.page.inputs import read_experiment

    check_matplotlib("headgates report")
    for path, ending in ((args.out, ".html"), (args.gif, ".gif")):
        if path is not None:
            if not path.endswith(ending):  # the first INPUT, if OUT.html is forgotten
                raise ValueError(f"{path} would be overwritten: the name of this output must end in {ending}")
            check_writable(path, args.force)
    words = ["headgates", "report", args.out, *args.inputs, *(["--gif", args.gif] if args.gif else [])]
    with logging_only(logging.WARNING, "matplotlib", "PIL", "tensorboard"):  # fairseq sets the level of all loggers
        found = read_experiment(args.inputs, args.trust)
        page = report_page(found, shlex.join(words), __version__)
        animation = gates_gif(found.trainings) if args.gif else None
    write_whole(args.out, page, args.force)
    if animation is not None:
        write(args.gif, animation, args.force)
    with_curves = {run.name for run in found.trainings if run.series}
    for folder in {*map(Path, filter(os.path.isdir, args.inputs))} - {*map(Path, with_curves)}:
        cure = f"save the output of fairseq-train as {folder}/train.log, or train with --log-file"
        warn("report", f"{folder} has no log of its training, so the page has no curves of it: {cure}")
    say(f"wrote {args.out} ({len(page.encode()) / 2**20:.1f} MB)")
    return 0
