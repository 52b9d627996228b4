"""Functions of heads as tables and figures (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fairseq_headgates.drawing.panels import Panel, row_of, set_label
from fairseq_headgates.drawing.result import Plot, Result, checkpoint_name
from fairseq_headgates.drawing.text import escaped
from fairseq_headgates.extensions.functions.drawing import annotation_lines, function_tables, group_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = (
    "Open heads by function, as in Voita et al. 2019. A head with several functions counts for the first of "
    "positional, syntactic, rare, alignment."
)


def results(contents: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
    """Yield the open heads of several models by function, then the functions of each model."""
    names = [checkpoint_name(each["signature"]) for each in contents]
    types = list(dict.fromkeys(each for content in contents for each in content["heads"]))
    counts = {
        each: [group_counts(content, each) if each in content["heads"] else {} for content in contents]
        for each in types
    }
    panels = [Panel(each, partial(_columns, names=names, counts=found)) for each, found in counts.items()]
    kind = "Functions of heads"
    if len(contents) > 1:
        yield Result(kind=kind, note=NOTE, figures=[Plot("Open heads by function", partial(row_of, panels))])
    for name, content in zip(names, contents, strict=True):
        yield Result(
            kind=kind,
            title=name,
            signature=content["signature"],
            note=" ".join(f"{line[:1].upper()}{line[1:]}." for line in annotation_lines(content)),
            tables=function_tables(content),
        )


def _columns(axes: Axes, names: Sequence[str], counts: Sequence[Mapping[str, int]]) -> None:
    """Draw a column of open heads for each model, coloured by function; a figure of Voita et al. 2019, section 6.2."""
    bottom = [0] * len(counts)
    for group in max(counts, key=len):
        heights = [found.get(group, 0) for found in counts]
        if any(heights):
            axes.bar(
                range(len(counts)), heights, 0.7, bottom, label=group, color="lightgray" if group == "none" else None
            )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    set_label(axes, "", "open heads", counts=True)
    axes.set_xticks(range(len(names)), map(escaped, names), rotation=20, ha="right", fontsize="small")


RESULTS = {"headgates.functions/1": results}
