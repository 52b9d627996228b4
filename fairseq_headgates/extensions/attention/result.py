"""Attention maps as figures (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fairseq_headgates.drawing.result import Plot, Result, checkpoint_name
from fairseq_headgates.extensions.attention.drawing import FORMAT, attention_figure, check_size
from fairseq_headgates.heads import TYPES, AttentionMap, HeadId

LARGEST = 20_000  # cells of all maps of a file


def results(contents: Sequence[Mapping[str, Any]]) -> Iterator[Result]:
    """Yield the maps of files of `headgates attention`."""
    for each in contents:
        numbers = each.get("lines") or range(1, len(each["sentences"]) + 1)
        maps = dict(zip(numbers, map(_maps, each["sentences"]), strict=True))
        check_size(maps.values(), LARGEST)
        yield Result(
            kind="Attention maps",
            title=checkpoint_name(each["signature"]),
            signature=each["signature"],
            note="Maps of heads with a closed gate are grey; a removed head has no map.",
            figures=[
                Plot(f"sentence {number}", partial(attention_figure, {number: of_sentence}))
                for number, of_sentence in maps.items()
            ],
        )


def _maps(sentence: Mapping[str, Any]) -> list[AttentionMap]:
    """Return the maps of the JSON of a sentence."""
    found = []
    for name, maps in sorted(sentence.items(), key=lambda item: TYPES.index(item[0])):
        for head in maps["heads"]:
            weights = head["weights"] or []
            if weights and (len(weights) != len(maps["queries"]) or {*map(len, weights)} != {len(maps["keys"])}):
                raise ValueError(f"{name} does not have a row of weights for each query, with a weight for each key")
            of_head = HeadId(name, head["layer"], head["head"])
            found.append(AttentionMap(of_head, head["gate"], maps["queries"], maps["keys"], weights))
    return found


RESULTS = {FORMAT: results}
