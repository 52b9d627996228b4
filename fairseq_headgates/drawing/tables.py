"""Text tables of gates, scores, curves and results (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import isfinite, isnan
from typing import Any

from fairseq_headgates.drawing.result import Table
from fairseq_headgates.drawing.text import columns
from fairseq_headgates.heads import HeadId, HeadTable
from fairseq_headgates.messages import printable

TITLES = {
    "enc-self": "encoder self-attention",
    "dec-self": "decoder self-attention",
    "dec-enc": "cross-attention",
}
METRICS = {"nll": "bits per target token", "ppl": "perplexity", "bleu": "BLEU", "accuracy": "accuracy"}


def named(head: HeadId) -> str:
    """Return the name of a head in a sentence."""
    return f"{head.attention_type} layer {head.layer} head {head.head}"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right. Cells have no line breaks."""
    header, rows = [*map(printable, header)], [[*map(printable, row)] for row in rows]
    widths = [max(columns(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        blanks = [" " * (width - columns(cell)) for cell, width in zip(row, widths, strict=True)]
        others = (blank + cell for blank, cell in zip(blanks[1:], row[1:], strict=True))
        return "  ".join([row[0] + blanks[0], *others]).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])


def text_of(*tables: Table) -> str:
    """Format tables with their titles."""
    texts = [(table.title, text_table(table.header, table.rows) if table.rows else "") for table in tables]  # type: ignore[arg-type]
    return "\n\n".join("\n".join(filter(None, text)) for text in texts)


def gate_tables(open_probability: HeadTable, gate: HeadTable) -> list[Table]:
    """Return P(open) and evaluation gate of every head: a table per attention type, layers by heads."""
    tables = []
    for attention_type, rows in gate.layers.items():
        alive, total = gate.count(attention_type)
        heads = max(len(row) for row in rows)
        cells = [
            [
                f"layer {i}",
                *(f"{p:.2f}/{g:.2f}" for p, g in zip(open_probability.layers[attention_type][i], row, strict=True)),
                str(sum(g > 0 for g in row)),
            ]
            for i, row in enumerate(rows)
        ]
        title = f"{attention_type} ({TITLES[attention_type]}): {alive} of {total} heads open"
        tables.append(Table(title, ["P(open)/gate", *(f"head {j}" for j in range(heads)), "open"], cells))
    return tables


def rounded(value: float, form: str) -> str:
    """Format a number with a format specification such as "+.2f"; zero has no minus sign."""
    text = format(value, form)
    is_zero = isfinite(value) and not any(digit in text for digit in "123456789")
    return format(0.0, form) if is_zero else text


def with_interval(value: float, interval: Sequence[float] | None, form: str) -> str:
    """Format a number and its interval, if there is one, with a format specification such as ".2f"."""
    return format(value, form) + (f" [{interval[0]:{form}}, {interval[1]:{form}}]" if interval else "")


def score_tables(scores: HeadTable) -> list[Table]:
    """Return scores: a table per attention type, layers by heads; '-' for removed heads (NaN)."""
    tables = []
    for attention_type, rows in scores.layers.items():
        cells = [[f"layer {i}", *("-" if isnan(v) else rounded(v, ".4f") for v in row)] for i, row in enumerate(rows)]
        header = [scores.name, *(f"head {j}" for j in range(max(map(len, rows))))]
        tables.append(Table(f"{attention_type} ({TITLES[attention_type]})", header, cells))
    return tables


def layer_tables(
    difference: Mapping[HeadId, float], p_values: Mapping[HeadId, float | None], metric: str = "bleu"
) -> list[Table]:
    """Return differences of a metric with a mark of significance: a table per attention type, layers by heads."""
    cells: dict[str, dict[int, dict[int, str]]] = {}
    for head, value in difference.items():
        cell = rounded(value, "+.2f") + _stars(p_values.get(head))
        cells.setdefault(head.attention_type, {}).setdefault(head.layer, {})[head.head] = cell
    tables = []
    for attention_type, layers in cells.items():
        heads = range(1 + max(head for row in layers.values() for head in row))
        rows = [[f"layer {i}", *(row.get(j, "-") for j in heads)] for i, row in layers.items()]
        header = [METRICS[metric], *(f"head {j}" for j in heads)]
        tables.append(Table(f"{attention_type} ({TITLES[attention_type]})", header, rows))
    return tables


def best_head_table(difference: Mapping[HeadId, float], p_values: Mapping[HeadId, float | None]) -> Table:
    """Return differences of a metric with only the best head of a layer, and that head: layers by attention types."""
    cells: dict[int, dict[str, str]] = {}
    for head, value in difference.items():
        text = f"{rounded(value, '+.2f')}{_stars(p_values.get(head))} (head {head.head})"
        cells.setdefault(head.layer, {})[head.attention_type] = text
    types = [attention_type for attention_type in TITLES if any(attention_type in row for row in cells.values())]
    rows = [[f"layer {i}", *(cells[i].get(attention_type, "-") for attention_type in types)] for i in sorted(cells)]
    return Table("", ["one head alone", *types], rows)


def _stars(p: float | None) -> str:
    """Return stars of significance, padded to the same width."""
    return "  " if p is None or p >= 0.05 else "* " if p >= 0.01 else "**"


def curve_tables(points: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return pruning curves: percent removed, heads kept, loss and perplexity, BLEU or accuracy of each point."""
    metric = next((name for name in ("ppl", "accuracy", "bleu") if any(p.get(name) is not None for p in points)), "")
    header = [
        "removed",
        "heads",
        f"bits/{points[0].get('unit', 'token').split()[-1]}",
        *([METRICS[metric]] if metric else []),
    ]
    tested = any("p_value" in p for p in points)
    tables = []
    for (checkpoint, by, types), group in groupby(points, key=lambda p: (p["checkpoint"], p["by"], p["types"])):
        rows = [
            [f"{p['removed']:g}%", str(p["heads"]), f"{p['nll']:.4f}"]
            + [or_dash(p.get(metric), ".2f")] * bool(metric)
            + [p_value_text(p.get("p_value"))] * tested
            for p in group
        ]
        tables.append(Table(f"{types} by {by} ({checkpoint})", [*header, *["p"] * tested], rows))
    return tables


def agreement_table(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Format correlations with p-values, and the share of common best heads: a line per pair of scores."""
    rows = [
        [
            f"{p['a']} ~ {p['b']}",
            p["types"],
            str(p["heads"]),
            or_dash(p["pearson"], ".2f"),
            p_value_text(p["pearson_p"]),
            or_dash(p["spearman"], ".2f"),
            p_value_text(p["spearman_p"]),
            "-" if isnan(p["shared"]) else f"{p['shared']:.0%} of {p['top']}",
        ]
        for p in pairs
    ]
    return text_table(["scores", "types", "heads", "Pearson", "p", "Spearman", "p", "top overlap"], rows)


def overlap_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the heads that two masks have in common, against chance: a line per pair of masks and attention types."""
    rows = [
        [
            f"{p['a']} ~ {p['b']}",
            p["types"],
            str(p["heads"]),
            "{} and {}".format(*p["kept"]),
            str(p["common"]),
            f"{p['expected']:.1f}",
            or_dash(p["jaccard"], ".2f"),
            p_value_text(p["p"]),
        ]
        for p in pairs
    ]
    return Table("", ["masks", "types", "heads", "kept", "common", "by chance", "Jaccard", "p"], rows)


def matrix(title: str, names: Sequence[str], values: Mapping[tuple[str, str], float]) -> str:
    """Format a symmetric matrix of the numbers of pairs."""
    both = {**values, **{(b, a): value for (a, b), value in values.items()}}
    rows = [[a, *("" if a == b else or_dash(both[a, b], ".2f") for b in names)] for a in names]
    return text_table([title, *names], rows)


def or_dash(value: float | None, form: str) -> str:
    """Format a number; '-' for None and NaN."""
    return "-" if value is None or isnan(value) else f"{value:{form}}"


def short(value: float) -> str:
    """Return a number in at most five characters where possible: 0.05, 1, 12.3, 1e-05."""
    if value == 0 or 0.005 <= abs(value) < 100:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    text = f"{value:.0f}" if 100 <= abs(value) < 10000 else f"{value:.1g}"
    return text.replace("-0.", "-.")


def p_value_text(value: float | None) -> str:
    """Format a p-value; '-' for None and NaN."""
    return "<0.001" if value is not None and value < 0.001 else or_dash(value, ".3f")


def removal_table(before: HeadTable, after: HeadTable) -> str:
    """Format what pruning removes: heads before, kept, and kept in each layer; a line per attention type."""
    rows = []
    for attention_type, layers in after.layers.items():
        per_layer = " ".join(str(sum(value > 0 for value in layer)) for layer in layers)
        counts = (str(table.count(attention_type)[0]) for table in (before, after))
        rows.append([attention_type, *counts, per_layer])
    sums = [str(sum(table.count(attention_type)[0] for attention_type in table.types)) for table in (before, after)]
    return text_table(["", "heads", "kept", "by layer"], [*rows, ["total", *sums, ""]])


def open_counts(gate: HeadTable) -> dict[str, tuple[int, int]]:
    """Return {type: (open heads, all heads)}, and the sum over types as "total"."""
    counts = {attention_type: gate.count(attention_type) for attention_type in gate.types}
    return {**counts, "total": (sum(c[0] for c in counts.values()), sum(c[1] for c in counts.values()))}


def percent(share: float) -> str:
    """Format a share as a percentage."""
    return f"{100 * share:.1f}%"
