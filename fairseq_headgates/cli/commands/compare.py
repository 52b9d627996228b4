"""`headgates compare`: compare the heads that masks or checkpoints keep."""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import asdict
from typing import Any

from fairseq_headgates.cli.output import say, without_nan, write
from fairseq_headgates.cli.parser import add_output, add_types, chosen_types
from fairseq_headgates.files import check_writable
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.report.tables import matrix, overlap_table

HELP = "compare the heads that masks or checkpoints keep"
EXAMPLES = (
    "headgates compare gated/checkpoint_last.pt half.pt",
    "headgates compare seed1.json seed2.json seed3.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates compare`."""
    parser.description = (
        "Compare the heads that each pair of masks keeps: the number that both keep, the Jaccard index, and the "
        "probability that random masks of the same sizes overlap at least as much."
    )
    parser.add_argument(
        "masks",
        metavar="MASK",
        nargs="+",
        help="two or more mask files or checkpoints of this plugin, with the same layers and heads",
    )
    add_types(
        parser,
        "compare only these attention types (default: those of both masks, without types of which both keep all heads)",
    )
    add_output(parser, "write the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Run `headgates compare` and return its exit code."""
    from fairseq_headgates.analysis.overlap import overlap
    from fairseq_headgates.plugin.options.stored_mask import read_mask

    if len(args.masks) < 2 or len(set(args.masks)) < len(args.masks):
        raise ValueError(f"MASK is {' '.join(args.masks)}: name at least two masks, each once")
    if args.out is not None:
        check_writable(args.out, args.force)
    masks = {name: HeadTable(read_mask(name).values, name) for name in args.masks}
    types, pairs = chosen_types(args.types), []
    for a, b in itertools.combinations(masks.values(), 2):
        common = types or _compared(a, b)
        for group in [*((each,) for each in common), *[common] * (len(common) != 1)]:  # an error without any
            pairs.append({"a": a.name, "b": b.name, "types": ",".join(group), **asdict(overlap(a, b, group))})
    result = json.dumps({"format": "headgates.overlap/1", "pairs": [without_nan(pair) for pair in pairs]})
    if args.out is not None:
        write(args.out, result + "\n", args.force)
    say(result if args.json else _text(pairs, list(masks)))
    return 0


def _compared(a: HeadTable, b: HeadTable) -> tuple[str, ...]:
    """Return the attention types of both masks, without those that nothing was removed from, if others are left."""
    from fairseq_headgates.analysis.agreement import common_types

    common = common_types(a, b)
    pruned = tuple(each for each in common if any(min(mask.heads(each), default=1) <= 0 for mask in (a, b)))
    return pruned or common


def _text(pairs: list[dict[str, Any]], names: list[str]) -> str:

    text = overlap_table(pairs)
    if len(names) > 2:
        last = {(pair["a"], pair["b"]): pair["jaccard"] for pair in pairs}  # that of all types
        text = f"{matrix('Jaccard', names, last)}\n\n{text}"
    return text
