"""Compare the heads that masks or checkpoints keep."""

import itertools
from dataclasses import asdict

from fairseq_headgates.cli.commands.compare import CompareOptions
from fairseq_headgates.cli.output import say
from fairseq_headgates.cli.parser import chosen_types
from fairseq_headgates.drawing.tables import matrix, overlap_table, text_of
from fairseq_headgates.files import to_json, write_whole
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.plugin.models.building import read_mask
from fairseq_headgates.scores.agreement import common_types, overlap


def run(options: CompareOptions) -> None:
    """Run `headgates compare`."""
    if len(options.masks) < 2 or len(set(options.masks)) < len(options.masks):
        raise ValueError(f"MASK is {' '.join(options.masks)}: name at least two masks, each once")
    masks = {name: HeadTable(read_mask(name).layers, name) for name in options.masks}
    types, pairs = chosen_types(options.types), []
    for a, b in itertools.combinations(masks.values(), 2):
        common = types or _compared(a, b)
        for group in [*((each,) for each in common), *[common] * (len(common) != 1)]:  # an error without any
            pairs.append({"a": a.name, "b": b.name, "types": ",".join(group), **asdict(overlap(a, b, group))})
    result = to_json({"format": "headgates.overlap/1", "pairs": pairs})
    if options.out is not None:
        write_whole(options.out, result + "\n", options.force)
    text = text_of(overlap_table(pairs))
    if len(masks) > 2:
        last = {(pair["a"], pair["b"]): pair["jaccard"] for pair in pairs}  # that of all types
        text = f"{matrix('Jaccard', list(masks), last)}\n\n{text}"
    say(result if options.json else text)


def _compared(a: HeadTable, b: HeadTable) -> tuple[str, ...]:
    """Return the attention types of both masks, without those that nothing was removed from, if others are left."""
    common = common_types(a, b)
    pruned = tuple(each for each in common if any(min(mask.heads(each), default=1) <= 0 for mask in (a, b)))
    return pruned or common
