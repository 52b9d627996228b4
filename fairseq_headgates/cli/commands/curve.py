"""`headgates curve`: measure a model while the least important heads are removed step by step."""

from operator import methodcaller

from fairseq_headgates.cli.command import command, option
from fairseq_headgates.cli.options import (
    CHOOSING,
    REPAIR,
    FirstSentences,
    Output,
    Refit,
    Scores,
    inference_dtype,
    metric,
)
from fairseq_headgates.cli.parser import Once, filled, numbers
from fairseq_headgates.heads import TYPES
from fairseq_headgates.scores.options import SCORES

ORDER = methodcaller("add_mutually_exclusive_group", required=True)


@command(
    "curve",
    "headgates curve data-bin --path baseline/checkpoint_best.pt --gen-subset valid --by gradient "
    "--metric nll --plot curve.svg",
    "headgates curve data-bin --path baseline/checkpoint_best.pt --gen-subset valid --scores scores.json "
    "--refit --steps 0,50,75 --tsv curve.tsv",
)
class CurveOptions(FirstSentences, Scores, Refit, Output):
    """Measure loss, BLEU or accuracy while the least important heads are removed step by step."""

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
        "(default: a curve for all types together, and one for each type alone)",
    )
    each_type: bool = option(default=False, help="with --types: also a curve for each type alone")
    steps: list[float] = option(
        metavar="P[,P...]",
        type=numbers("a list of percentages such as 0,10,20, from 0 to 100", float, 0, 100),
        default=list(range(0, 100, 10)),
        help="cumulative percentages of the open heads of --types to remove (default: 0,10,...,90). The number of "
        "heads that are left is rounded, .5 up",
    )
    metric: str | None = metric("bleu; ppl for language models, accuracy for classifiers")
    tsv: str | None = option(metavar="FILE", writes=True, help="write the points as tab-separated values")
    plot: str | None = option(metavar="FILE", writes=True, help="draw the curves: .png, .pdf, .svg (needs matplotlib)")
    inference_dtype: str | None = inference_dtype()
    out: str | None = option(
        metavar="FILE", writes=True, help="write the points as JSON; FILE.part keeps partial results to resume from"
    )
    refit: bool = option(
        default=False, within=REPAIR, help="after each removal, refit the model (headgates prune --help)"
    )
