"""`headgates explain`: the contribution of each source and prefix token to each predicted token."""

from __future__ import annotations

import argparse
import json

from fairseq_headgates.analysis.options import EXPLANATIONS
from fairseq_headgates.cli.parser import add_data, add_output, filled
from fairseq_headgates.cli.sentences import add_sentences, numbers, sentences
from fairseq_headgates.extensions.explain.drawing import (
    explanation_figure,
    explanation_json,
    explanation_page,
    explanation_tables,
)

NAME = "explain"
HELP = "show how much each token contributes to a prediction"
EXAMPLES = (
    "headgates explain data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 1,2",
    "headgates explain data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 3 --method "
    "alti --plot contributions.html",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates explain`."""
    add_data(parser, sentences=False)
    parser.description = (
        "Show how much each source token and each token of the target prefix contributes to each predicted token, for "
        "single sentences. The command explains the tokens of the reference, or of the model's translation of a "
        "sentence without one; of a language model each next token of the text; of a classifier the class with the "
        "highest logit. A contribution is the relevance of a token, divided by the sum of the absolute values over all "
        "tokens, in percent."
    )
    methods = "; ".join(f"{name}: {text}" for name, text in EXPLANATIONS.items())
    parser.add_argument(
        "--method",
        metavar="M",
        choices=EXPLANATIONS,
        default="attnlrp",
        help=f"how relevance is computed. {methods} (default: %(default)s)",
    )
    add_sentences(parser)
    parser.add_argument(
        "--positions",
        metavar="N[,N...]",
        type=numbers("positions"),
        default=[],
        help="explain only these predictions of each sentence, counted from 1 (default: all)",
    )
    parser.add_argument(
        "--instead-of",
        metavar="TOKEN",
        type=filled,
        help="explain why the prediction is more likely than TOKEN, a token of the target dictionary or, for a "
        "classifier, a label: relevance for the difference of their logits (Yin & Neubig 2022)",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw heat maps: .html, .png, .pdf or .svg (matplotlib draws the last three)"
    )
    add_output(parser, "write the contributions as JSON", "print the contributions as JSON")


def run(args: argparse.Namespace) -> int:
    """Run `headgates explain` and return its exit code."""
    from fairseq_headgates.cli.session import session
    from fairseq_headgates.evaluation.objectives import check_has_loss
    from fairseq_headgates.extensions.explain.contributions import contributions

    with session(args, pages=True) as work:
        model, origin = work.model(work.only_path())
        check_has_loss(model)
        work.objective.check_text("headgates explain")
        chosen = sentences(work, model)
        found = {
            number: contributions(model, work.task, sample, args.method, args.positions, args.instead_of)
            for number, sample in chosen
        }
        data = work.origin("" if args.text else work.fairseq.gen_subset)
        compared = {} if args.instead_of is None else {"instead-of": args.instead_of}
        signature = str(data.with_parts(origin).of_method(args.method, compared))
        text = json.dumps(explanation_json(found, signature), allow_nan=False)
        if args.plot and args.plot.endswith(".html"):
            work.write(args.plot, explanation_page(found, signature))
        else:
            work.plot(args.plot, lambda: explanation_figure(found))
        work.write(args.out, text + "\n")
        if args.json or not (args.out or args.plot):
            work.say(text if args.json else f"{explanation_tables(found)}\n\n{signature}")
    return 0
