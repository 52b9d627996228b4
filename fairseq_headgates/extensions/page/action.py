"""Write one web page about an experiment."""

import io
import logging
import os
import re
import shlex
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from fairseq_headgates import __version__
from fairseq_headgates.cli.output import check_matplotlib, warn
from fairseq_headgates.extensions.page.command import ReportOptions
from fairseq_headgates.extensions.page.content import Experiment, Training
from fairseq_headgates.extensions.page.inputs import read_experiment
from fairseq_headgates.extensions.page.sections import TITLES_AND_INTROS, sections, sentence
from fairseq_headgates.files import check_writable, write_whole
from fairseq_headgates.messages import logging_only
from fairseq_headgates.plugin.gate_log import thinned
from fairseq_headgates.report.figures import heat_map
from fairseq_headgates.report.maps import check_size, templates
from fairseq_headgates.report.tables import TITLES

LARGEST_PAGE = 5 * 2**20  # bytes
LARGEST_MAPS = 20_000  # cells of all attention maps
GIF_FRAMES, FRAME_MILLISECONDS = 60, 150
DISTRIBUTION = (0.33, -0.1, 1.1)  # temperature, low and high where no checkpoint has gates


def run(options: ReportOptions) -> None:
    """Run `headgates report`."""
    check_matplotlib("headgates report")
    for path, ending in ((options.out, ".html"), (options.gif, ".gif")):
        if path is not None:
            if not path.endswith(ending):  # the first INPUT, if OUT.html is forgotten
                raise ValueError(f"{path} would be overwritten: the name of this output must end in {ending}")
            check_writable(path, options.force)
    words = ["headgates", "report", options.out, *options.files, *(["--gif", options.gif] if options.gif else [])]
    with logging_only(logging.WARNING, "matplotlib", "PIL", "tensorboard"):  # fairseq sets the level of all loggers
        found = read_experiment(options.files, options.trust, options.arch)
        page = report_page(found, shlex.join(words))
        animation = gates_gif(found.trainings) if options.gif else None
    write_whole(options.out, page, options.force)
    if options.gif and animation:
        write_whole(options.gif, animation, options.force)
    with_curves = {run.name for run in found.trainings if run.series}
    for folder in {*map(Path, filter(os.path.isdir, options.files))} - {*map(Path, with_curves)}:
        hint = f"save the output of fairseq-train as {folder}/train.log, or train with --log-file"
        warn("report", f"{folder} has no log of its training, so the page has no curves of it: {hint}")


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
    if any(training.gates for training in found.trainings):
        gated = gated or DISTRIBUTION
    drawn = sections(found)
    page = templates("page").get_template("report.html").render(
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


def gates_gif(trainings: Sequence[Training]) -> bytes:
    """Return an animated GIF of P(gate = 0) over the first training that has a gate log.

    Raises:
        ValueError: if no training has a gate log
    """
    from PIL import Image

    records = next((thinned(training.gates, GIF_FRAMES) for training in trainings if training.gates), None)
    if records is None:
        raise ValueError("no input has a gate log: give the folder of a training with gates, or its gates.jsonl")
    frames = []
    for record in records:
        content, figure = io.BytesIO(), heat_map(record.closed)
        figure.suptitle(f"update {record.update}")
        figure.savefig(content, format="png", dpi=80)
        frames.append(Image.open(content).convert("P", palette=Image.Palette.ADAPTIVE))
    content = io.BytesIO()
    frames[0].save(content, "GIF", save_all=True, append_images=frames[1:], duration=FRAME_MILLISECONDS, loop=0)
    return content.getvalue()
