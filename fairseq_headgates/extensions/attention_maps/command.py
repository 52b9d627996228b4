"""`headgates attention`: draw the attention weights of heads for single sentences."""

from __future__ import annotations

import argparse
import json

from fairseq_headgates.cli.parser import add_data, add_output
from fairseq_headgates.cli.sentences import add_sentences, sentences
from fairseq_headgates.extensions.attention_maps.drawing import (
    attention_figure,
    attention_json,
    attention_page,
    attention_tables,
)
from fairseq_headgates.extensions.attention_maps.interactive import interactive_page

NAME = "attention"
HELP = "draw the attention weights of heads for single sentences"
EXAMPLES = (
    "headgates attention data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 1 "
    "--heads 'dec-enc:0.*' --plot maps.svg",
    "headgates attention data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 1 "
    "--interactive --plot heads.html",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates attention`."""
    add_data(parser, sentences=False)
    parser.description = (
        "Draw attention maps: the attention weights of heads for single sentences, with their tokens. The decoder "
        "reads the reference, or its own translation of a sentence without one."
    )
    parser.add_argument(
        "--heads",
        metavar="H[,H...]",
        default="all",
        help="heads as TYPE:LAYER.HEAD, counted from 0, or with * for all: enc-self:0.3,dec-self:1.*,dec-enc:* "
        "(default: all)",
    )
    add_sentences(parser)
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the maps: .html, .png, .pdf or .svg (matplotlib draws the last three)"
    )
    parser.add_argument(
        "--interactive",
        action="store_true",
        help="with --plot FILE.html: write a page on which layers, heads and tokens are chosen, for sentences of up to "
        "200 tokens",
    )
    add_output(parser, "write the attention weights as JSON", "print the attention weights as JSON")


def run(args: argparse.Namespace) -> int:
    """Run `headgates attention` and return its exit code."""
    from fairseq_headgates.attention.sites import head_counts
    from fairseq_headgates.cli.session import session
    from fairseq_headgates.evaluation.objectives import check_has_loss, objective_of
    from fairseq_headgates.extensions.attention_maps.maps import attention_maps
    from fairseq_headgates.heads import parse_heads

    if args.interactive and not (args.plot or "").endswith(".html"):
        raise ValueError("--interactive makes a web page: add --plot FILE.html")
    with session(args, pages=True) as work:
        model, origin = work.model(work.only_path())
        check_has_loss(model)
        objective_of(work.task).check_text("headgates attention")
        heads = parse_heads(args.heads, head_counts(model))
        chosen = sentences(work, model)
        maps = {number: attention_maps(model, work.task, sample, heads) for number, sample in chosen}
        signature = work.origin("" if args.text else work.fairseq.gen_subset).with_parts(origin)
        text = json.dumps(attention_json(maps, str(signature)), allow_nan=False)
        if args.plot and args.plot.endswith(".html"):
            page = interactive_page if args.interactive else attention_page
            work.write(args.plot, page(maps, str(signature)))
        else:
            work.plot(args.plot, lambda: attention_figure(maps))
        work.write(args.out, text + "\n")
        if args.json or not (args.out or args.plot):
            work.say(text if args.json else attention_tables(maps))
    return 0
