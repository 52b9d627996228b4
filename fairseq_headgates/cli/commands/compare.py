"""`headgates compare`: compare the heads that masks or checkpoints keep."""

import itertools
from dataclasses import asdict
from typing import Any

from fairseq_headgates.cli.command import Answer, argument, command
from fairseq_headgates.cli.options import Output, types
from fairseq_headgates.cli.parser import chosen_types
from fairseq_headgates.drawing.tables import matrix, overlap_table, text_of
from fairseq_headgates.files import to_json
from fairseq_headgates.heads import HeadTable


@command(
    "compare",
    "headgates compare gated/checkpoint_last.pt half.pt",
    "headgates compare seed1.json seed2.json seed3.json",
)
class Compare(Output):
    """Compare the heads that masks or checkpoints keep.

    For each pair of masks, print the number of heads that both keep, the Jaccard index, and the probability that random
    masks of the same sizes overlap at least as much.
    """

    masks: list[str] = argument(
        metavar="MASK",
        nargs="+",
        reads="the mask",
        help="two or more mask files or checkpoints of this plugin, with the same layers and heads",
    )
    types: str | None = types(
        "compare only these attention types (default: types of both masks that at least one of them prunes)"
    )

    def check(self) -> None:
        """Raise ValueError unless there are two masks or more, each once."""
        if len(self.masks) < 2 or len(set(self.masks)) < len(self.masks):
            raise ValueError(f"MASK is {' '.join(self.masks)}: name at least two masks, each once")

    def run(self, session: Any) -> Answer:
        """Compare each pair of masks."""
        from fairseq_headgates.plugin.models.building import read_mask
        from fairseq_headgates.scores.agreement import overlap

        masks = {name: HeadTable(read_mask(name).layers, name) for name in self.masks}
        types, pairs = chosen_types(self.types), []
        for a, b in itertools.combinations(masks.values(), 2):
            common = types or _compared(a, b)
            for group in [*((each,) for each in common), *[common] * (len(common) != 1)]:  # an error without any
                pairs.append({"a": a.name, "b": b.name, "types": ",".join(group), **asdict(overlap(a, b, group))})
        content, text = to_json({"format": "headgates.overlap/1", "pairs": pairs}), text_of(overlap_table(pairs))
        if len(masks) > 2:
            last = {(pair["a"], pair["b"]): pair["jaccard"] for pair in pairs}  # that of all types
            text = f"{matrix('Jaccard', list(masks), last)}\n\n{text}"
        return Answer(text=text, json=content, files={"out": content + "\n"})


def _compared(a: HeadTable, b: HeadTable) -> tuple[str, ...]:
    """Return the attention types of both masks, without those that nothing was removed from, if others are left."""
    from fairseq_headgates.scores.agreement import common_types

    common = common_types(a, b)
    pruned = tuple(each for each in common if any(min(mask.heads(each), default=1) <= 0 for mask in (a, b)))
    return pruned or common
