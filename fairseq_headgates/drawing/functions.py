"""Tables of the functions of heads, of a file of `headgates functions` (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from fairseq_headgates.drawing.tables import TITLES, percent, text_table
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


def function_table(result: Mapping[str, Any]) -> str:
    """Format the heads that have a function: one block per attention type, a line for each function.

    Where no head has one, the lines are those of the nearest heads.
    """
    blocks = []
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
        blocks.append(title + ("\n" + text_table(header, rows) if rows else ""))
    return "\n\n".join([*blocks, *_trees(result)])


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


def _trees(result: Mapping[str, Any]) -> Iterator[str]:
    for side, number in result["trees"].items():
        yield (
            f"trees of the {side}: {number['sentences']} sentences; {number['matched_words']} of {number['words']} "
            f"words found in the text; {number['matched_pairs']} of {number['pairs']} pairs counted"
        )
    if "alignments" in result:
        number = result["alignments"]
        yield f"alignments: {number['sentences']} sentences, {number['left_out']} left out because of unknown tokens"
