"""Print the last table of the demo: what was removed from each model, what is left, and what that costs and saves.

EVALUATION is a file of `headgates evaluate --path WHOLE:MODEL:... --speed --out EVALUATION`. Differences are those from
the first model, WHOLE.
"""

from __future__ import annotations

from commands import ArgumentParser
from fairseq_headgates.data.results import Evaluation, differences, read_evaluations
from fairseq_headgates.drawing.evaluations import cells_of
from fairseq_headgates.drawing.tables import rounded, text_table

REMOVED = {
    "baseline+/checkpoint_last.pt": "nothing removed",
    "smaller/gradient.pt": "half of the heads, by gradient scores",
    "smaller/refit.pt": "half of the heads, by refit scores, refitted",
    "smaller/compressed.pt": "heads and neurons, refitted",
    "all_heads0.5/pruned.pt": "half of the heads, by training with gates",
}
HEADER = ["model", "heads", "params", "BLEU", "diff", "p", "words/s"]


def table(whole: Evaluation, models: list[Evaluation]) -> str:
    """Return the table of a model and smaller ones."""
    lines = [_line(whole, "-", "-")]
    for model, found in zip(models, differences(whole, models), strict=True):
        bleu = found["BLEU"]
        p = "-" if bleu.p is None else f"{bleu.p:.3f}"
        lines.append(_line(model, rounded(bleu.value, "+.2f"), p))
    return text_table(HEADER, lines)


def _line(model: Evaluation, diff: str, p: str) -> list[str]:
    kept, heads = model.heads["total"]
    name = ": ".join(filter(None, (model.checkpoint, REMOVED.get(model.checkpoint))))
    bleu, params = f"{model.scores['BLEU'].score:.2f}", f"{model.parameters / 1e6:.2f}M"
    return [name, f"{kept}/{heads}", params, bleu, diff, p, cells_of(model.as_json())["words/s"]]


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("evaluation", metavar="EVALUATION")
    whole, *models = read_evaluations(parser.parse_args(argv).evaluation)
    print(table(whole, models))
    print(f"diff, p: BLEU against {whole.checkpoint}, paired bootstrap; words/s: fastest round [slowest, fastest]")
