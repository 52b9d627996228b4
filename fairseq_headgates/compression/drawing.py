"""Tables and pictures of compressed models (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Draw the loss over the share of the parameters that are kept: a line for each choice of units."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, (units, points) in enumerate(_lines(found).items()):
        axes.plot(*zip(*points, strict=True), f"{MARKERS[number]}-", label=units)
    axes.set(xlabel="parameters kept (%)", ylabel=f"bits per {found[0]['unit']}")
    axes.invert_xaxis()
    axes.legend()
    return figure


def _lines(found: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return {units: points: percent of the parameters, loss}, from the whole model on."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in found:
        (before, after), (loss, loss_after) = each["parameters"], each["loss"]
        line = lines.setdefault(" and ".join(each["units"]), [(100.0, loss)])
        line.append((100 * after / before, loss_after))
    return {units: sorted(line) for units, line in lines.items()}


def _costs(found: Sequence[Mapping[str, Any]]) -> str:
    """Format the number of parameters and the loss of each model."""
    rows = []
    for each in found:
        (before, after), (loss, loss_after) = each["parameters"], each["loss"]
        row = [" and ".join(each["units"]), f"{after:,}", f"{after / before:.1%}", f"{loss_after:.4f}"]
        rows.append([*row, rounded(loss_after - loss, "+.4f"), rounded(each["estimate"], "+.4f")])
    before, unit = found[0]["parameters"][0], found[0]["unit"].split()[-1]
    whole = ["nothing", f"{before:,}", "100.0%", f"{found[0]['loss'][0]:.4f}", "", ""]
    return text_table(["removed", "parameters", "kept", f"bits/{unit}", "difference", "estimated"], [whole, *rows])
