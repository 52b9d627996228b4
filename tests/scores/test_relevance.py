"""Relevance of whole models against full Jacobians; its invariants; what it refuses."""

from dataclasses import replace

import pytest
import torch
from support.language_models import make_lm, make_text
from support.models import PAD, make_batch, make_gated, make_stock
from support.relevance import MASK, OF_DECODER, POST_NORM, Naive, shaken, small, words

from fairseq_headgates import HeadTable, attention_modules, masked, prune
from fairseq_headgates.gates import OPEN
from fairseq_headgates.heads import TYPES
from fairseq_headgates.scores.relevance import explaining, walk
from fairseq_headgates.scores.relevance import rules as rules_room
from fairseq_headgates.scores.relevance.explaining import head_relevance, token_contributions
from fairseq_headgates.scores.relevance.rules import RULES, Rule

rules = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


def explain(model, batch, rule="story-of-heads"):
    return explaining.explain(model, batch, rule)


# Whole models, against full Jacobians


def gated(dtype=torch.double, **options):
    """Gates between 0 and 1, and some that are 0: heads 0 of every other layer, and both of one layer."""
    model = small(make_gated, dtype, gate_heads=",".join(TYPES), **options)
    for i, module in enumerate(attention_modules(model)):
        values = torch.linspace(-1.5, 1.5, module.attention.num_heads, dtype=dtype) + 0.1 * i
        values[0] = -OPEN if i % 2 else values[0]
        module.attention.gate.load_state_dict({"log_alpha": torch.full_like(values, -OPEN) if i == 4 else values})
    return model


def factors_of(model):
    scales = {
        (module.attention_type, module.layer): module.attention.head_scale() for module in attention_modules(model)
    }
    return {place: scale for place, scale in scales.items() if scale is not None}


def assert_naive(model, rule, factors, found, naive_model=None, rows=(0, 1, 2), tolerance=1e-10, batch=None):
    """`found` explains the batch, by default `make_batch()`, as full Jacobians do, and has nothing at padding."""
    batch = batch or make_batch()
    for row in rows:
        source, prefix, at_source, at_target = words(batch, row)
        expected = Naive(naive_model or model, source, prefix, factors, rule)
        assert found.predicted[row, at_target].equal(expected.logits.argmax(-1))
        for attention_type, values in found.heads.items():
            for layer in range(values.size(2)):
                naive_values = expected.heads.get(attention_type, {}).get(
                    layer, torch.zeros(len(prefix), values.size(3))
                )
                assert (values[row, at_target, layer] - naive_values).abs().max() < tolerance, (attention_type, layer)
            assert values[row].sum() == pytest.approx(values[row, at_target].sum().item(), abs=1e-12)
        for name, places in (("source", at_source), ("target", at_target)):
            values = getattr(found, name)[row]
            difference = values[at_target][:, places] - getattr(expected, name)
            assert len(places) == 0 or difference.abs().max() < tolerance, name
            assert values.abs().sum() == pytest.approx(values[at_target][:, places].abs().sum().item(), abs=1e-12)
        assert (found.conserved[row, at_target] - expected.conserved).abs().max() < tolerance


@pytest.mark.cases(2)
@rules
def test_a_model_is_explained_as_by_full_jacobians(rule):
    model = small()
    rows = (1, 2) if rule is RULES["story-of-heads"] else (1,)
    assert_naive(model, rule, {}, explain(model, make_batch(), rule), rows=rows)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("rule", "pre_norm"), [("story-of-heads", False), ("epsilon", True)])
def test_a_language_model_with_gates(rule, pre_norm):
    model = shaken(make_lm(gate_heads="dec-self", decoder_normalize_before=pre_norm, **OF_DECODER))
    for module, values in zip(attention_modules(model), ([-OPEN, 0.7], [0.2, -0.9]), strict=True):
        module.attention.gate.load_state_dict({"log_alpha": torch.tensor(values, dtype=torch.double)})
    found = explain(model, make_text(), rule)
    assert list(found.heads) == ["dec-self"] and found.source.numel() == 0
    assert found.heads["dec-self"][:, :, 0, 0].max() == 0 < found.heads["dec-self"][..., 1].max()
    assert_naive(model, RULES[rule], factors_of(model), found, batch=make_text())


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("rule", "options"), [("story-of-heads", {}), ("epsilon", POST_NORM)], ids=["pre-norm", "post-norm"]
)
def test_gates_and_removed_heads(rule, options):
    model = gated(**options)
    found = explain(model, make_batch(), rule)
    assert_naive(model, RULES[rule], factors_of(model), found, rows=(1, 2))
    assert found.heads["enc-self"][..., 1].max() > 0
    assert found.heads["enc-self"][:, :, 1, 0].max() == 0 and found.heads["dec-enc"][:, :, 0].max() == 0


def test_relevance_is_the_same_in_gated_and_pruned_models():
    """Gates are folded in single precision, and compared in double."""
    model = gated(torch.float)
    mask = HeadTable({**MASK.layers, "dec-enc": [[0, 1], [1, 1]]})
    pruned = prune(model, mask).double()
    with masked(model.double(), mask):
        assert_equal(explain(pruned, make_batch()), explain(model, make_batch()), 1e-5)


def test_a_model_whose_decoder_does_not_look_at_the_source():
    model = small()
    with masked(model, HeadTable({"dec-enc": [[0, 0], [0, 0]]})):
        found = explain(model, make_batch())
        assert_naive(model, RULES["story-of-heads"], factors_of(model), found, rows=(1,))
    assert found.source.abs().max() == found.heads["enc-self"].max() == 0 < found.heads["dec-self"].max()


def assert_equal(found, expected, tolerance=1e-12):
    for name in ("source", "target", "conserved"):
        assert (getattr(found, name) - getattr(expected, name)).abs().max() <= tolerance, name
    assert found.heads.keys() == expected.heads.keys() and found.predicted.equal(expected.predicted)
    for attention_type, values in expected.heads.items():
        assert (found.heads[attention_type] - values).abs().max() <= tolerance, attention_type


@pytest.mark.release
@pytest.mark.parametrize(
    ("options", "pads"),
    [
        ({"share_all_embeddings": True, "encoder_learned_pos": True, "decoder_learned_pos": True}, ("right", "left")),
        ({"decoder_output_dim": 6, "layernorm_embedding": True, "activation_fn": "gelu"}, ("left", "right")),
        ({"encoder_layers": 1, "decoder_layers": 3, **POST_NORM}, ("left", "left")),
    ],
    ids=["shared", "project_out", "layers"],
)
def test_a_sentence_is_explained_alike_alone_and_in_a_batch(options, pads):
    model = small(**options)
    batch = make_batch(source_pad=pads[0], target_pad=pads[1])
    found = explain(model, batch)
    assert found.conserved[found.predicted != PAD].min() > 0.99 > 0 == found.conserved[found.predicted == PAD].max()
    for row in range(3):
        source, prefix, at_source, at_target = words(batch, row)
        alone = {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}
        alone = explain(model, {**alone, "prev_output_tokens": prefix[None]})
        assert (found.source[row, at_target][:, at_source] - alone.source[0]).abs().max() < 1e-10
        assert (found.target[row, at_target][:, at_target] - alone.target[0]).abs().max() < 1e-10
        for attention_type, values in alone.heads.items():
            assert (found.heads[attention_type][row, at_target] - values[0]).abs().max() < 1e-10


@pytest.mark.release
def test_relevance_computed_in_chunks_is_the_same(monkeypatch):
    model = small()
    found = explain(model, make_batch())
    monkeypatch.setattr(walk, "POSITIONS", 1)
    monkeypatch.setattr(walk, "BLOCK", 2 * 12 * 7)  # two positions of seven tokens at the widest place
    monkeypatch.setattr(rules_room, "CHUNK", 1)
    assert_equal(explain(model, make_batch()), found)


@pytest.mark.release
def test_single_precision():
    for rule in ("story-of-heads", "attn-constant"):
        single, double = (explain(small(dtype=dtype), make_batch(), rule) for dtype in (torch.float, torch.double))
        assert single.source.dtype == torch.float
        assert_equal(replace(single, predicted=double.predicted), double, 1e-4)


@pytest.mark.cases(2)
@rules
def test_relevance_is_conserved(rule):
    found = explain(make_stock(), make_batch(), rule)
    real = found.predicted != PAD
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


def test_later_target_positions_have_no_relevance():
    found = explain(small(), make_batch())
    assert found.target.triu(1).abs().max() == 0 < found.target.tril(-1).abs().max()


def test_parts_of_an_explanation():
    model, batch = small(), make_batch()
    found = explain(model, batch, "attn-constant")
    heads = head_relevance(model, batch, "attn-constant")
    assert list(heads) == list(TYPES) and all(heads[each].equal(found.heads[each]) for each in TYPES)
    source, target = token_contributions(model, batch, RULES["attn-constant"])
    assert source.equal(found.source) and target.equal(found.target)


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ({"adaptive_softmax_cutoff": "10,20"}, ["adaptive softmax"]),
        ({"cross_self_attention": True, "no_cross_attention": True}, ["self-attention over", "without cross-"]),
        (
            {"scale_attn": True, "scale_heads": True, "scale_fc": True, "scale_resids": True},
            ["--scale-attn", "--scale-heads", "--scale-fc", "--scale-resids"],
        ),
        ({"decoder_layers": 0}, ["no decoder layers (--decoder-layers 0)"]),
        ({"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4}, ["quantisation noise"]),
    ],
)
def test_models_that_relevance_does_not_support_are_refused(options, reasons):
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


def test_a_model_with_weights_that_are_not_finite_is_refused():
    model = small()
    model.decoder.layers[0].fc1.weight[0, 0] = float("nan")
    for kind in (RuntimeError, ValueError):  # a ValueError: commands report it in one line
        with pytest.raises(kind, match="not finite"):
            explain(model, make_batch())


# Rules, computed in parts


@rules
def test_linear_layers_of_one_input_propagate_like_one_layer(rule):
    torch.manual_seed(1)
    x, bias = torch.randn(5, 6, dtype=torch.double), torch.randn(7, dtype=torch.double)
    R, weight = torch.randn(5, 4, 7, dtype=torch.double), torch.randn(7, 6, dtype=torch.double)
    parts = zip(R.split([3, 4], -1), weight.split([3, 4]), bias.split([3, 4]), strict=True)
    expected = rules_room.linear(R, x, weight, bias, rule)
    assert (rules_room.linears(list(parts), x, rule) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("chunk", [1, 20, 1000])
@pytest.mark.parametrize("dim", [-1, (1, 3), (0, 2)])
def test_l1_norm_in_chunks_is_the_same(dim, chunk, monkeypatch):
    monkeypatch.setattr(rules_room, "CHUNK", chunk)
    x = torch.randn(5, 2, 3, 4, dtype=torch.double)
    assert (rules_room.l1_norm(x, dim) - x.abs().sum(dim, keepdim=True)).abs().max() < 1e-12
    assert rules_room.l1_norm(x[:, :0], dim).numel() == x[:, :0].abs().sum(dim, keepdim=True).numel()


def test_positions_before_a_token_are_skipped():
    explained = rules_room._explained(torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]])[..., None])
    tokens = (slice(0, 1), slice(1, 2), slice(0, 2), slice(2, 3))
    assert [explained(t) for t in tokens] == [slice(0, 3), slice(2, 3), slice(0, 3), slice(3, 3)]
