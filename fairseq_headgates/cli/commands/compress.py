"""`headgates compress`: remove heads and feed-forward neurons so that a model has a given size, and repair it."""

import argparse
import itertools
import os
import sys
from collections.abc import Collection
from operator import methodcaller
from typing import Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import CHOOSING, Output, Precision, Text
from fairseq_headgates.cli.output import then_evaluate
from fairseq_headgates.cli.parser import counted, filled, number_or_fraction, numbers
from fairseq_headgates.drawing.tables import with_interval
from fairseq_headgates.files import to_json
from fairseq_headgates.messages import Progress
from fairseq_headgates.scores.options import UNITS


def compress(
    model: Any, task: Any = None, batches: Any = None, params: float | None = None, units: Collection[str] = UNITS,
    progress: Progress = iter, *, data: str | None = None, **options: Any
) -> Any:  # fmt: skip
    """Remove heads and feed-forward neurons of a model or of a checkpoint, and repair what is left by least squares.

    Nothing is trained. Use training data, not evaluation data. A tenth of the sentences, the last ones, is held out to
    measure the result: where its loss contradicts the estimate, other choices are tried, also smaller ones.

    Args:
        model: a fairseq model, which does not change; or the path of a checkpoint, for the command `headgates compress`
        task: the fairseq task of the model; of a checkpoint, its name for --task
        batches: of a model, samples of the task, those of this worker if several share the data
        params: parameters to keep at most: a share (float) or a number (int)
        units: "heads", "neurons", or both
        progress: of a model, wraps lists of layers and batches, e.g. `tqdm`
        data: of a checkpoint, a folder of fairseq-preprocess
        options: of a checkpoint, options of the command and of fairseq-generate, such as ``out="small.pt"``,
            ``fit_sentences=500``, ``cpu=True`` or, in place of `data`, ``text=["train.en", "train.de"]``

    Returns:
        A copy of the model; of a checkpoint, what the command prints with --json

    Raises:
        ValueError: if the model cannot be compressed so far, or there are too few tokens to fit
    """
    if not isinstance(model, (str, os.PathLike)):
        from fairseq_headgates.compression.model import Compressor
        from fairseq_headgates.data.corpus import Corpus

        corpus = Corpus(task, batches)
        return Compressor(model, corpus, corpus, units, lambda _: progress).compress(params).model
    from fairseq_headgates.cli.main import call

    words = [] if data is None else [data]
    return call("compress", *words, path=model, task=task, params=params, units=",".join(units), **options)[0]


BUDGET = methodcaller("add_mutually_exclusive_group", required=True)
WITHIN = 0.05  # of the speed that is asked for, relative


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
class Compress(Text, Precision, Output):
    """Remove heads and neurons until a model has a given size or speed.

    Remove the attention heads and feed-forward neurons whose removal raises the loss least, until the model has a given
    number of parameters or a given speed. Then refit the remaining linear layers by least squares. Nothing is
    trained; it takes seconds to minutes on a CPU. The loss before and after is measured on --gen-subset (default:
    valid). With --text, the last tenth of the text is --gen-subset, the rest --fit-subset.
    """

    subset = CHOOSING

    sentences: int | None = option(
        metavar="N", type=int, help="measure the loss on the first N sentences of --gen-subset only (default: all)"
    )
    params: list[float] = option(
        metavar="N[,N...]",
        type=_sizes,
        default=[],
        within=BUDGET,
        help="largest number of parameters to keep: a share (0.7) of all, or a number (40000000). 1 is one, 1.0 is "
        "all. Embeddings count, shared ones once; closed heads do not. Several values only without --out",
    )
    speedup: list[float] = option(
        metavar="S[,S...]",
        type=numbers("a speed such as 1.5, or several with commas: give 1 or more", float, 1, sys.float_info.max),
        default=[],
        within=BUDGET,
        help="how many times as fast the model must be (1.5), measured on this machine with the given --beam, "
        "--batch-size, --max-tokens, --cpu and --inference-dtype, by this plugin. A model that is more than "
        f"{WITHIN:.0%}% off is written, with exit code 2. Several values only without --out",
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
        help="use only the first N sentences of --fit-subset; the last tenth of them is held out, to compare candidate "
        "models (default: %(default)s)",
    )
    speed: bool = option(default=False, help="with --params: also measure the speed, as --speedup does")
    metric: str | None = option(
        choices=("bleu", "accuracy"),
        help="also measure BLEU of translations or accuracy of a classifier, as headgates evaluate, on --gen-subset",
    )
    plot: str | None = option(
        metavar="FILE",
        writes=True,
        help="draw loss and metric over parameters (and over speed, if it is measured), also for heads alone and for "
        "neurons alone: .png, .pdf, .svg (needs matplotlib)",
    )
    out: str | None = option(metavar="FILE", writes=True, help="write the compressed checkpoint, for --user-dir")
    json: bool = option(default=False, help="print the results as JSON")

    def check(self) -> None:
        """Raise ValueError for several models in one file."""
        name, budgets = self._budgets()
        if self.out and len(budgets) > 1:
            raise ValueError(f"--out is for one compressed model, --{name} names {len(budgets)}: name one")

    def run(self, session: Any) -> Answer:
        """Compress the model to each size or speed, and write it."""
        from fairseq_headgates.compression import drawing
        from fairseq_headgates.compression.model import Compressor, OutOfReach
        from fairseq_headgates.inference.packed_linear import set_precision
        from fairseq_headgates.plugin.models.building import warn_unfinished

        timed = bool(self.speed or self.speedup)
        if timed and session.fairseq.distributed_world_size > 1:
            raise ValueError("speed is measured by one worker: start one, or leave out --speed and --speedup")
        path = session.only_path()
        state, model, origin = session.checkpoint(path)
        warn_unfinished(state, model)
        fit, measured = session.corpus(model, self.fit_subset, self.fit_sentences), session.corpus(model)
        if timed:
            set_precision(model, self.precision())
        signature = session.signature(measured).with_parts({"fit": f"{fit.subset}-{fit.sentences}", **origin})
        if self.metric and self.metric not in session.objective.metrics:
            raise ValueError(f"--metric is {self.metric}, which this --task does not have: leave it out")
        metric = session.metric(self.metric, model, measured) if self.metric else None
        compressor = Compressor(model, fit, measured, self.units, session.progress, timed, metric)
        for size in self.params:  # before the costs, which take minutes
            compressor.kept(size)
        results = []
        alone = [(kind,) for kind in self.units] if self.plot and len(self.units) > 1 else []
        name, budgets = self._budgets()
        for kinds, budget in itertools.product([self.units, *alone], budgets):
            try:
                results.append(compressor.compress(**{name: budget}, kinds=kinds))
            except OutOfReach:  # one kind of units alone may not be enough
                if kinds == self.units:
                    raise
        content = []
        for result in results:  # each with a line for a paper
            before, after = result.results["parameters"]
            parts = {"params": f"{after / before:.3f}", "units": "+".join(result.results["units"])}
            signed = signature.of_method("headgates|compress", parts)
            content.append({**result.results, "signature": str(signed)})
        if self.out and session.writes:
            self._write(self.out, state, model, results[0], content[0]["signature"])
        return Answer(
            text="\n".join([drawing.text(content), "", *(each["signature"] for each in content)]),
            json=to_json(content),
            figure=lambda: drawing.plot(content),
            next_command=then_evaluate(self, path, self.out) if self.out else "",
            missed=self._missed(content),
        )

    def _budgets(self) -> tuple[str, list[float]]:
        """Return the option that is given, and its sizes or speeds."""
        return ("params", self.params) if self.params else ("speedup", self.speedup)

    def _missed(self, content: list[dict[str, Any]]) -> str:
        """Return which speeds are missed, "" for none."""
        missed = [
            f"{with_interval(found['speedup'], found['speedup_interval'], '.2f')} instead of {speed:g}"
            for speed, found in zip(self.speedup, content, strict=False)  # those of one kind of units come last
            if speed > 1 and abs(found["speedup"] / speed - 1) > WITHIN
        ]
        if not missed:
            return ""
        return (
            f"--speedup is missed by more than {WITHIN:.0%}, {' and '.join(missed)}: repeat the command when the "
            "machine is less busy, or ask for another speed"
        )

    def _write(self, path: str, state: Any, model: Any, result: Any, signature: str) -> None:
        """Write the compressed checkpoint, with the signature among its options."""
        from fairseq_headgates.checkpoints.pruned import check_loads, prune_checkpoint
        from fairseq_headgates.checkpoints.saving import save_checkpoint

        smaller = prune_checkpoint(
            state,
            result.plan.mask,
            optimizer=False,
            model=model.cpu(),
            options={**self.stored_options(), "compressed": signature},
            refitted={name: value.cpu() for name, value in result.values.items()},
            neurons=result.plan.neurons,
        )
        check_loads(smaller)
        save_checkpoint(smaller, path, self.force)
