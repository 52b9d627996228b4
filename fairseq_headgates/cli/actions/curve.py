"""Measure a model while the least important heads are removed step by step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from fairseq_headgates.attention.cuts import open_mask
from fairseq_headgates.cli.commands.curve import CurveOptions
from fairseq_headgates.cli.options import CHOOSING
from fairseq_headgates.cli.parser import chosen_types
from fairseq_headgates.cli.session import Loaded, Session, open_session
from fairseq_headgates.compression.refit import refit
from fairseq_headgates.data.metrics import Metric
from fairseq_headgates.data.statistics import perplexity
from fairseq_headgates.drawing.figures import curve_plot
from fairseq_headgates.drawing.tables import curve_tables, text_of
from fairseq_headgates.files import to_json
from fairseq_headgates.files.journal import ResumeJournal
from fairseq_headgates.heads import HeadTable, parse_scores
from fairseq_headgates.scores.curves import Point, pruning_curve
from fairseq_headgates.scores.options import SCORES

CurveSession = Session[CurveOptions]


def run(options: CurveOptions) -> None:
    """Run `headgates curve`."""
    if options.scores is not None and (options.reestimate or options.score_subset is not None):
        raise ValueError("--reestimate and --score-subset need --by: leave them out with --scores")
    if options.score_method is not None and options.scores is None:
        raise ValueError("--score-method needs --scores FILE: leave it out with --by")
    if options.each_type and options.types is None:
        raise ValueError("--each-type needs --types: leave it out, there is a curve for each type by default")
    with open_session(options) as session:
        journals = {path: session.journal(path, refit=options if options.refit else None) for path in session.paths}
        points = [point for path in session.paths for point in _points(session, path, journals[path])]
        session.write(options.out, to_json({"format": "headgates.curve/1", "points": points}, indent=1) + "\n")
        session.write(options.tsv, tsv(points))
        session.plot(options.plot, lambda: curve_plot(points))
        origins = dict.fromkeys(point["measured"] for point in points)
        session.say(to_json(points) if options.json else "\n".join([text_of(*curve_tables(points)), *origins]))
        for journal in journals.values():
            journal.discard()


def _points(session: CurveSession, path: str, journal: ResumeJournal) -> list[dict[str, Any]]:
    """Return the points of all curves of one checkpoint, as plain values."""
    options = session.options
    name = session.objective.metric(options.metric)
    loaded = session.load(path)
    metric = session.metric(name, loaded.model, loaded.corpus)
    measured = loaded.signature.with_parts(session.search.parts if name == "bleu" else {})
    remove = None
    if options.refit:
        if getattr(loaded.model, "inference_dtype", "") == "int8":
            raise ValueError(
                "--refit needs weights in single precision: leave out --inference-dtype int8, or pass float32"
            )
        fit = session.corpus(loaded.model, options.refit_subset, options.refit_sentences)
        remove = partial(refit, loaded.model, task=fit.task, batches=fit.batches, progress=session.progress("refit"))
        measured = measured.with_parts({"refit": f"{fit.subset}-{fit.sentences}"})
    scores, rescore = _scores(session, loaded)
    alive = open_mask(loaded.model)
    whole = metric.predict(metric.prepared(loaded.model)) if metric and metric.name == "accuracy" else None
    points = []
    for curve, types in _curves(options, scores).items():
        steps = pruning_curve(
            loaded.model, loaded.corpus, scores, alive, options.steps, types, rescore, metric, journal, remove
        )
        for point in session.progress(f"{session.name(path)} {curve}")(steps):
            points.append(
                {
                    "checkpoint": session.name(path),
                    "by": scores.name,
                    "types": curve,
                    "removed": point.removed,
                    "heads": point.heads,
                    "parameters": point.parameters,
                    "nll": point.nll,
                    "unit": session.objective.unit,
                    **_measured(name, metric, point, whole),
                    **(
                        {"bleu": None} if name in ("nll", "ppl") and "accuracy" not in session.objective.metrics else {}
                    ),
                    "mask": dict(point.mask.layers),
                    "signature": scores.signature,
                    "measured": str(measured),
                }
            )
    return points


def _measured(name: str, metric: Metric | None, point: Point, whole: list[Any] | None) -> dict[str, Any]:
    """Return the metric of a point; accuracy with the p-value of its difference from the `whole` model."""
    if name == "ppl":
        return {"ppl": perplexity(point.nll)}
    if metric is None or point.predictions is None:
        return {}
    tested = {} if whole is None else {"p_value": metric.main.differences(whole, [point.predictions])[0].p}
    score = metric.main.value(point.predictions)
    return {metric.name: score, **tested, f"{metric.name}_signature": metric.main.signature()}


def _scores(session: CurveSession, loaded: Loaded) -> tuple[HeadTable, Callable[[nn.Module], HeadTable] | None]:
    """Return the scores of the curve, and the function that computes them again or None."""
    options = session.options
    if options.scores is not None:
        return parse_scores(options.scores, options.score_method, "--score-method"), None
    method = options.by
    assert method is not None  # one of --by and --scores is required
    if options.score_subset or SCORES[method].needs_data:
        loaded = session.with_subset(loaded, options.score_subset or CHOOSING)

    def score(model: nn.Module) -> HeadTable:
        return session.scores(replace(loaded, model=model), method, options)

    return score(loaded.model), score if options.reestimate else None


def _curves(options: CurveOptions, scores: HeadTable) -> dict[str, tuple[str, ...]]:
    """Return the curves by name, with the attention types that each removes heads of."""
    if options.types is None:
        texts = ["all", *scores.types] if len(scores.types) > 1 else list(scores.types)
    else:
        alone = chosen_types(options.types, scores.types) if options.each_type else ()
        texts = list(dict.fromkeys([options.types, *alone]))
    return {text: chosen_types(text, scores.types) for text in texts}


def tsv(points: Sequence[Mapping[str, Any]]) -> str:
    """Return points as lines of values separated by tabs, after a line of names."""
    names = [
        name
        for name, value in points[0].items()
        if name not in ("unit", "mask", "measured") and "signature" not in name and (name, value) != ("bleu", None)
    ]
    lines = [[("" if point[name] is None else str(point[name])) for name in names] for point in points]
    return "".join("\t".join(line) + "\n" for line in [names, *lines])
