"""The plots of a report: results of a sweep, heads that checkpoints keep (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from fairseq_headgates.drawing.panels import Panel, draw_lines, markers, set_label
from fairseq_headgates.drawing.text import escaped
from fairseq_headgates.heads import TYPES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 3  # layers that have a line each; of more, pairs have one


def sweep_panels(models: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the plots of a sweep: BLEU over heads kept, and which heads those are.

    Args:
        models: the models of a sweep file
    """
    pruned = sorted((model for model in models if model["method"]), key=lambda model: model["heads"]["total"])
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for model in pruned:
        groups.setdefault(f"{model['types']} {model['method']}", []).append(model)
    lines = {name: [(model["heads"]["total"], model["BLEU"]) for model in group] for name, group in groups.items()}
    controls = {model["name"]: model["BLEU"] for model in models if not model["method"]}
    name, largest = max(groups.items(), key=lambda group: len(group[1]), default=("", []))
    kept = kept_panels(largest, name) if len(largest) > 1 else []
    return [score_panel("BLEU", lines, controls), *kept]


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
    panels = []
    for title, groups in _groups(models).items():
        points = {label: [*zip(totals, kept, strict=True)] for label, kept in groups.items()}
        draw = partial(draw_lines, lines=points, x="total heads kept", y="heads kept", counts=True)
        panels.append(Panel(f"{title} ({name})", draw))
    return panels


def _groups(models: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return {title of a plot: {label: heads kept by each model}}: of each type, and of each layer of a type."""
    types = [each for each in TYPES if each in models[0]["layers"]]
    by_type = {"heads kept by type": {each: [model["heads"][each] for model in models] for each in types}}
    return by_type | {f"{each}, heads kept by layer": _by_layer(models, each) for each in types}


def _by_layer(models: Sequence[Mapping[str, Any]], attention_type: str) -> dict[str, list[float]]:
    """Return the heads of each layer that each model keeps; of more than `FEW` layers, those of pairs of neighbours."""
    rows = [model["layers"][attention_type] for model in models]
    size, number = 1 if len(rows[0]) <= FEW else 2, len(rows[0])
    ends = {first: min(first + size, number) for first in range(0, number, size)}
    return {
        f"layer {a}" if b - a == 1 else f"layers {a}, {b - 1}": [sum(row[a:b]) for row in rows] for a, b in ends.items()
    }


def overlap_panel(pairs: Sequence[Mapping[str, Any]]) -> Panel:
    """Return a bar chart of the Jaccard index of masks: a group for each of `types`, a bar for each pair, and chance.

    With more than `FEW` pairs, one bar is their mean.

    Args:
        pairs: the pairs of a file of `headgates compare`
    """
    types = list(dict.fromkeys(pair["types"] for pair in pairs))
    bars: dict[str, dict[str, float]] = {}
    chance: dict[str, list[float]] = {}
    for pair in pairs:
        bars.setdefault(f"{_end(pair['a'])} ~ {_end(pair['b'])}", {})[pair["types"]] = pair["jaccard"] or 0.0
        union = max(1e-9, sum(pair["kept"]) - pair["expected"])
        chance.setdefault(pair["types"], []).append(pair["expected"] / union)
    groups = {name: [values.get(each, 0.0) for each in types] for name, values in bars.items()}
    if len(groups) > FEW:
        groups = {f"mean of {len(groups)} pairs": [*map(mean, zip(*groups.values(), strict=True))]}
    groups["by chance"] = [mean(chance[each]) for each in types]
    return Panel("heads in common (Jaccard index)", partial(_bars, names=types, groups=groups, y="Jaccard index"))


def _end(name: str, most: int = 20) -> str:
    """Return the end of a long name."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def function_panels(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[Panel]:
    """Return a chart for each attention type: a column of open heads for each checkpoint, coloured by function.

    These are figures of Voita et al. 2019, section 6.2.

    Args:
        counts: {attention type: {checkpoint: {group of functions: number of heads}}}
    """
    return [Panel(f"{each}, open heads by function", partial(_columns, counts=found)) for each, found in counts.items()]


def _columns(axes: Axes, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Draw a column for each name, of coloured parts."""
    bottom = [0] * len(counts)
    for group in next(iter(counts.values())):
        heights = [found[group] for found in counts.values()]
        if any(heights):
            color = "lightgray" if group == "none" else None
            axes.bar(range(len(counts)), heights, 0.7, bottom, label=group, color=color)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    _label_bars(axes, list(counts), "open heads")


def _bars(axes: Axes, names: Sequence[str], groups: Mapping[str, Sequence[float]], y: str = "heads kept") -> None:
    """Draw a group of bars for each name."""
    width = 0.8 / len(groups)
    for i, (label, values) in enumerate(groups.items()):
        axes.bar([j + (i + 0.5) * width - 0.4 for j in range(len(names))], values, width, label=escaped(label))
    _label_bars(axes, names, y)


def _label_bars(axes: Axes, names: Sequence[str], y: str) -> None:
    """Label the axes of a bar chart, with a name for each group of bars."""
    set_label(axes, "", y, counts=y != "Jaccard index")
    axes.set_xticks(range(len(names)), map(escaped, names), rotation=20, ha="right", fontsize="small")
