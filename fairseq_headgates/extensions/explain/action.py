"""Show how much each token contributes to a prediction."""

from fairseq_headgates.cli.sentences import load, sentences, show
from fairseq_headgates.cli.session import session
from fairseq_headgates.extensions.explain.command import ExplainOptions
from fairseq_headgates.extensions.explain.contributions import contributions
from fairseq_headgates.extensions.explain.drawing import (
    explanation_figure,
    explanation_json,
    explanation_page,
    explanation_tables,
)


def run(options: ExplainOptions) -> None:
    """Run `headgates explain`."""
    compared = {} if options.instead_of is None else {"instead-of": options.instead_of}
    with session(options) as work:
        model, origin = load(work)
        signature = str(origin.of_method(options.method, compared))
        found = {
            number: contributions(model, work.task, sample, options.method, options.positions, options.instead_of)
            for number, sample in sentences(work, model, options)
        }
        show(
            work,
            explanation_json(found, signature),
            page=lambda: explanation_page(found, signature),
            figure=lambda: explanation_figure(found),
            tables=f"{explanation_tables(found)}\n\n{signature}",
        )
