"""Linear layers in 8 bits: exactly what whole numbers give, whatever the activations."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.inference import FAMILIES
from support.models import logits, make_batch, make_gated
from torch import nn

from fairseq_headgates import prune
from fairseq_headgates.inference import kernels, packed_linear
from fairseq_headgates.inference.int8 import Int8Weight, weight_scales
from fairseq_headgates.inference.packed_linear import InferenceLinear, PackedLinear, pack_linears

INPUTS, OUTPUTS = 96, 40
pytestmark = pytest.mark.skipif(not kernels.int8_range(), reason="this torch has no int8 multiplication")


@pytest.fixture(params=["this CPU", "without VNNI"])
def largest(request, monkeypatch):
    """The largest activation, also where it is 127."""
    if request.param == "without VNNI":
        monkeypatch.setattr("fairseq_headgates.inference.int8.int8_range", lambda: 127)
        return 127
    return kernels.int8_range()


@pytest.fixture
def small(monkeypatch):
    """Weights of every size are packed."""
    monkeypatch.setattr(packed_linear, "WORTH_PACKING", 1)


def naive(x, weight, bias, steps):
    """The same in Python's whole numbers, then multiplied by the scales in single precision."""
    scale = weight_scales(weight)
    rounded = (weight / scale[:, None]).round().long()
    largest = x.abs().amax(1, keepdim=True)
    numbers = (x * (steps / largest)).nan_to_num(0).round().long()
    sums = (numbers @ rounded.t()).double()
    return (sums * (scale / steps).double() * largest.double()).float() + (0 if bias is None else bias)


def activations(kind):
    x = torch.randn(6, INPUTS, generator=torch.Generator().manual_seed(3))
    if kind == "zeros":
        x[1:3] = 0.0
        x[3] = -0.0
    elif kind == "one huge":
        x[2, 5] = 1e30
    elif kind == "extreme":
        x = x.sign()  # all products are the largest ones
    elif kind == "tiny":
        x[1] *= 1e-40
    return x


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["usual", "zeros", "one huge", "extreme", "tiny"])
def test_equals_products_of_whole_numbers(kind, bias, largest):
    x, weight = activations(kind), torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(1))
    weight[0], weight[1] = weight[0].sign(), -weight[0].sign()
    bias = torch.linspace(-1, 1, OUTPUTS) if bias else None
    found = Int8Weight(weight)(x, bias)
    expected = naive(x, weight, bias, 127 if largest == 255 else 63)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # single precision; a step is 0.02
    if kind == "zeros":
        assert torch.equal(found[1:4], torch.zeros(3, OUTPUTS) if bias is None else bias.expand(3, -1))


def test_whole_numbers_are_multiplied_exactly(largest):
    """With scales of 1: every sum of products that 8 bits can hold, to the last bit."""
    steps = 127 if largest == 255 else 63
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(-steps, steps + 1, (50, 512), generator=generator).float()
    weight = torch.randint(-127, 128, (64, 512), generator=generator).float()
    x[:, 0], weight[:, 0] = steps, 127
    x[0], weight[0] = steps, 127
    found = Int8Weight(weight)(x, None)
    assert torch.equal(found.round().long(), x.long() @ weight.long().t())


def test_activations_that_are_not_negative_are_as_exact_on_every_cpu(largest):
    x, weight = activations("usual").relu(), torch.randn(OUTPUTS, INPUTS)
    found = Int8Weight(weight, nonnegative=True)(x, None)
    torch.testing.assert_close(found, naive(x, weight, None, 127), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_stay_in_their_row(value, largest):
    x = activations("usual")
    x[2, 7] = value
    weight = Int8Weight(torch.randn(OUTPUTS, INPUTS))
    found, clean = weight(x, None), weight(activations("usual"), None)
    expected = F.linear(x[2], weight.to_dense())  # infinity, with the sign of the weight
    assert torch.equal(found[2].nan_to_num(7), expected.nan_to_num(7)) and not found[2].isfinite().any()
    assert torch.equal(weight(x, torch.ones(OUTPUTS))[2].nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(found[[0, 1, 3, 4, 5]], clean[[0, 1, 3, 4, 5]])
    if value != value:
        assert found[2].isnan().all()


def test_a_row_does_not_depend_on_the_others(largest):
    x, weight = activations("one huge"), Int8Weight(torch.randn(OUTPUTS, INPUTS))
    together, bias = weight(x, None), torch.randn(OUTPUTS)
    for row, expected in zip(x, together, strict=True):
        assert torch.equal(weight(row[None], None)[0], expected)
    assert torch.equal(weight(x.view(2, 3, -1), bias), weight(x, bias).view(2, 3, -1))


def test_rounded_weights_stay_as_they_are():
    weight = torch.randn(OUTPUTS, INPUTS) * torch.logspace(-20, 20, OUTPUTS)[:, None]
    rounded = Int8Weight(weight).to_dense()
    assert torch.equal(Int8Weight(rounded).to_dense(), rounded)
    assert ((rounded - weight).abs() <= 0.5001 * weight.abs().amax(1, keepdim=True) / 127).all()
    zeros = torch.zeros(OUTPUTS, INPUTS)
    assert torch.equal(Int8Weight(zeros).to_dense(), zeros)


def test_no_sum_of_products_saturates():
    """The range is that of this CPU: at both ends, and for every number of rows."""
    largest = kernels.int8_range()
    weight, zeros = torch.full((48, 512), 127, dtype=torch.int8), torch.zeros(48, dtype=torch.long)
    packed = kernels.int8_pack(weight)
    for rows in (1, 4, 33, 200):
        x = torch.full((rows, 512), largest, dtype=torch.uint8)
        found = kernels.int8_linear(x, packed, torch.ones(48), zeros, None)
        assert torch.equal(found, torch.full((rows, 48), float(largest * 127 * 512)))


def test_joined_layers_equal_single_ones(small):
    parts, x = [nn.Linear(INPUTS, OUTPUTS) for _ in range(3)], torch.randn(5, INPUTS)
    with torch.no_grad():
        expected = torch.cat([InferenceLinear([part], "int8")(x) for part in parts], 1)
        assert torch.equal(InferenceLinear(parts, "int8")(x), expected)
        assert (expected - torch.cat([part(x) for part in parts], 1)).abs().max() > 0


# --- models ----------------------------------------------------------------------------------------------------------


def prepared(model, dtype="int8"):
    model.inference_dtype = dtype
    model.make_generation_fast_()
    return model


def in_8_bits(model):
    return {name for name, m in model.named_modules() if isinstance(m, PackedLinear) and m.inference.dtype == "int8"}


def rounded_twin(model):
    """The model with the rounded weights that 8 bits hold, computed in single precision."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for module in twin.modules():
            if isinstance(module, nn.Linear):
                module.weight = nn.Parameter(Int8Weight(module.weight).to_dense())
    return twin


def test_all_linear_layers_of_a_transformer_are_in_8_bits(small):
    model = make_gated(gate_heads="enc-self,dec-enc", gate_init="0.4")
    expected, twin = logits(model, make_batch()), rounded_twin(model)
    prepared(model)
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert in_8_bits(model) == linear and len(linear) == 2 * 6 + 2 * 10 + 1
    found = logits(model, make_batch())
    for exact in (expected, logits(twin, make_batch())):
        assert 0 < (found - exact).abs().max() / exact.abs().max() < 0.1
    fc2 = model.encoder.layers[0].fc2.inference
    assert fc2.nonnegative and not model.encoder.layers[0].fc1.inference.nonnegative


PACKED = {"language model": 13, "all-attention": 11, "classifier": 15}  # how many layers are in 8 bits


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_in_8_bits(family, small):
    make, batch = FAMILIES[family]
    model = make()
    expected = logits(model, batch())
    prepared(model)
    assert len(in_8_bits(model)) == PACKED[family]
    found = logits(model, batch())
    assert 0 < (found - expected).norm() / expected.norm() < 0.05


ASK = {
    "state dict": lambda model: model.state_dict(),
    "a copy": copy.deepcopy,
    "pickled": lambda model: pickle.loads(pickle.dumps(model.encoder.layers[0])),
    "inference mode": lambda model: _in_inference_mode(model),
    "again": lambda model: model.make_generation_fast_(),
}


def _in_inference_mode(model):
    with torch.inference_mode():
        model(**make_batch())


@pytest.mark.parametrize("ask", ASK)
def test_what_is_computed_stays_the_same_when_weights_are_asked_for(ask, small):
    model = prepared(make_gated(gate_heads="dec-self", gate_init="0.4"))
    before = logits(model, make_batch())
    ASK[ask](model)
    assert torch.equal(logits(model, make_batch()), before)


def test_the_memory_of_the_weights_is_a_quarter(small):
    layer = nn.Sequential(nn.Linear(1024, 1024, bias=False))
    pack_linears(layer, "int8")
    held = vars(layer[0].inference._packed)
    assert sum(t.numel() * t.element_size() for t in held.values() if isinstance(t, torch.Tensor)) < 1.03 * 1024**2
    assert layer[0].__dict__["_parameters"]["weight"] is None


def test_gradients_are_those_of_the_rounded_weights(small):
    model = make_gated()
    twin = rounded_twin(model)
    prepared(model)
    for one in (model, twin):
        one(**make_batch())[0].sum().backward()
    for (name, parameter), other in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        if "embed" not in name:
            torch.testing.assert_close(parameter.grad, other[1].grad, rtol=1e-4, atol=1e-5, msg=name)


def test_a_model_in_8_bits_can_be_pruned(small):
    mask = {"enc-self": [[1, 0, 1, 1], [0, 0, 1, 0]], "dec-enc": [[0] * 4, [1] * 4]}
    model = make_gated()
    expected = logits(prepared(prune(rounded_twin(model), mask)), make_batch())
    found = prune(prepared(model), mask)
    assert torch.equal(logits(found, make_batch()), expected)
    assert found.encoder.layers[0].self_attn._in_proj.dtype == "int8"


# --- where 8 bits cannot be used -------------------------------------------------------------------------------------


def test_half_precision_stays_as_it_is(small, caplog):
    model = prepared(make_gated().bfloat16())
    assert not in_8_bits(model) and "bfloat16" in caplog.text and len(caplog.records) == 1


def test_without_the_operators_single_precision_is_used(small, caplog, monkeypatch):
    monkeypatch.setattr(kernels, "int8_range", lambda: 0)
    model = make_gated()
    expected = logits(model, make_batch())
    prepared(model)
    assert not in_8_bits(model) and "inference dtype int8 is not used: this torch has no int8" in caplog.text
    torch.testing.assert_close(logits(model, make_batch()), expected, rtol=1e-5, atol=1e-5)


def test_the_operators_are_looked_for(monkeypatch):
    monkeypatch.setattr(torch.ops, "onednn", object())
    assert kernels.int8_range.__wrapped__() == 0


def test_a_prepared_model_keeps_its_data_type(small):
    model = prepared(make_gated())
    with pytest.raises(ValueError, match="prepared for inference in int8: load it again for float32"):
        prepared(model, "float32")
