"""Write one web page about an experiment."""

import logging
import re
import shlex
from itertools import count

from fairseq_headgates import __version__
from fairseq_headgates.cli.output import check_matplotlib
from fairseq_headgates.drawing.maps import check_size, templates
from fairseq_headgates.drawing.tables import TITLES
from fairseq_headgates.extensions.report.command import ReportOptions
from fairseq_headgates.extensions.report.content import Experiment
from fairseq_headgates.extensions.report.inputs import read_experiment
from fairseq_headgates.extensions.report.sections import TITLES_AND_INTROS, sections, sentence
from fairseq_headgates.files import check_writable, write_whole
from fairseq_headgates.messages import logging_only

LARGEST_PAGE = 5 * 2**20  # bytes
LARGEST_MAPS = 20_000  # cells of all attention maps


def run(options: ReportOptions) -> None:
    """Run `headgates report`."""
    check_matplotlib("headgates report")
    if not options.out.endswith(".html"):  # the first INPUT, if OUT.html is forgotten
        raise ValueError(f"{options.out} would be overwritten: the name of this output must end in .html")
    check_writable(options.out, options.force)
    with logging_only(logging.WARNING, "matplotlib"):  # fairseq sets the level of all loggers
        found = read_experiment(options.files, options.trust, options.arch)
        page = report_page(found, shlex.join(["headgates", "report", options.out, *options.files]))
    write_whole(options.out, page, options.force)


def report_page(found: Experiment, command: str) -> str:
    """Return the report on an experiment.

    Args:
        found: what it shows
        command: the command that makes the report

    Raises:
        ValueError: if the attention maps have too many cells, or the page is too large
    """
    check_size([maps for _, sentences in found.attention for maps in sentences.values()], LARGEST_MAPS)
    numbers = count(1)

    def inline(svg: str) -> str:
        """Give the names within an SVG a prefix, so that they are not those of another one in the page."""
        return re.sub(r'\bid="|url\(#|href="#', rf"\g<0>plot{next(numbers)}-", svg)

    gated = next((model.distribution for model in found.models if model.distribution), None)
    drawn = sections(found)
    page = templates("report").get_template("report.html").render(
        sections=drawn, texts=TITLES_AND_INTROS, titles=TITLES, command=command,
        inputs=[*dict.fromkeys(found.inputs)], inline=inline, version=__version__, headline=sentence(drawn),
        distribution=gated and dict(zip(("temperature", "low", "high"), gated, strict=True)),
    )  # fmt: skip
    page = page.encode("utf-8", "backslashreplace").decode()  # names of files need not be UTF-8
    size = len(page.encode())
    if size > LARGEST_PAGE:
        largest = LARGEST_PAGE // 2**20
        raise ValueError(f"the page has {size / 2**20:.1f} MB, and at most {largest} are written: give fewer inputs")
    return page
