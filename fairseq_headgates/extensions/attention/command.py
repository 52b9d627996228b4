"""`headgates attention`: draw the attention weights of heads for single sentences."""

from typing import Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import ChosenSentences, Output
from fairseq_headgates.extensions.attention.drawing import (
    attention_figure,
    attention_json,
    attention_page,
    attention_tables,
)
from fairseq_headgates.heads import parse_heads


@command(
    "attention",
    "headgates attention data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 1 "
    "--heads 'dec-enc:0.*' --plot maps.svg",
    "headgates attention data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 1 --plot heads.html",
)
class Attention(ChosenSentences, Output):
    """Draw the attention weights of heads for single sentences.

    Draw attention maps: the attention weights of heads for single sentences, with their tokens. The decoder reads the
    reference; without one, the translation of the model.
    """

    heads: str = option(
        metavar="H[,H...]",
        default="all",
        help="heads as TYPE:LAYER.HEAD, counted from 0; * is all: enc-self:0.3,dec-self:1.*,dec-enc:* (default: all)",
    )
    plot: str | None = option(
        metavar="FILE", writes=True, help="draw the maps: .html, .png, .pdf or .svg (matplotlib draws the last three)"
    )
    out: str | None = option(metavar="FILE", writes=True, help="write the attention weights as JSON")
    json: bool = option(default=False, help="print the attention weights as JSON")

    def run(self, session: Any) -> Answer:
        """Compute the maps."""
        from fairseq_headgates.attention.modules import head_counts
        from fairseq_headgates.cli.sentences import answer_of, load, sentences
        from fairseq_headgates.extensions.attention.maps import attention_maps

        model, origin = load(session, self)
        heads, signature = parse_heads(self.heads, head_counts(model)), str(origin)
        chosen = sentences(session, model, self)
        maps = {number: attention_maps(model, session.task, sample, heads) for number, sample in chosen}
        return answer_of(
            self,
            attention_json(maps, signature),
            page=lambda: attention_page(maps, signature),
            figure=lambda: attention_figure(maps),
            text=attention_tables(maps),
        )
