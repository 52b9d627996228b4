"""`headgates curve`: measure a model while the least important heads are removed step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import (
    CHOOSING,
    REPAIR,
    FirstSentences,
    Output,
    Precision,
    Refit,
    Scores,
    metric,
)
from fairseq_headgates.cli.parser import Once, chosen_types, filled, numbers
from fairseq_headgates.drawing.figures import curve_plot
from fairseq_headgates.drawing.tables import curve_tables, text_of
from fairseq_headgates.files import to_json
from fairseq_headgates.heads import TYPES, HeadTable, parse_scores
from fairseq_headgates.scores.options import SCORES

if TYPE_CHECKING:
    from torch import nn

    from fairseq_headgates.cli.session import Loaded, Session
    from fairseq_headgates.data.metrics import Metric
    from fairseq_headgates.files.journal import ResumeJournal
    from fairseq_headgates.scores.curves import Point

ORDER = methodcaller("add_mutually_exclusive_group", required=True)


@command(
    "curve",
    "headgates curve data-bin --path baseline/checkpoint_best.pt --gen-subset valid --by gradient "
    "--metric nll --plot curve.svg",
    "headgates curve data-bin --path baseline/checkpoint_best.pt --gen-subset valid --scores scores.json "
    "--refit --steps 0,50,75 --tsv curve.tsv",
)
class Curve(FirstSentences, Scores, Refit, Precision, Output):
    """Measure loss, BLEU or accuracy as heads are removed step by step."""

    by: str | None = option(
        metavar="METHOD",
        action=Once,
        choices=SCORES,
        within=ORDER,
        help="compute these scores and remove the heads with the lowest ones first (headgates score --help): "
        f"{', '.join(SCORES)}",
    )
    scores: str | None = option(
        metavar="FILE",
        action=Once,
        type=filled,
        reads="the score file",
        within=ORDER,
        help="remove the heads with the lowest scores of this file (headgates score --out) first",
    )
    score_method: str | None = option(
        metavar="M", type=filled, help="method whose scores to use; required if FILE has scores of several methods"
    )
    score_subset: str | None = option(
        metavar="S", type=filled, help=f"with --by: compute the scores on this subset (default: {CHOOSING})"
    )
    reestimate: bool = option(
        default=False, help="with --by: recompute the scores of the remaining heads after each step"
    )
    types: str | None = option(
        metavar="T[,T...]",
        help=f"remove only heads of these attention types; choices: {', '.join(TYPES)}, all "
        "(default: a curve for all types, and one for each)",
    )
    each_type: bool = option(default=False, help="with --types: also a curve for each type alone")
    steps: list[float] = option(
        metavar="P[,P...]",
        type=numbers("a list of percentages such as 0,10,20, from 0 to 100", float, 0, 100),
        default=list(range(0, 100, 10)),
        help="percentages of the open heads of --types that are removed in total at each point (default: "
        "0,10,...,90). The number of remaining heads is rounded half up",
    )
    metric: str | None = metric("bleu; ppl for language models, accuracy for classifiers")
    tsv: str | None = option(metavar="FILE", writes=True, help="write the points as tab-separated values")
    plot: str | None = option(metavar="FILE", writes=True, help="draw the curves: .png, .pdf, .svg (needs matplotlib)")
    out: str | None = option(
        metavar="FILE",
        writes=True,
        help="write the points as JSON; the same command resumes from FILE.part if it is stopped",
    )
    refit: bool = option(
        default=False, within=REPAIR, help="after each removal, refit the model (headgates prune --help)"
    )

    def check(self) -> None:
        """Raise ValueError for options that need another one."""
        if self.scores is not None and (self.reestimate or self.score_subset is not None):
            raise ValueError("--reestimate and --score-subset need --by: leave them out with --scores")
        if self.score_method is not None and self.scores is None:
            raise ValueError("--score-method needs --scores FILE: leave it out with --by")
        if self.each_type and self.types is None:
            raise ValueError("--each-type needs --types: leave it out, there is a curve for each type by default")

    def run(self, session: Session) -> Answer:
        """Measure the points of all curves of all checkpoints."""
        journals = {path: session.journal(path, refit=self if self.refit else None) for path in session.paths}
        points = [point for path in session.paths for point in self._points(session, path, journals[path])]
        origins = dict.fromkeys(point["measured"] for point in points)
        return Answer(
            text="\n".join([text_of(*curve_tables(points)), *origins]),
            json=to_json(points),
            files={
                "out": to_json({"format": "headgates.curve/1", "points": points}, indent=1) + "\n",
                "tsv": tsv(points),
            },
            figure=lambda: curve_plot(points),
        )

    def _points(self, session: Session, path: str, journal: ResumeJournal) -> list[dict[str, Any]]:
        """Return the points of all curves of one checkpoint, as plain values."""
        from fairseq_headgates.attention.cuts import open_mask
        from fairseq_headgates.compression.refit import refit
        from fairseq_headgates.inference.packed_linear import reduced_precision
        from fairseq_headgates.scores.curves import pruning_curve

        name = session.objective.metric(self.metric)
        loaded = session.load(path)
        metric = session.metric(name, loaded.model, loaded.corpus)
        measured = loaded.signature.with_parts(session.search.parts if name == "bleu" else {})
        remove = None
        if self.refit:
            if dtype := reduced_precision(loaded.model):
                raise ValueError(
                    f"--refit needs weights in single precision: leave out --inference-dtype {dtype}, or pass float32"
                )
            fit = session.corpus(loaded.model, self.refit_subset, self.refit_sentences)
            remove = partial(
                refit, loaded.model, task=fit.task, batches=fit.batches, progress=session.progress("refit")
            )
            measured = measured.with_parts({"refit": f"{fit.subset}-{fit.sentences}"})
        scores, rescore = self._scores(session, loaded)
        alive = open_mask(loaded.model)
        whole = None
        if metric and metric.name == "accuracy":
            whole = metric.predict(metric.prepared(loaded.model), session.progress("accuracy"))
        lacks_bleu = name in ("nll", "ppl") and "accuracy" not in session.objective.metrics
        points = []
        for curve, types in _curves(self, scores).items():
            given = (scores, alive, self.steps, types, rescore, metric, journal, remove)
            progress = session.progress(f"{session.name(path)} {curve}")
            for point in pruning_curve(loaded.model, loaded.corpus, *given, progress):
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
                        **({"bleu": None} if lacks_bleu else {}),
                        "mask": dict(point.mask.layers),
                        "signature": scores.signature,
                        "measured": str(measured),
                    }
                )
        return points

    def _scores(self, session: Session, loaded: Loaded) -> tuple[HeadTable, Callable[[nn.Module], HeadTable] | None]:
        """Return the scores of the curve, and the function that computes them again or None."""
        if self.scores is not None:
            return parse_scores(self.scores, self.score_method, "--score-method"), None
        method = self.by
        assert method is not None  # one of --by and --scores is required
        if self.score_subset or SCORES[method].needs_data:
            loaded = session.with_subset(loaded, self.score_subset or CHOOSING)

        def score(model: nn.Module) -> HeadTable:
            return session.scores(replace(loaded, model=model), method, self)

        return score(loaded.model), score if self.reestimate else None


def _measured(name: str, metric: Metric | None, point: Point, whole: list[Any] | None) -> dict[str, Any]:
    """Return the metric of a point; accuracy with the p-value of its difference from the `whole` model."""
    from fairseq_headgates.data.statistics import perplexity

    if name == "ppl":
        return {"ppl": perplexity(point.nll)}
    if metric is None or point.predictions is None:
        return {}
    tested = {} if whole is None else {"p_value": metric.main.differences(whole, [point.predictions])[0].p}
    score = metric.main.value(point.predictions)
    return {metric.name: score, **tested, f"{metric.name}_signature": metric.main.signature()}


def _curves(options: Curve, scores: HeadTable) -> dict[str, tuple[str, ...]]:
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
