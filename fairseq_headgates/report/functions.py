"""Text tables of the functions of heads (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairseq_headgates.heads import TYPES
from fairseq_headgates.heads.files import open_heads
from fairseq_headgates.report.tables import TITLES, text_table

GROUPS = ("positional", "syntactic", "rare", "alignment")


def group_of(function: str) -> str:
    """Return the group that a function belongs to, one of `GROUPS`, by its name."""
    name = function.split()[0]
    return name if name in GROUPS else "syntactic"


def group_counts(result: Mapping[str, Any], attention_type: str) -> dict[str, int]:
    """Return the number of open heads of a type in each group, and without a function ("none").

    A head with functions of several groups counts for the first of them, in the order of `GROUPS`.
    """
    counts = dict.fromkeys([*GROUPS, "none"], 0)
    for head, entry in open_heads(result):
        if head.attention_type == attention_type:
            found = {group_of(name) for name in entry["functions"]}
            counts[next((group for group in GROUPS if group in found), "none")] += 1
    return counts


def function_table(result: Mapping[str, Any]) -> str:
    """Format the heads that have a function: one block per attention type, a line for each function."""
    blocks = []
    for attention_type in result["heads"]:
        heads = [(head, entry) for head, entry in open_heads(result) if head.attention_type == attention_type]
        rows = [
            [f"layer {head.layer} head {head.head}", *_cells(result, attention_type, entry, name)]
            for head, entry in heads
            for name in entry["functions"]
        ]
        with_function = sum(bool(entry["functions"]) for _, entry in heads)
        title = (
            f"{attention_type} ({TITLES[attention_type]}): {with_function} of {len(heads)} open heads have a function"
        )
        header = [attention_type, "function", "rate", "interval", "baseline", "count"]
        blocks.append(title + ("\n" + text_table(header, rows) if rows else ""))
    return "\n\n".join([*blocks, *_trees(result)])


def alignment_line(written: Mapping[str, Any], sentences: int) -> str:
    """Format what alignments were written, and their errors if they were compared with gold alignments."""
    left_out = written["left_out"]
    empty = f", {left_out} left empty (unknown tokens, or too long for the model)" if left_out else ""
    line = f"alignments by {written['by']}: {sentences} sentences{empty}"
    if written.get("aer") is None:
        return line
    parts = {"AER": "aer", "precision": "precision", "recall": "recall"}
    numbers = (f"{name} {100 * value:.1f}%" for name, key in parts.items() if (value := written[key]) is not None)
    return f"{line}; {', '.join(numbers)} on {written['sentences']} sentences"


def _cells(result: Mapping[str, Any], attention_type: str, entry: Mapping[str, Any], name: str) -> list[str]:
    """Return name, rate, interval, baseline and count of one function."""
    if name.startswith("positional"):
        found = entry["positional"]
        return [name, _percent(found["rate"]), "", "", str(found["count"])]
    found = entry["rare"] if name == "rare" else entry["words"][name]
    baseline = "" if name == "rare" else _percent(result["relations"][attention_type][name]["baseline"])
    interval = f"{_percent(found['low'])}..{_percent(found['high'])}"
    return [name, _percent(found["rate"]), interval, baseline, str(found["count"])]


def _trees(result: Mapping[str, Any]) -> Iterator[str]:
    for side, number in result["trees"].items():
        yield (
            f"trees of the {side}: {number['sentences']} sentences; {number['matched_words']} of {number['words']} "
            f"words found in the text; {number['matched_pairs']} of {number['pairs']} pairs counted"
        )
    if "alignments" in result:
        number = result["alignments"]
        yield f"alignments: {number['sentences']} sentences, {number['left_out']} left out because of unknown tokens"


def statistics_table(result: Mapping[str, Any]) -> str:
    """Format the statistics of all open heads: one block per attention type, a line per head."""
    blocks = []
    for attention_type in result["heads"]:
        heads = [(head, entry) for head, entry in open_heads(result) if head.attention_type == attention_type]
        if not heads:
            continue
        names = list(dict.fromkeys(name for _, entry in heads for name in entry["statistics"]))
        rows = [
            [
                f"layer {head.layer} head {head.head}",
                f"{entry['positional']['offset']:+d}",
                _percent(entry["positional"]["rate"]),
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
    table = text_table(["heads (layer.head) with the function", *results], rows)
    return "\n\n".join([table, _kept_table(tests)]) if tests else table


def _kept_table(tests: Mapping[str, Mapping[str, Any]]) -> str:
    rows: list[Sequence[str]] = [
        [
            name,
            attention_type,
            f"{test['kept_with']} of {test['with']}",
            f"{test['kept_without']} of {test['without']}",
            _or_dash(test["p"], ".3f"),
        ]
        for name, by_type in tests.items()
        for attention_type, test in by_type.items()
    ]
    return text_table(["heads still open in", "type", "with a function", "without", "p"], rows)


def scored_table(tests: Sequence[Mapping[str, Any]]) -> str:
    """Format the comparison of scores of heads with and without a function; see `functions.scored_functions`."""
    rows = [
        [
            test["method"],
            test["type"],
            str(test["with"]),
            str(test["without"]),
            _or_dash(test["r"], "+.2f"),
            _or_dash(test["p"], ".3f"),
        ]
        for test in tests
    ]
    return text_table(["scores of open heads", "type", "with a function", "without", "rank-biserial r", "p"], rows)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"
