"""`headgates report`: write one web page about an experiment."""

import logging
import shlex
from typing import Any

from fairseq_headgates.cli.command import Answer, argument, command, option
from fairseq_headgates.cli.options import LoadsCheckpoint
from fairseq_headgates.cli.output import check_matplotlib, progress
from fairseq_headgates.cli.parser import filled
from fairseq_headgates.messages import logging_only


@command(
    "report",
    "headgates report gated baseline/checkpoint_best.pt --out report.html",
    "headgates report gated scores.json functions.json --out scores.html",
)
class Report(LoadsCheckpoint):
    """Write a web page about an experiment.

    Write one HTML file with figures and tables of all inputs. It opens from disk and needs no network.
    """

    usage = "%(prog)s INPUT... --out FILE.html [options]"

    files: list[str] = argument(
        metavar="INPUT",
        nargs="+",
        type=filled,
        reads="the input",
        help="checkpoints (.pt); run folders of fairseq-train; JSON files of headgates score, ablate, curve, "
        "functions, evaluate, compare and attention; sweep.json or results.json of a recipe",
    )
    out: str = option(metavar="FILE.html", required=True, writes=True, help="the page to write")
    force: bool = option(default=False, help="overwrite files that exist")

    def check(self) -> None:
        """Raise ValueError if the page cannot be drawn, or has another name."""
        check_matplotlib("headgates report")
        if not self.out.endswith(".html"):
            raise ValueError(f"--out is {self.out}: give a name that ends in .html")

    def run(self, session: Any) -> Answer:
        """Read the inputs, and draw the page."""
        from fairseq_headgates.extensions.report.inputs import read_results
        from fairseq_headgates.extensions.report.page import report_page

        with logging_only(logging.WARNING, "matplotlib"):  # fairseq sets the level of all loggers
            found = list(progress("read")(read_results(self.files, self.trust, self.arch)))
            made_by = shlex.join(["headgates", "report", *self.files, "--out", self.out])
            page = report_page(found, made_by, progress("draw"))
        return Answer(files={"out": page})
