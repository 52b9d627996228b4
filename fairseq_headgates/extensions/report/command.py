"""`headgates report`: write one web page about an experiment."""

from fairseq_headgates.cli.command import argument, command, option
from fairseq_headgates.cli.options import Trust
from fairseq_headgates.cli.parser import filled


@command(
    "report",
    "headgates report report.html gated baseline/checkpoint_best.pt",
    "headgates report scores.html gated scores.json functions.json",
)
class ReportOptions(Trust):
    """Write a web page about an experiment.

    Write a report: one HTML file that opens from disk, without network, with figures and tables of the inputs, in any
    combination.
    """

    out: str = argument(metavar="OUT.html", type=filled, help="the page to write")
    files: list[str] = argument(
        metavar="INPUT",
        nargs="+",
        type=filled,
        reads="the input",
        help="checkpoints (.pt); run folders of fairseq-train; JSON files of headgates score, ablate, curve, "
        "functions, evaluate, compare and attention; sweep.json or results.json of a recipe",
    )
    force: bool = option(default=False, help="overwrite files that exist")
