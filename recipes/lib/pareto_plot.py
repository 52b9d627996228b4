"""The plots of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from swept import Model

FEW = 3  # layers that have a line each; of more, pairs have one


def figure(found: Sequence[Model]) -> Figure:
    """Return the figure: BLEU over heads, heads of each type, and for each type the heads of its layers.

    The last plots show the runs of one method on the same types, the one with the most runs.
    """
    pruned = sorted((model for model in found if model.method), key=lambda model: model.total)
    groups: dict[str, list[Model]] = {}
    for model in pruned:
        groups.setdefault(f"{model.types} {model.method}", []).append(model)
    name, largest = max(groups.items(), key=lambda group: len(group[1]), default=("", []))
    kinds = list(found[0].heads)
    drawn = Figure(figsize=(4 * (2 + len(kinds)), 3.6), layout="constrained")
    axes = drawn.subplots(1, 2 + len(kinds))
    _bleu(axes[0], found, groups)
    for kind in kinds:
        axes[1].plot(_totals(largest), [model.heads[kind] for model in largest], "o-", label=kind)
    _label(axes[1], f"heads by type ({name})", "heads of the type")
    for axis, kind in zip(axes[2:], kinds, strict=True):
        _layers(axis, largest, kind)
    return drawn


def _totals(models: Sequence[Model]) -> list[float]:
    return [model.total for model in models]


def _bleu(axes: Axes, found: Sequence[Model], groups: Mapping[str, Sequence[Model]]) -> None:
    """BLEU of each method, with the range over the seeds; the baseline and its controls as horizontal lines."""
    for name, group in groups.items():
        bleu = [model.mean("BLEU") for model in group]
        low = [value - min(model.scores["BLEU"]) for value, model in zip(bleu, group, strict=True)]
        high = [max(model.scores["BLEU"]) - value for value, model in zip(bleu, group, strict=True)]
        axes.errorbar(_totals(group), bleu, yerr=[low, high], fmt="o-", capsize=3, label=name)
    for style, model in zip(("--", ":", "-."), (model for model in found if not model.method), strict=False):
        axes.axhline(model.mean("BLEU"), color="gray", linestyle=style, label=model.name)
    _label(axes, "BLEU", "BLEU")


def _layers(axes: Axes, models: Sequence[Model], kind: str) -> None:
    layers = len(models[0].layers[kind]) if models else 0
    size = 1 if layers <= FEW else 2
    for first in range(0, layers, size):
        last = min(first + size, layers) - 1
        name = f"layer {first}" if first == last else f"layers {first}, {last}"
        kept = [sum(model.layers[kind][first : last + 1]) for model in models]
        axes.plot(_totals(models), kept, "o-", label=name)
    _label(axes, kind, "heads of the layer" + "s" * (size > 1))


def _label(axes: Any, title: str, y: str) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title=title, xlabel="heads kept in all", ylabel=y)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
