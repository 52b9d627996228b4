"""Hard Concrete gates against their formulas, in double precision, and against sampling."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_headgates import HardConcrete, HeadGates

DEFAULT = HardConcrete()
numbers = st.floats(-8, 8)


def naive_sample(log_alpha, u, temperature=0.33, low=-0.1, high=1.1):
    s = 1 / (1 + math.exp(-(math.log(u) - math.log(1 - u) + log_alpha) / temperature))
    return min(1.0, max(0.0, s * (high - low) + low))


def naive_value(log_alpha, low=-0.1, high=1.1):
    return min(1.0, max(0.0, (high - low) / (1 + math.exp(-log_alpha)) + low))


@given(numbers, st.floats(1e-6, 1 - 1e-6))
def test_sample_and_value_match_the_formulas(log_alpha, u):
    a, noise = torch.tensor([log_alpha], dtype=torch.double), torch.tensor([u], dtype=torch.double)
    assert DEFAULT.sample(a, noise).item() == pytest.approx(naive_sample(log_alpha, u), abs=1e-9)
    assert DEFAULT.evaluation_value(a).item() == pytest.approx(naive_value(log_alpha), abs=1e-12)
    assert DEFAULT.open_probability(a).item() == pytest.approx(
        1 / (1 + math.exp(-(log_alpha + 0.33 * math.log(11)))), abs=1e-12
    )


@given(numbers)
def test_open_probability_is_the_chance_that_the_sample_is_not_zero(log_alpha):
    """A second route: the sample grows with u, so P(g != 0) is 1 minus the u at which it leaves 0."""
    a = torch.tensor(log_alpha, dtype=torch.double)
    p = DEFAULT.open_probability(a).item()
    edge = torch.tensor(1 - p, dtype=torch.double)
    assert DEFAULT.sample(a, edge * 0.999).item() == 0
    assert DEFAULT.sample(a, edge + (1 - edge) * 0.001).item() > 0


def test_evaluation_gate_is_exactly_closed_and_open_beyond_2_398():
    a = torch.tensor([-2.399, -2.397, 2.397, 2.399], dtype=torch.double)
    closed, barely, almost, widest = DEFAULT.evaluation_value(a).tolist()
    assert (closed, widest) == (0.0, 1.0)
    assert 0 < barely < 1e-3 and 1 - 1e-3 < almost < 1
    assert DEFAULT.closes_at == pytest.approx(-2.3979, abs=1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0}, "temperature is 0: it must be above 0"),
        ({"temperature": math.inf}, "it must be above 0 and finite"),
        ({"low": 0.1}, "stretch is 0.1,1.1: LOW must be from"),
        ({"high": 1}, "LOW must be from .* to -1e-06, and HIGH from 1"),
    ],
)
def test_bad_distributions_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        HardConcrete(**values)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_gates_learn_lr_scale_times_as_fast(optimizer):
    """One step moves log_alpha S times as far, and the gradient that clipping sees is that of log_alpha."""
    moved, grads = [], []
    for scale in (1.0, 10.0):
        gates = HeadGates(3, DEFAULT, init=0.5, lr_scale=scale).eval()
        step = optimizer(gates.parameters(), lr=1e-3)
        (gates() * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
        grads.append(gates.theta.grad.clone())
        before = gates.log_alpha().detach()
        step.step()
        moved.append(gates.log_alpha().detach() - before)
    torch.testing.assert_close(moved[1], 10 * moved[0], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("scale", [1.0, 10.0, 30.0, 0.7, 3.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_state_dict_holds_log_alpha_and_loads_exactly(scale, dtype):
    gates = HeadGates(1000, DEFAULT, init="glorot", lr_scale=scale).to(dtype)
    state = gates.state_dict()
    assert list(state) == ["log_alpha"]
    torch.testing.assert_close(state["log_alpha"].float(), gates.log_alpha().detach(), rtol=1e-6, atol=0)
    again = HeadGates(1000, DEFAULT, lr_scale=scale).to(dtype)
    again.load_state_dict(state)
    assert torch.equal(again.theta, gates.theta)
    other = HeadGates(1000, DEFAULT, lr_scale=5 * scale)  # a run may go on with another rate for its gates
    other.load_state_dict(state)
    torch.testing.assert_close(other.log_alpha(), gates.log_alpha(), rtol=1e-3, atol=1e-6)


def test_initial_values():
    assert (HeadGates(8, DEFAULT).eval()() == 1).all()
    glorot = HeadGates(8, DEFAULT, init="glorot", lr_scale=4.0).log_alpha()
    assert glorot.abs().max() <= math.sqrt(3 / 8) and glorot.std() > 0.1
    with pytest.raises(ValueError, match="scale of the gates is 0: it must be above 0"):
        HeadGates(8, DEFAULT, lr_scale=0)


def test_training_draws_anew_and_evaluation_does_not():
    gates = HeadGates(50, DEFAULT, init=0.0)
    assert not torch.equal(gates(), gates())
    assert torch.equal(gates.eval()(), gates())
