"""Print the names of models, and in three lines what was removed from each, what that cost, and what it saves.

EVALUATION is a file of `headgates evaluate --path CONTROL:MODEL[:MODEL...] --speed --out EVALUATION`. The names of the
models are those of their folders.
"""

from __future__ import annotations

import json

from commands import ArgumentParser
from fairseq_headgates.evaluation import Evaluation, read_evaluations
from fairseq_headgates.files import read_text


def neurons_removed(path: str) -> str:
    """Return the neurons that a compression removed, from the file that `headgates compress --json` prints."""
    text = read_text(path, "the compression", "give the output of headgates compress --json")
    try:
        before, after = (sum(map(sum, dims.values())) for dims in json.loads(text)[0]["ffn_dims"])
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError(f"{path} is not the output of headgates compress --json: give that") from None
    return f", {before - after} of {before} neurons"


def summary(control: Evaluation, model: Evaluation, neurons: str = "") -> str:
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
        f"removed: {removed['total']} of {model.heads['total'][1]} heads ({by_type}){neurons}\n"
        f"cost: {cost.value:+.2f} BLEU against {control_name} ({p})\n"
        f"saved: {smaller:.0%} of {control.parameters / 1e6:.2f}M parameters; {after:,.0f} words per second instead of "
        f"{before:,.0f} ({after / before:.2f} times)"
    )


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("evaluation", metavar="EVALUATION")
    parser.add_argument("--compressed", metavar="FILE", help="what headgates compress --json printed of the last model")
    args = parser.parse_args(argv)
    control, *found = read_evaluations(args.evaluation)
    if not found or not all(each.speed and "BLEU" in each.scores for each in (control, *found)):
        raise ValueError(
            f"{args.evaluation} has no two translation models with speed: use headgates evaluate --path A:B --speed"
        )
    neurons = neurons_removed(args.compressed) if args.compressed else ""
    for model in found:
        print(summary(control, model, neurons if model is found[-1] else ""))
