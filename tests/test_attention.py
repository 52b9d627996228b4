"""HeadAttention against a naive rewrite, against fairseq's own attention, and at its extremes."""

import json
import math
from contextlib import ExitStack

import pytest
import torch
from fairseq.modules import MultiheadAttention
from support.models import PAD, VOCABULARY, logits, make_batch, make_gated, make_stock, make_task

from fairseq_headgates import (
    HardConcrete,
    HeadAttention,
    HeadTable,
    fix_heads,
    gate_values,
    head_sites,
    insert_gates,
    l0_penalty,
    masked,
    observe,
    open_probabilities,
    prune,
    remove_heads,
    use_head_attention,
)
from fairseq_headgates.heads import TYPES
from fairseq_headgates.modules.beam_cache import EncoderCache
from fairseq_headgates.surgery import hooked
from fairseq_headgates.surgery.cuts import pad_heads

E, H, D, T, S, B = 12, 3, 4, 5, 6, 2


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


def padding_mask(side):
    mask = torch.zeros(B, S, dtype=torch.bool)
    if side == "left":
        mask[1, :2] = True
    elif side == "right":
        mask[1, -3:] = True
    return mask if side else None


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
    torch.testing.assert_close(averaged, expected_weights.mean(0))


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


def test_one_noise_draw_for_each_forward_pass():
    """All positions and sentences of a batch see the same gate."""
    model = make_gated(gate_heads="enc-self", gate_init="0", dropout=0.0).train()
    attention = head_sites(model)[0].attention
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


@pytest.mark.parametrize("kind", TYPES)
def test_a_closed_head_is_its_columns_zeroed(kind):
    zeroed, closed = make_gated(), make_gated(gate_heads=kind)
    for site, other in zip(head_sites(zeroed), head_sites(closed), strict=True):
        if site.kind == kind and site.layer == 1:
            with torch.no_grad():
                site.attention.out_proj.weight[:, 8:16] = 0
                other.attention.gate.theta[1] = -1.0  # times lr_scale: log_alpha = -10
    torch.testing.assert_close(logits(closed, make_batch()), logits(zeroed, make_batch()))
    mask = [[1, 1, 1, 1], [1, 0, 1, 1]]
    assert gate_values(closed)[kind].tolist() == mask
    with masked(make_gated(), HeadTable({kind: mask})) as model:
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
        head_sites(gated)[-1].attention.gate.theta.copy_(torch.tensor([1.0 if alive else -1.0 for alive in row]))
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


# --- incremental decoding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_pad", ["right", None])
def test_incremental_decoding_equals_one_pass(target_pad):
    model = make_gated(gate_heads="enc-self,dec-self,dec-enc", gate_init="0.5")
    batch = make_batch(target_pad=target_pad)
    previous = batch["prev_output_tokens"]
    with torch.no_grad():
        expected = model(**batch)[0]
        encoder_out = model.encoder(batch["src_tokens"], batch["src_lengths"])
        state: dict = {}
        steps = [
            model.decoder(previous[:, : t + 1], encoder_out=encoder_out, incremental_state=state)[0]
            for t in range(previous.size(1))
        ]
    real = previous.ne(PAD)
    torch.testing.assert_close(torch.cat(steps, 1)[real], expected[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("order", [[1, 0, 3, 3], [3, 2]])
def test_reordering_the_cache_reorders_the_hypotheses(order):
    """Two hypotheses for each of two sentences: swapped and copied within a sentence, or a sentence finished.

    (fairseq never moves a hypothesis to another sentence, and leaves the cached encoder states alone where it can.)
    """
    model, order = make_gated(gate_heads="dec-self,dec-enc", gate_init="0.5"), torch.tensor(order)
    source = make_batch()["src_tokens"][[0, 0, 1, 1]]
    previous = torch.randint(4, VOCABULARY, (4, 3))
    with torch.no_grad():
        encoder_out = model.encoder(source, torch.full((4,), 7))
        state: dict = {}
        for t in (1, 2):
            model.decoder(previous[:, :t], encoder_out=encoder_out, incremental_state=state)
        model.decoder.reorder_incremental_state_scripting(state, order)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
        step, _ = model.decoder(previous[order], encoder_out=encoder_out, incremental_state=state)
        expected, _ = model(source[order], torch.full((len(order),), 7), previous[order])
    torch.testing.assert_close(step, expected[:, -1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("match_source_len", [False, True])
def test_beam_search_equals_stock(beam, match_source_len):
    from fairseq.sequence_generator import SequenceGenerator

    task, batch = make_task(), make_batch()
    hypotheses = []
    stock = make_stock()
    ours = make_gated(gate_heads="enc-self,dec-self,dec-enc")
    ours.load_state_dict(stock.state_dict())
    for model in (stock, ours):
        generator = SequenceGenerator(
            [model], task.target_dictionary, beam_size=beam, max_len_b=12, match_source_len=match_source_len
        )
        found = generator.generate([model], {"net_input": batch})
        hypotheses.append([[hypothesis["tokens"].tolist() for hypothesis in sentence] for sentence in found])
    assert hypotheses[0] == hypotheses[1]
    assert len(hypotheses[1][0]) == beam


def test_beams_that_share_their_encoder_states():
    """Cached keys of one copy per sentence give what keys repeated for every hypothesis give."""
    model, beam = make_gated(gate_heads="dec-enc", gate_init="0.5"), 2
    attention = head_sites(model)[-1].attention
    assert attention.encoder_decoder_attention
    memory, padding = torch.randn(S, B, 32), padding_mask("left")
    query = torch.randn(1, B * beam, 32)
    repeated, repeated_padding = memory.repeat_interleave(beam, 1), padding.repeat_interleave(beam, 0)
    expected, expected_weights = attention(query, repeated, repeated, repeated_padding, need_head_weights=True)
    attention.set_beam_size(beam)
    state: dict = {}
    for _ in range(2):  # the second time from the cache
        actual, weights = attention(
            query,
            repeated,
            repeated,
            repeated_padding,
            incremental_state=state,
            static_kv=True,
            need_head_weights=True,
        )
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(weights, expected_weights)
    (cache,) = (value for value in state.values() if isinstance(value, EncoderCache))
    assert cache.keys.size(0) == B
    # ... and training is not touched by the beam size of a validation that came before
    torch.testing.assert_close(attention(query, repeated, repeated, repeated_padding, static_kv=True)[0], expected)


# --- finding, swapping, reading --------------------------------------------------------------------------------------


def test_sites_are_named_by_type_and_layer():
    for model in (make_stock(), make_gated()):
        assert [(site.kind, site.layer) for site in head_sites(model)] == [(kind, i) for kind in TYPES for i in (0, 1)]
    swapped = use_head_attention(make_stock())
    assert all(isinstance(site.attention, HeadAttention) for site in head_sites(swapped))
    first = [site.attention for site in head_sites(swapped)]
    assert [
        site.attention for site in head_sites(use_head_attention(swapped))
    ] == first  # a second time changes nothing


def test_gates_of_a_missing_attention_are_refused():
    model = make_gated(no_cross_attention=True)
    with pytest.raises(ValueError, match="no dec-enc attention.*enc-self"):
        insert_gates(model, ["dec-enc"])


def test_unsupported_attention_is_refused():
    stock = make_stock(quant_noise_pq=0.1, quant_noise_pq_block_size=8)
    with pytest.raises(ValueError, match="quant-noise-pq"):
        use_head_attention(stock)
    assert not any(isinstance(site.attention, HeadAttention) for site in head_sites(stock))


def test_penalty_is_the_sum_over_gated_heads():
    model = make_gated()
    with pytest.raises(ValueError, match="--gate-heads"):
        l0_penalty(model)
    insert_gates(model, ["enc-self", "dec-enc"], HardConcrete(), init="glorot", lr_scale=3.0)
    naive_sum = 0.0
    for kind, rows in open_probabilities(model).items():
        if kind != "dec-self":
            naive_sum += sum(p for row in rows.tolist() for p in row)
    assert l0_penalty(model).item() == pytest.approx(naive_sum, rel=1e-6)
    assert l0_penalty(model, "layer-mean").item() == pytest.approx(naive_sum / 4, rel=1e-6)
    assert open_probabilities(model)["dec-self"].min() == 1
    insert_gates(model, ["dec-self"], HardConcrete(temperature=0.5, low=-0.2, high=1.2), init=0.0)
    naive_sum += 8 / (1 + math.exp(0.5 * math.log(0.2 / 1.2)))
    assert l0_penalty(model).item() == pytest.approx(naive_sum, rel=1e-6)  # each type by its own distribution
    with pytest.raises(ValueError, match="sum, layer-mean"):
        l0_penalty(model, "mean")


DICT = {"enc-self": [[1, 0, 1, 1], [1, 1, 1, 1]], "dec-enc": [[1, 1, 1, 0], [0, 0, 0, 0]]}


@pytest.mark.parametrize("form", ["dict", "path", "text of a path", "JSON", "table"])
def test_a_mask_may_have_any_form(form, tmp_path):
    file = tmp_path / "heads.json"
    file.write_text(json.dumps(DICT))
    forms = {"dict": DICT, "path": file, "text of a path": str(file), "JSON": json.dumps(DICT)}
    mask = {**forms, "table": HeadTable(DICT)}[form]
    expected = {"dec-self": [[1] * 4] * 2, **DICT}
    with masked(make_gated(), mask) as model:
        within = {kind: values.tolist() for kind, values in gate_values(model).items()}
    for values in (
        within,
        *({k: v.tolist() for k, v in gate_values(change(make_gated(), mask)).items()} for change in (fix_heads, prune)),
        {k: v.tolist() for k, v in gate_values(remove_heads(make_gated(), mask)).items()},
    ):
        assert values == expected


@pytest.mark.parametrize("change", [prune, remove_heads, fix_heads, masked])
def test_what_is_no_mask_is_refused_before_anything_is_changed(change):
    model = make_stock()
    for mask, error in ((7, TypeError), ([[1]], TypeError), ({}, ValueError), ({"enc": [[1]]}, ValueError)):
        with pytest.raises(error, match="mask"), ExitStack() as stack:
            changed = change(model, mask)
            if change is masked:
                stack.enter_context(changed)
    assert not any(isinstance(site.attention, HeadAttention) for site in head_sites(model))


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gates_are_read_in_any_precision(dtype, default):
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(default)
        model = make_gated(
            gate_heads="enc-self,dec-enc", gate_init="-3", alive_heads='{"dec-self": [[1,0,1,1],[1,1,1,1]]}'
        )
        models = [
            model.to(dtype),
            prune(model, {"dec-enc": [[1, 1, 1, 1]] * 2}),
            use_head_attention(make_stock().to(dtype)),
        ]
        for read in (gate_values, open_probabilities):
            found = [read(some) for some in (*models, make_stock().to(dtype))]
            assert {values.dtype for table in found for values in table.values()} == {torch.float32}
        assert gate_values(model)["enc-self"].max() == 0 and gate_values(model)["dec-self"].sum() == 7
        torch.testing.assert_close(
            open_probabilities(model)["dec-enc"],
            torch.full((2, 4), 1 / (1 + math.exp(3) * 11**-0.33)).float(),
            atol=2e-2,
            rtol=0,
        )
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("keep", [4, 2])
def test_observe_gives_what_the_heads_did(keep):
    """Contexts are weights times values, and the output is made of them."""
    model = make_gated()
    fix = {kind: [[1] * keep + [0] * (4 - keep)] * 2 for kind in TYPES}
    model = prune(model, HeadTable(fix)).eval()
    batch = make_batch()
    before = logits(model, batch)
    values, outputs = {}, {}
    handles = []
    for site in head_sites(model):
        keep_value = lambda _, __, out, name=site.name: values.update({name: out})  # noqa: E731
        keep_output = lambda _, inputs, __, name=site.name: outputs.update({name: inputs[0]})  # noqa: E731
        handles += [site.attention.v_proj.register_forward_hook(keep_value)]
        handles += [site.attention.out_proj.register_forward_hook(keep_output)]
    with observe(model) as seen:
        assert torch.allclose(logits(model, batch), before, atol=1e-5)
    for handle in handles:
        handle.remove()
    assert {kind: list(layers) for kind, layers in seen.items()} == {kind: [0, 1] for kind in TYPES}
    for site in head_sites(model):
        found = seen[site.kind][site.layer]
        assert torch.allclose(found.weights.sum(-1), torch.ones(()), atol=1e-5)
        for head in range(keep):
            value = values[site.name][..., head * 8 : head * 8 + 8].transpose(0, 1)  # [B, S, D]
            context = found.weights[:, head] @ value
            assert torch.allclose(found.contexts[:, head], context, atol=1e-6)
            into = outputs[site.name][..., head * 8 : head * 8 + 8].transpose(0, 1)
            assert torch.allclose(into, context, atol=1e-6)
    assert all(site.attention.hook is None for site in head_sites(model))


def test_a_hook_changes_contexts_and_is_removed_afterwards():
    model = make_gated().eval()
    batch = make_batch()
    before = logits(model, batch)
    mask = HeadTable({"dec-enc": [[1, 0, 1, 1], [1, 1, 1, 1]]})
    row = torch.tensor([1.0, 0, 1, 1]).view(1, 4, 1, 1)
    with masked(model, mask):
        expected = logits(model, batch)
    with hooked(model, lambda site, _, context: context * row if site.layer == 0 else None, types=["dec-enc"]):
        assert torch.allclose(logits(model, batch), expected, atol=1e-6)
    assert not torch.allclose(before, expected)
    with pytest.raises(KeyError), hooked(model, lambda *_: {}["nothing"]):
        logits(model, batch)
    assert torch.equal(logits(model, batch), before)
