"""The web page of a report."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import groupby

from fairseq_headgates import __version__
from fairseq_headgates.drawing.maps import templates
from fairseq_headgates.drawing.result import Plot, Result
from fairseq_headgates.drawing.text import text_style
from fairseq_headgates.extensions.report.inputs import named
from fairseq_headgates.messages import Progress

# The order of the page; other kinds follow.
KINDS = (
    "Results",
    "Compression",
    "Fewer and fewer heads",
    "Translations",
    "Heads and neurons",
    "Heads in common",
    "Functions of heads",
    "Importance of heads",
    "Ablation",
    "Explanations",
    "Attention maps",
)


def report_page(found: Sequence[tuple[str, Result]], command: str, progress: Progress = iter) -> str:
    """Return the page of results, each with the names of its files, and the command that makes it."""
    order = {kind: number for number, kind in enumerate(KINDS)}
    found = sorted(found, key=lambda each: order.get(each[1].kind, len(order)))
    numbers = iter(progress(range(1, 1 + sum(len(result.figures) for _, result in found))))
    page = templates("report").get_template("report.html").render(
        sections={kind: list(group) for kind, group in groupby(found, key=lambda each: each[1].kind)},
        sentence=next((result.sentence for _, result in found if result.sentence), ""),
        svg=lambda names, plot: named(names, _svg, plot, f"plot{next(numbers)}-"),
        command=command, version=__version__,
    )  # fmt: skip
    return page.encode("utf-8", "backslashreplace").decode()  # names of files need not be UTF-8


def _svg(plot: Plot, prefix: str) -> str:
    """Return a figure as SVG whose names, with a prefix, are not those of another one in the page."""
    content = io.StringIO()
    with text_style({"svg.hashsalt": prefix, "axes.spines.top": False, "axes.spines.right": False}):
        plot.draw().savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>", "", content.getvalue(), flags=re.DOTALL)
    return re.sub(r'\bid="|url\(#|href="#', rf"\g<0>{prefix}", text[text.index("<svg") :])
