"""Gating methods in training: several forward passes, fixed gates, weight decay, when gates are stable."""

import pytest
import torch
from support.commands import TYPES
from support.gates import KINDS, layers
from support.models import make_batch, make_gated

from fairseq_headgates import head_sites
from fairseq_headgates.gates import (
    HardConcrete,
    HeadGates,
    L0Gates,
    LagrangianGates,
)
from fairseq_headgates.surgery import gate_method

INIT_0 = {"gate_heads": TYPES, "gate_init": "0"}


@pytest.mark.parametrize(
    ("passes", "sparsity"),
    [("++", "l0"), ("++", "lagrangian"), *((passes, "subset") for passes in ("++", "+++", "+-+", "-++-", "+e+"))],
)
def test_gradients_of_several_forward_passes_are_exact(passes, sparsity, monkeypatch):
    """With --checkpoint-activations as without, with the same noise; R-Drop makes two passes for each update.

    `passes` are those before the backward pass: + with gradients, - without, e in evaluation mode.
    """
    target = {} if sparsity == "l0" else {"target_heads": "9", "sparsity_method": sparsity}
    noise = [torch.rand(24) for _ in passes]
    tolerance = 1e-5 if sparsity == "subset" else 1e-9  # gates are in single precision, and a subset sums over them
    found = []
    for recomputed in (False, True):
        model = make_gated(**INIT_0, checkpoint_activations=recomputed, dropout=0, **target).double()
        method, drawn = gate_method(model), iter(noise)
        monkeypatch.setattr(method, "new_noise", lambda drawn=drawn: next(drawn))
        total = 0
        for number, kind in enumerate(passes):
            model.train(kind != "e")
            with torch.set_grad_enabled(kind == "+"):
                output = model(**make_batch(seed=number))[0]
            if kind == "+":
                total = total + (number + 1) * output.log_softmax(-1)[..., 3].sum()
        model.train()
        total.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name in found[0]:
        torch.testing.assert_close(found[1][name], found[0][name], rtol=tolerance, atol=tolerance, msg=name)
    assert any(grad.abs().max() > 1e-3 for name, grad in found[0].items() if name.endswith("theta"))


@pytest.mark.parametrize("sparsity", ["l0", "subset"])
def test_gradients_of_interleaved_forward_passes_with_dropout_are_those_of_single_ones(sparsity):
    """Forward passes of activations that are recomputed; a is ended while b is open, b while c is."""
    target = {} if sparsity == "l0" else {"target_heads": "9", "sparsity_method": sparsity}
    model = make_gated(**INIT_0, checkpoint_activations=True, dropout=0.3, **target).train()

    def forward(number):
        torch.manual_seed(number)
        return (number + 1) * model(**make_batch(seed=number))[0].log_softmax(-1)[..., 3].sum()

    def gradients():
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    for number in range(3):
        forward(number).backward()
    expected = gradients()
    model.zero_grad()
    a, b = forward(0), forward(1)
    a.backward()
    c = forward(2)
    b.backward()
    c.backward()
    for name, grad in gradients().items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-5, atol=1e-5, msg=name)


def test_layers_outside_of_a_forward_pass_are_recomputed_with_their_own_gates():
    """Such as the encoder alone, while a forward pass of the whole model is open."""
    batch, found = make_batch(), []
    for recomputed in (False, True):
        model = make_gated(**INIT_0, checkpoint_activations=recomputed, dropout=0).train()
        whole = model(**batch)[0].sum()
        torch.manual_seed(5)
        model.encoder(batch["src_tokens"], batch["src_lengths"])["encoder_out"][0].pow(3).sum().backward()
        found.append([site.attention.gate.theta.grad for site in head_sites(model) if site.kind == "enc-self"])
        whole.backward()
    torch.testing.assert_close(found[1], found[0])


def test_gates_are_fixed_and_stay():
    made = layers([[3, 0.2, -3, 0.1]] * 3, lr_scale=7.0)
    method = L0Gates(made, KINDS, fix_after=10).train()
    method.set_num_updates(9)
    assert not method.fixed
    method.set_num_updates(10)
    method.before_forward()
    assert method.fixed
    assert made[0].log_alpha().tolist() == [10, 10, -10, 10]
    for _ in range(3):
        method.before_forward()
        drawn = method.drawn(made[0])
        assert drawn.tolist() == [1, 1, 0, 1] and not drawn.requires_grad


def test_fixed_gates_do_not_read_the_parameter():
    """Optimisers in mixed precision overwrite it with their own copy after every update."""
    made = layers([[3, 0.2, -3, 0.1]] * 3)
    method = L0Gates(made, KINDS, fix_after=10).train()
    method.set_num_updates(10)
    method.before_forward()
    with torch.no_grad():
        made[0].theta.fill_(-7.0)
    assert made[0].evaluation_value().tolist() == [1, 1, 0, 1]
    assert made[0].state_dict()["log_alpha"].tolist() == [10, 10, -10, 10]


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_weight_decay_leaves_log_alpha_where_it_is(scale):
    """A decoupled decay of 0.9 per step, without a gradient; saved and loaded in the middle."""
    gates = HeadGates(4, HardConcrete(), init=1.7, lr_scale=scale, undo_decay=True)
    for _ in range(2):
        optimizer = torch.optim.AdamW(gates.parameters(), lr=0.1, weight_decay=1.0)
        for _ in range(5):
            optimizer.zero_grad()
            (0 * gates.log_alpha()).sum().backward()
            optimizer.step()
        assert gates.log_alpha().tolist() == pytest.approx([1.7] * 4, rel=1e-6)
        state = gates.state_dict()
        assert state["log_alpha"].tolist() == pytest.approx([1.7] * 4, rel=1e-6)
        gates = HeadGates(4, HardConcrete(), lr_scale=scale, undo_decay=True)
        gates.load_state_dict(state)
    assert float(gates.decay) == pytest.approx(0.9**10, rel=1e-5)
    assert gates.theta.tolist() == pytest.approx([1.7 / scale * 0.9**10] * 4, rel=1e-5)
    without = HeadGates(4, HardConcrete(), lr_scale=scale)
    without.load_state_dict(state)  # without weight decay from here on
    assert without.log_alpha().tolist() == pytest.approx([1.7] * 4, rel=1e-6)


def test_weight_decay_leaves_the_multipliers_where_they_are():
    made = [HeadGates(4, HardConcrete(), lr_scale=10.0, undo_decay=True) for _ in KINDS]
    method = LagrangianGates(made, KINDS, {("enc-self", "dec-enc"): 3})
    with torch.no_grad():
        method.multipliers.fill_(0.2)
    parameters = [*method.parameters(), *(p for layer in made for p in layer.parameters())]
    before = method.penalty(method.log_alpha(), torch.zeros(12)).item()
    optimizer = torch.optim.AdamW(parameters, lr=0.1, weight_decay=1.0)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert method.multipliers[0].tolist() == pytest.approx([0.18] * 2)
    penalty = method.penalty(method.log_alpha(), torch.zeros(12))
    assert before > 0 and penalty.item() == pytest.approx(before, rel=1e-6)
    penalty.backward()
    d = (method.open_probability(method.log_alpha()).mean() - 0.25).item()
    assert method.multipliers.grad[0].tolist() == pytest.approx([-d, -d * d], abs=1e-6)


def test_the_gradient_of_gates_that_undo_weight_decay_is_unscaled():
    gates = HeadGates(4, HardConcrete(), lr_scale=50.0, undo_decay=True)
    gates.log_alpha().sum().backward()
    assert gates.theta.grad.tolist() == [1] * 4 and gates.decay.grad.item() == 0


def test_a_checkpoint_in_evaluation_does_not_fix_its_gates():
    made = layers([[3, 0.2, -3, 0.1]] * 3)
    method = L0Gates(made, KINDS, fix_after=10).eval()
    method.set_num_updates(10)
    method.before_forward()
    assert made[0].log_alpha().tolist() == pytest.approx([3, 0.2, -3, 0.1])


def test_gates_are_stable_once_validations_find_the_same_open_gates():
    made = layers([[9, 9, 9, 9]] * 3)
    method = L0Gates(made, KINDS, stop_when_settled=2)
    for _ in range(4):  # all gates are open, as at the start of a training
        method.validated()
    assert int(method.unchanged) == 0
    for log_alpha, counted, unchanged in (
        (-9, True, 0),  # a gate closes
        (-9, True, 1),
        (-9, False, 0),  # a schedule is not over
        (-9, True, 1),
        (-1, True, 0),  # open with probability 0.45, and the evaluation gate is above 0
        (-9, True, 0),
        (-9, True, 1),
        (-9, True, 2),
    ):
        with torch.no_grad():
            made[0].theta[0] = log_alpha
        method.validated(counted)
        assert int(method.unchanged) == unchanged
    assert method.stable
    method.begin()  # another training, from the checkpoint of this one
    method.validated()
    assert not method.stable and int(method.unchanged) == 0


def test_the_buffers_of_a_method_can_be_averaged():
    """As fairseq's --store-ema does with everything in the state dict."""
    state = L0Gates(layers([[9, 9, 9, 9]] * 3), KINDS, stop_when_settled=2).state_dict()
    assert sorted(state) == ["last_open", "unchanged"] and all(value.is_floating_point() for value in state.values())
