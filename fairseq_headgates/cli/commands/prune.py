"""`headgates prune`: write a checkpoint without the heads that gates, a threshold, a mask or scores remove."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import OPEN, REPAIR, Checkpoint, Choice, Precision, Refit
from fairseq_headgates.cli.output import then_evaluate, warn
from fairseq_headgates.drawing.tables import removal_table
from fairseq_headgates.files import to_json
from fairseq_headgates.files.writing import refuse_standard_output

if TYPE_CHECKING:
    from torch import Tensor, nn


@command(
    "prune",
    "headgates prune --path gated/checkpoint_last.pt --out pruned.pt",
    "headgates prune data-bin --path baseline/checkpoint_best.pt --scores scores.json --keep 0.5 --refit --out half.pt",
)
class Prune(Checkpoint, Choice, Precision, Refit):
    """Remove heads from the weights of a checkpoint.

    Write a checkpoint without the closed heads, which contribute nothing. Use --threshold, --alive or --scores to
    remove more.
    """

    usage = "%(prog)s [DATA] --path CKPT --out FILE [options] [options of fairseq-generate]"
    epilog = OPEN

    out: str = option(metavar="FILE", required=True, writes=True, help="the checkpoint to write")
    stock: bool = option(
        default=False,
        help="write a checkpoint for fairseq's own transformer, which needs no plugin: the heads are set to 0 instead "
        "of removed, so its size does not change; without the optimiser state",
    )
    no_optimizer: bool = option(default=False, help="drop the optimiser state")
    dry_run: bool = option(default=False, help="print the plan and write nothing")
    json: bool = option(default=False, help="print the plan as JSON")
    force: bool = option(default=False, help="overwrite FILE if it exists")
    refit: bool = option(
        default=False,
        within=REPAIR,
        help="after the removal, refit out_proj of attention and fc2 of feed-forward blocks by least squares, from the "
        "first block that loses heads on, so that hidden states stay close to those before. Needs DATA, a folder "
        "written by fairseq-preprocess; options of fairseq-generate set task and batches (--task, --max-tokens, "
        "--cpu, ...). Unnecessary before further training; FILE has no optimiser state",
    )

    def files_to_write(self) -> dict[str, str]:
        """Return --out, unless nothing is written."""
        return {} if self.dry_run else super().files_to_write()

    def fairseq_arguments(self) -> list[str] | None:
        """Return, with --refit, all words that are not options of this command, and the checkpoint."""
        return [*self.rest, "--path", self.path] if self.refit else None

    def check(self) -> None:
        """Raise ValueError for options that contradict each other, with --dry-run also for `-`."""
        refuse_standard_output(self.out)
        if self.stock and self.stored_options():
            raise ValueError("--stock is for fairseq's own transformer, which has no --inference-dtype: leave out one")

    def run(self, session: Any) -> Answer:
        """Remove the heads, and write the checkpoint."""
        from fairseq_headgates.attention.cuts import cut_copy, kept_mask, removal_plan
        from fairseq_headgates.checkpoints.pruned import check_loads, prune_checkpoint, stock_checkpoint
        from fairseq_headgates.checkpoints.saving import save_checkpoint
        from fairseq_headgates.cli.choice import chosen_heads
        from fairseq_headgates.plugin.models.building import load_model, warn_unfinished

        state, model = load_model(self.path, self.trust, self.arch)
        warn_unfinished(state, model)
        mask = chosen_heads(self, model)
        pruned = cut_copy(model, mask)
        values, signature = self._refitted(model, pruned.model) if self.refit else ({}, "")
        if values is None:  # another worker writes
            return Answer()
        if self.stock:
            smaller = stock_checkpoint(state, mask, model, values, pruned)
        else:
            smaller = prune_checkpoint(
                state,
                mask,
                optimizer=not (self.no_optimizer or self.refit),
                model=model,
                options=self.stored_options(),
                refitted=values,
                pruned=pruned,
            )
        loaded = check_loads(smaller)
        plan = removal_plan(model, pruned.model, loaded)
        if signature:
            plan["refit"] = signature
        plan |= self.stored_options()
        if self.dry_run:
            print("nothing written (--dry-run)", file=sys.stderr)
        else:
            save_checkpoint(smaller, self.out, self.force)
        removed = any(before > kept for before, kept in plan["heads"].values())
        if not removed and self._asks_for_removal(model):
            warn("prune", no_removal(model, self.path))
        table = removal_table(kept_mask(model), kept_mask(pruned.model))
        return Answer(
            text="\n".join([table, "", *removal_notes(plan, self.stock)]),
            json=to_json(plan),
            next_command="" if self.dry_run or not removed else then_evaluate(self, self.path, self.out),
        )

    def _refitted(self, model: nn.Module, pruned: nn.Module) -> tuple[dict[str, Tensor] | None, str]:
        """Return the refitted parameters, None in all workers but the first, and the signature of the data."""
        from fairseq_headgates.cli.session import open_session
        from fairseq_headgates.compression.refit import refit_to
        from fairseq_headgates.data.workers import device_of

        with open_session(self) as session:
            corpus = session.corpus(model, self.refit_subset, self.refit_sentences)
            device = device_of(session.fairseq)
            changed = refit_to(model.to(device), pruned.to(device), corpus, session.progress("refit"))
            model.cpu()
            values = {name: value.cpu() for name, value in changed.items()}
            pruned.cpu()
            return (values if session.writes else None), str(session.signature(corpus))

    def _asks_for_removal(self, model: nn.Module) -> bool:
        """Return whether gates alone are to remove heads, rather than the model is to be written in another form."""
        from fairseq_headgates.attention.modules import gated_modules

        if self.alive is not None or self.scores is not None:
            return False
        other_form = self.stock or bool(self.stored_options())
        return self.threshold is not None or any(gated_modules(model)) or not other_form


def no_removal(model: nn.Module, checkpoint: str) -> str:
    """Return why no head is removed without --alive and --scores, and what to pass."""
    from fairseq_headgates.attention.modules import gated_modules

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
        lines.append(f"inference dtype: {plan['inference_dtype']} (stored as an option: the weights stay in float32)")
    if plan["folded_gates"]:
        lines.append(f"gates between 0 and 1, folded into the output projection: {plan['folded_gates']}")
    return lines
