"""`headgates attention`: draw the attention weights of heads for single sentences."""

from fairseq_headgates.cli.command import command, option
from fairseq_headgates.cli.options import ChosenSentences, Output


@command(
    "attention",
    "headgates attention data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 1 "
    "--heads 'dec-enc:0.*' --plot maps.svg",
    "headgates attention data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 1 --plot heads.html",
)
class AttentionOptions(ChosenSentences, Output):
    """Draw the attention weights of heads for single sentences.

    Draw attention maps: the attention weights of heads for single sentences, with their tokens. The decoder reads the
    reference, or its own translation of a sentence without one.
    """

    heads: str = option(
        metavar="H[,H...]",
        default="all",
        help="heads as TYPE:LAYER.HEAD, counted from 0, or with * for all: enc-self:0.3,dec-self:1.*,dec-enc:* "
        "(default: all)",
    )
    plot: str | None = option(
        metavar="FILE", writes=True, help="draw the maps: .html, .png, .pdf or .svg (matplotlib draws the last three)"
    )
    out: str | None = option(metavar="FILE", writes=True, help="write the attention weights as JSON")
    json: bool = option(default=False, help="print the attention weights as JSON")
