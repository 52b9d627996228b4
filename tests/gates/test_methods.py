"""Gating methods for all gates of a model: targets, draws, penalties, schedules."""

import copy
import decimal
import math
from decimal import Decimal

import pytest
import torch
from support.commands import TYPES
from support.gates import LAYER_TYPES, layers
from support.models import make_batch, make_gated

from fairseq_headgates import attention_modules, gate_values, prune
from fairseq_headgates.attention.cuts import kept_mask
from fairseq_headgates.attention.modules import gate_method
from fairseq_headgates.gates import (
    L0Gates,
    L0Schedule,
    LagrangianGates,
    SubsetGates,
    parse_target,
    parse_weights,
)
from fairseq_headgates.gates.method import highest
from fairseq_headgates.gates.methods import relaxed_subset

HEADS = {"enc-self": 8, "dec-enc": 4}


# Targets


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("6", {("enc-self", "dec-enc"): 6}),
        ("0.25", {("enc-self", "dec-enc"): 3}),
        ("enc-self=2,dec-enc=0.5", {("enc-self",): 2, ("dec-enc",): 2}),
        ("0.00001", {("enc-self", "dec-enc"): 0}),
    ],
)
def test_a_target_is_a_number_or_share_of_all_heads_or_by_type(text, counts):
    assert parse_target(text).counts(HEADS) == counts
    assert parse_target(str(parse_target(text))) == parse_target(text)


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "enc-self=", "3,4", "enc-self=3,4", "enc-self=1,enc-self=2", "nan"])
def test_malformed_targets_are_refused(text):
    with pytest.raises(ValueError, match="it must be a number of heads"):
        parse_target(text)


def test_targets_that_do_not_fit_the_model_are_refused():
    for text, words in [
        ("13", "the target is 13 heads of enc-self, dec-enc: there are 12"),
        ("enc-self=9,dec-enc=1", "9 heads of enc-self: there are 8"),
        ("dec-self=1", "names dec-self, which has no gates"),
        ("enc-self=3", "dec-enc has gates but no target: add dec-enc=N"),
    ]:
        with pytest.raises(ValueError, match=words):
            parse_target(text).counts(HEADS)
    assert parse_target(" ") is None


# Draws


def test_all_gates_are_drawn_once_for_each_forward_pass():
    model = make_gated(gate_heads=TYPES, gate_init="0").train()
    seen = []
    for attention in (module.attention for module in attention_modules(model)):
        attention.register_forward_hook(lambda module, *_: seen.append([module.gate(), module.gate()]))
    for _ in range(2):
        model(**make_batch())
    assert all(torch.equal(first, again) for first, again in seen)
    layers_of_model = len(gate_method(model).layers)
    first, second = seen[:layers_of_model], seen[layers_of_model:]
    assert len(first) == len(second) == layers_of_model
    assert not any(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True))
    gates = attention_modules(model)[0].attention.gate
    assert not torch.equal(gates(), gates())  # outside of a forward pass


def test_a_model_is_copied_and_pruned_after_a_forward_pass_in_training():
    model = make_gated(gate_heads=TYPES).train()
    model(**make_batch())
    twin = copy.deepcopy(model)
    assert gate_method(twin) is not gate_method(model)
    assert gate_method(twin).layers[0] is attention_modules(twin)[0].attention.gate
    smaller = prune(model)
    assert not hasattr(smaller, "gate_method") and not smaller._forward_pre_hooks
    smaller.train()(**make_batch())


def test_hard_gates_are_0_or_1_with_the_gradient_of_the_gates():
    made = layers([[0.3, -0.3, 2, -2]] * 3)
    method = L0Gates(made, LAYER_TYPES, hard=True)
    method.before_forward()
    gates = torch.cat([method.training_gates(layer) for layer in made])
    assert set(gates.unique().tolist()) <= {0.0, 1.0}
    gates.sum().backward()
    assert all(layer.theta.grad is not None for layer in made)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_hard_subsets_have_exactly_as_many_open_gates_as_the_target(temperature):
    made = layers([[2.5, -1, 0, 1]] * 3)
    method = SubsetGates(made, LAYER_TYPES, {("enc-self",): 3, ("dec-enc",): 1}, warmup=100, hard=True)
    method.set_num_updates(round(100 * (1 - temperature) / 0.9))
    soft, subsets = copy.deepcopy(method), set()
    soft.hard = False
    for _ in range(20):
        method.before_forward()
        noise = method.new_noise()
        gates, soft_gates = method._gates(noise), soft._gates(noise)
        assert gates[:8].sum() == 3 and gates[8:].sum() == 1 and set(gates.tolist()) == {0.0, 1.0}
        assert gates[:8][soft_gates[:8].argsort()].tolist() == [0.0] * 5 + [1.0] * 3  # the highest of the soft ones
        subsets.add(tuple(gates.tolist()))
    assert len(subsets) > 1


# Targets are met


@pytest.mark.parametrize("method", [LagrangianGates, SubsetGates])
@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_exactly_as_many_evaluation_gates_are_1(method, count):
    made = layers(torch.randn(3, 4))
    gates = method(made, LAYER_TYPES, {("enc-self", "dec-enc"): count}).eval()
    values = gates.evaluate(gates.log_alpha())
    assert values.sum() == count and set(values.tolist()) <= {0.0, 1.0}
    ranked = gates.log_alpha().argsort(descending=True)
    assert (values[ranked[:count]] == 1).all()


def test_targets_by_type_are_met_each():
    log_alpha = torch.tensor([5.0, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6])
    groups = [(torch.arange(8), 2), (torch.arange(8, 12), 3)]
    assert highest(log_alpha, groups).tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0]
    assert highest(torch.zeros(12), groups).sum() == 5  # ties


# Differentiable subsets


def naive_subset(scores, count, temperature):
    """Li et al. 2021, in numbers of 300 digits."""
    with decimal.localcontext(prec=300, Emin=-(10**8), Emax=10**8):
        scores, total = [Decimal(s) for s in scores], [Decimal(0)] * len(scores)
        for _ in range(count):
            powers = [(s / Decimal(temperature)).exp() for s in scores]
            total = [t + p / sum(powers) for t, p in zip(total, powers, strict=True)]
            scores = [s + (1 - p / sum(powers)).ln() for s, p in zip(scores, powers, strict=True)]
        return total


def naive_subset_gradient(scores, count, temperature, weights):
    """The gradient of the sum of weights times gates, by differences."""
    with decimal.localcontext(prec=300, Emin=-(10**8), Emax=10**8):
        step, scores = Decimal("1e-100"), [Decimal(s) for s in scores]

        def value(at):
            return sum(Decimal(w) * g for w, g in zip(weights, naive_subset(at, count, temperature), strict=True))

        steps = [[s + step * (i == j) for j, s in enumerate(scores)] for i in range(len(scores))]
        here = value(scores)
        return [float((value(at) - here) / step) for at in steps]


@pytest.mark.parametrize(
    ("count", "temperature", "spread"),  # every pair of two of them
    [
        (count, [1.0, 0.5, 0.125][(i + j) % 3], spread)
        for i, count in enumerate([1, 2, 4])
        for j, spread in enumerate([1, 10, 40, 100])
    ],
)
def test_relaxed_subsets_equal_a_naive_rewrite_however_far_apart_the_scores_are(count, temperature, spread):
    """Scores in single precision, as log_alpha is."""
    generator = torch.Generator().manual_seed(spread)
    scores = torch.linspace(0, spread, 5)[torch.randperm(5, generator=generator)]
    scores, weights = scores + torch.randn(5, generator=generator), torch.linspace(-1, 1, 5)
    expected = naive_subset(scores.tolist(), count, temperature)
    found = relaxed_subset(scores.requires_grad_(), count, temperature)
    assert found.tolist() == pytest.approx([float(e) for e in expected], rel=1e-6, abs=1e-9)
    assert float(sum(expected)) == pytest.approx(count)
    (found * weights).sum().backward()
    expected = naive_subset_gradient(scores.tolist(), count, temperature, weights.tolist())
    assert scores.grad.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_a_subset_of_all_heads_is_all_heads():
    for scores in ([0.3], [5.0, -200.0], [0.0, 0.0, 80.0]):
        scores = torch.tensor(scores, requires_grad=True)
        gates = relaxed_subset(scores, len(scores), 0.1)
        gates.sum().backward()
        assert gates.sum().item() == pytest.approx(len(scores)) and scores.grad.abs().max() < 1e-6


@pytest.mark.parametrize(("warmup", "temperatures"), [(10, [1, 0.55, 0.1, 0.1]), (0, [0.1] * 4)])
def test_the_temperature_of_subsets_falls_in_the_warm_up(warmup, temperatures):
    method = SubsetGates(layers(), LAYER_TYPES, {("enc-self", "dec-enc"): 3}, warmup=warmup)
    found = []
    for update in (0, 5, 10, 99):
        method.set_num_updates(update)
        found.append(method.temperature())
    assert found == pytest.approx(temperatures)


def test_a_subset_at_a_very_low_temperature_has_the_highest_scores_and_finite_gradients():
    scores = torch.tensor([0.3, 2.0, -1.0, 1.5, 0.2], requires_grad=True)
    gates = relaxed_subset(scores, 2, 1e-8)
    assert gates.tolist() == [0, 1, 0, 1, 0]
    (gates * torch.randn(5)).sum().backward()
    assert scores.grad.isfinite().all()


# Penalties


def test_the_l0_penalty_is_lambda_times_the_probability_that_each_gate_is_open():
    log_alpha = torch.randn(3, 4).tolist()
    method = L0Gates(layers(log_alpha), LAYER_TYPES)
    weight = [0.1 * (i + 1) for i in range(12)]
    p = [1 / (1 + math.exp(-(a - 0.33 * math.log(0.1 / 1.1)))) for row in log_alpha for a in row]
    expected = sum(w * each for w, each in zip(weight, p, strict=True))
    assert method.penalty(method.log_alpha(), torch.tensor(weight)).item() == pytest.approx(expected, abs=1e-6)


def test_fixed_gates_have_no_lagrangian_penalty_but_gradients():
    method = LagrangianGates(layers(lr_scale=10.0), LAYER_TYPES, {("enc-self", "dec-enc"): 5}, fix_after=10)
    with torch.no_grad():
        method.multipliers.fill_(0.5)
    method.set_num_updates(10)
    penalty = method.penalty(method.log_alpha(), torch.zeros(12))
    penalty.backward()
    assert penalty.item() == 0 and method.multipliers.grad.tolist() == [[0, 0]]


# Lagrange multipliers


def test_the_lagrangian_penalty_equals_a_naive_one_and_its_multipliers_ascend():
    log_alpha = torch.randn(3, 4).tolist()
    made = layers(log_alpha, lr_scale=10.0)
    method = LagrangianGates(made, LAYER_TYPES, {("enc-self",): 2, ("dec-enc",): 4}, warmup=100)
    method.set_num_updates(25)
    with torch.no_grad():
        method.multipliers.copy_(torch.tensor([[0.3, -0.2], [0.1, 0.4]]))
    expected = 0.0
    for rows, keep, (first, second) in ((log_alpha[:2], 2, (3, -2)), (log_alpha[2:], 4, (1, 4))):
        flat = [a for row in rows for a in row]
        mean = sum(1 / (1 + math.exp(-(a - 0.33 * math.log(0.1 / 1.1)))) for a in flat) / len(flat)
        d = mean - (1 - 0.25 * (1 - keep / len(flat)))
        expected += first * d + second * d * d
    penalty = method.penalty(method.log_alpha(), torch.zeros(12))
    assert penalty.item() == pytest.approx(expected, abs=1e-6)
    penalty.backward()
    d = (method.open_probability(method.log_alpha())[:8].mean() - (1 - 0.25 * 0.75)).item()
    assert method.multipliers.grad[0].tolist() == pytest.approx([-d, -d * d], abs=1e-6)  # descent on it is ascent


def test_the_lagrangian_meets_its_target():
    """The loss wants all heads, the last ones most; the rate decays to 0 as in training."""
    torch.manual_seed(1)
    made = layers(lr_scale=50.0)
    method = LagrangianGates(made, LAYER_TYPES, {("enc-self", "dec-enc"): 5}, warmup=100).train()
    want = torch.linspace(0.02, 0.3, 12)
    optimizer = torch.optim.Adam([*method.parameters(), *(layer.theta for layer in made)], lr=0.001)
    for update in range(1500):
        optimizer.param_groups[0]["lr"] = 0.001 * (1 - update / 1500)
        method.set_num_updates(update)
        method.before_forward()
        gates = torch.cat([method.training_gates(layer) for layer in made])
        loss = (want * (1 - gates)).sum() + method.penalty(method.log_alpha(), torch.zeros(12))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert method.open_probability(method.log_alpha()).sum().item() == pytest.approx(5, abs=0.3)
    assert method.evaluate(method.log_alpha()).tolist() == [0.0] * 7 + [1.0] * 5


# Output scale


def test_output_scale_is_the_number_of_heads_over_that_of_open_heads():
    made = layers([[3, 3, -3, -3], [-3] * 4, [3] * 4])
    method = L0Gates(made, LAYER_TYPES, output_scale=True).eval()
    factors = [layer.eval()().tolist() for layer in made]
    assert factors == [[2, 2, 0, 0], [0] * 4, [1] * 4]
    assert made[0].evaluation_value().tolist() == [1, 1, 0, 0]
    method.train()
    for layer in made:
        layer.train()
    method.before_forward()
    gates = method.training_gates(made[1])
    number_open = (gates != 0).sum().item()
    assert gates.max() <= (4 / number_open if number_open else 0)


def test_the_output_scale_is_folded_into_the_weights():
    model = make_gated(gate_heads=TYPES, gate_output_scale=True)
    with torch.no_grad():
        for layer in gate_method(model).layers:
            layer.theta.uniform_(-0.1, 0.1)
    batch = make_batch()
    with torch.no_grad():
        torch.testing.assert_close(model(**batch)[0], prune(model)(**batch)[0], rtol=1e-4, atol=1e-5)


# Lambda


def test_lambda_by_type_with_start_and_warm_up():
    schedule = L0Schedule(parse_weights("enc-self=0.4,dec-enc=0.1"), warmup=4, start=2)
    head_types = ["enc-self", "dec-self", "dec-enc"]
    found = [schedule.at(update, head_types) for update in (0, 1, 2, 3, 5, 50)]
    assert found == [
        pytest.approx(row)
        for row in ([0, 0, 0], [0, 0, 0], [0.1, 0, 0.025], [0.2, 0, 0.05], [0.4, 0, 0.1], [0.4, 0, 0.1])
    ]
    assert L0Schedule(parse_weights("0.02")).at(0, head_types) == [0.02] * 3


@pytest.mark.parametrize("text", ["x", "enc=0.1", "0.1,0.2", "enc-self=0.1,enc-self=0.2"])
def test_malformed_lambdas_are_refused(text):
    with pytest.raises(ValueError, match="is not a (number|weight)"):
        parse_weights(text)


def test_a_pruned_target_model_has_exactly_the_target():
    for sparsity, target, counts in (
        ("subset", "7", None),
        ("lagrangian", "enc-self=1,dec-self=0,dec-enc=0.5", {"enc-self": 1, "dec-self": 0, "dec-enc": 4}),
    ):
        model = make_gated(gate_heads=TYPES, sparsity_method=sparsity, target_heads=target).eval()
        with torch.no_grad():
            for layer in gate_method(model).layers:
                layer.theta.normal_()
        kept = kept_mask(prune(model))
        assert counts is None or {attention_type: kept.count(attention_type)[0] for attention_type in counts} == counts
        assert sum(kept.count(attention_type)[0] for attention_type in kept.types) == (7 if counts is None else 5)
        assert sum(v.sum().item() for v in gate_values(model).values()) == (7 if counts is None else 5)
