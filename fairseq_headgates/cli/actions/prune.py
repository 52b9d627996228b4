"""Write a checkpoint without the heads that gates, a threshold, a mask or scores remove."""

import shlex
import sys
from typing import Any

from torch import Tensor, nn

from fairseq_headgates.attention.cuts import cut_copy, kept_mask, removal_plan
from fairseq_headgates.attention.modules import gated_modules
from fairseq_headgates.checkpoints.pruned import check_loads, prune_checkpoint, stock_checkpoint
from fairseq_headgates.checkpoints.saving import save_checkpoint
from fairseq_headgates.cli.choice import chosen_heads
from fairseq_headgates.cli.commands.prune import PruneOptions
from fairseq_headgates.cli.output import say, then_evaluate, warn
from fairseq_headgates.cli.session import open_session
from fairseq_headgates.compression.refit import refit_to
from fairseq_headgates.data.workers import device_of
from fairseq_headgates.drawing.tables import removal_table
from fairseq_headgates.files import to_json
from fairseq_headgates.files.writing import refuse_standard_output
from fairseq_headgates.inference.packed_linear import TOO_SMALL, too_small_for_int8
from fairseq_headgates.plugin.models.building import load_model, warn_unfinished


def run(options: PruneOptions) -> str | None:
    """Run `headgates prune`, and return the command that comes next."""
    refuse_standard_output(options.output)
    if options.inference_dtype is not None and options.stock:
        raise ValueError("--stock is for fairseq's own transformer, which has no --inference-dtype: leave out one")
    state, model = load_model(options.checkpoint, options.trust, options.arch)
    warn_unfinished(state, model)
    mask = chosen_heads(options, model)
    pruned = cut_copy(model, mask)
    values, signature = ({}, "") if options.refit is None else refitted_values(options, model, pruned.model)
    if values is None:  # another worker writes
        return None
    if options.stock:
        smaller = stock_checkpoint(state, mask, model, values, pruned)
    else:
        smaller = prune_checkpoint(
            state,
            mask,
            optimizer=not options.no_optimizer and options.refit is None,
            model=model,
            inference_dtype=options.inference_dtype,
            refitted=values,
            pruned=pruned,
        )
    loaded = check_loads(smaller)
    plan = removal_plan(model, pruned.model, loaded)
    if signature:
        plan["refit"] = signature
    if options.inference_dtype is not None:
        plan["inference_dtype"] = options.inference_dtype
    if not options.dry_run:
        save_checkpoint(smaller, options.output, options.force)
    table = removal_table(kept_mask(model), kept_mask(pruned.model))
    say(to_json(plan) if options.json else "\n".join([table, "", *removal_notes(plan, options.stock)]))
    removed = any(before > kept for before, kept in plan["heads"].values())
    if not removed and _asks_for_removal(options, model):
        warn("prune", no_removal(model, options.checkpoint))
    if options.inference_dtype == "int8" and too_small_for_int8(loaded):
        warn("prune", TOO_SMALL)
    if options.dry_run:
        print("nothing written (--dry-run)", file=sys.stderr)
    if options.dry_run or not removed:
        return None
    return then_evaluate(options.fairseq_arguments() or ["DATA"], f"{options.checkpoint}:{options.output}")


def refitted_values(options: PruneOptions, model: nn.Module, pruned: nn.Module) -> tuple[dict[str, Tensor] | None, str]:
    """Return the refitted parameters, None in all workers but the first, and the signature of the data."""
    with open_session(options) as session:
        corpus = session.corpus(model, options.refit_subset, options.refit_sentences)
        device = device_of(session.fairseq)
        changed = refit_to(model.to(device), pruned.to(device), corpus, session.progress("refit"))
        model.cpu()
        values = {name: value.cpu() for name, value in changed.items()}
        pruned.cpu()
        return (values if session.writes else None), str(session.signature(corpus))


def _asks_for_removal(options: PruneOptions, model: nn.Module) -> bool:
    """Return whether gates alone are to remove heads, rather than the model is to be written in another form."""
    if options.alive is not None or options.scores is not None:
        return False
    other_form = options.stock or options.inference_dtype is not None
    return options.threshold is not None or any(gated_modules(model)) or not other_form


def no_removal(model: nn.Module, checkpoint: str) -> str:
    """Return why no head is removed without --alive and --scores, and what to pass."""
    gated = any(gated_modules(model))
    score = shlex.join(["headgates", "score", "DATA", "--path", checkpoint, "--method", "gradient", "--out", "FILE"])
    return (
        f"no head is removed, because {'no gate is closed' if gated else 'the checkpoint has no gates'}: pass "
        f"{'a higher --threshold, or ' * gated}--scores FILE --keep 0.5 after `{score}`, or --alive MASK"
    )


def removal_notes(plan: dict[str, Any], stock: bool) -> list[str]:
    """Return the plan as lines of text."""
    before, after = plan["parameters"]
    saved = "--stock saves neither memory nor time: removed heads and neurons are zeros in layers of full size"
    lines = [f"parameters: {before:,} -> {after:,} ({saved if stock else f'{after / before - 1:+.1%}'})"]
    cached = {"dec-self": "target token and hypothesis", "dec-enc": "source token and sentence"}
    for attention_type, where in cached.items():
        if attention_type in plan["heads"] and not stock:
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
    if "inference_dtype" in plan:
        lines.append(f"inference dtype: {plan['inference_dtype']} (stored as an option: the weights are not quantised)")
    if plan["folded_gates"]:
        lines.append(f"gates between 0 and 1, folded into the output projection: {plan['folded_gates']}")
    return lines
