"""Small plots with one pair of axes each (no torch).

A panel is a title and a function that draws on axes of matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_headgates.drawing.tables import METRICS
from fairseq_headgates.drawing.text import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"  # lines differ by marker as well as by colour


class Panel(NamedTuple):
    """A plot: its title, and what draws it."""

    title: str
    draw: Callable[[Axes], None]


def row_of(panels: Sequence[Panel]) -> Figure:
    """Draw panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(panels), 3.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel.draw(axes)
        axes.set_title(panel.title)
    return figure


def curve_panels(points: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return plots of pruning curves: bits per token and other metrics over the heads that are removed."""
    checkpoints, scores = (len({p[key] for p in points}) for key in ("checkpoint", "by"))
    panels = []
    for measure, label in METRICS.items():
        if all(p.get(measure) is None for p in points):
            continue
        if measure == "nll":
            label = f"bits per {points[0].get('unit', 'target token')}"
        lines: dict[str, list[tuple[float, float]]] = {}
        for (checkpoint, by, types), group in groupby(points, key=lambda p: (p["checkpoint"], p["by"], p["types"])):
            name = types if checkpoints == scores == 1 else f"{types} {by}"
            lines[name if checkpoints == 1 else f"{name} {checkpoint}"] = [(p["removed"], p[measure]) for p in group]
        panels.append(Panel(label, partial(draw_lines, lines=lines, x="heads removed (%)", y=label)))
    return panels


def compression_panels(results: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return plots of the loss, and of the metric, over the parameters that are kept, and over the speed if measured.

    A line for each choice of units, from the whole model on.

    Args:
        results: objects of `headgates compress --json`
    """
    first = results[0]
    places: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "parameters kept (%)": lambda each: 100 * each["parameters"][1] / each["parameters"][0]
    }
    if first["speedup"]:
        places["speed"] = lambda each: each["speedup"]
    measures = {
        f"bits per {first['unit']}": "loss",
        **{label: name for name, label in METRICS.items() if name in first},
    }
    panels = []
    for label, measure in measures.items():
        for x, place in places.items():
            lines: dict[str, list[tuple[float, float]]] = {}
            for each in results:
                whole = (place({**each, "parameters": [1, 1], "speedup": 1.0}), each[measure][0])
                line = lines.setdefault(" and ".join(each["units"]), [whole])
                line.append((place(each), each[measure][1]))
            ordered = {units: sorted(line) for units, line in lines.items()}
            panels.append(Panel(label, partial(draw_sizes, lines=ordered, x=x, y=label)))
    return panels


def draw_sizes(axes: Axes, lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> None:
    """Draw lines over the speed or a number of parameters, smaller models to the right."""
    draw_lines(axes, lines, x, y)
    if x != "speed":
        axes.invert_xaxis()


def draw_lines(
    axes: Axes, lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, counts: bool = False
) -> None:
    """Draw a line for each name, and label the axes."""
    for (name, points), marker in zip(lines.items(), markers(len(lines)), strict=True):
        many = len(points) > 40
        axes.plot(*zip(*points, strict=True), marker="" if many else marker, markersize=4, label=escaped(name))
    set_label(axes, x, y, counts)


def markers(number: int) -> list[str]:
    """Return a marker for each of a number of lines."""
    return [MARKERS[i % len(MARKERS)] for i in range(number)]


def set_label(axes: Axes, x: str, y: str, counts: bool = False) -> None:
    """Label the axes; `counts` if y is a number of things."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis)[: 1 + counts]:
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if counts:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=x, ylabel=y)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
