"""Relevance: layer by layer against the original implementation, whole models against full Jacobians.

`data/reference_relevance.npz`: relevance computed by the-story-of-heads, commit efaa0dd (TensorFlow 1, float32), for
layers with random weights: two sentences of four tokens and a memory of five, D = 8, two heads, once for relevance of
both signs (R) and once for positive relevance (pos_R). Here the two are explained together, as N = 2.

`Naive` is the rule as it is written: full Jacobians by automatic differentiation, f(0), sums over outputs.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.models import PAD, make_batch, make_gated, make_stock
from torch.autograd.functional import jacobian

from fairseq_headgates import HeadTable, fix_heads, head_sites, masked, prune
from fairseq_headgates.analysis.relevance import explain, head_relevance, token_contributions, walk
from fairseq_headgates.analysis.relevance import rules as rules_room
from fairseq_headgates.analysis.relevance.rules import RULES, Rule, add, attention, keep_norm, layer_norm, linear, merge
from fairseq_headgates.gates import OPEN
from fairseq_headgates.heads import TYPES

REFERENCE = dict(np.load(Path(__file__).parent / "data" / "reference_relevance.npz"))
SETTINGS = {
    "default": RULES["story-of-heads"],
    "alpha1beta0": Rule(alpha=1.0, beta=0.0),
    "eps_rule": RULES["epsilon"],
    "attn_constant": RULES["attn-constant"],
}

settings = pytest.mark.parametrize("setting", SETTINGS)
rules = pytest.mark.parametrize("rule", [*RULES.values(), SETTINGS["alpha1beta0"]], ids=[*RULES, "alpha1beta0"])


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
    for R, name in zip(of_both_sentences(keep_norm, given(), found, rest[1]), ("R_query", "R_kv"), strict=True):
        assert_reference(R, setting, layer, name, tolerance)


# Whole models, against full Jacobians


def naive(function, inputs, R, rule, constant=0):
    """Relevance [N, ...] at each of `inputs`, rescaled, from R [N, ...] at function(*inputs), by the formula.

    `constant` of the inputs get no relevance if attention is to be constant.
    """
    jacobians = [j.flatten(-x.dim()).flatten(0, -2) for j, x in zip(jacobian(function, inputs), inputs, strict=True)]
    if rule.constant_attention:
        jacobians[:constant] = [0 * j for j in jacobians[:constant]]
    flat = torch.cat([x.flatten() for x in inputs])
    at_zero = function(*(torch.zeros_like(x) for x in inputs)).flatten()
    z = torch.cat(jacobians, dim=1) * flat + at_zero[:, None] / len(flat)
    if rule.alpha is None:
        total = z.sum(1, keepdim=True)
        share = z / (total + rule.eps * torch.where(total < 0, -1.0, 1.0))
    else:
        up, down = z.clamp(min=0), z.clamp(max=0)
        share = rule.alpha * up / (up.sum(1, keepdim=True) + rule.eps)
        share = share + rule.beta * down / (down.sum(1, keepdim=True) - rule.eps)
    found = rescaled(R, R.flatten(1) @ share, rule)
    parts = found.split([x.numel() for x in inputs], dim=1)
    return [part.unflatten(1, x.shape) for part, x in zip(parts, inputs, strict=True)]


def size_of(R):
    return R.abs().flatten(1).sum(1)


def rescaled(R, found, rule):
    """`found` [N, ...] with the L1 norm of R [N, ...]."""
    ratio = size_of(R) / (size_of(found) + rule.rescale_eps)
    return found * ratio.view(-1, *[1] * (found.dim() - 1))


def naive_per_token(function, x, R, rule):
    """[N, T, I] at x [T, I] from R [N, T, O]."""
    found = torch.stack([naive(function, (x[t],), R[:, t], rule)[0] for t in range(len(x))], dim=1)
    return rescaled(R, found, rule)


def naive_add(a, b, R, rule):
    pairs = [naive(lambda a, b: a + b, (a[t], b[t]), R[:, t], rule) for t in range(len(a))]
    return [torch.stack(parts, dim=1) for parts in zip(*pairs, strict=True)]


def naive_merge(*parts):
    total = sum(parts)
    return total * (sum(map(size_of, parts)) / size_of(total).clamp(min=1e-300)).view(-1, 1, 1)


class Naive:
    """Explains one sentence pair without padding: `heads` {type: [T, L, H]}, `source` [T, S], `target` [T, T].

    `factors` {(type, layer): [H]} is what heads are multiplied by.
    """

    def __init__(self, model, source, prefix, factors, rule):
        self.model, self.factors, self.rule = model, factors, rule
        self.heads, self.at_memory = {}, []
        encoder, decoder = model.encoder, model.decoder
        x = encoder.forward_embedding(source[None])[0][0]
        y = decoder.embed_scale * decoder.embed_tokens(prefix[None])[0] + decoder.embed_positions(prefix[None])[0]
        encoder_backs, decoder_backs = [], []
        for i, layer in enumerate(encoder.layers):
            x, back = self.layer(x, layer, i, None)
            encoder_backs.append(back)
        memory = x if encoder.layer_norm is None else encoder.layer_norm(x)
        for i, layer in enumerate(decoder.layers):
            y, back = self.layer(y, layer, i, memory)
            decoder_backs.append(back)
        features = y if decoder.layer_norm is None else decoder.layer_norm(y)
        self.logits = decoder.output_projection(features)
        R = torch.diag_embed(F.one_hot(self.logits.argmax(-1), self.logits.size(-1)).double().t()).permute(1, 2, 0)
        R = naive_per_token(decoder.output_projection, features, R, rule)
        R = R if decoder.layer_norm is None else naive_per_token(decoder.layer_norm, y, R, rule)
        for back in reversed(decoder_backs):
            R = back(R)
        self.target = R.sum(-1)
        self.conserved = size_of(R)
        self.source = torch.zeros(len(prefix), len(source))
        if self.at_memory:
            R = naive_merge(*self.at_memory)
            R = R if encoder.layer_norm is None else naive_per_token(encoder.layer_norm, x, R, rule)
            for back in reversed(encoder_backs):
                R = back(R)
            self.source = R.sum(-1)
            self.conserved = self.conserved + size_of(R)

    def layer(self, x, layer, number, memory):
        kind = "enc-self" if memory is None else "dec-self"
        backs = []
        x, back = self.residual(x, layer, layer.self_attn_layer_norm, self.attention(layer.self_attn, kind, number))
        backs.append(back)
        if memory is not None:
            branch = self.attention(layer.encoder_attn, "dec-enc", number, memory)
            x, back = self.residual(x, layer, layer.encoder_attn_layer_norm, branch)
            backs.append(back)
        x, back = self.residual(x, layer, layer.final_layer_norm, lambda x: self.feed_forward(layer, x))
        backs.append(back)

        def all_back(R):
            for back in reversed(backs):
                R = back(R)
            return R

        return x, all_back

    def residual(self, x, layer, norm, branch):
        before = layer.normalize_before
        y, through_branch = branch(norm(x) if before else x)

        def back(R):
            R = R if before else naive_per_token(norm, x + y, R, self.rule)
            if through_branch is None:
                return R
            memories = len(self.at_memory)
            at_x, at_y = naive_add(x, y, R, self.rule)
            at_y = through_branch(at_y)
            at_x = naive_merge(at_x, naive_per_token(norm, x, at_y, self.rule) if before else at_y)
            if len(self.at_memory) > memories:
                ratio = (size_of(R) / (size_of(at_x) + size_of(self.at_memory[-1]))).view(-1, 1, 1)
                at_x, self.at_memory[-1] = at_x * ratio, self.at_memory[-1] * ratio
            return at_x

        return x + y if before else norm(x + y), back

    def feed_forward(self, layer, x):
        hidden = layer.fc1(x).relu()

        def back(R):
            return naive_per_token(layer.fc1, x, naive_per_token(layer.fc2, hidden, R, self.rule), self.rule)

        return layer.fc2(hidden), back

    def attention(self, module, kind, number, memory=None):
        size = module.head_dim
        factors = self.factors.get((kind, number), torch.ones(module.num_heads))
        alive = [h for h in range(module.num_heads) if factors[h] != 0]
        columns = [h * size + d for h in alive for d in range(size)]

        def out(x):
            return F.linear(x, module.out_proj.weight[:, columns], module.out_proj.bias)

        def project(projection):
            return lambda x: F.linear(x, projection.weight[columns], projection.bias[columns])

        def head(q, k, v):
            scores = q @ k.t() * size**-0.5
            if kind == "dec-self":
                scores = scores + torch.full_like(scores, -1e9).triu(1)
            return scores.softmax(-1) @ v

        def branch(x):
            if not alive:
                return module.out_proj.bias.expand_as(x), None
            keys = x if memory is None else memory
            q, k, v = project(module.q_proj)(x), project(module.k_proj)(keys), project(module.v_proj)(keys)
            split = [[y[:, i * size :][:, :size] for y in (q, k, v)] for i in range(len(alive))]
            merged = torch.cat([factors[h] * head(*parts) for h, parts in zip(alive, split, strict=True)], dim=1)

            def back(R):
                R = naive_per_token(out, merged, R, self.rule)
                values = self.heads.setdefault(kind, {}).setdefault(number, R.new_zeros(len(R), module.num_heads))
                found = []
                for i, h in enumerate(alive):
                    of_head = R[..., i * size :][..., :size]
                    values[:, h] = size_of(of_head)
                    found.append(naive(head, tuple(split[i]), of_head, self.rule, constant=2))
                at_q, at_k, at_v = (torch.cat(parts, dim=-1) for parts in zip(*found, strict=True))
                at_q, at_k, at_v = rescaled_together(R, self.rule, at_q, at_k, at_v)
                into_kv = lambda x: torch.cat([project(module.k_proj)(x), project(module.v_proj)(x)], dim=-1)  # noqa: E731
                if memory is None:
                    into = lambda x: torch.cat([project(module.q_proj)(x), into_kv(x)], dim=-1)  # noqa: E731
                    return naive_per_token(into, x, torch.cat([at_q, at_k, at_v], dim=-1), self.rule)
                self.at_memory.append(naive_per_token(into_kv, memory, torch.cat([at_k, at_v], dim=-1), self.rule))
                return naive_per_token(project(module.q_proj), x, at_q, self.rule)

            return out(merged), back

        return branch


def rescaled_together(R, rule, *parts):
    ratio = (size_of(R) / (sum(map(size_of, parts)) + rule.rescale_eps)).view(-1, 1, 1)
    return [part * ratio for part in parts]


SMALL = {"embed_dim": 8, "ffn_embed_dim": 12, "attention_heads": 2}
SMALL = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in SMALL.items()}
POST_NORM = {"encoder_normalize_before": False, "decoder_normalize_before": False}
# One layer of each type without heads, one with both.
MASK = HeadTable({"enc-self": [[1, 0], [0, 0]], "dec-self": [[0, 0], [1, 1]], "dec-enc": [[0, 1], [0, 0]]})


def shaken(model, dtype=torch.double):
    """Random numbers in all parameters, biases and norms included."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.to(dtype).requires_grad_(False)


def small(make=make_stock, dtype=torch.double, **options):
    return shaken(make(**{**SMALL, **options}), dtype)


def gated(dtype=torch.double, **options):
    """Gates between 0 and 1, and some that are 0: heads 0 of every other layer, and both of one layer."""
    model = small(make_gated, dtype, gate_heads=",".join(TYPES), **options)
    for i, site in enumerate(head_sites(model)):
        values = torch.linspace(-1.5, 1.5, site.attention.num_heads, dtype=dtype) + 0.1 * i
        values[0] = -OPEN if i % 2 else values[0]
        site.attention.gate.load_state_dict({"log_alpha": torch.full_like(values, -OPEN) if i == 4 else values})
    return model


def factors_of(model):
    scales = {(site.kind, site.layer): site.attention.head_scale() for site in head_sites(model)}
    return {place: scale for place, scale in scales.items() if scale is not None}


def words(batch, row):
    """The tokens of one sentence pair, and where they are."""
    places = [batch[side][row].ne(PAD).nonzero()[:, 0] for side in ("src_tokens", "prev_output_tokens")]
    return batch["src_tokens"][row, places[0]], batch["prev_output_tokens"][row, places[1]], *places


def assert_naive(model, rule, factors, found, naive_model=None, rows=(0, 1, 2), tolerance=1e-10):
    """`found` explains `make_batch()` as full Jacobians do, and has nothing at padding."""
    batch = make_batch()
    for row in rows:
        source, prefix, at_source, at_target = words(batch, row)
        expected = Naive(naive_model or model, source, prefix, factors, rule)
        assert found.top[row, at_target].equal(expected.logits.argmax(-1))
        for kind, values in found.heads.items():
            for layer in range(values.size(2)):
                naive_values = expected.heads.get(kind, {}).get(layer, torch.zeros(len(prefix), values.size(3)))
                assert (values[row, at_target, layer] - naive_values).abs().max() < tolerance, (kind, layer)
            assert values[row].sum() == pytest.approx(values[row, at_target].sum().item(), abs=1e-12)
        for name, places in (("source", at_source), ("target", at_target)):
            values = getattr(found, name)[row]
            assert (values[at_target][:, places] - getattr(expected, name)).abs().max() < tolerance, name
            assert values.abs().sum() == pytest.approx(values[at_target][:, places].abs().sum().item(), abs=1e-12)
        assert (found.conserved[row, at_target] - expected.conserved).abs().max() < tolerance


@rules
def test_a_model_is_explained_as_by_full_jacobians(rule):
    model = small()
    assert_naive(model, rule, {}, explain(model, make_batch(), rule))


@pytest.mark.parametrize("rule", ["story-of-heads", "epsilon"])
@pytest.mark.parametrize("options", [{}, POST_NORM], ids=["pre-norm", "post-norm"])
def test_gates_and_removed_heads(rule, options):
    model = gated(**options)
    found = explain(model, make_batch(), rule)
    assert_naive(model, RULES[rule], factors_of(model), found)
    assert found.heads["enc-self"][..., 1].max() > 0
    assert found.heads["enc-self"][:, :, 1, 0].max() == 0 and found.heads["dec-enc"][:, :, 0].max() == 0


@pytest.mark.parametrize("options", [{}, POST_NORM], ids=["pre-norm", "post-norm"])
def test_masked_is_pruned(options):
    """The same numbers, a layer without heads included, and those of full Jacobians."""
    model = small(**options)
    with masked(model, MASK):
        found = explain(model, make_batch())
        assert_naive(model, RULES["story-of-heads"], factors_of(model), found)
    assert_equal(explain(prune(model, MASK), make_batch()), found)
    assert_equal(explain(fix_heads(model, MASK), make_batch()), found)


def test_gated_is_pruned():
    """Gates are folded in single precision, and compared in double."""
    model = gated(torch.float)
    mask = HeadTable({**MASK.values, "dec-enc": [[0, 1], [1, 1]]})
    pruned = prune(model, mask).double()
    with masked(model.double(), mask):
        assert_equal(explain(pruned, make_batch()), explain(model, make_batch()), 1e-5)


def test_a_model_whose_decoder_does_not_look_at_the_source():
    model = small()
    with masked(model, HeadTable({"dec-enc": [[0, 0], [0, 0]]})):
        found = explain(model, make_batch())
        assert_naive(model, RULES["story-of-heads"], factors_of(model), found)
    assert found.source.abs().max() == found.heads["enc-self"].max() == 0 < found.heads["dec-self"].max()


def assert_equal(found, expected, tolerance=1e-12):
    for name in ("source", "target", "conserved"):
        assert (getattr(found, name) - getattr(expected, name)).abs().max() <= tolerance, name
    assert found.heads.keys() == expected.heads.keys() and found.top.equal(expected.top)
    for kind, values in expected.heads.items():
        assert (found.heads[kind] - values).abs().max() <= tolerance, kind


@pytest.mark.parametrize(
    "options",
    [
        {"share_all_embeddings": True, "encoder_learned_pos": True, "decoder_learned_pos": True},
        {"decoder_output_dim": 6, "layernorm_embedding": True, "activation_fn": "gelu"},
        {"encoder_layers": 1, "decoder_layers": 3, **POST_NORM},
    ],
    ids=["shared", "project_out", "layers"],
)
@pytest.mark.parametrize("pads", [("left", "right"), ("right", "left")], ids=lambda pads: "-".join(pads))
def test_a_sentence_is_explained_alike_alone_and_in_a_batch(options, pads):
    model = small(**options)
    batch = make_batch(source_pad=pads[0], target_pad=pads[1])
    found = explain(model, batch)
    assert found.conserved[found.top != PAD].min() > 0.99 > 0 == found.conserved[found.top == PAD].max()
    for row in range(3):
        source, prefix, at_source, at_target = words(batch, row)
        alone = {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}
        alone = explain(model, {**alone, "prev_output_tokens": prefix[None]})
        assert (found.source[row, at_target][:, at_source] - alone.source[0]).abs().max() < 1e-10
        assert (found.target[row, at_target][:, at_target] - alone.target[0]).abs().max() < 1e-10
        for kind, values in alone.heads.items():
            assert (found.heads[kind][row, at_target] - values[0]).abs().max() < 1e-10


def test_long_sentences_are_explained_in_turns(monkeypatch):
    model = small()
    found = explain(model, make_batch())
    monkeypatch.setattr(walk, "POSITIONS", 1)
    monkeypatch.setattr(walk, "BLOCK", 2 * 12 * 7)  # two positions of seven tokens at the widest place
    monkeypatch.setattr(rules_room, "CHUNK", 1)
    assert_equal(explain(model, make_batch()), found)


def test_single_precision():
    for rule in ("story-of-heads", "attn-constant"):
        single, double = (explain(small(dtype=dtype), make_batch(), rule) for dtype in (torch.float, torch.double))
        assert single.source.dtype == torch.float
        assert_equal(replace(single, top=double.top), double, 1e-4)


@rules
def test_relevance_is_conserved(rule):
    found = explain(make_stock(), make_batch(), rule)
    real = found.top != PAD
    assert (found.conserved[real] - 1).abs().max() < 0.02
    assert found.conserved[~real].max() == 0
    # Without the epsilons of rescaling, nothing is lost.
    found = explain(make_stock(), make_batch(), replace(rule, rescale_eps=0.0))
    assert (found.conserved[real] - 1).abs().max() < 1e-4


def test_lost_relevance_is_reported(caplog):
    explain(small(), make_batch())
    assert not caplog.records
    explain(small(), make_batch(), Rule(rescale_eps=0.1))
    assert "% of the relevance of a logit is lost" in caplog.text


def test_no_position_sees_those_after_it():
    found = explain(small(), make_batch())
    assert found.target.triu(1).abs().max() == 0 < found.target.tril(-1).abs().max()


def test_the_model_is_as_before():
    model = gated().train()
    model.encoder.layers[0].eval()
    before = {name: module.training for name, module in model.named_modules()}
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = {name: list(module._forward_hooks) for name, module in model.named_modules()}
    with torch.enable_grad():
        found = explain(model, make_batch())
    assert {name: m.training for name, m in model.named_modules() if name in before} == before
    assert all(tensor.equal(state[name]) for name, tensor in model.state_dict().items())
    assert {name: list(module._forward_hooks) for name, module in model.named_modules()} == hooks
    assert not found.source.requires_grad
    assert_equal(explain(model.eval(), make_batch()), found)


def test_parts_of_an_explanation():
    model, batch = small(), make_batch()
    found = explain(model, batch, "attn-constant")
    heads = head_relevance(model, batch, "attn-constant")
    assert list(heads) == list(TYPES) and all(heads[kind].equal(found.heads[kind]) for kind in TYPES)
    source, target = token_contributions(model, batch, RULES["attn-constant"])
    assert source.equal(found.source) and target.equal(found.target)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="'lrp': choose from story-of-heads, attn-constant, epsilon$"):
        explain(small(), make_batch(), "lrp")


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({"adaptive_softmax_cutoff": "10,20"}, ["adaptive softmax"]),
        ({"cross_self_attention": True, "no_cross_attention": True}, ["self-attention over", "without encoder"]),
        (
            {"scale_attn": True, "scale_heads": True, "scale_fc": True, "scale_resids": True},
            ["--scale-attn", "--scale-heads", "--scale-fc", "--scale-resids"],
        ),
        ({"encoder_layers": 0}, ["no encoder layers (--encoder-layers 0)"]),
        ({"decoder_layers": 0}, ["no decoder layers (--decoder-layers 0)"]),
        ({"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4}, ["quantisation noise"]),
    ],
)
def test_what_cannot_be_explained_is_refused(options, reasons):
    with pytest.raises(ValueError, match="^relevance cannot be propagated") as error:
        explain(make_stock(**options), make_batch())
    assert all(reason in str(error.value) for reason in reasons) and "\n" not in str(error.value)


def test_unknown_layers_are_refused():
    class Layer(type(make_stock().encoder.layers[0])):
        pass

    model = make_stock()
    model.encoder.layers[1].__class__ = Layer
    with pytest.raises(ValueError, match="a part of class Layer; choose another method$"):
        explain(model, make_batch())
    with pytest.raises(ValueError, match="a part of class Linear"):
        explain(torch.nn.Linear(2, 2), make_batch())


def test_broken_models_are_named():
    model = small()
    model.decoder.layers[0].fc1.weight[0, 0] = float("nan")
    for kind in (RuntimeError, ValueError):  # a ValueError: commands report it in one line
        with pytest.raises(kind, match="not finite"):
            explain(model, make_batch())
