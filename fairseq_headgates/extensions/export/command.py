"""`headgates convert`: prune a checkpoint as `headgates prune` does, and write it as a CTranslate2 model."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_headgates.cli.choice import add_choice, chosen_heads, refuse_standard_output
from fairseq_headgates.cli.output import say, warn_unfinished
from fairseq_headgates.cli.parser import add_checkpoint, filled
from fairseq_headgates.files import read_text
from fairseq_headgates.heads import HeadId
from fairseq_headgates.messages import shown

if TYPE_CHECKING:
    from torch import nn

NAME = "convert"
HELP = "prune a checkpoint and write it as a CTranslate2 model"
EXAMPLES = (
    "headgates convert gated/checkpoint_last.pt ct2 --to ctranslate2 --data data-bin",
    "headgates convert gated/checkpoint_last.pt ct2-int8 --to ctranslate2 --data data-bin --quantization int8",
)


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
    parser.add_argument(
        "--alignment-heads",
        metavar="HEADS",
        type=filled,
        help="decoder-encoder heads of one layer, such as dec-enc:1.3,dec-enc:1.5: CTranslate2 returns their mean "
        "attention weights (return_attention). Or the JSON file of `headgates functions --alignment GOLD --out FILE`: "
        "the remaining head with the highest alignment rate (default: those of the model's own alignments, "
        "--alignment-layer and --alignment-heads of transformer_align; otherwise all heads of the last layer)",
    )
    add_choice(parser)
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a CTranslate2 model")


def run(args: argparse.Namespace) -> int:
    """Run `headgates convert` and return its exit code."""
    from fairseq_headgates.attention.cuts import prune
    from fairseq_headgates.checkpoints.building import load_dictionaries, load_model
    from fairseq_headgates.extensions.export.ctranslate2 import check_model, check_output, to_ctranslate2

    refuse_standard_output(args.output)
    check_output(Path(args.output), args.force)
    state, model = load_model(args.checkpoint, args.trust)
    warn_unfinished("convert", model)
    pruned = prune(model, chosen_heads(args, model))
    check_model(pruned)
    aligned = [] if args.alignment_heads is None else _alignment_heads(args.alignment_heads, pruned)
    source, target = load_dictionaries(state, args.data or Path(args.checkpoint).parent)
    to_ctranslate2(pruned, source, target, args.output, args.quantization, args.force, aligned)
    say(f"written: {args.output}")
    return 0


def _alignment_heads(text: str, model: nn.Module) -> list[HeadId]:
    """Return the heads that --alignment-heads names, or the best that is left of those of a functions file."""
    from fairseq_headgates.attention.cuts import kept_mask
    from fairseq_headgates.attention.sites import head_counts
    from fairseq_headgates.heads import parse_heads
    from fairseq_headgates.heads.functions import best_head

    if re.match("[a-z-]+:", text):
        return parse_heads(text, head_counts(model), "--alignment-heads")
    try:
        found = json.loads(read_text(text, "the functions", "give heads, or a file of `headgates functions --out`"))
        return [best_head(found, kept_mask(model))]
    except (AttributeError, KeyError, TypeError, IndexError, RecursionError, json.JSONDecodeError):
        raise ValueError(
            f"{shown(text)} is not a file of `headgates functions --out` of one checkpoint: give one, or heads"
        ) from None
