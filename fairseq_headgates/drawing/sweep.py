"""Results of the recipes: scores over the number of heads, and the heads that the models keep (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from fairseq_headgates.drawing.panels import Panel, draw_lines, markers, row_of, set_label
from fairseq_headgates.drawing.result import Plot, Result, Table
from fairseq_headgates.drawing.text import escaped
from fairseq_headgates.heads import TYPES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = (
    "BLEU: mean of the seeds, bars: their range; horizontal lines: models without pruning. Heads by type and layer are "
    "those of the method with the most models. In the table, diff is BLEU minus BLEU of the control."
)
FEW = 3  # layers that have a line each; of more, pairs have one


def sweep_panels(models: Sequence[Mapping[str, Any]], score: str = "BLEU") -> list[Panel]:
    """Return the plots of a sweep: a score over heads kept, and which heads those are.

    Args:
        models: the models of a sweep file
        score: the name of the score in the models
    """
    pruned = sorted((model for model in models if model["method"]), key=lambda model: model["heads"]["total"])
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for model in pruned:
        groups.setdefault(" ".join(filter(None, (model["types"], model["method"]))), []).append(model)
    lines = {name: [(model["heads"]["total"], model[score]) for model in group] for name, group in groups.items()}
    controls = {model["name"]: model[score] for model in models if not model["method"]}
    name, largest = max(groups.items(), key=lambda group: len(group[1]), default=("", []))
    kept = kept_panels(largest, name) if len(largest) > 1 else []
    return [score_panel(score, lines, controls), *kept]


def score_panel(
    score: str, lines: Mapping[str, Sequence[tuple[float, Sequence[float]]]], controls: Mapping[str, Sequence[float]]
) -> Panel:
    """Return a plot of a score over heads kept: means with the range over the seeds.

    Args:
        score: the label of the score
        lines: {name: points of a line: heads kept, and the value of each seed}
        controls: {name: the value of each seed} of models that are drawn as horizontal lines
    """

    def draw(axes: Axes) -> None:
        for (name, points), marker in zip(lines.items(), markers(len(lines)), strict=True):
            kept, seeds = zip(*points, strict=True)
            means = [mean(values) for values in seeds]
            low = [value - min(values) for value, values in zip(means, seeds, strict=True)]
            high = [max(values) - value for value, values in zip(means, seeds, strict=True)]
            axes.errorbar(kept, means, yerr=[low, high], fmt=f"{marker}-", capsize=3, label=escaped(name))
        for style, (name, values) in zip(("--", ":", "-."), controls.items(), strict=False):
            axes.axhline(mean(values), color="gray", linestyle=style, label=escaped(name))
        set_label(axes, "total heads kept", score)

    return Panel(score, draw)


def kept_panels(models: Sequence[Mapping[str, Any]], name: str) -> list[Panel]:
    """Return plots of the heads that are kept, over their number in all: of each type, and for each type by layer.

    These are plots of Voita et al. 2019, section 6. With more than three layers, a line is the sum over two.

    Args:
        models: objects with `heads` and `layers` as in a sweep file, sorted by the number of heads
        name: what the models have in common
    """
    totals = [model["heads"]["total"] for model in models]
    types = [each for each in TYPES if each in models[0]["layers"]]
    plots = {"heads kept by type": {each: [model["heads"][each] for model in models] for each in types}}
    plots |= {f"{each}, heads kept by layer": _by_layer(models, each) for each in types}
    panels = []
    for title, groups in plots.items():
        points = {label: [*zip(totals, kept, strict=True)] for label, kept in groups.items()}
        draw = partial(draw_lines, lines=points, x="total heads kept", y="heads kept", counts=True)
        panels.append(Panel(f"{title} ({name})", draw))
    return panels


def _by_layer(models: Sequence[Mapping[str, Any]], attention_type: str) -> dict[str, list[float]]:
    """Return the heads of each layer that each model keeps; of more than `FEW` layers, those of pairs of neighbours."""
    rows = [model["layers"][attention_type] for model in models]
    size, number = 1 if len(rows[0]) <= FEW else 2, len(rows[0])
    ends = {first: min(first + size, number) for first in range(0, number, size)}
    return {
        f"layer {a}" if b - a == 1 else f"layers {a}, {b - 1}": [sum(row[a:b]) for row in rows] for a, b in ends.items()
    }


def results(contents: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
    """Yield what the JSON tables of recipes say."""
    scores = {"BLEU": ".2f", "diff": "+.2f", "nll": ".3f"}
    for models in (each["models"] for each in contents):
        rows = [
            [
                model["name"],
                *(f"{number:g}" for number in model["heads"].values()),
                *(_range(model[score], form) for score, form in scores.items()),
            ]
            for model in models
        ]
        yield Result(
            kind="Fewer and fewer heads",
            note=NOTE,
            tables=[Table("", ["model", *models[0]["heads"], *scores], rows)],
            figures=[Plot(panel.title, partial(row_of, [panel])) for panel in sweep_panels(models)],
        )


def _range(values: Sequence[float], form: str) -> str:
    """Return the mean of the seeds, and their range."""
    return f"{mean(values):{form}}" + (f" ({min(values):{form}}..{max(values):{form}})" if len(values) > 1 else "")
