"""Head tables for people: text tables and heat maps. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import isnan
from typing import TYPE_CHECKING, Any

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


def score_table(scores: HeadTable) -> str:
    """One block per attention type, layers by heads, of any numbers; '-' for one that is not there (NaN)."""
    blocks = []
    for kind, rows in scores.values.items():
        cells = [[f"layer {i}", *("-" if isnan(v) else f"{v:z.4f}" for v in row)] for i, row in enumerate(rows)]
        header = [scores.name, *(f"head {j}" for j in range(max(map(len, rows))))]
        blocks.append(f"{kind} ({TITLES[kind]})\n" + text_table(header, cells))
    return "\n\n".join(blocks)


def layer_tables(difference: Mapping[str, float], p_values: Mapping[str, float]) -> list[str]:
    """A table per attention type, layers by heads, of values by name ('dec-enc 5 0': type, layer, head)."""
    cells: dict[str, dict[int, dict[int, str]]] = {}
    for name, value in difference.items():
        kind, layer, head = name.split()
        cell = f"{value:+z.2f}{_stars(p_values.get(name))}"
        cells.setdefault(kind, {}).setdefault(int(layer), {})[int(head)] = cell
    tables = []
    for kind, layers in cells.items():
        heads = range(1 + max(head for row in layers.values() for head in row))
        rows = [[f"layer {i}", *(row.get(j, "-") for j in heads)] for i, row in layers.items()]
        tables.append(f"{kind} ({TITLES[kind]})\n" + text_table(["BLEU", *(f"head {j}" for j in heads)], rows))
    return tables


def best_head_table(difference: Mapping[str, float], p_values: Mapping[str, float]) -> str:
    """Layers by attention types: what is lost with the best head of a layer alone, and which head that is."""
    cells: dict[int, dict[str, str]] = {}
    for name, value in difference.items():
        kind, layer, head = name.split()
        cells.setdefault(int(layer), {})[kind] = f"{value:+z.2f}{_stars(p_values.get(name))} (head {head})"
    types = [kind for kind in TITLES if any(kind in row for row in cells.values())]
    rows = [[f"layer {i}", *(cells[i].get(kind, "-") for kind in types)] for i in sorted(cells)]
    return text_table(["one head alone", *types], rows)


def _stars(p: float | None) -> str:
    """Padded to one width, so that numbers stay below each other."""
    return "  " if p is None or p >= 0.05 else "* " if p >= 0.01 else "**"


def curve_table(points: Sequence[Mapping[str, Any]]) -> str:
    """Percent removed by curves: the heads that stay, bits per token and BLEU of each."""
    blocks = []
    for (checkpoint, by, types), group in groupby(points, key=lambda p: (p["checkpoint"], p["by"], p["types"])):
        rows = [
            [
                f"{p['removed']:g}%",
                str(p["heads"]),
                f"{p['nll']:.4f}",
                "-" if p["bleu"] is None else f"{p['bleu']:.2f}",
            ]
            for p in group
        ]
        blocks.append(
            f"{types} by {by} ({checkpoint})\n" + text_table(["removed", "heads", "bits/token", "BLEU"], rows)
        )
    return "\n\n".join(blocks)


def curve_plot(points: Sequence[Mapping[str, Any]]) -> Figure:
    """Lines over the percent of heads removed: bits per token and, where it was measured, BLEU. Needs matplotlib."""
    from matplotlib.figure import Figure

    measures = [name for name in ("nll", "bleu") if any(p[name] is not None for p in points)]
    figure = Figure(figsize=(5 * len(measures), 4), layout="constrained")
    labels = {"nll": "bits per target token", "bleu": "BLEU"}
    several = len({(p["checkpoint"], p["by"]) for p in points}) > 1
    for axes, name in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        for (checkpoint, by, types), group in groupby(points, key=lambda p: (p["checkpoint"], p["by"], p["types"])):
            line = [(p["removed"], p[name]) for p in group]
            axes.plot(*zip(*line, strict=True), marker="o", label=f"{types} {by} {checkpoint}" if several else types)
        axes.set(xlabel="heads removed (%)", ylabel=labels[name])
        axes.legend()
    return figure


def agreement_table(pairs: Sequence[Mapping[str, Any]]) -> str:
    """A line per pair of scores: correlations with p-values, and the best heads that they share."""
    rows = [
        [
            f"{p['a']} ~ {p['b']}",
            p["types"],
            str(p["heads"]),
            _number(p["pearson"]),
            _p_value(p["pearson_p"]),
            _number(p["spearman"]),
            _p_value(p["spearman_p"]),
            "-" if isnan(p["shared"]) else f"{p['shared']:.0%} of {p['top']}",
        ]
        for p in pairs
    ]
    return text_table(["scores", "types", "heads", "Pearson", "p", "Spearman", "p", "best shared"], rows)


def matrix(title: str, names: Sequence[str], values: Mapping[tuple[str, str], float]) -> str:
    """A symmetric table of the numbers of pairs."""
    both = {**values, **{(b, a): value for (a, b), value in values.items()}}
    rows = [[a, *("" if a == b else _number(both[a, b]) for b in names)] for a in names]
    return text_table([title, *names], rows)


def _number(value: float) -> str:
    return "-" if isnan(value) else f"{value:.2f}"


def _p_value(value: float) -> str:
    return "-" if isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}"


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


def heat_map(table: HeadTable, limits: tuple[float, float] | None = (0.0, 1.0)) -> Figure:
    """A heat map per attention type, layers (top: the last) by heads. Needs matplotlib."""
    return heat_maps([table], limits)


def heat_maps(tables: Sequence[HeadTable], limits: tuple[float, float] | None = None) -> Figure:
    """`heat_map` of several tables below each other, each from its lowest to its highest value if `limits` is None."""
    from matplotlib.figure import Figure  # not pyplot: no display, no global state

    types = list(dict.fromkeys(kind for table in tables for kind in table.types))
    figure = Figure(figsize=(1 + 3 * len(types), 3 * len(tables)), layout="constrained")
    for line, table in zip(figure.subplots(len(tables), len(types), squeeze=False), tables, strict=True):
        values = [value for kind in table.types for value in table.heads(kind) if not isnan(value)] or [0.0]
        low, high = limits or (min(values), max(values))
        for axes, kind in zip(line, types, strict=True):
            rows = table.values.get(kind)
            if rows is None:
                axes.set_axis_off()
                continue
            looks = {"cmap": "viridis", "aspect": "auto", "origin": "lower", "interpolation": "none"}
            image = axes.imshow(rows, vmin=low, vmax=high, **looks)
            axes.set(title=kind, xlabel="head", ylabel="layer", xticks=range(len(rows[0])), yticks=range(len(rows)))
        figure.colorbar(image, ax=list(line), label=table.name)
    return figure


def results_table(runs: Mapping[str, Mapping[str, str]]) -> str:
    """Runs by name, each a row of named cells; the columns are those of the first run."""
    columns = list(next(iter(runs.values())))
    return text_table(["model", *columns], [[name, *(cells[c] for c in columns)] for name, cells in runs.items()])
