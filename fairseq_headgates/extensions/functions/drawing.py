"""Text tables of the functions of heads (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_headgates.drawing.tables import or_dash, percent, text_table
from fairseq_headgates.heads import TYPES
from fairseq_headgates.heads.functions import open_heads


def alignment_line(written: Mapping[str, Any], sentences: int) -> str:
    """Format what alignments were written."""
    left_out = written["left_out"]
    empty = f", {left_out} left empty (unknown tokens, or too long for the model)" if left_out else ""
    return f"alignments by {written['by']}: {sentences} sentences{empty}"


def statistics_table(result: Mapping[str, Any]) -> str:
    """Format the statistics of all open heads: one block per attention type, a line per head."""
    blocks = []
    for attention_type in result["heads"]:
        heads = [*open_heads(result, attention_type)]
        if not heads:
            continue
        names = list(dict.fromkeys(name for _, entry in heads for name in entry["statistics"]))
        rows = [
            [
                f"layer {head.layer} head {head.head}",
                f"{entry['positional']['offset']:+d}",
                percent(entry["positional"]["rate"]),
                *(f"{entry['statistics'][name]:.3f}" if name in entry["statistics"] else "-" for name in names),
            ]
            for head, entry in heads
        ]
        blocks.append(text_table([attention_type, "offset", "rate", *names], rows))
    return "\n\n".join(blocks)


def drift_table(results: Mapping[str, Mapping[str, Any]], tests: Mapping[str, Mapping[str, Any]]) -> str:
    """Format which heads have each function in several checkpoints, and whether heads with functions are kept.

    Args:
        results: functions by the name of the checkpoint; the first is that before pruning
        tests: for each other checkpoint the numbers of Fisher's exact test; see `functions.kept_functions`
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for checkpoint, result in results.items():
        for head, entry in open_heads(result):
            for name in entry["functions"]:
                cell = found.setdefault((head.attention_type, name), {}).setdefault(checkpoint, [])
                cell.append(f"{head.layer}.{head.head}")
    order = sorted(found, key=lambda key: (TYPES.index(key[0]), key[1]))
    rows = [
        [f"{each} {name}", *(" ".join(found[each, name].get(c, [])) or "-" for c in results)] for each, name in order
    ]
    kept = [
        [
            name,
            attention_type,
            f"{test['kept_with']} of {test['with']}",
            f"{test['kept_without']} of {test['without']}",
            or_dash(test["p"], ".3f"),
        ]
        for name, by_type in tests.items()
        for attention_type, test in by_type.items()
    ]
    table = text_table(["heads (layer.head) with the function", *results], rows)
    return f"{table}\n\n{text_table(['heads still open in', 'type', 'with a function', 'without', 'p'], kept)}"


def scored_table(tests: Sequence[Mapping[str, Any]]) -> str:
    """Format the comparison of scores of heads with and without a function; see `functions.scored_functions`."""
    rows = [
        [
            test["method"],
            test["type"],
            str(test["with"]),
            str(test["without"]),
            or_dash(test["r"], "+.2f"),
            or_dash(test["p"], ".3f"),
        ]
        for test in tests
    ]
    return text_table(["scores of open heads", "type", "with a function", "without", "rank-biserial r", "p"], rows)
