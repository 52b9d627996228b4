"""Plots of the tables of recipes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from fairseq_headgates.cli.output import picture
from fairseq_headgates.files import replacing
from fairseq_headgates.report import Panel, row_of


def draw(path: str, panels: Sequence[Panel]) -> None:
    """Draw panels side by side; the kind of file is that of the name (.svg, .png, .pdf)."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq sets the level of all loggers
    content, lacking = picture(path, lambda: row_of(panels))
    if lacking:
        print(f"{path} {lacking}: an .svg file does", file=sys.stderr)
    with replacing(path, force=True) as part:
        part.write_bytes(content)
