"""`headgates score`: compute importance scores of all heads."""

from __future__ import annotations

import argparse

from fairseq_headgates.analysis.options import SCORES, WITHOUT_DATA, parse_methods
from fairseq_headgates.cli.parser import Once, add_data, add_output, add_score_options
from fairseq_headgates.heads import scores_to_json
from fairseq_headgates.report.figures import heat_maps
from fairseq_headgates.report.tables import score_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates score`."""
    add_data(parser)
    scores = "; ".join(f"{name}: {text}" for name, text in SCORES.items())
    parser.add_argument(
        "--method", metavar="M[,M...]", action=Once, required=True, help=f"scores to compute, or all. {scores}"
    )
    add_score_options(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw heat maps: .png, .pdf, .svg (needs matplotlib)")
    add_output(
        parser,
        "write a score file for prune, curve and correlate",
        "print the content of the score file instead of tables",
    )


def run(args: argparse.Namespace) -> int:
    """Run `headgates score` and return its exit code."""
    from fairseq_headgates.cli.session import session

    methods = parse_methods(args.method)
    with session(args, needs_target=not set(methods) <= set(WITHOUT_DATA)) as work:
        loaded = work.load(work.only_path())
        tables = [work.scores(loaded, method) for method in methods]
        work.write(args.out, scores_to_json(tables))
        work.plot(args.plot, lambda: heat_maps(tables))
        if args.json:
            work.say(scores_to_json(tables).rstrip("\n"))
        else:
            work.say("\n\n".join(f"{score_table(table)}\n{table.signature}" for table in tables))
    return 0
