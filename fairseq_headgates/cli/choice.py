"""Options of prune and convert that choose the heads to keep."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fairseq_headgates.cli.parser import add_types, chosen_types, filled, number_or_fraction
from fairseq_headgates.heads import HeadTable, parse_scores

if TYPE_CHECKING:
    from torch import nn


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add --threshold, --alive, and --scores with its options."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--threshold",
        metavar="P",
        type=float,
        help="also remove heads with P(open) below P, from 0 to 1: the probability that the random gate of training "
        "is not 0 (default: only heads whose evaluation gate is 0)",
    )
    choice.add_argument(
        "--alive",
        metavar="MASK",
        type=filled,
        help="keep only the heads of this mask: a file, the same JSON inline, or a checkpoint of this plugin",
    )
    choice.add_argument(
        "--scores", metavar="FILE", type=filled, help="keep the heads with the highest scores of FILE; see --keep"
    )
    with_scores = parser.add_argument_group("with --scores")
    with_scores.add_argument(
        "--keep",
        metavar="N",
        type=number_or_fraction,
        help="how many of the open heads of --types to keep (required with --scores): a number (12) or a fraction "
        "(0.5; rounded, .5 up); 1 is one head, 1.0 all",
    )
    with_scores.add_argument(
        "--method",
        metavar="M",
        type=filled,
        help="method whose scores to use; required if FILE has scores of several methods",
    )
    add_types(with_scores, "prune only these attention types (default: all that have scores)")
    with_scores.add_argument(
        "--min-per-layer",
        metavar="K",
        type=int,
        help="keep at least the K highest-scored heads of each attention layer (default: 0)",
    )


def chosen_heads(args: argparse.Namespace, model: nn.Module) -> HeadTable:
    """Return the mask of the heads to keep. Raise ValueError for options that contradict each other or the model."""
    from fairseq_headgates.attention.choice import best_heads
    from fairseq_headgates.attention.cuts import open_mask
    from fairseq_headgates.plugin.options.stored_mask import read_mask

    only_with_scores = {
        "--keep": args.keep,
        "--method": args.method,
        "--types": args.types,
        "--min-per-layer": args.min_per_layer,
    }
    given = [name for name, value in only_with_scores.items() if value is not None]
    if given and args.scores is None:
        raise ValueError(
            f"{', '.join(given)} given without --scores: add --scores FILE, or leave out {', '.join(given)}"
        )
    if args.alive is not None:
        return read_mask(args.alive)
    if args.scores is None:
        return open_mask(model, args.threshold)
    if args.keep is None:
        raise ValueError("--scores without --keep: give the number of heads to keep, --keep 12 or --keep 0.5")
    types = chosen_types(args.types)
    scores = parse_scores(args.scores, args.method)
    return best_heads(scores, args.keep, open_mask(model), types, args.min_per_layer or 0)


def refuse_standard_output(output: str) -> None:
    """Raise ValueError for `-`: a model cannot be written to standard output."""
    if output == "-":
        raise ValueError(
            "OUT is '-', but a model cannot be written to standard output: give a path (./- if its name is -)"
        )
