"""HeadAttention against a naive rewrite, and in whole models against the stock transformer."""

import copy
import math

import pytest
import torch
from fairseq.modules import MultiheadAttention
from support.models import PAD, logits, make_batch, make_gated, make_stock
from support.pruning import stirred

from fairseq_headgates import (
    HeadAttention,
    HeadTable,
    attention_modules,
    fix_heads,
    gate_values,
    insert_gates,
    masked,
    prune,
    remove_heads,
)
from fairseq_headgates.attention.cuts import pad_heads
from fairseq_headgates.heads import TYPES

E, H, D, T, S, B = 12, 3, 4, 5, 6, 2


def padding_mask(side):
    mask = torch.zeros(B, S, dtype=torch.bool)
    if side == "left":
        mask[1, :2] = True
    elif side == "right":
        mask[1, -3:] = True
    return mask if side else None


def make_attention(cross=False, dropout=0.0, dtype=torch.double):
    torch.manual_seed(1)
    stock = MultiheadAttention(
        E, H, dropout=dropout, self_attention=not cross, encoder_decoder_attention=cross,
        kdim=E if cross else None, vdim=E if cross else None,
    )  # fmt: skip
    for parameter in stock.parameters():  # biases start at 0, which would hide a forgotten one
        torch.nn.init.normal_(parameter, std=0.5)
    return HeadAttention(stock).to(dtype).eval()


def naive(attention, query, memory, scale=None, causal=False, padding=None):
    """Multi-head attention, one sentence, head and target position at a time. [T, B, E] and weights [H, B, T, S]."""
    scale = torch.ones(H) if scale is None else scale
    q, k, v = attention.q_proj(query), attention.k_proj(memory), attention.v_proj(memory)
    output = torch.zeros(len(query), B, E, dtype=query.dtype)
    weights = torch.zeros(H, B, len(query), len(memory), dtype=query.dtype)
    for b in range(B):
        for t in range(len(query)):
            total = attention.out_proj.bias.clone()
            for h in range(H):
                part = slice(h * D, (h + 1) * D)
                allowed = [
                    s
                    for s in range(len(memory))
                    if not (causal and s > t) and not (padding is not None and padding[b, s])
                ]
                scores = torch.stack([q[t, b, part] @ k[s, b, part] / math.sqrt(D) for s in allowed])
                p = scores.exp() / scores.exp().sum()
                context = sum(p[i] * v[s, b, part] for i, s in enumerate(allowed))
                total = total + scale[h] * (attention.out_proj.weight[:, part] @ context)
                weights[h, b, t, allowed] = p
            output[t, b] = total
    return output, weights


def future(length, dtype):
    return torch.full((length, length), -math.inf, dtype=dtype).triu(1)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("scale", [None, [0.3, 0.0, 1.0]])
def test_matches_a_naive_rewrite(cross, side, scale):
    attention = make_attention(cross)
    attention.head_mask = None if scale is None else torch.tensor(scale, dtype=torch.double)
    memory = torch.randn(S, B, E, dtype=torch.double)
    query = torch.randn(T, B, E, dtype=torch.double) if cross else memory
    padding = padding_mask(side)
    expected, expected_weights = naive(attention, query, memory, attention.head_mask, padding=padding)
    fused, none = attention(query, memory, memory, key_padding_mask=padding, need_weights=False)
    explicit, weights = attention(query, memory, memory, key_padding_mask=padding, need_head_weights=True)
    _, averaged = attention(query, memory, memory, key_padding_mask=padding, need_weights=True)
    assert none is None
    torch.testing.assert_close(fused, expected)
    torch.testing.assert_close(explicit, expected)
    torch.testing.assert_close(weights, expected_weights)
    contributing = [h for h in range(H) if scale is None or scale[h]]  # as after removing the others
    torch.testing.assert_close(averaged, sum(expected_weights[h] for h in contributing) / len(contributing))
    torch.testing.assert_close(attention.train()(query, memory, memory, padding)[1], expected_weights.mean(0))


@pytest.mark.parametrize("side", [None, "right"])
def test_causal_mask_matches_a_naive_rewrite(side):
    attention = make_attention()
    x, padding = torch.randn(S, B, E, dtype=torch.double), padding_mask(side)
    expected, _ = naive(attention, x, x, causal=True, padding=padding)
    for need_weights in (False, True):
        actual, _ = attention(x, x, x, padding, need_weights=need_weights, attn_mask=future(S, x.dtype))
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_fully_masked_row_gives_no_nan(need_weights, dtype):
    attention = make_attention(dtype=dtype)
    x = (3 * torch.randn(S, B, E)).to(dtype).requires_grad_()
    # With padding on the left, the first target positions see nothing at all.
    output, _ = attention(x, x, x, padding_mask("left"), need_weights=need_weights, attn_mask=future(S, dtype))
    output.sum().backward()
    assert output.isfinite().all() and x.grad.isfinite().all()


def test_gradients_of_both_paths_agree_with_finite_differences():
    attention = make_attention()
    scale = torch.tensor([0.4, 0.9, 0.1], dtype=torch.double, requires_grad=True)
    x = torch.randn(4, B, E, dtype=torch.double, requires_grad=True)

    def run(x, scale, need_weights):
        attention.head_mask = scale
        return attention(x, x, x, need_weights=need_weights)[0]

    for need_weights in (False, True):
        assert torch.autograd.gradcheck(lambda x, s, w=need_weights: run(x, s, w), (x, scale))


@pytest.mark.parametrize("length", [2, 40])
def test_scaling_the_context_is_scaling_the_columns(length):
    """The shorter of context and weight is scaled; both must be the same function."""
    attention = make_attention()
    attention.head_mask = torch.tensor([0.2, 0.0, 0.7], dtype=torch.double)
    x = torch.randn(length, B, E, dtype=torch.double)
    expected, _ = attention(x, x, x, need_weights=False)
    with torch.no_grad():
        attention.out_proj.weight.mul_(attention.head_mask.repeat_interleave(D))
    attention.head_mask = None
    torch.testing.assert_close(attention(x, x, x, need_weights=False)[0], expected)


def test_dropout_of_the_weights_is_applied_in_training_only():
    attention = make_attention(dropout=0.5)
    x = torch.randn(S, B, E, dtype=torch.double)
    for need_weights in (False, True):
        still = [attention.eval()(x, x, x, need_weights=need_weights)[0] for _ in range(2)]
        torch.testing.assert_close(still[0], still[1])
        moving = [attention.train()(x, x, x, need_weights=need_weights)[0] for _ in range(2)]
        assert not torch.allclose(moving[0], moving[1])
    attention.eval()
    attention.dropout_module.apply_during_inference = True  # fairseq's --retain-dropout
    assert not torch.allclose(attention(x, x, x, need_weights=False)[0], still[0])


@pytest.mark.parametrize("allowed", [True, False])
def test_fused_kernels_are_not_those_of_cudnn(allowed, monkeypatch):
    """cuDNN prepares for each new shape; other attention of the process may use it as before."""
    fused, seen = torch.nn.functional.scaled_dot_product_attention, []

    def noting(*tensors, **options):
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return fused(*tensors, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        make_gated().train()(**make_batch())
        assert set(seen) == {False} and torch.backends.cuda.cudnn_sdp_enabled() == allowed
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_one_noise_draw_for_each_forward_pass():
    """All positions and sentences of a batch see the same gate."""
    model = make_gated(gate_heads="enc-self", gate_init="0", dropout=0.0).train()
    attention = attention_modules(model)[0].attention
    x = torch.randn(1, 1, 32).expand(S, B, 32)
    output, _ = attention(x, x, x, need_weights=False)
    torch.testing.assert_close(output, output[:1, :1].expand_as(output))
    again, _ = attention(x, x, x, need_weights=False)
    assert not torch.allclose(output, again)


# --- whole models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"gate_heads": "enc-self,dec-self,dec-enc"}, {"alive_heads": '{"enc-self": [[1,1,1,1],[1,1,1,1]]}'}],
)
@pytest.mark.parametrize("normalize_before", [True, False])
@pytest.mark.parametrize("source_pad", ["left", "right"])
def test_equals_stock_transformer(options, normalize_before, source_pad):
    norm = {"encoder_normalize_before": normalize_before, "decoder_normalize_before": normalize_before}
    stock, ours = make_stock(**norm), make_gated(**norm, **options)
    ours.load_state_dict(stock.state_dict())
    batch = make_batch(source_pad=source_pad)
    real = batch["prev_output_tokens"].ne(PAD)
    torch.testing.assert_close(logits(ours, batch)[real], logits(stock, batch)[real], rtol=0, atol=1e-5)


def test_same_seed_gives_the_same_random_model():
    stock, ours = make_stock(seed=3), make_gated(seed=3, gate_heads="enc-self")
    for name, parameter in stock.named_parameters():
        assert torch.equal(parameter, ours.get_parameter(name)), name


def test_training_gradients_equal_stock():
    stock, ours = make_stock(dropout=0.0).train(), make_gated(dropout=0.0).train()
    for model in (stock, ours):
        model(**make_batch())[0].square().mean().backward()
    for name, parameter in stock.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-7, msg=name)


@pytest.mark.parametrize("attention_type", TYPES)
def test_a_closed_head_is_its_columns_zeroed(attention_type):
    zeroed, closed = make_gated(), make_gated(gate_heads=attention_type)
    for module, other in zip(attention_modules(zeroed), attention_modules(closed), strict=True):
        if module.attention_type == attention_type and module.layer == 1:
            with torch.no_grad():
                module.attention.out_proj.weight[:, 8:16] = 0
                other.attention.gate.theta[1] = -1.0  # times lr_scale: log_alpha = -10
    torch.testing.assert_close(logits(closed, make_batch()), logits(zeroed, make_batch()))
    mask = [[1, 1, 1, 1], [1, 0, 1, 1]]
    assert gate_values(closed)[attention_type].tolist() == mask
    with masked(make_gated(), HeadTable({attention_type: mask})) as model:
        torch.testing.assert_close(logits(model, make_batch()), logits(zeroed, make_batch()))


def test_all_heads_closed_leave_the_output_bias():
    attention = make_attention()
    attention.head_mask = torch.zeros(H, dtype=torch.double)
    x = torch.randn(S, B, E, dtype=torch.double)
    torch.testing.assert_close(attention(x, x, x)[0], attention.out_proj.bias.expand(S, B, E))


def test_masked_reverts_and_combines_with_fixed_heads():
    mask = HeadTable({"enc-self": [[1, 0, 1, 1], [1, 1, 1, 1]]})
    other = HeadTable({"enc-self": [[0, 1, 1, 1], [1, 1, 1, 1]], "dec-enc": [[1, 1, 1, 0], [1, 1, 1, 1]]})
    model, batch = fix_heads(make_gated(), mask), make_batch()
    before = logits(model, batch)
    with pytest.raises(KeyError), masked(model, other):
        assert gate_values(model)["enc-self"][0].tolist() == [0, 0, 1, 1]
        assert gate_values(model)["dec-enc"][0].tolist() == [1, 1, 1, 0]
        assert not torch.allclose(logits(model, batch), before)
        raise KeyError
    assert torch.equal(logits(model, batch), before)
    assert gate_values(model)["dec-enc"].min() == 1


def attention_of(model):
    """What fairseq aligns by: the last layer's attention to the encoder, averaged over heads, [B, T, S]."""
    with torch.no_grad():
        return model(**make_batch())[1]["attn"][0]


@pytest.mark.parametrize("row", [[1, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
def test_averaged_attention_is_the_same_in_every_form(row):
    """Gated, fixed, masked and pruned; a stock export mixes in what heads of zeros give: attention to all alike."""
    mask = {"dec-enc": [[1, 1, 1, 1], row]}
    model = make_gated()
    gated = make_gated(gate_heads="dec-enc")
    with torch.no_grad():
        attention_modules(gated)[-1].attention.gate.theta.copy_(torch.tensor([1.0 if alive else -1.0 for alive in row]))
    pruned = prune(model, mask)
    expected = attention_of(pruned)
    with masked(model, mask):
        torch.testing.assert_close(attention_of(model), expected)
    for other in (gated, fix_heads(make_gated(), mask), prune(gated)):
        torch.testing.assert_close(attention_of(other), expected)
    exported = make_stock()
    exported.load_state_dict(pad_heads(pruned, pruned.state_dict()))
    uniform = make_batch()["src_tokens"].ne(PAD).float()
    uniform = (uniform / uniform.sum(-1, keepdim=True))[:, None]
    mixed = (sum(row) * expected + (4 - sum(row)) * uniform) / 4
    torch.testing.assert_close(attention_of(exported), mixed)
    if any(row):  # what --print-alignment prints
        assert torch.equal(attention_of(exported).argmax(-1), expected.argmax(-1))


def forms(model, mask):
    """A model with these heads closed by gates, masked, and pruned."""
    gated = insert_gates(copy.deepcopy(model), ["dec-enc"])
    for module in attention_modules(gated):
        if module.attention_type == "dec-enc":
            module.attention.gate.theta.data.copy_(torch.tensor(mask["dec-enc"][module.layer]) * 6.0 - 3)
    pruned, loaded = prune(model, mask), remove_heads(copy.deepcopy(model), mask)
    loaded.load_state_dict(pruned.state_dict())
    fixed = fix_heads(copy.deepcopy(model), mask)
    return {"gated": gated, "fixed": fixed, "pruned": pruned, "loaded": loaded, "pruned by gates": prune(gated)}


def test_averages_that_every_layer_is_asked_for_are_the_same_in_every_form():
    """Levenshtein transformers ask for them."""
    model = stirred(make_stock())
    states, memory = torch.randn(5, 3, 32), torch.randn(7, 3, 32)
    with torch.no_grad():
        weights = model.decoder.layers[1](states, memory, need_head_weights=True)[1]
        for row in ([1, 0, 0, 1], [0, 0, 0, 0]):
            expected = sum(weights[head] for head in range(4) if row[head]) / max(1, sum(row))
            for form in forms(model, {"dec-enc": [[1] * 4, row]}).values():
                averaged = form.decoder.layers[1](states, memory)[1]
                torch.testing.assert_close(averaged, expected + 0 * weights[0], atol=1e-5, rtol=1e-5)
