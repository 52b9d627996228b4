"""Tables of evaluated checkpoints, and of their differences (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_headgates.drawing.tables import p_value_text, rounded, text_table, with_interval


def evaluation_table(evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """Format evaluations by name, each the JSON object of a file of `headgates evaluate`: a line for each."""
    rows = {name: cells_of(evaluation) for name, evaluation in evaluations.items()}
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    return text_table(
        ["checkpoint", *columns], [[name, *(cells.get(c, "-") for c in columns)] for name, cells in rows.items()]
    )


def cells_of(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of an evaluation."""
    kept, total = evaluation["heads"]["total"]
    cells = {"heads": f"{kept}/{total}", "parameters": f"{evaluation['parameters']:,}"}
    for subset, loss in evaluation["losses"].items():
        cells[f"{subset} bits/{loss['unit']}"] = with_interval(loss["mean"], loss["interval"], ".4f")
        for key, title in (("perplexity", "perplexity"), ("perplexity_per_word", "per word")):
            if key in loss:
                cells[f"{subset} {title}"] = f"{loss[key]:.2f}"
    for name, score in evaluation["scores"].items():
        cells[name] = with_interval(score["score"], score["interval"], ".2f")
    if speed := evaluation["speed"]:
        cells[f"{speed['unit']}/s"] = with_interval(speed["per_second"], speed.get("interval"), ",.0f")
    return cells


def difference_table(pairs: Mapping[str, Mapping[str, Sequence[Any]]]) -> str:
    """Format differences by pair and name, each a difference with its p-value: a line for each pair."""
    names = list(dict.fromkeys(name for found in pairs.values() for name in found))
    header = ["difference", *(column for name in names for column in (name, "p"))]
    rows = []
    for pair, found in pairs.items():
        cells = [difference_cells(name, found[name]) if name in found else ("-", "-") for name in names]
        rows.append([pair, *(text for both in cells for text in both)])
    return text_table(header, rows)


def difference_cells(name: str, difference: Sequence[Any]) -> tuple[str, str]:
    """Format the difference of a score or of a loss ("loss valid"), and its p-value."""
    form = "+.4f" if name.startswith("loss") else "+.2f"
    return rounded(difference[0], form), p_value_text(difference[1])
