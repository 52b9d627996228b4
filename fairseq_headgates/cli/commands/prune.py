"""`headgates prune`: write a checkpoint without the heads that gates, a threshold, a mask or scores remove."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from fairseq_headgates.cli.choice import add_choice, chosen_heads, refuse_standard_output
from fairseq_headgates.cli.output import say, warn, warn_unfinished
from fairseq_headgates.cli.parser import OPEN, add_checkpoint, add_inference_dtype, add_refit_options, filled
from fairseq_headgates.files import check_writable
from fairseq_headgates.messages import one_line
from fairseq_headgates.report.tables import removal_table

if TYPE_CHECKING:
    from torch import Tensor, nn

HELP = "remove heads from the weights of a checkpoint"
EXAMPLES = (
    "headgates prune gated/checkpoint_last.pt pruned.pt",
    "headgates prune baseline/checkpoint_best.pt half.pt --scores scores.json --keep 0.5 --refit data-bin",
)


class RefitData(argparse.Action):
    """The option --refit DATA, with which the command also takes options of fairseq-generate."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """Set the option."""
        setattr(namespace, self.dest, values)
        namespace.takes_fairseq = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates prune`."""
    parser.description = (
        "Write a checkpoint without the closed heads, which contribute nothing. --threshold, --alive or --scores "
        "removes more heads."
    )
    parser.epilog = OPEN
    add_checkpoint(parser)
    parser.add_argument("output", metavar="OUT", type=filled, help="the checkpoint to write")
    add_choice(parser)
    parser.add_argument(
        "--stock",
        action="store_true",
        help="write a checkpoint for fairseq's own transformer, which needs no plugin: the heads are set to 0 instead "
        "of removed, so its size does not change; without the optimiser state",
    )
    add_inference_dtype(parser, "(default: that of CKPT). OUT stores this option only; its weights are not quantised")
    parser.add_argument("--no-optimizer", action="store_true", help="drop the optimiser state")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--force", action="store_true", help="overwrite OUT if it exists")
    refit = parser.add_argument_group("repair, without training")
    refit.add_argument(
        "--refit",
        metavar="DATA",
        type=filled,
        action=RefitData,
        help="refit the model: change out_proj of attention and fc2 of feed-forward blocks, from the first block that "
        "loses heads on, so that the hidden states stay close (least squares) to those before the removal. DATA: a "
        "folder written by fairseq-preprocess; options of fairseq-generate set task and batches (--task, --max-tokens, "
        "--cpu, ...). Of no use to a model that is trained further; OUT has no optimiser state",
    )
    add_refit_options(refit)


def run(args: argparse.Namespace) -> int:
    """Run `headgates prune` and return its exit code."""
    from fairseq_headgates.attention.cuts import kept_mask, prune, removal_plan
    from fairseq_headgates.checkpoints.building import load_model
    from fairseq_headgates.checkpoints.pruned import check_loads, prune_checkpoint, stock_checkpoint
    from fairseq_headgates.checkpoints.saving import save_checkpoint

    refuse_standard_output(args.output)
    if args.inference_dtype is not None and args.stock:
        raise ValueError("--stock is for fairseq's own transformer, which has no --inference-dtype: leave out one")
    if not args.dry_run:
        check_writable(args.output, args.force)
    state, model = load_model(args.checkpoint, args.trust)
    warn_unfinished("prune", model)
    mask = chosen_heads(args, model)
    pruned = prune(model, mask)
    values, signature = ({}, "") if args.refit is None else refitted_values(args, model, pruned)
    if values is None:  # another worker writes
        return 0
    if args.stock:
        smaller = stock_checkpoint(state, mask, model, values)
    else:
        notice = partial(warn, "prune")
        optimizer = not args.no_optimizer and args.refit is None
        smaller = prune_checkpoint(state, mask, optimizer, model, notice, args.inference_dtype, values)
    plan = removal_plan(model, pruned, check_loads(smaller))
    if signature:
        plan["refit"] = signature
    if not args.dry_run:
        save_checkpoint(smaller, args.output, args.force)
    end = "nothing written (--dry-run)" if args.dry_run else f"written: {args.output}"
    if args.json:
        say(json.dumps(plan))
        print(one_line(end), file=sys.stderr)
        return 0
    say(removal_table(kept_mask(model), kept_mask(pruned)))
    say("\n".join(removal_notes(plan)))
    if args.alive is None and args.scores is None and all(before == kept for before, kept in plan["heads"].values()):
        say(no_removal(model))
    say(end)
    return 0


def refitted_values(
    args: argparse.Namespace, model: nn.Module, pruned: nn.Module
) -> tuple[dict[str, Tensor] | None, str]:
    """Return the refitted parameters, None in all workers but the first, and the signature of the data."""
    from fairseq_headgates.analysis.refit import refit_to
    from fairseq_headgates.cli.session import session
    from fairseq_headgates.evaluation.workers import device_of

    args.rest = [args.refit, "--path", args.checkpoint, *args.rest]
    with session(args) as work:
        corpus = work.corpus(model, args.refit_subset, args.refit_sentences)
        device = device_of(work.fairseq)
        changed = refit_to(model.to(device), pruned.to(device), corpus, work.progress("refit"))
        model.cpu()
        values = {name: value.cpu() for name, value in changed.items()}
        pruned.cpu()
        return (values if work.writes else None), str(work.signature(corpus))


def no_removal(model: nn.Module) -> str:
    """Return why no head is removed without --alive and --scores, and how to choose heads."""
    from fairseq_headgates.attention.sites import gated_sites

    choices = "--alive MASK, or --scores FILE --keep N (`headgates score` writes FILE)"
    if any(gated_sites(model)):
        return f"no head is removed: no gate is closed; choose heads with a higher --threshold, {choices}"
    return f"no head is removed: the checkpoint has no gates; choose heads with {choices}"


def removal_notes(plan: dict[str, Any]) -> list[str]:
    """Return the plan as lines of text."""
    before, after = plan["parameters"]
    lines = [f"\nparameters: {before:,} -> {after:,} ({after / before - 1:+.1%})"]
    cached = {"dec-self": "target token and hypothesis", "dec-enc": "source token and sentence"}
    for attention_type, where in cached.items():
        if attention_type in plan["heads"]:
            sizes = " -> ".join(f"{size:,}" for size in plan["cache_bytes_per_token"][attention_type])
            lines.append(f"key/value cache of {attention_type}: {sizes} bytes for each {where}")
    lines += [
        f"all {each} heads are removed: these attention layers return only the bias of their output projection"
        for each, (_, kept) in plan["heads"].items()
        if not kept
    ]
    if plan["removed_with_open_gate"]:
        lines.append(
            f"removed heads with an evaluation gate above 0: {plan['removed_with_open_gate']} (the output changes)"
        )
    if "refit" in plan:
        lines.append(f"refitted on {plan['refit']}")
    if plan["folded_gates"]:
        lines.append(f"gates between 0 and 1, folded into the output projection: {plan['folded_gates']}")
    return lines
