"""The transformer with gates against numbers of the original TensorFlow implementation; see support/reference.py."""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from support.models import PAD
from support.reference import (
    HEADS,
    LAYERS,
    MODEL,
    D,
    alive_heads,
    arrays_of,
    assert_close,
    batch,
    build,
    dtypes,
    layer_parameters,
    make_task,
    pads,
    with_pad,
)

from fairseq_headgates import attention_modules
from fairseq_headgates.plugin.criterions.losses import PENALISED

OPEN = 20.0  # a log_alpha whose gate is exactly 1; that of its negative is exactly 0
models = pytest.mark.parametrize("case", ["baseline", "fixed"])


# The transformer


def build_gated(case):
    """The same function, made with gates that are exactly 0 or 1 instead of fixed heads."""
    model = build("baseline", gate_heads="enc-self,dec-self,dec-enc")
    for module in attention_modules(model):
        alive = torch.tensor(alive_heads(case)[module.attention_type][module.layer])
        module.attention.gate.load_state_dict({"log_alpha": OPEN * (2.0 * alive - 1)})
    return model


def without_pad(logits):
    """Logits over fairseq's vocabulary as those over the original's, which has no pad symbol."""
    return torch.cat([logits[..., :PAD], logits[..., PAD + 1 :]], dim=-1)


def smoothing_constant(smoothing):
    """The entropy of the smoothed target distribution, which the original subtracts from the loss of every token."""
    if not smoothing:
        return 0.0
    others = len(MODEL["var/mod/emb_out/mat"]) - 1
    return -(1 - smoothing) * math.log(1 - smoothing) - smoothing * math.log(smoothing / others)


def token_losses(logits, smoothing):
    """[sentence, position], 0 on padding.

    fairseq and the original agree in the meaning of epsilon: 1 - epsilon for the target and epsilon / (V - 1) for each
    other symbol. But fairseq's V has a pad symbol in it (here 35 for 34), which takes its share: so it is left out.
    """
    log_probabilities = torch.log_softmax(without_pad(logits), dim=-1)
    targets = torch.tensor(MODEL["in/out"]).long()
    losses, _ = label_smoothed_nll_loss(
        log_probabilities.flatten(0, 1), targets.view(-1, 1), smoothing, ignore_index=-1, reduce=False
    )
    return (losses.view(targets.shape) - smoothing_constant(smoothing)).masked_fill(pads("out"), 0.0)


@cache
def run(case, dtype):
    """Encoder output, decoder output and logits, [sentence, position, ...], and the model with gradients in it."""
    model = build(case, dtype)
    inputs = batch()
    encoded = model.encoder(inputs["src_tokens"], inputs["src_lengths"])
    decoded, _ = model.decoder(inputs["prev_output_tokens"], encoded, features_only=True)
    logits = model.decoder.output_layer(decoded)
    (token_losses(logits, 0.1).sum() / MODEL["in/out_len"].sum()).backward()
    return SimpleNamespace(
        encoded=encoded["encoder_out"][0].transpose(0, 1), decoded=decoded, logits=logits, model=model
    )


@dtypes
@models
def test_outputs(case, dtype):
    ours = run(case, dtype)
    source, target = ~pads("inp"), ~pads("out")
    assert_close(ours.encoded[source], MODEL[f"{case}/enc_out"][source], 2e-6)
    assert_close(ours.decoded[target], MODEL[f"{case}/dec_out"][target], 2e-6)
    assert_close(without_pad(ours.logits)[target], MODEL[f"{case}/logits"][target], 2e-6)


def attention_weights(model):
    """{the original's name: [sentence, head, query, key]} of one forward pass."""
    found = {}
    names = {"enc-self": "enc_attn", "dec-self": "dec_attn", "dec-enc": "dec_enc_attn"}

    def ask(module, args, kwargs):
        return args, {**kwargs, "need_weights": True, "need_head_weights": True}

    def keeper(name):
        def keep(module, args, output):
            found[name] = output[1].transpose(0, 1)

        return keep

    for module in attention_modules(model):
        module.attention.register_forward_pre_hook(ask, with_kwargs=True)
        module.attention.register_forward_hook(keeper(f"{names[module.attention_type]}-{module.layer}"))
    with torch.no_grad():
        model(**batch())
    return found


@dtypes
@models
def test_attention_weights(case, dtype):
    expected = arrays_of(f"{case}/attn/")
    found = attention_weights(build(case, dtype))
    assert set(found) == set(expected) and len(found) == 3 * LAYERS
    for name, weights in found.items():
        queries = ~pads("inp" if name.startswith("enc") else "out")
        # [sentence, query, head, key], for the queries that are not padding; padded keys have no weight in both
        assert_close(weights.transpose(1, 2)[queries], expected[name].transpose(0, 2, 1, 3)[queries], 2e-6)


@dtypes
@models
@pytest.mark.parametrize("smoothing", [0, 0.1])
def test_losses(case, dtype, smoothing):
    losses = token_losses(run(case, dtype).logits, smoothing)
    assert_close(losses, MODEL[f"{case}/loss_per_token/ls{smoothing}"], 2e-6)
    assert_close(losses.sum(1), MODEL[f"{case}/loss_per_sent/ls{smoothing}"], 2e-6)
    assert_close(losses.sum() / MODEL["in/out_len"].sum(), MODEL[f"{case}/problem/loss_ls{smoothing}"], 2e-6)


@dtypes
@models
def test_gradients(case, dtype):
    expected = layer_parameters(arrays_of(f"{case}/grad_eval_loss_ls0.1/mod/"))
    parameters = dict(run(case, dtype).model.named_parameters())
    for name, gradient in expected.items():
        if name.endswith("k_proj.bias"):  # moves all scores of a query alike: 0, but for rounding
            assert parameters[name].grad.abs().max() < 1e-7 > np.abs(gradient).max()
        else:
            assert_close(parameters[name].grad, gradient, 1e-5)


@dtypes
@models
def test_gradients_of_embeddings(case, dtype):
    model, expected = run(case, dtype).model, arrays_of(f"{case}/grad_eval_loss_ls0.1/")
    source, target = model.encoder.embed_tokens.weight.grad, model.decoder.embed_tokens.weight.grad.clone()
    assert_close(source, with_pad(expected["mod/emb_inp/mat"]), 1e-5)
    # The bias is in every row, divided by sqrt(D).
    assert_close(source.sum(0) / math.sqrt(D), expected["mod/emb_inp_bias"].flatten(), 1e-5)
    target[Dictionary().eos()] = 0  # the decoder's first input is no parameter in the original
    assert_close(target, with_pad(expected["mod/emb_out/mat"]), 1e-5)
    output = model.decoder.output_projection.weight.grad
    assert_close(output, with_pad(expected["loss_xent_lm/logits/W"].T), 1e-5)


def test_fixed_heads_are_zeroed_columns():
    zeroed = build("baseline", torch.double)
    for module in attention_modules(zeroed):
        columns = module.attention.out_proj.weight.data.view(D, HEADS, D // HEADS)
        columns *= torch.tensor(alive_heads("fixed")[module.attention_type][module.layer]).view(1, HEADS, 1)
    difference = zeroed(**batch())[0] - run("fixed", torch.double).logits
    assert difference[~pads("out")].abs().max() < 1e-13


@models
def test_fully_open_or_closed_gates_compute_the_same_as_fixed_heads(case):
    with torch.no_grad():
        logits = build_gated(case)(**batch())[0]
    target = ~pads("out")
    assert_close(without_pad(logits)[target], MODEL[f"{case}/logits"][target], 2e-6)


@models
@pytest.mark.parametrize("smoothing", [0, 0.1])
def test_criterion(case, smoothing):
    """Our criterion on one sentence at a time. Without a pad symbol: it sees the original's vocabulary."""
    model = build_gated(case)
    model.decoder.output_projection.weight.data = torch.tensor(MODEL["var/loss_xent_lm/logits/W"].T)
    criterion = PENALISED["label_smoothed_cross_entropy"](make_task(), False, smoothing)
    criterion.set_l0(0.1, "layer-mean")
    criterion.padding_idx = -1  # 1 is eos here
    for i, length in enumerate(MODEL["in/out_len"]):
        inputs = {name: array[i : i + 1] for name, array in batch().items()}
        inputs["prev_output_tokens"] = inputs["prev_output_tokens"][:, :length]
        target = torch.tensor(MODEL["in/out"][i : i + 1, :length]).long()
        loss, size, _ = criterion(model, {"net_input": inputs, "target": target, "ntokens": int(length)})
        assert size == length
        per_sentence = loss - length * smoothing_constant(smoothing)
        assert_close(per_sentence, MODEL[f"{case}/loss_per_sent/ls{smoothing}"][i], 1e-6)


@models
def test_greedy_translations(case):
    """fairseq's own search, position by position from the cache: twelve words, then it must end."""
    task = make_task()
    generator = SequenceGenerator(
        [build(case)], task.target_dictionary, beam_size=1, max_len_a=0, max_len_b=12, min_len=0
    )
    for line, expected in zip(MODEL["translate/src"], MODEL[f"{case}/translate/greedy_maxlen12"], strict=True):
        source = task.source_dictionary.encode_line(str(line), add_if_not_exist=False).long()
        inputs = {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}
        best = generator.generate([], {"net_input": inputs})[0][0]["tokens"]
        assert task.target_dictionary.string(best) == expected
