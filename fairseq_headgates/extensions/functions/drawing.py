"""Tables of the functions of heads (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from fairseq_headgates.drawing.result import Table
from fairseq_headgates.drawing.tables import TITLES, or_dash, percent, text_table
from fairseq_headgates.heads import TYPES
from fairseq_headgates.heads.functions import open_heads

GROUPS = ("positional", "syntactic", "rare", "alignment")
NEAREST = 3  # heads shown of a type without functions


def group_of(function: str) -> str:
    """Return the group that a function belongs to, one of `GROUPS`, by its name."""
    name = function.split()[0]
    return name if name in GROUPS else "syntactic"


def group_counts(result: Mapping[str, Any], attention_type: str) -> dict[str, int]:
    """Return the number of open heads of a type in each group, and without a function ("none").

    A head with functions of several groups counts for the first of them, in the order of `GROUPS`.
    """
    counts = dict.fromkeys([*GROUPS, "none"], 0)
    for _, entry in open_heads(result, attention_type):
        found = {group_of(name) for name in entry["functions"]}
        counts[next((group for group in GROUPS if group in found), "none")] += 1
    return counts


def function_tables(result: Mapping[str, Any]) -> list[Table]:
    """Return the heads that have a function: a table per attention type, a line for each function.

    Where no head has one, the lines are those of the nearest heads.
    """
    tables = []
    for attention_type in result["heads"]:
        heads = [*open_heads(result, attention_type)]
        shown = [(head, entry, name) for head, entry in heads for name in entry["functions"]]
        with_function = sum(bool(entry["functions"]) for _, entry in heads)
        title = (
            f"{attention_type} ({TITLES[attention_type]}): {with_function} of {len(heads)} open heads have a function"
        )
        if heads and not shown:
            title += "; the nearest:"
            near = [(*_nearest(result, attention_type, entry), head, entry) for head, entry in heads]
            shown = [(head, entry, name) for _, name, head, entry in sorted(near, key=itemgetter(0))[:NEAREST]]
        rows = [
            [f"layer {head.layer} head {head.head}", *_cells(result, attention_type, entry, name)]
            for head, entry, name in shown
        ]
        header = [attention_type, "function", "rate", "interval", "baseline", "count"]
        tables.append(Table(title, header, rows))
    return tables


def _nearest(result: Mapping[str, Any], attention_type: str, entry: Mapping[str, Any]) -> tuple[float, str]:
    """Return by how much the rate of a head is below the threshold of its nearest function, and the function."""
    options, found = result["options"], entry["positional"]
    lacking = [(options["positional"] / 100 - found["rate"], f"positional {found['offset']:+d}")]
    if "rare" in entry:
        lacking.append((options["rare"] / 100 - entry["rare"]["rate"], "rare"))
    for name, of_words in entry.get("words", {}).items():
        baseline = result["relations"][attention_type][name]["baseline"]
        lacking.append((baseline + options["margin"] / 100 - of_words["rate"], name))
    return min(lacking)


def _cells(result: Mapping[str, Any], attention_type: str, entry: Mapping[str, Any], name: str) -> list[str]:
    """Return name, rate, interval, baseline and count of one function."""
    if name.startswith("positional"):
        found = entry["positional"]
        return [name, percent(found["rate"]), "", "", str(found["count"])]
    found = entry["rare"] if name == "rare" else entry["words"][name]
    baseline = "" if name == "rare" else percent(result["relations"][attention_type][name]["baseline"])
    interval = f"{percent(found['low'])}..{percent(found['high'])}"
    return [name, percent(found["rate"]), interval, baseline, str(found["count"])]


def annotation_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield how much of the trees and alignments was used."""
    for side, number in result["trees"].items():
        yield (
            f"trees of the {side}: {number['sentences']} sentences; {number['matched_words']} of {number['words']} "
            f"words found in the text; {number['matched_pairs']} of {number['pairs']} pairs counted"
        )
    if "alignments" in result:
        number = result["alignments"]
        yield f"alignments: {number['sentences']} sentences, {number['left_out']} left out because of unknown tokens"


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
