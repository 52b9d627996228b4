"""`headgates convert`: prune a checkpoint as `headgates prune` does, and write it as a CTranslate2 model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import Checkpoint, Choice
from fairseq_headgates.cli.parser import filled
from fairseq_headgates.files import parse_json, read_text
from fairseq_headgates.files.writing import refuse_standard_output
from fairseq_headgates.heads import HeadId, parse_heads
from fairseq_headgates.heads.functions import best_head
from fairseq_headgates.messages import quoted

if TYPE_CHECKING:
    from torch import nn


@command(
    "convert",
    "headgates convert data-bin --path gated/checkpoint_last.pt --to ctranslate2 --out ct2",
    "headgates convert data-bin --path gated/checkpoint_last.pt --to ctranslate2 --quantization int8 --out ct2-int8",
)
class Convert(Choice, Checkpoint):
    """Write a checkpoint as a CTranslate2 model.

    Prune a checkpoint as `headgates prune` does, and write it as a CTranslate2 model. DATA is the folder of the
    dictionaries, dict.*.txt (default: the folder of CKPT).
    """

    usage = "%(prog)s [DATA] --path CKPT --to ctranslate2 --out DIR [options]"

    out: str = option(metavar="DIR", type=filled, required=True, help="the folder to write")
    to: str = option(choices=["ctranslate2"], required=True, help="the format to write")
    quantization: str | None = option(
        metavar="TYPE",
        help="type of the weights, as CTranslate2 names it: int8, int16, float16, ... (default: float32)",
    )
    alignment_heads: str | None = option(
        metavar="HEADS",
        type=filled,
        reads="the functions",
        help="heads whose mean attention weights CTranslate2 returns (return_attention): dec-enc heads of one layer, "
        "such as dec-enc:1.3,dec-enc:1.5; or a file of `headgates functions --alignment LINKS --out FILE`, for its "
        "remaining head with the highest alignment rate (default: all heads of the last layer)",
    )
    force: bool = option(default=False, help="replace DIR if it is a CTranslate2 model")

    def unrecognized(self) -> list[str]:
        """Return all words but DATA, which as an optional argument argparse would take only before the options."""
        return self.rest[1:] if self.rest and not self.rest[0].startswith("-") else self.rest

    def files_to_read(self) -> Iterator[tuple[str, str]]:
        """Yield also DATA."""
        yield from super().files_to_read()
        yield from (("the dictionaries in", data) for data in self.rest)

    def check(self) -> None:
        """Raise ValueError for an output that is standard output or an input."""
        refuse_standard_output(self.out)
        self.keep_inputs(self.out)

    def run(self, session: Any) -> Answer:
        """Prune the model, and convert it."""
        from fairseq_headgates.attention.cuts import prune
        from fairseq_headgates.cli.choice import chosen_heads
        from fairseq_headgates.extensions.convert.ctranslate2 import check_model, check_output, to_ctranslate2
        from fairseq_headgates.extensions.convert.dictionaries import load_dictionaries
        from fairseq_headgates.plugin.models.building import load_model, warn_unfinished

        check_output(Path(self.out), self.force)
        state, model = load_model(self.path, self.trust, self.arch)
        warn_unfinished(state, model)
        pruned = prune(model, chosen_heads(self, model))
        check_model(pruned)
        aligned = [] if self.alignment_heads is None else _alignment_heads(self.alignment_heads, pruned)
        source, target = load_dictionaries(state, self.rest[0] if self.rest else Path(self.path).parent)
        to_ctranslate2(pruned, source, target, self.out, self.quantization, self.force, aligned)
        return Answer()


def _alignment_heads(text: str, model: nn.Module) -> list[HeadId]:
    """Return the heads that --alignment-heads names, or the best remaining one of a functions file."""
    from fairseq_headgates.attention.cuts import kept_mask
    from fairseq_headgates.attention.modules import head_counts

    if re.match("[a-z-]+:", text):
        return parse_heads(text, head_counts(model), "--alignment-heads")
    hint = "give heads, or a file of `headgates functions --out`"
    try:
        return [best_head(parse_json(read_text(text, "the functions", hint), text, hint), kept_mask(model))]
    except (AttributeError, KeyError, TypeError, IndexError):
        raise ValueError(
            f"{quoted(text)} is not a file of `headgates functions --out` of one checkpoint: give one, or heads"
        ) from None
