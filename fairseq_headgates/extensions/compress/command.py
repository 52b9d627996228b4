"""`headgates compress`: remove heads and feed-forward neurons so that a model has a given size, and repair it."""

from __future__ import annotations

import argparse
import json
import math
from functools import partial
from typing import TYPE_CHECKING

from fairseq_headgates.analysis.options import UNITS
from fairseq_headgates.cli.output import warn, warn_unfinished, written
from fairseq_headgates.cli.parser import (
    AS_STORED,
    add_data,
    add_inference_dtype,
    add_output,
    counted,
    filled,
    number_or_fraction,
)

if TYPE_CHECKING:
    from torch import nn

    from fairseq_headgates.extensions.compress.model import Compressed, Compressor

NAME = "compress"
HELP = "remove heads and feed-forward neurons so that a model has a given size or speed"
EXAMPLES = (
    "headgates compress data-bin --path baseline/checkpoint_best.pt --params 0.8 --out small.pt",
    "headgates compress data-bin --path baseline/checkpoint_best.pt --speedup 1.3 --beam 4 --cpu --plot speeds.svg",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates compress`."""
    add_data(parser, sentences=False)
    parser.add_argument(
        "--sentences",
        metavar="N",
        type=int,
        help="measure the loss on the first N sentences of --gen-subset only (default: all)",
    )
    parser.description = (
        "Remove the attention heads and feed-forward neurons that cost least, so that the model has a given number of "
        "parameters or a given speed, and refit the linear layers that are left by least squares. Nothing is trained; "
        "it takes seconds to minutes on a CPU. The loss before and after is measured on --gen-subset (default: valid)."
    )
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument(
        "--params",
        metavar="N[,N...]",
        type=_sizes,
        default=[],
        help="largest number of parameters to keep: a share (0.7) of all, or a number (40000000; 1 is one, 1.0 all). "
        "Embeddings count, shared ones once. Without --out, several can be measured",
    )
    budget.add_argument(
        "--speedup",
        metavar="S[,S...]",
        type=_speedups,
        default=[],
        help="how many times as fast the model must be (1.5), measured on this machine with the given --beam, "
        "--batch-size, --max-tokens, --cpu and --inference-dtype. Without --out, several can be measured",
    )
    parser.add_argument(
        "--units",
        metavar="U[,U]",
        type=_units,
        default=UNITS,
        help="what may be removed: heads, neurons, or both (default: heads,neurons)",
    )
    parser.add_argument(
        "--fit-subset",
        metavar="S",
        type=filled,
        default="train",
        help="the subset to choose and repair on (default: %(default)s)",
    )
    parser.add_argument(
        "--fit-sentences",
        metavar="N",
        type=counted,
        default=2000,
        help="use only the first N sentences of --fit-subset (default: %(default)s)",
    )
    parser.add_argument(
        "--speed",
        action="store_true",
        help="with --params: also measure the speed, as --speedup does",
    )
    parser.add_argument(
        "--metric",
        choices=("bleu", "accuracy"),
        help="also measure BLEU of translations or accuracy of a classifier, as headgates evaluate, on --gen-subset",
    )
    add_inference_dtype(parser, f"{AS_STORED}. --out stores this option; the weights are not quantised")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=filled,
        help="draw the loss and the metric over the parameters, and over the speed if it is measured, also with heads "
        "alone and with neurons alone: .png, .pdf, .svg (needs matplotlib)",
    )
    add_output(parser, "write the compressed checkpoint, for --user-dir", "print the results as JSON")


def _sizes(text: str) -> list[float]:
    rule = "a number of parameters (40000000) nor a share (0.7)"
    return [number_or_fraction(part, rule) for part in text.split(",")]


def _speedups(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= speedup < math.inf for speedup in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed such as 1.5, or several with commas: give 1 or more")
    return found


def _units(text: str) -> tuple[str, ...]:
    names = text.split(",")
    if not set(names) <= set(UNITS) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not {' or '.join(UNITS)}, or both with a comma between them")
    return tuple(names)


def run(args: argparse.Namespace) -> int:
    """Run `headgates compress` and return its exit code."""
    from fairseq_headgates.cli.session import Loaded, session
    from fairseq_headgates.extensions.compress import drawing
    from fairseq_headgates.extensions.compress.model import Compressor

    option, budgets = _budgets(args)
    if args.out and len(budgets) > 1:
        raise ValueError(f"--out is for one compressed model, --{option} names {len(budgets)}: name one")
    with session(args) as work:
        timed = bool(args.speed or args.speedup)
        if timed and work.fairseq.distributed_world_size > 1:
            raise ValueError("speed is measured by one worker: start one, or leave out --speed and --speedup")
        state, model, origin = work.checkpoint(work.only_path())
        warn_unfinished("compress", model)
        fit, measured = work.corpus(model, args.fit_subset, args.fit_sentences), work.corpus(model)
        if timed:
            work.inference_dtype(model)
        signature = work.signature(measured).with_parts({"fit": f"{fit.subset}-{fit.sentences}", **origin})
        if args.metric and args.metric not in work.objective.metrics:
            raise ValueError(f"--metric is {args.metric}, which this --task does not have: leave it out")
        metric = work.metric(args.metric, Loaded(model, measured, signature)) if args.metric else None
        compressor = Compressor(model, fit, measured, args.units, work.progress, timed, metric)
        results = [result for kinds in _kinds(args) for result in _compressed(compressor, args, kinds)]
        if args.out and work.writes:
            _write(args, state, model.cpu(), results[0])
        found = [{**result.as_json(), "signature": str(signature)} for result in results]
        work.plot(args.plot, lambda: drawing.plot(found))
        work.say(json.dumps(found) if args.json else f"{drawing.text(found)}\n\n{signature}")
    return 0


def _budgets(args: argparse.Namespace) -> tuple[str, list[float]]:
    """Return the option that names the budgets, and the budgets."""
    return ("params", args.params) if args.params else ("speedup", args.speedup)


def _kinds(args: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return the units of each curve: with --plot also each kind alone."""
    alone = [(kind,) for kind in args.units] if args.plot and len(args.units) > 1 else []
    return [args.units, *alone]


def _compressed(compressor: Compressor, args: argparse.Namespace, kinds: tuple[str, ...]) -> list[Compressed]:
    """Return a model for each budget; budgets that one kind of units alone cannot reach are left out."""
    from fairseq_headgates.extensions.compress.model import OutOfReach

    found, (option, budgets) = [], _budgets(args)
    for budget in budgets:
        try:
            found.append(compressor.compress(**{option: budget}, kinds=kinds))
        except OutOfReach:
            if kinds == compressor.kinds:
                raise
    return found


def _write(args: argparse.Namespace, state: dict, model: nn.Module, result: Compressed) -> None:
    """Write a compressed model as a checkpoint."""
    from fairseq_headgates.checkpoints.pruned import check_loads, prune_checkpoint
    from fairseq_headgates.checkpoints.saving import save_checkpoint

    smaller = prune_checkpoint(
        state,
        result.plan.mask,
        optimizer=False,
        model=model,
        notice=partial(warn, "compress"),
        inference_dtype=args.inference_dtype,
        refitted={name: value.cpu() for name, value in result.values.items()},
        neurons=result.plan.neurons,
    )
    check_loads(smaller)
    save_checkpoint(smaller, args.out, args.force)
    written(args.out)
