"""Write one web page about an experiment."""

import logging
import os
import shlex
from pathlib import Path

from fairseq_headgates import __version__
from fairseq_headgates.cli.output import check_matplotlib, say, warn, write
from fairseq_headgates.extensions.page.command import ReportOptions
from fairseq_headgates.extensions.page.inputs import read_experiment
from fairseq_headgates.extensions.page.page import gates_gif, report_page
from fairseq_headgates.files import check_writable, write_whole
from fairseq_headgates.messages import logging_only


def run(options: ReportOptions) -> int:
    """Run `headgates report` and return its exit code."""
    check_matplotlib("headgates report")
    for path, ending in ((options.out, ".html"), (options.gif, ".gif")):
        if path is not None:
            if not path.endswith(ending):  # the first INPUT, if OUT.html is forgotten
                raise ValueError(f"{path} would be overwritten: the name of this output must end in {ending}")
            check_writable(path, options.force)
    words = ["headgates", "report", options.out, *options.files, *(["--gif", options.gif] if options.gif else [])]
    with logging_only(logging.WARNING, "matplotlib", "PIL", "tensorboard"):  # fairseq sets the level of all loggers
        found = read_experiment(options.files, options.trust)
        page = report_page(found, shlex.join(words), __version__)
        animation = gates_gif(found.trainings) if options.gif else None
    write_whole(options.out, page, options.force)
    if options.gif and animation:
        write(options.gif, animation, options.force)
    with_curves = {run.name for run in found.trainings if run.series}
    for folder in {*map(Path, filter(os.path.isdir, options.files))} - {*map(Path, with_curves)}:
        cure = f"save the output of fairseq-train as {folder}/train.log, or train with --log-file"
        warn("report", f"{folder} has no log of its training, so the page has no curves of it: {cure}")
    say(f"wrote {options.out} ({len(page.encode()) / 2**20:.1f} MB)")
    return 0
