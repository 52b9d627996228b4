"""Linear layers for inference: what F.linear gives, also after the weights have changed."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.models import logits, make_batch, make_gated
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from fairseq_headgates import prune
from fairseq_headgates.inference import packed_linear
from fairseq_headgates.inference.packed_linear import InferenceLinear, PackedLinear, pack_linears, worth_packing

LARGE, SMALL = (512, worth_packing("float32") // 512), (24, 16)  # outputs, inputs
WIDE = {"encoder_ffn_embed_dim": 24 * 1024}  # with 32 inputs, packed on every processor
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
    smaller = LARGE[0], LARGE[1] - 1
    for shape, packed in ((LARGE, True), (smaller, False), (SMALL, False)):
        linear = InferenceLinear(layers(shape, 1))
        with torch.no_grad():
            linear(torch.randn(2, shape[1]))
        assert (linear._packed is not None) == packed


@pytest.mark.parametrize("shape", [LARGE, SMALL])
@pytest.mark.parametrize("count", [1, 3])
@torch.no_grad()
def test_packed_layers_follow_every_change_of_the_weights(shape, count):
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


@NEEDS_ONEDNN
def test_a_model_prepared_for_inference_is_packed_and_computes_the_same():
    model = make_gated(**WIDE, gate_heads="dec-self", gate_init="0.3")
    expected, names = logits(model, make_batch()), list(model.state_dict())
    model.make_generation_fast_()
    packed = {name for name, module in model.named_modules() if isinstance(module, PackedLinear)}
    assert packed == {f"encoder.layers.{i}.fc{j}" for i in (0, 1) for j in (1, 2)}
    assert list(model.state_dict()) == names
    torch.testing.assert_close(logits(model, make_batch()), expected, rtol=1e-5, atol=1e-5)


@NEEDS_ONEDNN
def test_attention_of_other_models_packs_its_inputs_alone(monkeypatch):
    """fairseq prepares it in models of others, too, where nobody releases the weights of packed layers."""
    monkeypatch.setattr(packed_linear, "WORTH_PACKING", 1)
    attention = make_gated().encoder.layers[0].self_attn
    attention.make_generation_fast_()
    assert isinstance(attention.q_proj, PackedLinear) and type(attention.out_proj) is nn.Linear


def test_without_onednn_nothing_is_packed(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = make_gated(**WIDE)
    expected = logits(model, make_batch())
    model.make_generation_fast_()
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    torch.testing.assert_close(logits(model, make_batch()), expected, rtol=1e-5, atol=1e-5)
    parts, x = layers(LARGE, 3), torch.randn(3, LARGE[1])
    with torch.no_grad():
        torch.testing.assert_close(InferenceLinear(parts)(x), naive(parts, x))


def prepared(**options):
    """Return a model whose feed-forward layers of the encoder, and nothing else, have weights that are released."""
    model = make_gated(**WIDE, **options)
    names = list(model.state_dict())
    model.make_generation_fast_()
    return model, names


def released(model):
    """Return the names of the linear layers whose weights were released. It asks for no weight."""
    layers = ((name, vars(module)["_parameters"]) for name, module in model.named_modules() if name)
    return {name for name, parameters in layers if "weight" in parameters and parameters["weight"] is None}


LARGE_LAYERS = {f"encoder.layers.{i}.fc{j}" for i in (0, 1) for j in (1, 2)}
ASK = {
    "state dict": lambda model: model.state_dict(),
    "parameters": lambda model: list(model.parameters()),
    "names": lambda model: dict(model.named_parameters()),
    "attribute": lambda model: [model.get_submodule(name).weight for name in LARGE_LAYERS],
    "moved": lambda model: model.double().float(),
    "a copy": copy.deepcopy,
    "loaded": lambda model: model.load_state_dict(model.state_dict()),
    "inference mode": lambda model: in_inference_mode(model.state_dict),
    "pickled": lambda model: pickle.dumps([model.get_submodule(name) for name in sorted(LARGE_LAYERS)]),
    "pruned": lambda model: prune(model, {"enc-self": [[1] * 4] * 2}),
}


def in_inference_mode(call):
    with torch.inference_mode():
        return call()


@pytest.mark.cases(4)
@NEEDS_ONEDNN
@pytest.mark.parametrize("ask", ASK)
def test_released_weights_are_restored_unchanged_on_access(ask):
    never, (model, names) = make_gated(**WIDE), prepared()
    expected = logits(never, make_batch())
    assert released(model) == LARGE_LAYERS
    torch.testing.assert_close(logits(model, make_batch()), expected, rtol=1e-5, atol=1e-5)
    assert released(model) == LARGE_LAYERS  # inference asks for none
    ASK[ask](model)
    assert not released(model)
    assert list(model.state_dict()) == names
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in never.named_parameters()]
    for (name, parameter), other in zip(model.named_parameters(), never.parameters(), strict=True):
        assert torch.equal(parameter, other), name
        assert isinstance(parameter, nn.Parameter)
        assert parameter.requires_grad == other.requires_grad
    torch.testing.assert_close(logits(model, make_batch()), expected, rtol=1e-5, atol=1e-5)
    model(**make_batch())[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.encoder.layers.parameters())


@NEEDS_ONEDNN
def test_weights_with_other_references_are_not_released():
    model = make_gated(**WIDE, freeze_params=r"fc2\.weight")
    held = model.encoder.layers[1].fc1.weight
    model.make_generation_fast_()
    assert released(model) == LARGE_LAYERS - {"encoder.layers.1.fc1"}
    assert model.encoder.layers[1].fc1.weight is held
    before = logits(model, make_batch())
    with torch.no_grad():
        held.mul_(2)
    assert not torch.allclose(logits(model, make_batch()), before)
    assert not model.encoder.layers[0].fc2.weight.requires_grad  # frozen before, and after


@NEEDS_ONEDNN
def test_queries_keys_and_values_are_released_together(monkeypatch):
    monkeypatch.setattr(packed_linear, "WORTH_PACKING", 1)
    never, model = make_gated(), make_gated()
    model.make_generation_fast_()
    attention = model.encoder.layers[0].self_attn
    assert {f"encoder.layers.0.self_attn.{x}_proj" for x in "qkv"} <= released(model)
    torch.testing.assert_close(logits(model, make_batch()), logits(never, make_batch()), rtol=1e-5, atol=1e-5)
    assert torch.equal(attention.k_proj.weight, never.encoder.layers[0].self_attn.k_proj.weight)
    assert not {f"encoder.layers.0.self_attn.{x}_proj" for x in "qkv"} & released(model)
    with torch.no_grad():
        for one in (model, never):
            one.encoder.layers[0].self_attn.v_proj.weight.mul_(3)
    torch.testing.assert_close(logits(model, make_batch()), logits(never, make_batch()), rtol=1e-5, atol=1e-5)


@NEEDS_ONEDNN
def test_memory_of_a_released_weight_is_free():
    model = nn.Sequential(*layers(LARGE, 2))
    memory = [StorageWeakRef(layer.weight.untyped_storage()) for layer in model]
    pack_linears(model)
    assert all(one.expired() for one in memory)


@NEEDS_ONEDNN
def test_layers_with_hooks_are_not_replaced():
    model, called = nn.Sequential(nn.Linear(2048, 512), nn.Linear(512, 2048)), []
    model[0].register_forward_hook(lambda *_: called.append(1))
    pack_linears(model)
    with torch.no_grad():
        model(torch.randn(4, 2048))
    assert called == [1]
    assert [type(layer) for layer in model] == [nn.Linear, PackedLinear]


def test_inputs_of_another_precision():
    model = nn.Sequential(nn.Linear(512, 2048))
    expected = copy.deepcopy(model)
    pack_linears(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        x = torch.randn(4, 512)
        assert torch.equal(model(x.bfloat16()), expected(x.bfloat16()))


@NEEDS_ONEDNN
@pytest.mark.parametrize("rows", [1, 400])
def test_an_unreleased_weight_is_used_packed_where_that_is_faster(rows, monkeypatch):
    model = nn.Sequential(nn.Linear(512, 2048))
    held = model[0].weight
    pack_linears(model)
    assert model[0].weight is held  # not released
    monkeypatch.setattr(F, "linear", None)
    with torch.no_grad():
        model(torch.randn(rows, 512))
