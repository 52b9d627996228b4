"""Head tables for people: text tables and heat maps. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fairseq_headgates.heads import HeadTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "enc-self": "encoder self-attention",
    "dec-self": "decoder self-attention",
    "dec-enc": "decoder-encoder attention",
}


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])


def head_table(open_probability: HeadTable, gate: HeadTable) -> str:
    """One block per attention type, layers by heads: P(open) / evaluation gate, and the heads that stay open."""
    blocks = []
    for kind, rows in gate.values.items():
        alive, total = gate.count(kind)
        heads = max(len(row) for row in rows)
        cells = [
            [
                f"layer {i}",
                *(f"{p:.2f}/{g:.2f}" for p, g in zip(open_probability.values[kind][i], row, strict=True)),
                str(sum(g > 0 for g in row)),
            ]
            for i, row in enumerate(rows)
        ]
        title = f"{kind} ({TITLES[kind]}): {alive} of {total} heads open"
        blocks.append(title + "\n" + text_table(["P(open)/gate", *(f"head {j}" for j in range(heads)), "open"], cells))
    return "\n\n".join(blocks)


def removal_table(before: HeadTable, after: HeadTable) -> str:
    """A line per attention type: heads that are there (1 in `before`), heads that stay, and how many in each layer."""
    rows = []
    for kind, layers in after.values.items():
        per_layer = " ".join(str(sum(value > 0 for value in layer)) for layer in layers)
        rows.append([kind, str(before.count(kind)[0]), str(after.count(kind)[0]), per_layer])
    sums = [str(sum(table.count(kind)[0] for kind in table.types)) for table in (before, after)]
    return text_table(["", "heads", "stay", "by layer"], [*rows, ["total", *sums, ""]])


def totals(gate: HeadTable) -> dict[str, tuple[int, int]]:
    """{type: (open, all)} and the sum over types as "total"."""
    counts = {kind: gate.count(kind) for kind in gate.types}
    return {**counts, "total": (sum(c[0] for c in counts.values()), sum(c[1] for c in counts.values()))}


def heat_map(table: HeadTable, limits: tuple[float, float] = (0.0, 1.0)) -> Figure:
    """A heat map per attention type, layers (top: the last) by heads. Needs matplotlib."""
    from matplotlib.figure import Figure  # not pyplot: no display, no global state

    figure = Figure(figsize=(1 + 3 * len(table.types), 3), layout="constrained")
    for axes, (kind, rows) in zip(
        figure.subplots(1, len(table.types), squeeze=False)[0], table.values.items(), strict=True
    ):
        image = axes.imshow(rows, vmin=limits[0], vmax=limits[1], cmap="viridis", aspect="auto", origin="lower")
        axes.set(title=kind, xlabel="head", ylabel="layer", xticks=range(len(rows[0])), yticks=range(len(rows)))
    figure.colorbar(image, ax=figure.axes, label=table.name)
    return figure


def results_table(runs: Mapping[str, Mapping[str, str]]) -> str:
    """Runs by name, each a row of named cells; the columns are those of the first run."""
    columns = list(next(iter(runs.values())))
    return text_table(["model", *columns], [[name, *(cells[c] for c in columns)] for name, cells in runs.items()])
