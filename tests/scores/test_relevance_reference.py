"""The rules of relevance against numbers computed by the original implementation."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.relevance import SETTINGS

from fairseq_headgates.scores.relevance.rules import add, attention, keep_norm, layer_norm, linear, merge

REFERENCE = dict(np.load(Path(__file__).parents[1] / "fixtures" / "reference_relevance.npz"))

settings = pytest.mark.parametrize("setting", SETTINGS)


# Layers, against the original


def array(name):
    return torch.tensor(REFERENCE[name], dtype=torch.double)


def both_signs(name, positive):
    """[B, T, 2, D]: an array of relevance of both signs and its positive twin."""
    return torch.stack([array(name), array(positive)], dim=2)


def given(size="D"):
    return both_signs(f"in/R_{size}", f"in/Rpos_{size}")


def assert_reference(found, setting, layer, name="R", tolerance=5e-6):
    expected = both_signs(f"{setting}/{layer}/{name}", f"{setting}/{layer}/pos_{name}")
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max(), name
    if setting != "eps_rule":
        assert found[:, :, 1].min() >= 0


def weights(layer, name):
    """Weight [out, in] and bias of a projection; the original has [in, out]."""
    prefix = f"var/t/{layer}/{name}".rstrip("/")
    bias = array(f"{prefix}/b") if f"{prefix}/b" in REFERENCE else None
    return array(f"{prefix}/W").t(), bias


def norm_of(layer):
    prefix = "var/t/ln" if layer == "ln" else f"var/t/{layer}/layer_norm"
    norm = torch.nn.LayerNorm(8, eps=1e-6, dtype=torch.double)
    norm.weight.data, norm.bias.data = array(f"{prefix}/scale"), array(f"{prefix}/bias")
    return norm.requires_grad_(False)


def each(function, *tensors):
    """`function` of every sentence on its own; its result, or each of them, stacked."""
    results = [function(*sentence) for sentence in zip(*tensors, strict=True)]
    return torch.stack(results) if torch.is_tensor(results[0]) else [torch.stack(r) for r in zip(*results, strict=True)]


def of_both_sentences(function, *tensors):
    """Residual connections take one norm of a whole batch in the original, which has one sentence in it."""
    results = function(*(x.flatten(0, 1) for x in tensors))
    return [r.unflatten(0, (2, -1)) for r in (results if isinstance(results, tuple) else (results,))]


def keep_norm_of(R, *parts):
    return keep_norm(R.abs().sum((0, 2), keepdim=True), *parts)


def linear_of(layer, name, R, x, rule):
    return each(lambda R, x: linear(R, x, *weights(layer, name), rule), R, x)


def ffn_of(layer, R, x, rule):
    hidden = F.linear(x, *weights(layer, "conv1")).relu()
    return linear_of(layer, "conv1", linear_of(layer, "conv2", R, hidden, rule), x, rule)


def heads_of(x):
    """[T, 2 D] -> [2, T, D]."""
    return x.unflatten(-1, (2, -1)).transpose(0, 1)


def attention_of(layer, R, x, memory, setting, tolerance):
    """Relevance at the query and, of cross-attention, at the memory; every step is compared on the way."""
    rule, crossing = SETTINGS[setting], layer.endswith("cross")
    if crossing:
        q = F.linear(x, *weights(layer, "query_conv"))
        k, v = F.linear(memory, *weights(layer, "mem_conv")).chunk(2, dim=-1)
        seen = array("in/cross_mask")
    else:
        q, k, v = F.linear(x, *weights(layer, "mem_conv")).chunk(3, dim=-1)
        seen = array("in/self_mask")
    q, k, v = (torch.stack([heads_of(sentence) for sentence in y]) for y in (q, k, v))
    w = (q @ k.transpose(2, 3) / 2).masked_fill(seen == 0, float("-inf")).softmax(-1)
    assert_reference(R, setting, layer, "out_conv_R_in", tolerance)
    R = linear_of(layer, "out_conv", R, (w @ v).transpose(1, 2).flatten(2), rule)
    assert_reference(R, setting, layer, "out_conv_R_out", tolerance)
    R = R.unflatten(-1, (2, -1)).permute(0, 3, 1, 2, 4)  # [B, H, T, N, D]
    at_q, at_k, at_v = (
        r.permute(0, 2, 3, 1, 4).flatten(3) for r in each(lambda *args: attention(*args, 0.5, rule), R, q, k, v, w)
    )
    if not crossing:
        joined = torch.cat([at_q, at_k, at_v], dim=-1)
        assert_reference(joined, setting, layer, "combined_conv_R_in", tolerance)
        at_x = linear_of(layer, "mem_conv", joined, x, rule)
        assert_reference(at_x, setting, layer, "combined_conv_R_out", tolerance)
        return (at_x,)
    at_kv = torch.cat([at_k, at_v], dim=-1)
    assert_reference(at_q, setting, layer, "query_conv_R_in", tolerance)
    assert_reference(at_kv, setting, layer, "kv_conv_R_in", tolerance)
    at_x, at_memory = linear_of(layer, "query_conv", at_q, x, rule), linear_of(layer, "mem_conv", at_kv, memory, rule)
    assert_reference(at_x, setting, layer, "query_conv_R_out", tolerance)
    assert_reference(at_memory, setting, layer, "kv_conv_R_out", tolerance)
    return at_x, at_memory


@settings
@pytest.mark.parametrize("layer", ["dense", "dense_nobias", "dense_relu"])
def test_reference_linear(setting, layer):
    found = linear_of(layer, "", given("O"), array("in/x"), SETTINGS[setting])
    assert_reference(found, setting, layer)


@settings
def test_reference_feed_forward(setting):
    assert_reference(ffn_of("ffn", given(), array("in/x"), SETTINGS[setting]), setting, "ffn")


@settings
def test_reference_add(setting):
    rule = SETTINGS[setting]
    found = each(lambda R, a, b: add(R, a, b, rule), given(), array("in/x"), array("in/x2"))
    for part, name in zip(found, ("R_a", "R_b"), strict=True):
        assert_reference(part, setting, "add", name)
    # One vector for both sentences gets the sum, with the norm of both.
    at_a, at_b = each(lambda R, a, b: add(R, a, b, rule), given(), array("in/x"), array("in/xb").expand(2, -1, -1))
    assert_reference(at_a, setting, "add_bcast", "R_a")
    assert_reference(merge(*at_b)[None], setting, "add_bcast", "R_b")


# The sum of z is nearly nothing for LayerNorm, which the epsilon rule divides by: the original's float32 shows.
def tolerance_of(setting):
    return 1e-4 if setting == "eps_rule" else 5e-6


def norm_each(R, layer, rule):
    return each(lambda R, x: layer_norm(R, x, norm_of(layer), rule), R, array("in/x"))


@settings
def test_reference_layer_norm(setting):
    assert_reference(norm_each(given(), "ln", SETTINGS[setting]), setting, "ln", tolerance=tolerance_of(setting))


@settings
@pytest.mark.parametrize("layer", ["self", "cross"])
def test_reference_attention(setting, layer):
    found = attention_of(layer, given(), array("in/x"), array("in/mem"), setting, 5e-6)
    names = ("R",) if layer == "self" else ("R_query", "R_kv")
    for R, name in zip(found, names, strict=True):
        assert_reference(R, setting, layer, name)


@settings
@pytest.mark.parametrize("layer", ["rffn", "rself", "rcross"])
def test_reference_residual(setting, layer):
    """x + layer(norm(x)), from its output to x and to the memory."""
    rule, tolerance = SETTINGS[setting], tolerance_of(setting)
    x, memory, norm = array("in/x"), array("in/mem"), norm_of(layer)
    y = array(f"{setting}/{layer}/out") - x
    at_x, at_y = each(lambda R, x, y: add(R, x, y, rule), given(), x, y)
    if layer == "rffn":
        rest = (ffn_of(layer, at_y, norm(x), rule),)
    else:
        rest = attention_of(layer, at_y, norm(x), memory, setting, tolerance)
    (found,) = of_both_sentences(merge, at_x, norm_each(rest[0], layer, rule))
    if layer != "rcross":
        assert_reference(found, setting, layer, "R", tolerance)
        return
    for R, name in zip(of_both_sentences(keep_norm_of, given(), found, rest[1]), ("R_query", "R_kv"), strict=True):
        assert_reference(R, setting, layer, name, tolerance)
