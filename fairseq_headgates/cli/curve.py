"""`headgates curve`: measure a model while the least important heads are removed step by step."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fairseq_headgates.analysis.options import SCORES, WITHOUT_DATA
from fairseq_headgates.cli.parser import (
    AS_STORED,
    CHOOSING,
    Once,
    add_data,
    add_inference_dtype,
    add_metric,
    add_output,
    add_refit_options,
    add_score_options,
    chosen_types,
)
from fairseq_headgates.heads import TYPES, HeadTable, check_shape, parse_scores
from fairseq_headgates.report.figures import curve_plot
from fairseq_headgates.report.tables import curve_table

if TYPE_CHECKING:
    from torch import nn

    from fairseq_headgates.analysis.curves import Point
    from fairseq_headgates.cli.session import Loaded, Session
    from fairseq_headgates.evaluation.metrics import Metric
    from fairseq_headgates.files import ResumeJournal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `headgates curve`."""
    add_data(parser)
    order = parser.add_mutually_exclusive_group(required=True)
    order.add_argument(
        "--by",
        metavar="METHOD",
        action=Once,
        choices=list(SCORES),
        help="compute these scores and remove the heads with the lowest ones first (headgates score --help): "
        f"{', '.join(SCORES)}",
    )
    order.add_argument(
        "--scores",
        metavar="FILE",
        action=Once,
        help="remove the heads with the lowest scores of this file (headgates score --out) first",
    )
    parser.add_argument(
        "--score-method", metavar="M", help="method whose scores to use; required if FILE has scores of several methods"
    )
    parser.add_argument(
        "--score-subset", metavar="S", help=f"with --by: compute the scores on this subset (default: {CHOOSING})"
    )
    parser.add_argument(
        "--reestimate",
        action="store_true",
        help="with --by: recompute the scores of the remaining heads after each step",
    )
    add_score_options(parser)
    parser.add_argument(
        "--types",
        metavar="T[,T...]",
        help=f"remove only heads of these attention types; choices: {', '.join(TYPES)}, all "
        "(default: a curve for all types together, and one for each type alone)",
    )
    parser.add_argument("--each-type", action="store_true", help="with --types: also a curve for each type alone")
    parser.add_argument(
        "--steps",
        metavar="P[,P...]",
        type=_steps,
        default=list(range(0, 100, 10)),
        help="cumulative percentages of the open heads of --types to remove (default: 0,10,...,90). The number of "
        "heads that are left is rounded, .5 up",
    )
    parser.add_argument(
        "--refit",
        action="store_true",
        help="after each removal, refit the model (headgates prune --help)",
    )
    add_refit_options(parser)
    add_metric(parser, "bleu; ppl for language models, accuracy for classifiers")
    parser.add_argument("--tsv", metavar="FILE", help="write the points as tab-separated values")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves: .png, .pdf, .svg (needs matplotlib)")
    add_inference_dtype(parser, AS_STORED)
    add_output(parser, "write the points as JSON; FILE.part keeps partial results to resume from")


def _steps(text: str) -> list[float]:
    try:
        steps = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of percentages such as 0,10,20") from None
    for step in steps:
        if not 0 <= step <= 100:
            raise argparse.ArgumentTypeError(f"{step:g} percent of the heads: it must be from 0 to 100")
    return steps


def run(args: argparse.Namespace) -> int:
    """Run `headgates curve` and return its exit code."""
    from fairseq_headgates.cli.session import session

    if args.scores is not None and (args.reestimate or args.score_subset is not None):
        raise ValueError("--reestimate and --score-subset need --by: leave them out with --scores")
    if args.score_method is not None and args.scores is None:
        raise ValueError("--score-method needs --scores FILE: leave it out with --by")
    if args.refit and args.inference_dtype == "int8":
        raise ValueError("--refit needs weights in single precision: leave out --inference-dtype int8")
    if args.each_type and args.types is None:
        raise ValueError("--each-type needs --types: leave it out, there is a curve for each type by default")
    with session(args) as work:
        journals = {path: work.journal(path) for path in work.paths}
        points = [point for path in work.paths for point in _points(work, path, journals[path])]
        work.write(args.out, json.dumps({"format": "headgates.curve/1", "points": points}, indent=1) + "\n")
        work.write(args.tsv, tsv(points))
        work.plot(args.plot, lambda: curve_plot(points))
        origins = dict.fromkeys(point["measured"] for point in points)
        work.say(json.dumps(points) if args.json else "\n".join([curve_table(points), *origins]))
        for journal in journals.values():
            journal.discard()
    return 0


def _points(work: Session, path: str, journal: ResumeJournal) -> list[dict[str, Any]]:
    """Return the points of all curves of one checkpoint, as plain values."""
    from fairseq_headgates.analysis.curves import pruning_curve
    from fairseq_headgates.surgery import open_mask

    args = work.args
    name = work.objective.metric(args.metric)
    loaded = work.load(path)
    metric = work.metric(name, loaded)
    measured = loaded.signature.with_parts(work.search.parts if name == "bleu" else {})
    scores, rescore = _scores(work, loaded)
    remove = None
    if args.refit:
        remove, parts = _refitting(work, loaded.model)
        measured = measured.with_parts(parts)
    alive = open_mask(loaded.model)
    whole = metric.predict(metric.prepared(loaded.model)) if metric and metric.name == "accuracy" else None
    points = []
    for curve, types in _curves(args, scores).items():
        steps = pruning_curve(
            loaded.model, loaded.corpus, scores, alive, args.steps, types, rescore, metric, journal, remove
        )
        for point in work.progress(f"{work.name(path)} {curve}")(steps):
            points.append(
                {
                    "checkpoint": work.name(path),
                    "by": scores.name,
                    "types": curve,
                    "removed": point.removed,
                    "heads": point.heads,
                    "parameters": point.parameters,
                    "nll": point.nll,
                    "unit": work.objective.unit,
                    **_measured(name, metric, point, whole),
                    **({"bleu": None} if name in ("nll", "ppl") and "accuracy" not in work.objective.metrics else {}),
                    "mask": dict(point.mask.values),
                    "signature": scores.signature,
                    "measured": str(measured),
                }
            )
    return points


def _refitting(work: Session, model: nn.Module) -> tuple[Callable[[HeadTable], nn.Module], dict[str, Any]]:
    """Return the function that removes heads and refits, and the parts of a signature that name its data."""
    from fairseq_headgates.compression.repair import refit

    if getattr(model, "inference_dtype", "") == "int8":
        raise ValueError("--refit needs weights in single precision: add --inference-dtype float32")
    corpus = work.corpus(model, work.args.refit_subset, work.args.refit_sentences)
    remove = partial(refit, model, task=corpus.task, batches=corpus.batches, progress=work.progress("refit"))
    return remove, {"refit": f"{corpus.subset}-{corpus.sentences}"}


def _measured(name: str, metric: Metric | None, point: Point, whole: list[Any] | None) -> dict[str, Any]:
    """Return the metric of a point; accuracy with the p-value of its difference from the `whole` model."""
    from fairseq_headgates.evaluation.statistics import perplexity

    if name == "ppl":
        return {"ppl": perplexity(point.nll)}
    if metric is None or point.predictions is None:
        return {}
    tested = {} if whole is None else {"p_value": metric.main.differences(whole, [point.predictions])[0].p}
    score = metric.main.value(point.predictions)
    return {metric.name: score, **tested, f"{metric.name}_signature": metric.main.signature()}


def _scores(work: Session, loaded: Loaded) -> tuple[HeadTable, Callable[[nn.Module], HeadTable] | None]:
    """Return the scores of the curve, and the function that computes them again or None."""
    from fairseq_headgates.surgery import head_counts

    args = work.args
    if args.scores is not None:
        scores = parse_scores(args.scores, args.score_method, "--score-method")
        check_shape(scores, head_counts(loaded.model), "the score file")
        return scores, None
    if args.score_subset or args.by not in WITHOUT_DATA:
        loaded = work.with_subset(loaded, args.score_subset or CHOOSING)

    def score(model: nn.Module) -> HeadTable:
        return work.scores(loaded.with_model(model), args.by)

    return score(loaded.model), score if args.reestimate else None


def _curves(args: argparse.Namespace, scores: HeadTable) -> dict[str, tuple[str, ...]]:
    """Return the curves by name, with the attention types that each removes heads of."""
    if args.types is None:
        texts = ["all", *scores.types] if len(scores.types) > 1 else list(scores.types)
    else:
        alone = chosen_types(args.types, scores.types) if args.each_type else ()
        texts = list(dict.fromkeys([args.types, *alone]))
    curves = {text: chosen_types(text, scores.types) for text in texts}
    for types in curves.values():
        for attention_type in types:
            if attention_type not in scores.values:
                raise ValueError(
                    f"there are no scores of {attention_type}: choose --types from {', '.join(scores.types)}"
                )
    return curves


def tsv(points: Sequence[Mapping[str, Any]]) -> str:
    """Return points as lines of values separated by tabs, after a line of names."""
    names = [name for name in points[0] if name not in ("unit", "mask", "measured") and "signature" not in name]
    lines = [[("" if point[name] is None else str(point[name])) for name in names] for point in points]
    return "".join("\t".join(line) + "\n" for line in [names, *lines])
