"""Tables and pictures of compressed models (no torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_headgates.heads import HeadTable
from fairseq_headgates.report import removal_table, rounded, text_table
from fairseq_headgates.report.panels import MARKERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return what `headgates compress` prints: what one model keeps in each layer, or a line for each of several."""
    return "\n\n".join([*([_kept(found[0])] if len(found) == 1 else []), _costs(found)])


def _kept(found: Mapping[str, Any]) -> str:
    """Format heads and neurons, before, after, and after in each layer."""
    table = removal_table(*(HeadTable(heads, "alive") for heads in found["heads"]))
    before, after = found["ffn_dims"]
    rows = [
        [f"{side} neurons", f"{sum(before[side]):,}", f"{sum(dims):,}", " ".join(map(str, dims))]
        for side, dims in after.items()
    ]
    return table + ("\n\n" + text_table(["", "neurons", "kept", "by layer"], rows) if rows else "")


def plot(found: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the loss over the share of the parameters that are kept, and over the speed if it was measured.

    A line for each choice of units.
    """
    from matplotlib.figure import Figure

    labels = {"parameters kept (%)": _share, **({"speed": _speed} if found[0]["speedup"] else {})}
    figure = Figure(figsize=(1 + 4 * len(labels), 3.6), layout="constrained")
    panels = figure.subplots(1, len(labels), sharey=True, squeeze=False)[0]
    for axes, (label, place) in zip(panels, labels.items(), strict=True):
        for number, (units, points) in enumerate(_lines(found, place).items()):
            axes.plot(*zip(*points, strict=True), f"{MARKERS[number]}-", label=units)
        axes.set(xlabel=label)
    panels[0].set(ylabel=f"bits per {found[0]['unit']}")
    panels[0].invert_xaxis()
    panels[0].legend()
    return figure


def _share(found: Mapping[str, Any]) -> float:
    before, after = found["parameters"]
    return 100 * after / before


def _speed(found: Mapping[str, Any]) -> float:
    return found["speedup"]


def _lines(
    found: Sequence[Mapping[str, Any]], place: Callable[[Mapping[str, Any]], float]
) -> dict[str, list[tuple[float, float]]]:
    """Return {units: points: place, loss}, from the whole model on."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in found:
        loss, loss_after = each["loss"]
        whole = {**each, "parameters": [1, 1], "speedup": 1.0}
        line = lines.setdefault(" and ".join(each["units"]), [(place(whole), loss)])
        line.append((place(each), loss_after))
    return {units: sorted(line) for units, line in lines.items()}


def _costs(found: Sequence[Mapping[str, Any]]) -> str:
    """Format the number of parameters, the loss and the speed of each model."""
    rows, timed = [], bool(found[0]["speedup"])
    for each in found:
        (before, after), (loss, loss_after) = each["parameters"], each["loss"]
        row = [" and ".join(each["units"]), f"{after:,}", f"{after / before:.1%}", f"{loss_after:.4f}"]
        speed = [f"{each['speedup']:.2f}"] if timed else []
        rows.append([*row, rounded(loss_after - loss, "+.4f"), rounded(each["estimate"], "+.4f"), *speed])
    before, unit = found[0]["parameters"][0], found[0]["unit"].split()[-1]
    whole = ["nothing", f"{before:,}", "100.0%", f"{found[0]['loss'][0]:.4f}", "", ""]
    header = ["removed", "parameters", "kept", f"bits/{unit}", "difference", "estimated", *["speed"] * timed]
    return text_table(header, [[*whole, *["1.00"] * timed], *rows])
