"""Plots of the tables of recipes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from statistics import mean

from fairseq_headgates.cli.output import picture
from fairseq_headgates.drawing.panels import row_of
from fairseq_headgates.drawing.sweep import Panel, score_panel
from fairseq_headgates.files import replacing
from results.rows import Row, by_model

LINES = {"l0": "gates (l0)", "lagrangian": "gates", "subset": "gates (subset)"}


def over_heads(title: str, seeds: Sequence[Sequence[Row]], score: Callable[[Row], float]) -> Panel:
    """Return the plot of a score over heads kept: a line for runs of the same kind, controls as horizontal lines."""
    lines: dict[str, list[tuple[float, list[float]]]] = {}
    controls: dict[str, list[float]] = {}
    for rows in by_model(seeds):
        values = [score(row) for row in rows]
        if rows[0].run.method:
            lines.setdefault(_line(rows[0]), []).append((mean(row.heads[0] for row in rows), values))
        else:
            controls[rows[0].run.name] = values
    return score_panel(title, {name: sorted(points) for name, points in lines.items()}, controls)


def _line(row: Row) -> str:
    """Return the kind of a run: how its gates were trained, or how heads were chosen and whether it was trained."""
    method = row.run.method
    return LINES.get(method, f"{method}, trained further") if row.run.is_trained else method


def draw(path: str, panels: Sequence[Panel]) -> None:
    """Draw panels side by side; the kind of file is that of the name (.svg, .png, .pdf)."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq sets the level of all loggers
    content = picture(path, lambda: row_of(panels))
    with replacing(path, force=True) as part:
        part.write_bytes(content)
