"""`headgates ablate`: measure the loss or BLEU with single heads masked, or with one head alone in its layer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairseq_headgates import report
from fairseq_headgates.analysis.options import ABLATION_MODES
from fairseq_headgates.cli.parser import add_data, add_metric, add_output
from fairseq_headgates.heads import HeadId, HeadTable

if TYPE_CHECKING:
    from fairseq_headgates.cli.session import BleuWork, Loaded, Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates ablate`."""
    add_data(parser)
    parser.add_argument(
        "--mode",
        choices=ABLATION_MODES,
        default="single",
        help="single: mask one head at a time; all-but-one: mask all heads of a layer but one. The loss is measured "
        "for every head; with all-but-one, BLEU is measured only for the best head (lowest loss) of each layer "
        "(default: %(default)s)",
    )
    add_metric(parser, "nll; BLEU has p-values of a paired bootstrap")
    parser.add_argument(
        "--select-subset",
        metavar="S",
        help="with --mode all-but-one --metric bleu: choose the head of each layer by the loss on this subset "
        "(default: --gen-subset)",
    )
    add_output(parser, "write the result as JSON; with BLEU, FILE.part keeps partial results to resume from")


def run(args: argparse.Namespace) -> int:
    """Run `headgates ablate` and return its exit code."""
    from fairseq_headgates.analysis.ablation import ablation_losses
    from fairseq_headgates.cli.session import BleuWork, session
    from fairseq_headgates.evaluation import metric_of

    if args.select_subset is not None and (args.mode != "all-but-one" or args.metric != "bleu"):
        raise ValueError(
            "--select-subset has no effect without --mode all-but-one --metric bleu: add them, or leave it out"
        )
    with session(args) as work:
        path, metric = work.only_path(), metric_of(work.task, args.metric or "nll")
        loaded = work.load(path)
        bleu = BleuWork.of(loaded, work.journal(path)) if metric == "bleu" else None
        nll, losses = ablation_losses(loaded.model, loaded.corpus, args.mode, work.progress("loss"))
        difference = losses.map(lambda loss: loss - nll, f"+bits, {args.mode}")
        result: dict[str, Any] = {
            "format": "headgates.ablation/1",
            "mode": args.mode,
            "signature": str(loaded.signature),
            "nll": nll,
            "nll_difference": difference.rows(),
        }
        text = [f"loss of the whole model: {nll:.4f} bits per target token", "", report.score_table(difference)]
        if metric == "ppl":
            more = losses.map(lambda loss: 2**loss - 2**nll, f"+ppl, {args.mode}")
            result |= {"ppl": 2**nll, "ppl_difference": more.rows()}
            text += ["", f"perplexity of the whole model: {2**nll:.2f}", "", report.score_table(more)]
        if bleu:
            result.update(_bleu(work, loaded, losses, bleu), search=str(work.search))
            text += ["", _bleu_text(args.mode, result)]
        work.write(args.out, json.dumps(result, indent=1) + "\n")
        work.say(json.dumps(result, allow_nan=False) if args.json else "\n".join([*text, str(loaded.signature)]))
        if bleu:
            bleu.journal.discard()
    return 0


def _bleu(work: Session, loaded: Loaded, losses: HeadTable, bleu: BleuWork) -> dict[str, Any]:
    """Return BLEU of the model, and its difference and p-value for each masking, by the text of a `HeadId`."""
    from fairseq_headgates.analysis.ablation import ablation_losses, ablation_masks, masked_translations
    from fairseq_headgates.evaluation import bleu_with_significance

    mode, selected_on = work.args.mode, {}
    if work.args.select_subset:
        selecting = work.corpus(loaded.model, work.args.select_subset)
        _, losses = ablation_losses(loaded.model, selecting, mode, work.progress("choose"))
        selected_on = {"selected_on": str(work.signature(selecting))}
    masks = ablation_masks(loaded.model, mode, losses)
    texts = masked_translations(loaded.model, loaded.corpus, masks, bleu.journal, work.progress("translate"))
    scores, p_values = bleu_with_significance(bleu.metric, texts, bleu.references)
    return {
        **selected_on,
        "bleu": scores["full"],
        "bleu_difference": {str(head): scores[str(head)] - scores["full"] for head in masks},
        "p_value": p_values,
        "bleu_signature": str(bleu.metric.get_signature()),
    }


def _bleu_text(mode: str, result: Mapping[str, Any]) -> str:
    difference = {HeadId.parse(name): value for name, value in result["bleu_difference"].items()}
    p = {HeadId.parse(name): value for name, value in result["p_value"].items()}
    title = f"BLEU of the whole model: {result['bleu']:.2f}; differences, * p < 0.05, ** p < 0.01 (paired bootstrap)"
    tables = report.layer_tables(difference, p) if mode == "single" else [report.best_head_table(difference, p)]
    return "\n\n".join([title, *tables]) + f"\n{result['bleu_signature']}"
