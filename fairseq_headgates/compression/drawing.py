"""Tables and pictures of compressed models (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fairseq_headgates.drawing.panels import compression_panels, row_of
from fairseq_headgates.drawing.result import Plot, Result, Table, checkpoint_name
from fairseq_headgates.drawing.tables import METRICS, removal_table, rounded, text_of, text_table, with_interval
from fairseq_headgates.heads import HeadTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return what `headgates compress` prints: what one model keeps in each layer, or a line for each of several."""
    return "\n\n".join([*([_kept(found[0])] if len(found) == 1 else []), text_of(_costs(found))])


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
    """Draw the loss, and the metric, over the parameters that are kept, and over the speed if it was measured."""
    return row_of(compression_panels(found))


def _costs(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the number of parameters, the loss, the metric and the speed of each model."""
    first, metrics, timed = found[0], [name for name in METRICS if name in found[0]], bool(found[0]["speedup"])
    before, unit = first["parameters"][0], first["unit"].split()[-1]
    header = ["removed", "parameters", "kept", f"bits/{unit}", "difference", "estimated"]
    header += [*(METRICS[name] for name in metrics), *["speed"] * timed]
    whole = ["nothing", f"{before:,}", "100.0%", f"{first['loss'][0]:.4f}", "", ""]
    rows = [[*whole, *(f"{first[name][0]:.2f}" for name in metrics), *["1.00"] * timed]]
    for each in found:
        after, (loss, loss_after) = each["parameters"][1], each["loss"]
        row = [" and ".join(each["units"]), f"{after:,}", f"{after / before:.1%}", f"{loss_after:.4f}"]
        row += [rounded(loss_after - loss, "+.4f"), rounded(each["estimate"], "+.4f")]
        row += [f"{each[name][1]:.2f}" for name in metrics]
        rows.append(row + ([with_interval(each["speedup"], each["speedup_interval"], ".2f")] if timed else []))
    return Table("", header, rows)


def results(contents: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
    """Yield what files of `headgates compress --json` say of each model."""
    for signature, group in groupby(contents, key=lambda each: each["signature"]):
        found = list(group)
        yield Result(
            kind="Compression",
            title=f"Smaller versions of {checkpoint_name(signature)}",
            signature=signature,
            note="Loss and score of models from which more and more is removed, without training.",
            tables=[_costs(found)],
            figures=[Plot("", partial(plot, found))],
        )
