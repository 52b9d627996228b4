"""`headgates compress`: remove heads and feed-forward neurons so that a model has a given size, and repair it."""

import argparse
import sys
from operator import methodcaller

from fairseq_headgates.cli.command import command, option
from fairseq_headgates.cli.options import AS_STORED, FirstSentences, Output, inference_dtype
from fairseq_headgates.cli.parser import counted, filled, number_or_fraction, numbers
from fairseq_headgates.scores.options import UNITS

BUDGET = methodcaller("add_mutually_exclusive_group", required=True)


def _sizes(text: str) -> list[float]:
    rule = "a number of parameters (40000000) nor a share (0.7)"
    return [number_or_fraction(part, rule) for part in text.split(",")]


def _units(text: str) -> tuple[str, ...]:
    names = text.split(",")
    if not set(names) <= set(UNITS) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not {' or '.join(UNITS)}, or both with a comma between them")
    return tuple(names)


@command(
    "compress",
    "headgates compress data-bin --path baseline/checkpoint_best.pt --params 0.8 --out small.pt",
    "headgates compress data-bin --path baseline/checkpoint_best.pt --speedup 1.3 --beam 4 --cpu --plot speeds.svg",
)
class CompressOptions(FirstSentences, Output):
    """Remove heads and feed-forward neurons so that a model has a given size or speed.

    Remove the attention heads and feed-forward neurons that cost least, so that the model has a given number of
    parameters or a given speed, and refit the linear layers that are left by least squares. Nothing is trained; it
    takes seconds to minutes on a CPU. The loss before and after is measured on --gen-subset (default: valid).
    """

    sentences: int | None = option(
        metavar="N", type=int, help="measure the loss on the first N sentences of --gen-subset only (default: all)"
    )
    params: list[float] = option(
        metavar="N[,N...]",
        type=_sizes,
        default=[],
        within=BUDGET,
        help="largest number of parameters to keep: a share (0.7) of all, or a number (40000000; 1 is one, 1.0 all). "
        "Embeddings count, shared ones once, closed heads do not. Without --out, several can be measured",
    )
    speedup: list[float] = option(
        metavar="S[,S...]",
        type=numbers("a speed such as 1.5, or several with commas: give 1 or more", float, 1, sys.float_info.max),
        default=[],
        within=BUDGET,
        help="how many times as fast the model must be (1.5), measured on this machine with the given --beam, "
        "--batch-size, --max-tokens, --cpu and --inference-dtype. Without --out, several can be measured",
    )
    units: tuple[str, ...] = option(
        metavar="U[,U]",
        type=_units,
        default=UNITS,
        help="what may be removed: heads, neurons, or both (default: heads,neurons)",
    )
    fit_subset: str = option(
        metavar="S",
        type=filled,
        default="train",
        help="the subset to choose and repair on (default: %(default)s)",
    )
    fit_sentences: int = option(
        metavar="N",
        type=counted,
        default=2000,
        help="use only the first N sentences of --fit-subset, the last tenth of them to measure plans (default: "
        "%(default)s)",
    )
    speed: bool = option(default=False, help="with --params: also measure the speed, as --speedup does")
    metric: str | None = option(
        choices=("bleu", "accuracy"),
        help="also measure BLEU of translations or accuracy of a classifier, as headgates evaluate, on --gen-subset",
    )
    inference_dtype: str | None = inference_dtype(
        f"{AS_STORED}. --out stores this option; the weights are not quantised"
    )
    plot: str | None = option(
        metavar="FILE",
        writes=True,
        help="draw the loss and the metric over the parameters, and over the speed if it is measured, also with heads "
        "alone and with neurons alone: .png, .pdf, .svg (needs matplotlib)",
    )
    out: str | None = option(metavar="FILE", writes=True, help="write the compressed checkpoint, for --user-dir")
    json: bool = option(default=False, help="print the results as JSON")
