"""`headgates correlate`: compute the correlation of score files."""

from typing import ClassVar

from fairseq_headgates.cli.command import argument, command, option
from fairseq_headgates.cli.options import Output, types
from fairseq_headgates.cli.parser import Once


@command(
    "correlate",
    "headgates correlate two.json",
    "headgates correlate valid.json test.json --each-type --top 4",
)
class CorrelateOptions(Output):
    """Compute the correlation of score files.

    Compute Pearson and Spearman correlations of all pairs of scores in the files: of several methods on the same data,
    or of one method on several data sets or checkpoints.
    """

    needs_models: ClassVar[bool] = False

    files: list[str] = argument(
        metavar="FILE", nargs="+", reads="the score file", help="score files of `headgates score --out`"
    )
    method: str | None = option(
        metavar="M[,M...]", action=Once, help="compare only the scores of these methods (default: all)"
    )
    types: str | None = types("compare only these attention types (default: those that both scores have)")
    each_type: bool = option(default=False, help="also compare each attention type alone")
    top: int | None = option(
        metavar="K",
        type=int,
        help="number of highest-scored heads whose overlap is reported (default: a quarter of the heads)",
    )
    any: bool = option(default=False, help="also compare two methods on different models or data (default: an error)")
