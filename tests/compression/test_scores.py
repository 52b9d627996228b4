"""The score `refit` against a search step by step with regressions on explicit matrices."""

import math

import torch
from support.sentences import PAIRS, TASK, make_gates, make_model, sample

from fairseq_headgates import importance
from fairseq_headgates.attention.anatomy import attention_modules
from fairseq_headgates.attention.hooks import hooked
from fairseq_headgates.attention.modules import head_factors
from fairseq_headgates.compression import moments
from fairseq_headgates.heads import TYPES
from fairseq_headgates.scores.options import ScoreOptions


def contexts_of(model):
    """The contexts of each layer, a row for each token: sentence by sentence, without padding."""
    rows = {}

    def see(module, _, context):
        rows.setdefault(module.name, []).append(context[0].transpose(0, 1).flatten(1))

    with torch.no_grad(), hooked(model, see):
        for pair in PAIRS:
            model(**sample([pair])["net_input"])
    return {name: torch.cat(each) for name, each in rows.items()}


def columns(heads, size=8):
    return [head * size + i for head in heads for i in range(size)]


def gradients_of(model):
    """The derivative of the loss, in nats, with respect to the contexts of each layer, rows as in `contexts_of`."""
    rows, inserted = {}, []

    def insert(module, _, context):
        inserted.append((module.name, context + torch.zeros_like(context).requires_grad_()))
        return inserted[-1][1]

    with hooked(model, insert):
        for pair in PAIRS:
            inserted.clear()
            batch = sample([pair])
            logits = model(**batch["net_input"])[0]
            loss = torch.nn.functional.cross_entropy(logits[0], batch["target"][0], reduction="sum")
            for (name, _), each in zip(inserted, torch.autograd.grad(loss, [c for _, c in inserted]), strict=True):
                rows.setdefault(name, []).append(each[0].transpose(0, 1).flatten(1))
    return {name: torch.cat(each) for name, each in rows.items()}


def cost(contexts, gradients, removed, targets):
    """1/2 trace(E[g g^T] E[r r^T]) by a regression, in bits per target."""
    left = [head for head in range(4) if head not in removed]
    centred = contexts - contexts.mean(0)
    rest = centred[:, columns(removed)]
    if left:
        known = centred[:, columns(left)]
        rest = rest - known @ torch.linalg.lstsq(known, rest).solution
    of_gradients = gradients[:, columns(removed)].T @ gradients[:, columns(removed)]
    return (of_gradients * (rest.T @ rest / len(rest))).sum().item() / 2 / targets / math.log(2)


def test_removal_scores_are_those_of_a_search_step_by_step(monkeypatch):
    monkeypatch.setattr(moments, "RIDGE", 1e-10)
    model = make_model()
    contexts, gradients = contexts_of(model), gradients_of(model)
    targets = sum(len(target) for _, target in PAIRS)
    removed = {module: [] for module in attention_modules(model)}
    total, expected = 0.0, {attention_type: [[0.0] * 4, [0.0] * 4] for attention_type in TYPES}
    while any(len(heads) < 4 for heads in removed.values()):
        steps = []
        for module, heads in removed.items():
            args = contexts[module.name], gradients[module.name]
            before = cost(*args, heads, targets) if heads else 0.0
            steps += [
                (cost(*args, [*heads, head], targets) - before, head, module) for head in range(4) if head not in heads
            ]
        increase, head, module = min(steps, key=lambda step: step[0])
        total += increase
        removed[module].append(head)
        expected[module.attention_type][module.layer][head] = total
    found = importance.score(model, TASK, [sample(PAIRS[:11]), sample(PAIRS[11:])], "refit", ScoreOptions())
    for attention_type, rows in expected.items():
        torch.testing.assert_close(torch.tensor(found.layers[attention_type]), torch.tensor(rows), atol=1e-5, rtol=1e-4)


def test_a_closed_head_costs_nothing():
    model = make_gates(make_model(gate_heads="enc-self,dec-self,dec-enc"))
    table = importance.score(model, TASK, [sample(PAIRS)], "refit", ScoreOptions())
    for module in attention_modules(model):
        factor = head_factors(model)[module.attention_type][module.layer]
        row = torch.tensor(table.layers[module.attention_type][module.layer])
        assert torch.equal(row == 0, factor == 0)
