"""Print the name of a model, and in three lines what was removed from it, what that cost, and what it saves.

EVALUATION is a file of `headgates evaluate --path CONTROL:MODEL --speed --out EVALUATION`. The names of the models are
those of their folders. With CONTROL:MODEL:COMPRESSED and --compressed one line follows on a model from which heads and
neurons were removed.
"""

from __future__ import annotations

import json

from commands import ArgumentParser
from fairseq_headgates.evaluation.results import Evaluation, read_evaluations
from fairseq_headgates.files import read_text


def summary(control: Evaluation, model: Evaluation) -> str:
    name, control_name = (each.checkpoint.partition("/")[0] for each in (model, control))
    removed = {attention_type: heads - kept for attention_type, (kept, heads) in model.heads.items()}
    by_type = ", ".join(f"{number} {each}" for each, number in removed.items() if number and each != "total")
    assert control.speed and model.speed
    before, after = control.speed.per_second, model.speed.per_second
    (cost, p), smaller = _cost(control, model), 1 - model.parameters / control.parameters
    return (
        f"{name}:\n"
        f"removed: {removed['total']} of {model.heads['total'][1]} heads ({by_type})\n"
        f"cost: {cost} BLEU against {control_name} ({p})\n"
        f"saved: {smaller:.0%} of {control.parameters / 1e6:.2f}M parameters; {after:,.0f} words per second instead of "
        f"{before:,.0f} ({after / before:.2f} times)"
    )


def compressed(control: Evaluation, model: Evaluation, path: str) -> str:
    """Return the line on a model without heads and neurons; `path`: what `headgates compress --json` printed."""
    text = read_text(path, "the compression", "give the output of headgates compress --json")
    neurons, kept = (sum(map(sum, dims.values())) for dims in json.loads(text)[0]["ffn_dims"])
    (cost, p), (kept_heads, heads) = _cost(control, model), model.heads["total"]
    return (
        f"{model.checkpoint.partition('/')[0]} without training: {heads - kept_heads} of {heads} heads and "
        f"{neurons - kept} of {neurons} neurons removed, {1 - model.parameters / control.parameters:.0%} of the "
        f"parameters; {cost} BLEU ({p})"
    )


def _cost(control: Evaluation, model: Evaluation) -> tuple[str, str]:
    cost = model.compare(control)["BLEU"]
    return f"{cost.value:+.2f}", "no p" if cost.p is None else f"p = {cost.p:.3f}"


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("evaluation", metavar="EVALUATION")
    parser.add_argument("--compressed", metavar="FILE", help="what headgates compress --json printed of COMPRESSED")
    args = parser.parse_args(argv)
    found = read_evaluations(args.evaluation)
    print(summary(*found[:2]))
    if args.compressed:
        print(compressed(found[0], found[2], args.compressed))
