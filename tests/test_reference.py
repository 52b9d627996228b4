"""Our code against numbers computed by the original TensorFlow implementation, the-story-of-heads, commit efaa0dd.

`data/reference_gates.npz`: its gates for given locations (`log_a`), noise and temperatures.
`data/reference_model.npz`: its transformer with random weights (`var/*`), two layers of four heads, once as it is
(`baseline/*`) and once with some heads removed (`fixed/*`); arrays are [sentence, position, ...]. All in float32.

The two transformers compute the same function once the weights are mapped:
- LayerNorm has an epsilon of 1e-6 (fairseq: 1e-5), and positions start at 0 (fairseq: at pad + 1 = 2).
- The vocabulary is bos 0, eos 1, unk 2, words from 3; fairseq has a pad symbol in row 1 and its logit, too.
- A bias is added to the scaled source embeddings; fairseq scales by sqrt(d), so b / sqrt(d) goes into the rows.
- The decoder's first input is a zero vector; fairseq's is the embedding of eos, whose row is set to zero.
- Linear layers are x W with W [in, out], and q|k|v are one of them (decoder-encoder attention: q and k|v).
"""

import json
import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.data import Dictionary
from fairseq.modules import MultiheadAttention, SinusoidalPositionalEmbedding
from fairseq.sequence_generator import SequenceGenerator
from support.models import PAD, make_args
from torch import nn

from fairseq_headgates import HardConcrete, HeadAttention, HeadGates, head_sites, l0_penalty
from fairseq_headgates.criterions import LabelSmoothedCrossEntropyL0Criterion
from fairseq_headgates.gates import gates_penalty
from fairseq_headgates.models import TransformerHeadGatesModel

DATA = Path(__file__).parent / "data"
GATES = dict(np.load(DATA / "reference_gates.npz"))
MODEL = dict(np.load(DATA / "reference_model.npz"))

D, LAYERS, HEADS = 32, 2, 4
CLIP = 1e-6  # the original clips P(open) to [1e-6, 1 - 1e-6]; we do not
OPEN = 20.0  # a log_alpha whose gate is exactly 1; that of its negative is exactly 0

dtypes = pytest.mark.parametrize("dtype", [torch.float, torch.double])
distributions = pytest.mark.parametrize("tag", ["default", "T0.33", "T0.5", "T0.1"])
models = pytest.mark.parametrize("case", ["baseline", "fixed"])


def assert_close(actual, expected, tolerance):
    """Equal up to `tolerance` times the largest number of the expected array."""
    expected = torch.as_tensor(expected, dtype=torch.double)
    assert actual.shape == expected.shape
    difference = float((actual.detach().double() - expected).abs().max())
    assert difference <= tolerance * float(expected.abs().max())


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
    penalty = gates_penalty(gates, reduction)
    penalty.backward()
    divisor = layers if reduction == "layer-mean" else 1
    assert_close(penalty, GATES[f"{tag}/l0_penalty"] / divisor, 1e-6)
    gradient = torch.cat([gate.theta.grad for gate in gates])
    # Where the original clips, its gradient is 0 and ours is not quite: 1e-5 of the largest at most.
    assert_close(gradient, GATES[f"{tag}/grad_l0_penalty"] / divisor, 1e-5)


def test_penalty_of_a_model():
    """Eight gates, weighted with 0.25 in the original, as those of two layers of a model."""
    model = build("baseline", gate_heads="dec-enc")
    sites = [site for site in head_sites(model) if site.kind == "dec-enc"]
    for site, row in zip(sites, GATES["apply/log_a"].reshape(LAYERS, HEADS), strict=True):
        site.attention.gate.load_state_dict({"log_alpha": torch.tensor(row)})
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


def test_monte_carlo():
    """Formula, our sampling and the original's agree within five standard errors (4000 draws there, 100,000 here)."""
    log_alpha = torch.tensor(GATES["apply/log_a"]).flatten().double()
    p_open = HardConcrete().open_probability(log_alpha)
    assert_close(p_open, GATES["mc/p_open_formula"], 1e-6)
    torch.manual_seed(0)
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
    torch.manual_seed(0)
    ours = torch.stack([HeadGates(heads, HardConcrete(), init="glorot").log_alpha() for _ in range(500)]).detach()
    bound = math.sqrt(3 / heads)
    for first in (ours, theirs):
        assert 0.97 * bound < first.abs().max() <= bound
        error = bound / math.sqrt(3 * first.numel())  # that of the mean of uniform numbers
        assert first.mean().abs() < 4 * error
        assert first.std() == pytest.approx(bound / math.sqrt(3), rel=0.06)


# The transformer


def attention_parameters(arrays, name):
    """The projections of one attention under fairseq's names: the combined ones are cut into q, k and v."""
    combined = ("query_conv", "mem_conv") if name.startswith("dec_enc") else ("mem_conv",)
    parameters = {}
    for kind, ours in (("W", "weight"), ("b", "bias")):
        qkv = np.concatenate([arrays[f"{name}/{part}/{kind}"] for part in combined], axis=-1)
        for projection, array in zip("qkv", np.split(qkv, 3, axis=-1), strict=True):
            parameters[f"{projection}_proj.{ours}"] = array.T
        parameters[f"out_proj.{ours}"] = arrays[f"{name}/out_conv/{kind}"].T
    return parameters


def linear_parameters(arrays, name):
    return {"weight": arrays[f"{name}/W"].T, "bias": arrays[f"{name}/b"]}


def norm_parameters(arrays, name):
    return {"weight": arrays[f"{name}/scale"], "bias": arrays[f"{name}/bias"]}


def layer_parameters(arrays):
    """All parameters but embeddings and output projection under fairseq's names: weights, or gradients alike."""
    parts = {
        "encoder.layer_norm": norm_parameters(arrays, "enc_out_norm"),
        "decoder.layer_norm": norm_parameters(arrays, "dec_out_norm"),
    }
    for i in range(LAYERS):
        for side, name in (("encoder", "enc"), ("decoder", "dec")):
            layer = f"{side}.layers.{i}"
            parts[f"{layer}.self_attn"] = attention_parameters(arrays, f"{name}_attn-{i}")
            parts[f"{layer}.self_attn_layer_norm"] = norm_parameters(arrays, f"{name}_attn-{i}/layer_norm")
            parts[f"{layer}.fc1"] = linear_parameters(arrays, f"{name}_ffn-{i}/conv1")
            parts[f"{layer}.fc2"] = linear_parameters(arrays, f"{name}_ffn-{i}/conv2")
            parts[f"{layer}.final_layer_norm"] = norm_parameters(arrays, f"{name}_ffn-{i}/layer_norm")
        layer, name = f"decoder.layers.{i}", f"dec_enc_attn-{i}"
        parts[f"{layer}.encoder_attn"] = attention_parameters(arrays, name)
        parts[f"{layer}.encoder_attn_layer_norm"] = norm_parameters(arrays, f"{name}/layer_norm")
    return {f"{part}.{key}": array for part, named in parts.items() for key, array in named.items()}


def arrays_of(prefix):
    """The arrays whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): array for name, array in MODEL.items() if name.startswith(prefix)}


def with_pad(rows):
    """Rows of the original's vocabulary as those of fairseq's, which has a pad symbol in row 1."""
    return np.insert(rows, PAD, 0, axis=0)


def mapped_weights():
    weights = arrays_of("var/mod/")
    source = weights["emb_inp/mat"] + weights["emb_inp_bias"].reshape(1, D) / math.sqrt(D)
    target = with_pad(weights["emb_out/mat"])
    target[Dictionary().eos()] = 0
    return {
        **layer_parameters(weights),
        "encoder.embed_tokens.weight": with_pad(source),
        "decoder.embed_tokens.weight": target,
        "decoder.output_projection.weight": with_pad(MODEL["var/loss_xent_lm/logits/W"].T),
    }


def make_dictionary(letter, vocabulary):
    dictionary = Dictionary()
    for i in range(vocabulary - 3):  # but bos, eos and unk
        dictionary.add_symbol(f"{letter}{i:02}")
    return dictionary


def make_task():
    source = make_dictionary("s", len(MODEL["var/mod/emb_inp/mat"]))
    target = make_dictionary("t", len(MODEL["var/mod/emb_out/mat"]))
    return SimpleNamespace(source_dictionary=source, target_dictionary=target)


def load(model):
    """Gives a model the original's weights, epsilon and positions."""
    state, mapped = model.state_dict(), mapped_weights()
    left = set(state) ^ set(mapped)
    assert all(name.endswith(("log_alpha", "version")) for name in left), f"not mapped: {left}"
    model.load_state_dict({**state, **{name: torch.tensor(array) for name, array in mapped.items()}})
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
        if isinstance(module, SinusoidalPositionalEmbedding):
            table = SinusoidalPositionalEmbedding.get_embedding(100, D)
            module.weights = nn.functional.pad(table, (0, 0, PAD + 1, 0))
    return model


def build(case, dtype=torch.float, **options):
    """Our model with the original's weights; some heads removed in the case "fixed"."""
    if case == "fixed":
        options["alive_heads"] = json.dumps({kind: rows.tolist() for kind, rows in alive_heads("fixed").items()})
    model = TransformerHeadGatesModel.build_model(make_args(**options), make_task())
    return load(model).to(dtype).eval()


def build_gated(case):
    """The same function, made with gates that are exactly 0 or 1 instead of fixed heads."""
    model = build("baseline", gate_heads="enc-self,dec-self,dec-enc")
    for site in head_sites(model):
        alive = torch.tensor(alive_heads(case)[site.kind][site.layer])
        site.attention.gate.load_state_dict({"log_alpha": OPEN * (2.0 * alive - 1)})
    return model


def alive_heads(case):
    """{type: [layer, head]}, 1 for the heads that the original kept."""
    kept = arrays_of("fixed/alive_heads/")
    return kept if case == "fixed" else {kind: np.ones_like(rows) for kind, rows in kept.items()}


def pads(side):
    """True where the batch is padded: [sentence, position]; side "inp" or "out"."""
    lengths = torch.tensor(MODEL[f"in/{side}_len"])
    return torch.arange(int(lengths.max())) >= lengths[:, None]


def tokens(side):
    """The symbols of the batch in fairseq's vocabulary: all but bos, 0, come one later."""
    ids = torch.tensor(MODEL[f"in/{side}"]).long()
    return (ids + ids.gt(0).long()).masked_fill(pads(side), PAD)


def batch():
    out = tokens("out")
    previous = torch.cat([torch.full((len(out), 1), Dictionary().eos()), out[:, :-1]], dim=1)
    return {"src_tokens": tokens("inp"), "src_lengths": (~pads("inp")).sum(1), "prev_output_tokens": previous}


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

    for site in head_sites(model):
        site.attention.register_forward_pre_hook(ask, with_kwargs=True)
        site.attention.register_forward_hook(keeper(f"{names[site.kind]}-{site.layer}"))
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
    for site in head_sites(zeroed):
        columns = site.attention.out_proj.weight.data.view(D, HEADS, D // HEADS)
        columns *= torch.tensor(alive_heads("fixed")[site.kind][site.layer]).view(1, HEADS, 1)
    difference = zeroed(**batch())[0] - run("fixed", torch.double).logits
    assert difference[~pads("out")].abs().max() < 1e-13


@models
def test_gates_at_their_ends_are_fixed_heads(case):
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
    criterion = LabelSmoothedCrossEntropyL0Criterion(make_task(), False, smoothing, 0.1, "layer-mean")
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
