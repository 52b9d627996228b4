"""The heads that the options of prune and convert choose."""

from torch import nn

from fairseq_headgates.attention.choice import best_heads
from fairseq_headgates.attention.cuts import open_mask
from fairseq_headgates.cli.options import Choice
from fairseq_headgates.cli.parser import chosen_types
from fairseq_headgates.heads import HeadTable, parse_scores
from fairseq_headgates.plugin.models.building import read_mask


def chosen_heads(options: Choice, model: nn.Module) -> HeadTable:
    """Return the mask of the heads to keep. Raise ValueError for options that contradict each other or the model."""
    names = ("keep", "method", "types", "min_per_layer")
    given = ", ".join(f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None)
    if given and options.scores is None:
        raise ValueError(f"{given} given without --scores: add --scores FILE, or leave out {given}")
    if options.alive is not None:
        return read_mask(options.alive)
    if options.scores is None:
        return open_mask(model, options.threshold)
    if options.keep is None:
        raise ValueError("--scores without --keep: give the number of heads to keep, --keep 12 or --keep 0.5")
    scores, types = parse_scores(options.scores, options.method), chosen_types(options.types)
    return best_heads(scores, options.keep, open_mask(model), types, options.min_per_layer or 0)
