"""Write the results of a command: to standard output, and as pictures (no torch)."""

from __future__ import annotations

import argparse
import importlib.util
import io
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_headgates.cli.command import Answer, Options
from fairseq_headgates.cli.options import LoadsCheckpoint
from fairseq_headgates.drawing.text import text_style
from fairseq_headgates.files import check_writable, write_whole
from fairseq_headgates.messages import IN_WORDS, Progress, one_line, printable

logger = logging.getLogger(__name__)

WITH_TEXT = ("svg", "svgz", "pgf")  # formats whose text is drawn by what opens the file


def prepare_streams() -> None:
    """Open the null device for standard streams that are closed, and escape what standard output cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def warn(command: str, message: str) -> None:
    """Print one line on stderr."""
    print(f"headgates {command}: warning: {one_line(message)}", file=sys.stderr)


def progress(text: str, shown: bool = True) -> Progress:
    """Return a function that wraps an iterable in a progress bar, on a terminal."""
    from tqdm import tqdm

    return partial(tqdm, desc=text, disable=not (shown and sys.stderr.isatty()), leave=False)


def check_outputs(options: Options) -> None:
    """Raise ValueError unless the files that the options name can be written, each its own."""
    outputs = options.files_to_write()
    for path in outputs.values():
        check_writable(path, options.force)
    if len({Path(path).resolve() for path in outputs.values()}) < len(outputs):
        raise ValueError(f"{' and '.join(f'--{name}' for name in outputs)} name the same file: give each its own")


def then_evaluate(options: LoadsCheckpoint, *checkpoints: str) -> str:
    """Return a command that evaluates checkpoints with the options of a command, and compares them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--path", "--gen-subset"):  # the default is the test set
        parser.add_argument(option)
    words = parser.parse_known_args(options.fairseq_arguments() or ["DATA"])[1]
    words += ["--text", *(f"TEST{Path(file).suffix}" for file in options.text)] if options.text else []
    words += ["--arch", options.arch] if options.arch else []
    words += ["--trust"] if options.trust else []
    return shlex.join(["headgates", "evaluate", *words, "--path", ":".join(checkpoints)])


def deliver(options: Options, answer: Answer) -> None:
    """Write the files of a command, and print what it found. Raise ValueError for what cannot be written."""
    for option, content in answer.files.items():
        if path := getattr(options, option):
            write_whole(path, content, options.force)
    if plot := getattr(options, "plot", None):  # last, because drawing can fail
        drawn = answer.page() if answer.page and plot.endswith(".html") else picture(plot, answer.figure)
        write_whole(plot, drawn, options.force)
    if text := answer.json if getattr(options, "json", False) else answer.text:
        say(text)
    if answer.missed:
        raise ValueError(answer.missed)


def say(text: str) -> None:
    """Print a result, without control characters."""
    print("\n".join(printable(line, f"\t{IN_WORDS}") for line in text.split("\n")), flush=True)


def check_picture(path: str, pages: bool = False) -> None:
    """Raise ValueError unless matplotlib can draw a picture of this name. With `pages`, it may end in .html."""
    if pages and path.endswith(".html"):
        return
    check_matplotlib("--plot")
    from matplotlib.figure import Figure

    kind = _kind(path)
    if kind not in Figure().canvas.get_supported_filetypes():
        raise ValueError(f"--plot {path}: unknown format {kind!r}, choose {'.html, ' * pages}.png, .pdf or .svg")


def check_matplotlib(what: str) -> None:
    """Raise ValueError unless matplotlib, which `what` needs, is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"{what} needs matplotlib: pip install 'fairseq-headgates[plots]'")


def picture(path: str, draw: Callable[[], Any]) -> bytes:
    """Return the content of a picture file. Warn of a character that no font has.

    It is drawn in memory: on a full disk, matplotlib's JPEG never ends.
    """
    kind = _kind(path)
    content = io.BytesIO()
    target = io.TextIOWrapper(content, "utf-8", write_through=True) if kind == "pgf" else content
    with text_style(), warnings.catch_warnings(record=True) as lacking:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "Glyph .* missing from")
        draw().savefig(target, format=kind, dpi=150)
    if lacking and kind not in WITH_TEXT:
        logger.warning(f"{path}: {str(lacking[0].message).rstrip('.')}; an .svg file shows it")
    return content.getvalue()


def _kind(path: str) -> str:
    """Return the format of a picture by its name."""
    return Path(path).suffix.lstrip(".") or "png"
