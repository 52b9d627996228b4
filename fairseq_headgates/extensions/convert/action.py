"""Prune a checkpoint, and write it as a CTranslate2 model."""

import re
from pathlib import Path

from torch import nn

from fairseq_headgates.attention.cuts import kept_mask, prune
from fairseq_headgates.attention.modules import head_counts
from fairseq_headgates.cli.choice import chosen_heads
from fairseq_headgates.extensions.convert.command import ConvertOptions
from fairseq_headgates.extensions.convert.ctranslate2 import check_model, check_output, to_ctranslate2
from fairseq_headgates.extensions.convert.dictionaries import load_dictionaries
from fairseq_headgates.files import parse_json, read_text
from fairseq_headgates.files.writing import refuse_standard_output
from fairseq_headgates.heads import HeadId, parse_heads
from fairseq_headgates.heads.functions import best_head
from fairseq_headgates.messages import quoted
from fairseq_headgates.plugin.models.building import load_model, warn_unfinished


def run(options: ConvertOptions) -> None:
    """Run `headgates convert`."""
    refuse_standard_output(options.output)
    options.keep_inputs(options.output)
    check_output(Path(options.output), options.force)
    state, model = load_model(options.checkpoint, options.trust, options.arch)
    warn_unfinished(state, model)
    pruned = prune(model, chosen_heads(options, model))
    check_model(pruned)
    aligned = [] if options.alignment_heads is None else _alignment_heads(options.alignment_heads, pruned)
    source, target = load_dictionaries(state, options.data or Path(options.checkpoint).parent)
    to_ctranslate2(pruned, source, target, options.output, options.quantization, options.force, aligned)


def _alignment_heads(text: str, model: nn.Module) -> list[HeadId]:
    """Return the heads that --alignment-heads names, or the best that is left of those of a functions file."""
    if re.match("[a-z-]+:", text):
        return parse_heads(text, head_counts(model), "--alignment-heads")
    hint = "give heads, or a file of `headgates functions --out`"
    try:
        return [best_head(parse_json(read_text(text, "the functions", hint), text, hint), kept_mask(model))]
    except (AttributeError, KeyError, TypeError, IndexError):
        raise ValueError(
            f"{quoted(text)} is not a file of `headgates functions --out` of one checkpoint: give one, or heads"
        ) from None
