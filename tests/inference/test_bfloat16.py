"""Linear layers in bfloat16: what rounding the same numbers gives, in attention, decoding and every family."""

import copy
import os

import pytest
import torch
import torch.nn.functional as F
from support.inference import FAMILIES
from support.models import logits, make_batch, make_gated
from torch import nn

from fairseq_headgates.attention.head_attention import HeadAttention
from fairseq_headgates.inference import kernels, packed_linear
from fairseq_headgates.inference.kernels import FEW_ROWS, BFloat16Weight, Float32Weight, RoundedProduct
from fairseq_headgates.inference.packed_linear import PackedLinear

NEEDS_BFLOAT16 = pytest.mark.skipif(not kernels.multiplies_bfloat16(), reason="this CPU does not multiply in bfloat16")
SETTING = torch.backends.mkldnn.matmul if hasattr(torch.backends.mkldnn, "matmul") else None
INPUTS, OUTPUTS = 96, 40


@pytest.fixture
def small(monkeypatch):
    """Weights of every size are packed."""
    monkeypatch.setattr(packed_linear, "WORTH_PACKING", 1)


def rounded(x):
    return x.bfloat16().to(x.dtype)


def exact(x, weight, bias):
    """The product of the rounded factors in double precision."""
    return F.linear(rounded(x).double(), rounded(weight).double(), None if bias is None else bias.double())


def factors(rows, bias=True):
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(n, INPUTS, generator=generator) for n in (rows, OUTPUTS))
    return x, weight, torch.linspace(-1, 1, OUTPUTS) if bias else None


@NEEDS_BFLOAT16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, FEW_ROWS, 130])
def test_products_are_those_of_rounded_factors(rows, bias):
    x, weight, bias = factors(rows, bias)
    expected = exact(x, weight, bias)
    found = BFloat16Weight(weight)(x, bias)
    assert found.dtype == torch.bfloat16
    assert ((found.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-6).all()  # the nearest number
    found = RoundedProduct(weight)(x, bias)
    if rows < FEW_ROWS:
        assert torch.equal(found, Float32Weight(weight)(x, bias))
    else:
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-5)


@NEEDS_BFLOAT16
def test_an_output_of_bfloat16_is_the_same_input_of_the_next_layer():
    x, weight, bias = factors(7)
    assert torch.equal(BFloat16Weight(weight)(x.bfloat16(), bias), BFloat16Weight(weight)(x, bias))


@NEEDS_BFLOAT16
@pytest.mark.parametrize("inherited", [True, False])
@pytest.mark.parametrize("rows", [2, 50])
def test_settings_of_torch_stay_as_they_were(rows, inherited, monkeypatch):
    backends = torch.backends.mkldnn
    before = backends.fp32_precision if inherited else SETTING.fp32_precision
    place = backends if inherited else SETTING
    x, weight, bias = factors(rows)
    product = RoundedProduct(weight)
    try:
        place.fp32_precision = "ieee"
        product(x, bias)
        assert SETTING.fp32_precision == "ieee"
        with pytest.raises(RuntimeError):
            product(torch.randn(rows, INPUTS + 1), bias)
        assert SETTING.fp32_precision == "ieee"
        place.fp32_precision = "bf16"
        assert SETTING.fp32_precision == "bf16"  # still inherited, if it was
    finally:
        place.fp32_precision = before


def test_a_processor_whose_instructions_are_limited_does_not_use_it(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    able = kernels.multiplies_bfloat16()
    for isa, expected in {"AVX2": False, "AVX512_CORE_VNNI": False, "avx512_core_bf16": able, "ALL": able}.items():
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
        assert kernels.multiplies_bfloat16() == expected, isa
    if "avx512_bf16" in cpu_flags():
        assert able


def cpu_flags():
    if not os.path.exists("/proc/cpuinfo"):
        return []
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.split() for line in lines if line.startswith("flags")), [])


# --- models ----------------------------------------------------------------------------------------------------------


def prepared(model, dtype="bfloat16"):
    model.inference_dtype = dtype
    model.make_generation_fast_()
    return model


def forms(model):
    """The form of the weight of every packed layer."""
    return {name: m.inference.dtype for name, m in model.named_modules() if isinstance(m, PackedLinear)}


class Rounded(nn.Module):
    """A linear layer that rounds its inputs and weight to bfloat16, and with `results` what it returns."""

    def __init__(self, layer, results):
        super().__init__()
        self.weight, self.bias, self.results = nn.Parameter(rounded(layer.weight)), layer.bias, results

    def forward(self, x):
        y = F.linear(rounded(x), self.weight, self.bias)
        return rounded(y) if self.results else y


def rounded_twin(model):
    """The model with layers that round as documented, in single precision."""
    twin = copy.deepcopy(model)
    for name, module in list(twin.named_modules()):
        for part, layer in list(module.named_children()):
            if type(layer) is nn.Linear:
                setattr(module, part, Rounded(layer, ".layers." in f".{name}."))
    return twin


@NEEDS_BFLOAT16
def test_a_transformer_rounds_in_its_blocks_and_in_the_product_of_its_output_layer(small):
    model = make_gated(gate_heads="enc-self,dec-enc", gate_init="0.4")
    batch = make_batch()
    expected, twin = logits(model, batch), logits(rounded_twin(model), batch)
    found = logits(prepared(model), batch)
    kinds = forms(model)
    assert kinds.pop("decoder.output_projection") == "rounded"
    assert set(kinds.values()) == {"bfloat16"} and len(kinds) == 2 * 6 + 2 * 10
    assert found.dtype == torch.float32
    off, of_twin = ((x - expected).norm() / expected.norm() for x in (found, twin))
    assert 0 < off < 0.01 and (found - twin).norm() / expected.norm() < 1.5 * of_twin


# How many layers have weights in bfloat16
PACKED = {"language model": 12, "all-attention": 10, "classifier": 12}


@NEEDS_BFLOAT16
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_in_bfloat16(family, small):
    make, batch = FAMILIES[family]
    model = make()
    expected = logits(model, batch())
    found = logits(prepared(model), batch())
    assert list(forms(model).values()).count("bfloat16") == PACKED[family]
    assert found.dtype == torch.float32 and 0 < (found - expected).norm() / expected.norm() < 0.02


@NEEDS_BFLOAT16
@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_a_search_computes_what_a_whole_forward_pass_computes(beam, small):
    model = prepared(make_gated())
    batch = make_batch()
    whole = model(**batch)[0]
    model.set_beam_size(beam)
    encoded = model.encoder(batch["src_tokens"], batch["src_lengths"])
    rows = torch.arange(len(batch["src_tokens"])).repeat_interleave(beam)
    encoded, state = model.encoder.reorder_encoder_out(encoded, rows), {}
    tokens = batch["prev_output_tokens"][rows]
    steps = [model.decoder(tokens[:, : i + 1], encoded, state)[0][:, -1] for i in range(tokens.size(1))]
    keys = state["decoder_step"].buffers
    assert keys["0.keys"].dtype == torch.bfloat16 and keys["0.source_keys"].dtype == torch.float32
    seen = tokens.ne(model.decoder.padding_idx)
    difference = (torch.stack(steps, dim=1) - whole[rows])[seen]
    assert difference.norm() / whole[rows][seen].norm() < 0.01


@NEEDS_BFLOAT16
def test_results_stay_in_bfloat16_only_where_a_layer_with_such_weights_reads_them(small):
    model = make_gated()
    model.encoder.layers[0].fc2.register_forward_hook(lambda *_: None)
    model.decoder.layers[1].self_attn.out_proj.register_forward_hook(lambda *_: None)
    expected = logits(model, make_batch())
    found = logits(prepared(model), make_batch())  # layers with hooks stay in single precision
    assert (found - expected).norm() / expected.norm() < 0.01
    stays = {
        name for name, m in model.named_modules() if isinstance(m, PackedLinear) and m.inference.output != torch.float32
    }
    attention = [name for name, m in model.named_modules() if isinstance(m, HeadAttention) and m.self_attention]
    some = {f"{name}.{part}" for name in attention for part in ("q_proj", "k_proj", "v_proj")}
    some |= {f"{side}.layers.{i}.fc1" for side in ("encoder", "decoder") for i in range(2)}
    assert stays == {
        name for name in some if not name.startswith(("decoder.layers.1.self_attn", "encoder.layers.0.fc"))
    }


@NEEDS_BFLOAT16
def test_weights_are_restored_rounded_but_not_those_of_the_output_layer(small):
    model = make_gated()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    prepared(model)
    logits(model, make_batch())
    held = model.encoder.layers[0].fc1.inference._packed._packed
    assert held.numel() * held.element_size() == 2 * before["encoder.layers.0.fc1.weight"].numel()
    for name, weight in model.state_dict().items():
        is_rounded = ".layers." in name and name.endswith("weight") and "norm" not in name
        assert torch.equal(weight, rounded(before[name]) if is_rounded else before[name]), name


@NEEDS_BFLOAT16
def test_a_copy_of_a_prepared_model_computes_the_same(small):
    model = prepared(make_gated())
    expected = logits(model, make_batch())
    assert torch.equal(logits(copy.deepcopy(model), make_batch()), expected)
    model.state_dict()
    assert torch.equal(logits(model, make_batch()), expected)


@NEEDS_BFLOAT16
def test_gradients_are_those_of_the_rounded_weights(small):
    model = make_gated()
    prepared(model)
    model(**make_batch())[0].sum().backward()
    twin = make_gated()
    twin.load_state_dict(model.state_dict())
    twin.eval()(**make_batch())[0].sum().backward()
    for (name, parameter), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_single_precision_is_used_where_the_processor_cannot(small, caplog, monkeypatch):
    monkeypatch.setattr(kernels, "multiplies_bfloat16", lambda: False)
    model = make_gated()
    expected = logits(model, make_batch())
    prepared(model)
    [line] = caplog.messages
    assert line.startswith("inference dtype bfloat16 is not used: this processor has neither AMX nor AVX512_BF16")
    assert set(forms(model).values()) == {"float32"}
    torch.testing.assert_close(logits(model, make_batch()), expected, rtol=1e-5, atol=1e-5)
