"""`headgates explain`: the contribution of each source and prefix token to each predicted token."""

from typing import Any

from fairseq_headgates.cli.command import Answer, command, option
from fairseq_headgates.cli.options import ChosenSentences, Output
from fairseq_headgates.cli.parser import filled, numbers
from fairseq_headgates.extensions.explain.drawing import (
    explanation_figure,
    explanation_json,
    explanation_page,
    explanation_tables,
)
from fairseq_headgates.scores.options import EXPLANATIONS


@command(
    "explain",
    "headgates explain data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 1,2",
    "headgates explain data-bin --path baseline/checkpoint_best.pt --gen-subset valid --lines 3 --method "
    "alti --plot contributions.html",
)
class Explain(ChosenSentences, Output):
    """Show how much each token contributes to a prediction.

    Show how much each source token and each token of the target prefix contributes to each predicted token, for single
    sentences. Translation models: the tokens of the reference are explained; without one, those of the model's
    translation. Language models: each next token of the text. Classifiers: the class with the highest logit. A
    contribution is the relevance of a token divided by the sum of all absolute relevances, in percent.
    """

    method: str = option(
        metavar="M",
        choices=EXPLANATIONS,
        default="attnlrp",
        help="how relevance is computed. "
        f"{'; '.join(f'{name}: {text}' for name, text in EXPLANATIONS.items())} (default: %(default)s)",
    )
    positions: list[int] = option(
        metavar="N[,N...]",
        type=numbers("a list of positions such as 1,5"),
        default=[],
        help="explain only these predictions of each sentence, counted from 1 (default: all)",
    )
    instead_of: str | None = option(
        metavar="TOKEN",
        type=filled,
        help="explain why the prediction is more likely than TOKEN (a token of the target dictionary; classifiers: a "
        "label): relevance for the difference of their logits (Yin & Neubig 2022)",
    )
    plot: str | None = option(
        metavar="FILE", writes=True, help="draw heat maps: .html, .png, .pdf or .svg (matplotlib draws the last three)"
    )
    out: str | None = option(metavar="FILE", writes=True, help="write the contributions as JSON")
    json: bool = option(default=False, help="print the contributions as JSON")

    def run(self, session: Any) -> Answer:
        """Compute the contributions."""
        from fairseq_headgates.cli.sentences import answer_of, load, sentences
        from fairseq_headgates.extensions.explain.contributions import contributions

        model, origin = load(session, self)
        compared = {} if self.instead_of is None else {"instead-of": self.instead_of}
        signature = str(origin.of_method(self.method, compared))
        found = {
            number: contributions(model, session.task, sample, self.method, self.positions, self.instead_of)
            for number, sample in sentences(session, model, self)
        }
        return answer_of(
            self,
            explanation_json(found, signature),
            page=lambda: explanation_page(found, signature),
            figure=lambda: explanation_figure(found),
            text=f"{explanation_tables(found)}\n\n{signature}",
        )
