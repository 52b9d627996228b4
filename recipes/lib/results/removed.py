"""Print the name of a model, and in three lines what was removed from it, what that cost, and what it saves.

EVALUATION is a file of `headgates evaluate --path CONTROL:MODEL --speed --out EVALUATION`. The names of the models are
those of their folders.
"""

from __future__ import annotations

from commands import ArgumentParser
from fairseq_headgates.evaluation import Evaluation, read_evaluations


def summary(control: Evaluation, model: Evaluation) -> str:
    name, control_name = (each.checkpoint.partition("/")[0] for each in (model, control))
    removed = {attention_type: heads - kept for attention_type, (kept, heads) in model.heads.items()}
    by_type = ", ".join(f"{number} {each}" for each, number in removed.items() if number and each != "total")
    cost = model.compare(control)["BLEU"]
    assert control.speed and model.speed
    before, after = control.speed.per_second, model.speed.per_second
    p = "no p" if cost.p is None else f"p = {cost.p:.3f}"
    smaller = 1 - model.parameters / control.parameters
    return (
        f"{name}:\n"
        f"removed: {removed['total']} of {model.heads['total'][1]} heads ({by_type})\n"
        f"cost: {cost.value:+.2f} BLEU against {control_name} ({p})\n"
        f"saved: {smaller:.0%} of {control.parameters / 1e6:.2f}M parameters; {after:,.0f} words per second instead of "
        f"{before:,.0f} ({after / before:.2f} times)"
    )


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("evaluation", metavar="EVALUATION")
    path = parser.parse_args(argv).evaluation
    found = read_evaluations(path)
    if len(found) != 2 or not all(each.speed and "BLEU" in each.scores for each in found):
        raise ValueError(f"{path} has no two translation models with speed: use headgates evaluate --path A:B --speed")
    print(summary(*found))
