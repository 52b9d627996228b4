"""`headgates compare`: compare the heads that masks or checkpoints keep."""

from fairseq_headgates.cli.command import argument, command
from fairseq_headgates.cli.options import Output, types


@command(
    "compare",
    "headgates compare gated/checkpoint_last.pt half.pt",
    "headgates compare seed1.json seed2.json seed3.json",
)
class CompareOptions(Output):
    """Compare the heads that masks or checkpoints keep.

    Compare the heads that each pair of masks keeps: the number that both keep, the Jaccard index, and the probability
    that random masks of the same sizes overlap at least as much.
    """

    masks: list[str] = argument(
        metavar="MASK",
        nargs="+",
        reads="the mask",
        help="two or more mask files or checkpoints of this plugin, with the same layers and heads",
    )
    types: str | None = types(
        "compare only these attention types (default: those of both masks, without types of which both keep all heads)"
    )
