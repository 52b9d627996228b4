"""`headgates convert`: prune a checkpoint as `headgates prune` does, and write it as a CTranslate2 model."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_headgates.cli.choice import add_choice, chosen_heads, refuse_standard_output
from fairseq_headgates.cli.parser import add_checkpoint, filled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates convert`."""
    parser.description = "Prune a checkpoint as `headgates prune` does, and write it as a CTranslate2 model."
    add_checkpoint(parser)
    parser.add_argument("output", metavar="OUT", type=filled, help="the folder to write")
    parser.add_argument("--to", choices=["ctranslate2"], required=True, help="the format to write")
    parser.add_argument("--data", metavar="DIR", type=filled, help="folder of dict.*.txt (default: the folder of CKPT)")
    parser.add_argument(
        "--quantization",
        metavar="TYPE",
        help="type of the weights, as CTranslate2 names it: int8, int16, float16, ... (default: float32)",
    )
    add_choice(parser)
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a CTranslate2 model")


def run(args: argparse.Namespace) -> int:
    """Run `headgates convert` and return its exit code."""
    from fairseq_headgates.checkpoints import load_dictionaries, load_model
    from fairseq_headgates.checkpoints.ctranslate2 import check_model, check_output, to_ctranslate2
    from fairseq_headgates.surgery import prune

    refuse_standard_output(args.output)
    check_output(Path(args.output), args.force)
    state, model = load_model(args.checkpoint, args.trust)
    pruned = prune(model, chosen_heads(args, model))
    check_model(pruned)
    source, target = load_dictionaries(state, args.data or Path(args.checkpoint).parent)
    to_ctranslate2(pruned, source, target, args.output, args.quantization, args.force)
    print(f"written: {args.output}")
    return 0
