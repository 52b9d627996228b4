"""Draw the attention weights of heads for single sentences."""

from fairseq_headgates.attention.sites import head_counts
from fairseq_headgates.cli.sentences import load, sentences, show
from fairseq_headgates.cli.session import session
from fairseq_headgates.extensions.attention_maps.command import AttentionOptions
from fairseq_headgates.extensions.attention_maps.drawing import (
    attention_figure,
    attention_json,
    attention_page,
    attention_tables,
    interactive_page,
)
from fairseq_headgates.extensions.attention_maps.maps import attention_maps
from fairseq_headgates.heads import parse_heads


def run(options: AttentionOptions) -> int:
    """Run `headgates attention` and return its exit code."""
    if options.interactive and not (options.plot or "").endswith(".html"):
        raise ValueError("--interactive makes a web page: add --plot FILE.html")
    page = interactive_page if options.interactive else attention_page
    with session(options, pages=True) as work:
        model, origin = load(work)
        heads, signature = parse_heads(options.heads, head_counts(model)), str(origin)
        chosen = sentences(work, model, options)
        maps = {number: attention_maps(model, work.task, sample, heads) for number, sample in chosen}
        show(
            work,
            attention_json(maps, signature),
            page=lambda: page(maps, signature),
            figure=lambda: attention_figure(maps),
            tables=attention_tables(maps),
        )
    return 0
