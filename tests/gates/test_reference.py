"""The gates against numbers computed by the original TensorFlow implementation, the-story-of-heads, commit efaa0dd.

`fixtures/reference_gates.npz`: its gates for given locations (`log_a`), noise and temperatures, in float32.
"""

import math

import numpy as np
import pytest
import torch
from fairseq.modules import MultiheadAttention
from support.reference import DATA, HEADS, LAYERS, assert_close, build, dtypes
from torch import nn

from fairseq_headgates import HardConcrete, HeadAttention, HeadGates, attention_modules, l0_penalty
from fairseq_headgates.gates import L0Gates

GATES = dict(np.load(DATA / "reference_gates.npz"))
CLIP = 1e-6  # the original clips P(open) to [1e-6, 1 - 1e-6]; we do not
distributions = pytest.mark.parametrize("tag", ["default", "T0.33", "T0.5", "T0.1"])


# Gates


def distribution(tag):
    return HardConcrete() if tag == "default" else HardConcrete(temperature=float(tag.removeprefix("T")))


def log_alphas(dtype, draws=None):
    """The locations [46], or one copy for each of the draws [draws, 46], to take gradients of."""
    log_alpha = torch.tensor(GATES["log_a"], dtype=dtype)
    return (log_alpha if draws is None else log_alpha.repeat(draws, 1)).requires_grad_()


@dtypes
@distributions
def test_evaluation_gates_and_their_gradient(tag, dtype):
    log_alpha = log_alphas(dtype)
    gates = distribution(tag).evaluation_value(log_alpha)
    gates.sum().backward()
    assert_close(gates, GATES[f"{tag}/gates_eval"], 1e-6)
    assert_close(log_alpha.grad, GATES[f"{tag}/grad_sum_gates_eval"], 1e-6)
    assert (gates != 0).float().mean() == pytest.approx(GATES[f"{tag}/sparsity_rate_eval"])


@dtypes
@distributions
@pytest.mark.parametrize("weighted", [False, True])
def test_training_gates_and_their_gradient(tag, dtype, weighted):
    noise = torch.tensor(GATES["noise"], dtype=dtype)
    log_alpha = log_alphas(dtype, draws=len(noise))
    gates = distribution(tag).sample(log_alpha, noise)
    coefficient = torch.tensor(GATES["grad_coef"], dtype=dtype) if weighted else 1.0
    (coefficient * gates).sum().backward()
    assert_close(gates, GATES[f"{tag}/gates_train"], 1e-5)
    name = "grad_coef_gates_train" if weighted else "grad_sum_gates_train"
    assert_close(log_alpha.grad, GATES[f"{tag}/{name}"], 1e-5)


@dtypes
@distributions
def test_open_probability(tag, dtype):
    probability = distribution(tag).open_probability(log_alphas(dtype))
    assert_close(probability.clamp(CLIP, 1 - CLIP), GATES[f"{tag}/p_open"], 1e-6)


@distributions
@pytest.mark.parametrize("lr_scale", [1.0, 20.0])
@pytest.mark.parametrize(("layers", "reduction"), [(1, "sum"), (2, "sum"), (1, "layer-mean"), (2, "layer-mean")])
def test_penalty_and_its_gradient(tag, lr_scale, layers, reduction):
    """The same gates as those of one layer, or of two: the original takes the mean over layers of their sums."""
    rows = torch.tensor(GATES["log_a"]).chunk(layers)
    gates = [HeadGates(len(row), distribution(tag), lr_scale=lr_scale) for row in rows]
    for gate, row in zip(gates, rows, strict=True):
        gate.load_state_dict({"log_alpha": row})
    divisor = layers if reduction == "layer-mean" else 1
    method = L0Gates(gates, ["enc-self"] * layers)
    penalty = method.penalty(method.log_alpha(), torch.tensor(1 / divisor))
    penalty.backward()
    assert_close(penalty, GATES[f"{tag}/l0_penalty"] / divisor, 1e-6)
    gradient = torch.cat([gate.theta.grad for gate in gates])
    # Where the original clips, its gradient is 0 and ours is not quite: 1e-5 of the largest at most.
    assert_close(gradient, GATES[f"{tag}/grad_l0_penalty"] / divisor, 1e-5)


def test_penalty_of_a_model():
    """Eight gates, weighted with 0.25 in the original, as those of two layers of a model."""
    model = build("baseline", gate_heads="dec-enc")
    modules = [module for module in attention_modules(model) if module.attention_type == "dec-enc"]
    for module, row in zip(modules, GATES["apply/log_a"].reshape(LAYERS, HEADS), strict=True):
        module.attention.gate.load_state_dict({"log_alpha": torch.tensor(row)})
    coefficient = float(GATES["apply/l0_penalty_coef"])
    assert_close(coefficient * l0_penalty(model), GATES["apply/reg"], 1e-6)
    assert_close(coefficient * l0_penalty(model, "layer-mean"), GATES["apply/reg"] / LAYERS, 1e-6)


def test_gates_applied_to_heads():
    """With a single source position the context of every head is that position's value."""
    x = torch.tensor(GATES["apply/x"])  # [B, H, T, D]
    batch, heads, length, size = x.shape
    attention = HeadAttention(MultiheadAttention(heads * size, heads, encoder_decoder_attention=True))
    attention.v_proj = attention.out_proj = nn.Identity()  # the heads, side by side
    attention.out_proj.weight, attention.out_proj.bias = torch.eye(heads * size), None
    attention.gate = HeadGates(heads, HardConcrete())
    attention.gate.load_state_dict({"log_alpha": torch.tensor(GATES["apply/log_a"]).flatten()})
    values = x.transpose(1, 2).reshape(1, batch * length, heads * size)
    output, _ = attention.eval()(values, values, values)
    gated = output.view(batch, length, heads, size).transpose(1, 2)
    assert_close(gated, GATES["apply/y_eval"], 1e-6)


def test_sampled_open_frequency_agrees_with_formula_and_reference():
    """Formula, our sampling and the original's agree within five standard errors (4000 draws there, 100,000 here)."""
    log_alpha = torch.tensor(GATES["apply/log_a"]).flatten().double()
    p_open = HardConcrete().open_probability(log_alpha)
    assert_close(p_open, GATES["mc/p_open_formula"], 1e-6)
    ours = HardConcrete().sample(log_alpha.repeat(100_000, 1))
    theirs = int(GATES["mc/n"])

    def check(measured, expected, deviation, draws):
        assert ((torch.as_tensor(measured) - expected).abs() <= 5 * deviation / math.sqrt(draws)).all()

    is_open = (p_open * (1 - p_open)).sqrt()  # the standard deviation of "this gate is open"
    check(GATES["mc/p_open_empirical"], p_open, is_open, theirs)
    check((ours > 0).double().mean(0), p_open, is_open, len(ours))
    # One error stands for that of the difference of two means: the original's draws are far fewer.
    check(GATES["mc/mean_gate"], ours.mean(0), ours.std(0), theirs)


@pytest.mark.parametrize("heads", [4, 8])
def test_glorot_initialisation(heads):
    theirs = torch.tensor(GATES[f"init/H{heads}"])  # [layers, H]
    ours = torch.stack([HeadGates(heads, HardConcrete(), init="glorot").log_alpha() for _ in range(500)]).detach()
    bound = math.sqrt(3 / heads)
    for first in (ours, theirs):
        assert 0.97 * bound < first.abs().max() <= bound
        error = bound / math.sqrt(3 * first.numel())  # that of the mean of uniform numbers
        assert first.mean().abs() < 4 * error
        assert first.std() == pytest.approx(bound / math.sqrt(3), rel=0.06)
