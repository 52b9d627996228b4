"""`headgates score`: compute importance scores of all heads."""

from fairseq_headgates.cli.command import command, option
from fairseq_headgates.cli.options import FirstSentences, Output, Scores
from fairseq_headgates.cli.parser import Once
from fairseq_headgates.scores.options import SCORES


@command(
    "score",
    "headgates score data-bin --path baseline/checkpoint_best.pt --gen-subset valid --method gradient "
    "--out scores.json",
    "headgates score data-bin --path baseline/checkpoint_best.pt --gen-subset valid --method confidence,ablation "
    "--out two.json --plot two.svg",
)
class ScoreOptions(FirstSentences, Scores, Output):
    """Compute importance scores of all heads on --gen-subset (default: valid)."""

    method: str = option(
        metavar="M[,M...]",
        action=Once,
        required=True,
        help="scores to compute, or all. " + "; ".join(f"{name}: {score.text}" for name, score in SCORES.items()),
    )
    plot: str | None = option(metavar="FILE", writes=True, help="draw heat maps: .png, .pdf, .svg (needs matplotlib)")
    out: str | None = option(metavar="FILE", writes=True, help="write a score file for prune, curve and correlate")
    json: bool = option(default=False, help="print the content of the score file instead of tables")
