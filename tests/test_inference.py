"""Linear layers for inference: what F.linear gives, also after the weights have changed."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from support.models import logits, make_batch, make_gated
from torch import nn

from fairseq_headgates.modules.packed_linear import WORTH_PACKING, InferenceLinear, PackedLinear, pack_linears

LARGE, SMALL = (512, WORTH_PACKING // 512), (24, 16)  # outputs, inputs
NEEDS_ONEDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def layers(shape, count, bias=True):
    torch.manual_seed(0)
    return [nn.Linear(shape[1], shape[0], bias) for _ in range(count)]


def naive(parts, x):
    return torch.cat([F.linear(x, part.weight, part.bias) for part in parts], dim=-1)


@pytest.mark.parametrize("shape", [LARGE, SMALL])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(1,), (7, 5), (40, 3)])
@torch.no_grad()
def test_equals_separate_layers(shape, count, bias, rows):
    parts = layers(shape, count, bias)
    x = torch.randn(*rows, shape[1])
    expected = naive(parts, x)
    torch.testing.assert_close(InferenceLinear(parts)(x), expected)
    torch.testing.assert_close(naive(parts, x), expected, rtol=0, atol=0)  # the layers are what they were


@NEEDS_ONEDNN
def test_large_weights_are_packed_and_small_ones_are_not():
    for shape, packed in ((LARGE, True), (SMALL, False)):
        linear = InferenceLinear(layers(shape, 1))
        with torch.no_grad():
            linear(torch.randn(2, shape[1]))
        assert (linear._packed is not None) == packed


@pytest.mark.parametrize("shape", [LARGE, SMALL])
@pytest.mark.parametrize("count", [1, 3])
@torch.no_grad()
def test_follows_every_change_of_the_weights(shape, count):
    parts = layers(shape, count)
    linear, x = InferenceLinear(parts), torch.randn(4, shape[1])
    linear(x)
    parts[-1].weight.mul_(2)  # in place
    torch.testing.assert_close(linear(x), naive(parts, x))
    parts[0].bias.data = torch.ones(shape[0])
    torch.testing.assert_close(linear(x), naive(parts, x))
    parts[0].load_state_dict({"weight": torch.randn(shape) / 50, "bias": torch.randn(shape[0])})
    torch.testing.assert_close(linear(x), naive(parts, x))
    parts[0].weight = nn.Parameter(torch.randn(shape) / 50)
    torch.testing.assert_close(linear(x), naive(parts, x))
    for part in parts:
        part.double()
    torch.testing.assert_close(linear(x.double()), naive(parts, x.double()))
    copied = copy.deepcopy(linear)
    parts[0].weight.zero_()
    assert (copied(x.double()) - linear(x.double())).abs().max() > 0.1


def test_packed_linear_has_gradients_where_they_are_asked_for():
    (layer,) = layers(LARGE, 1)
    packed, x = PackedLinear(layer), torch.randn(3, LARGE[1], requires_grad=True)
    packed(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.detach().sum(0).expand(LARGE))
    assert packed.state_dict().keys() == layer.state_dict().keys()
    assert packed.weight is layer.weight
    with torch.no_grad():
        torch.testing.assert_close(packed(x), layer(x))


@NEEDS_ONEDNN
def test_a_model_prepared_for_inference_is_packed_and_computes_the_same():
    model = make_gated(encoder_ffn_embed_dim=8192, gate_heads="dec-self", gate_init="0.3")
    expected, names = logits(model, make_batch()), list(model.state_dict())
    model.make_generation_fast_()
    packed = {name for name, module in model.named_modules() if isinstance(module, PackedLinear)}
    assert packed == {f"encoder.layers.{i}.fc{j}" for i in (0, 1) for j in (1, 2)}
    assert list(model.state_dict()) == names
    torch.testing.assert_close(logits(model, make_batch()), expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    other = make_gated(encoder_ffn_embed_dim=8192, gate_heads="dec-self", gate_init="0.3")
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(model, make_batch()), logits(other, make_batch()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("missing", ["oneDNN", "its operators"])
def test_a_torch_that_cannot_pack(missing, monkeypatch):
    if missing == "oneDNN":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    else:
        monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    model = make_gated(encoder_ffn_embed_dim=8192)
    expected = logits(model, make_batch())
    model.make_generation_fast_()
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    torch.testing.assert_close(logits(model, make_batch()), expected, rtol=1e-5, atol=1e-5)
    parts, x = layers(LARGE, 3), torch.randn(3, LARGE[1])
    with torch.no_grad():
        torch.testing.assert_close(InferenceLinear(parts)(x), naive(parts, x))


def test_nothing_is_packed_in_other_precisions():
    model = nn.Sequential(*layers(LARGE, 2)).bfloat16()
    pack_linears(model)
    assert all(type(layer) is nn.Linear for layer in model)
