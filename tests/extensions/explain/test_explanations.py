"""Explanations of predictions: AttnLRP and ALTI+ against naive rewrites, classes, contrasts, given targets."""

import copy
from functools import partial

import pytest
import torch
from support import all_attention
from support.classifiers import HEAD, make_roberta, make_sentences
from support.explanations import Step, naive_alti, naive_attnlrp, through_linear, through_norm
from support.language_models import make_lm, make_text
from support.models import PAD, make_batch, make_gated, make_stock
from support.relevance import MASK, OF_DECODER, POST_NORM, Naive, naive_per_token, shaken, size_of, small, words

from fairseq_headgates import attention_modules, fix_heads, masked, prune, relevance
from fairseq_headgates.heads import TYPES
from fairseq_headgates.scores.relevance import attnlrp
from fairseq_headgates.scores.relevance.explaining import explain
from fairseq_headgates.scores.relevance.rules import RULES

norms = pytest.mark.parametrize("options", [{"activation_fn": "gelu"}, POST_NORM], ids=["pre-norm", "post-norm"])


def assert_close(found, expected, where="", tolerance=1e-8):
    assert (found - expected).abs().max() <= tolerance * max(1, expected.abs().max()), where


@norms
def test_attnlrp_passes_relevance_on_step_by_step(options):
    """Gates of 0 and between 0 and 1 included. A given target, and the difference to another one."""
    model = small(make_gated, gate_heads=",".join(TYPES), **options)
    for i, module in enumerate(attention_modules(model)):
        log_alpha = torch.tensor([-30.0 if i == 1 else 0.3, 0.1 * i], dtype=torch.double)
        module.attention.gate.load_state_dict({"log_alpha": log_alpha})
    factors = {
        (module.attention_type, module.layer): module.attention.head_scale() for module in attention_modules(model)
    }
    batch = make_batch()
    predicted, others = torch.randint(4, 40, (2, *batch["prev_output_tokens"].shape))
    found = explain(model, batch, "attnlrp", predicted, others)
    for row in (0, 1):
        source, prefix, read, places = words(batch, row)
        expected = naive_attnlrp(model, source, prefix, predicted[row, places], others[row, places], factors)
        assert_close(found.source[row, places][:, read], expected[0], "source")
        assert_close(found.target[row, places][:, places], expected[1], "target")
        assert found.source[row].count_nonzero() == len(places) * len(read)  # nothing at padding
    assert found.heads["dec-enc"][..., 0].count_nonzero() and not found.heads["enc-self"][:, :, 1, 0].any()


def test_attnlrp_of_language_models():
    models = [
        (shaken(make_lm(**OF_DECODER)), make_text()),
        (shaken(all_attention.make_model()), {"src_tokens": all_attention.make_blocks()[0][0]}),
    ]
    for model, batch in models:
        found = explain(model, batch, "attnlrp")
        _, prefix, _, places = words(batch, 0)
        expected = naive_attnlrp(model, prefix[:0], prefix, found.predicted[0, places])
        assert_close(found.target[0, places][:, places], expected[1], type(model).__name__)


def test_attnlrp_of_some_predictions_at_a_time_is_the_same(monkeypatch):
    model, batch = small(), make_batch()
    found = explain(model, batch, "attnlrp")
    monkeypatch.setattr(attnlrp, "NUMBERS", 1)
    again = explain(model, batch, "attnlrp")
    for name in ("source", "target", "conserved"):
        assert_close(getattr(again, name), getattr(found, name), name)
    assert_close(again.heads["dec-enc"], found.heads["dec-enc"])


@pytest.mark.parametrize("method", ["story-of-heads", "attnlrp", "alti"])
@norms
def test_masked_pruned_and_fixed_models_are_explained_alike(method, options):
    """A layer without heads included, and a sentence alone as in a batch."""
    model, batch = small(**options), make_batch()
    with masked(model, MASK):
        found = explain(model, batch, method)
    pruned = prune(model, MASK)
    for again in (explain(pruned, batch, method), explain(fix_heads(model, MASK), batch, method)):
        for name in ("source", "target", "conserved"):
            assert_close(getattr(again, name), getattr(found, name), name, 1e-12)
        for attention_type, values in found.heads.items():
            assert_close(again.heads[attention_type], values, attention_type, 1e-12)
    source, prefix, read, places = words(batch, 1)
    alone = {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)]), "prev_output_tokens": prefix[None]}
    alone = explain(pruned, alone, method)
    assert_close(found.source[1, places][:, read], alone.source[0])
    assert_close(found.target[1, places][:, places], alone.target[0])


@norms
def test_alti_is_the_product_of_shares(options):
    model, batch = small(**options), make_batch()
    found = explain(model, batch, "alti")
    source, prefix, read, places = words(batch, 1)
    torch.set_default_dtype(torch.double)
    try:
        of_memory, _, memory = naive_alti(model.encoder.layers, model.encoder.forward_embedding(source[None])[0][0])
        memory = memory if model.encoder.layer_norm is None else model.encoder.layer_norm(memory)
        decoder = model.decoder
        start = decoder.embed_scale * decoder.embed_tokens(prefix) + decoder.embed_positions(prefix[None])[0]
        of_target, of_source, _ = naive_alti(decoder.layers, start, memory, of_memory, causal=True)
    finally:
        torch.set_default_dtype(torch.float)
    assert_close(found.target[1, places][:, places], of_target)
    assert_close(found.source[1, places][:, read], of_source)
    assert not found.heads
    found = explain(make_stock(**options), batch, "alti")
    assert (found.conserved[found.predicted != PAD] - 1).abs().max() < 1e-6


def test_alti_of_language_models():
    for model, batch in (
        (make_lm(), make_text()),
        (all_attention.make_model(), {"src_tokens": all_attention.make_blocks()[0][0]}),
    ):
        found = explain(model, batch, "alti")
        total = found.target.sum(-1)[found.predicted != PAD]
        alone = total == 0  # persistent vectors and biases alone, at one position
        assert (total[~alone] - 1).abs().max() < 1e-6 and alone.sum() <= 1
        assert not found.target.triu(1).any() and found.target.tril(-1).any()


def shorter_sentences():
    """Two sentences, one of them padded."""
    of = make_sentences()["net_input"]
    return {"src_tokens": of["src_tokens"][1:, :6], "src_lengths": of["src_lengths"][1:]}


@pytest.mark.cases(1)
@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_class_of_a_sentence_is_explained(pre_norm):
    options = {"activation_fn": "relu", "encoder_normalize_before": pre_norm, "layernorm_embedding": not pre_norm}
    model, batch = shaken(make_roberta(**options)), shorter_sentences()
    stack, classifier = model.encoder.sentence_encoder, model.classification_heads[HEAD]
    found = {method: explain(model, batch, method) for method in ("epsilon", "attnlrp", "alti")}
    logits = model(**batch, classification_head_name=HEAD)[0]
    for row, length in enumerate([6, 4]):
        start = stack.forward_embedding(batch["src_tokens"][row : row + 1, :length])[0][0]
        step = Step(stack.layers, start)
        first = (step.x if stack.layer_norm is None else stack.layer_norm(step.x))[:1]
        hidden, best = classifier.dense(first).tanh(), logits[row].argmax()
        weight, bias = classifier.out_proj.weight[best, None], classifier.out_proj.bias[best, None]

        R = through_linear(logits[row, best].view(1, 1), hidden, weight, bias)
        R = through_linear(R, first, classifier.dense.weight, classifier.dense.bias)
        R = torch.cat([R, R.new_zeros(length - 1, R.size(1))])
        R = R if stack.layer_norm is None else through_norm(R, step.x, stack.layer_norm)
        assert_close(found["attnlrp"].source[row, 0, :length], step.back(R).sum(-1), "attnlrp")

        rule, naive = RULES["epsilon"], Naive.__new__(Naive)
        naive.model, naive.factors, naive.rule, naive.heads, naive.at_memory = model, {}, rule, {}, []
        x, backs = start, []
        for number, layer in enumerate(stack.layers):
            x, back = naive.layer(x, layer, number, "enc-self", None)
            backs.append(back)
        R = naive_per_token(
            partial(torch.nn.functional.linear, weight=weight, bias=bias),
            hidden,
            torch.ones(1, 1, 1, dtype=torch.double),
            rule,
        )
        R = naive_per_token(classifier.dense, first, R, rule)
        R = torch.cat([R, R.new_zeros(1, length - 1, R.size(2))], 1)
        R = R if stack.layer_norm is None else naive_per_token(stack.layer_norm, x, R, rule)
        for back in reversed(backs):
            R = back(R)
        assert_close(found["epsilon"].source[row, 0, :length], R.sum(-1)[0] * logits[row, best].sign(), "epsilon")
        assert_close(found["epsilon"].conserved[row, 0], size_of(R)[0])
        assert_close(found["epsilon"].heads["enc-self"][row, 0, 1], naive.heads["enc-self"][1][0])

        shares = naive_alti_of_encoder(stack, start)
        assert_close(found["alti"].source[row, 0, :length], shares, "alti")
        assert not any(each.source[row, 0, length:].any() for each in found.values())
    assert all(each.predicted.equal(logits.argmax(-1, keepdim=True)) for each in found.values())


def naive_alti_of_encoder(stack, start):
    torch.set_default_dtype(torch.double)
    try:
        return naive_alti(stack.layers, start)[0][0]
    finally:
        torch.set_default_dtype(torch.float)


def test_contrasts_of_the_epsilon_rule():
    """The relevance for a - b is that of a model whose output has the row a - b; its sign is that of the difference."""
    model, batch = small(), make_batch()
    one, other = torch.full((2, *batch["prev_output_tokens"].shape), 7), None
    one, other = one[0], one[1] + 2
    found, back = explain(model, batch, "epsilon", one, other), explain(model, batch, "epsilon", other, one)
    assert_close(found.source, -back.source)
    layer = model.decoder.output_projection
    with torch.no_grad():
        layer.weight[7] -= layer.weight[9]
    if layer.weight is not model.decoder.embed_tokens.weight:
        again = explain(model, batch, "epsilon", one)
        assert_close(found.source, again.source)


def test_the_share_of_the_source():
    found = explain(make_stock().double(), make_batch(), "alpha1beta0")
    assert found.source.min() >= 0 and found.target.min() >= 0  # only positive contributions
    share = found.source_share()
    real = found.predicted != PAD
    assert_close((share + found.target.sum(-1) / (found.source.sum(-1) + found.target.sum(-1)))[real], torch.ones(1))
    assert not share[~real].any()


def test_a_block_is_explained_with_the_memory_that_it_is_predicted_with():
    """Of all-attention models; afterwards, the memory is that of one pass over the block."""
    plain, explained = (shaken(all_attention.make_model(mem_len=4)) for _ in range(2))
    for tokens, blocks in all_attention.make_blocks():
        batch = {"src_tokens": tokens, "blocks": blocks}
        expected = plain(**batch)[0]
        before = dict(explained.decoder.memories)
        for method in ("alti", "attnlrp"):
            explained.decoder.memories.clear()
            explained.decoder.memories.update(before)
            found = explain(explained, batch, method)
            assert found.predicted.equal(expected.argmax(-1)), method
    logits = (found.target.sum(-1) / found.conserved)[0]  # the sum of relevance, and its share of the logit
    assert_close(logits, expected.amax(-1)[0])


@pytest.mark.parametrize("method", ["attnlrp", "epsilon", "alpha1beta0", "alti"])
def test_chosen_positions_are_explained_alone(method):
    model, batch = small(), make_batch()
    every, some = explain(model, batch, method), explain(model, batch, method, positions=[1, 3])
    assert_close(some.source[:, [1, 3]], every.source[:, [1, 3]])
    assert_close(some.target[:, [1, 3]], every.target[:, [1, 3]])
    assert not some.source[:, [0, 2, 4]].any() and not some.conserved[:, [0, 2, 4]].any()


@pytest.mark.parametrize("method", ["attnlrp", "epsilon", "alti"])
def test_models_are_explained_alike_when_they_are_prepared_for_inference(method):
    """And without heads in the first layer of post-norm models."""
    mask = {"enc-self": [[0] * 4, [1] * 4]}
    model = prune(make_gated(**POST_NORM), mask).eval()
    found = explain(model, make_batch(), method)
    model.make_generation_fast_()
    again = explain(model, make_batch(), method)
    assert (again.source - found.source).abs().max() < 1e-5 and found.source.any()


def test_half_precision():
    """Activations whose squares overflow."""
    model = make_stock()
    with torch.no_grad():
        model.encoder.layers[0].fc2.bias.add_(400 * torch.randn(32))
        for norm in (module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)):
            norm.bias.add_(torch.randn(32))
    batch, target = make_batch(), make_batch()["prev_output_tokens"]
    single, half = (explain(each, batch, "attnlrp", target) for each in (model, copy.deepcopy(model).half()))
    difference = (half.contributions().float() - single.contributions()).abs().max()
    assert difference < 0.05 and half.source.abs().amax() > 0


def test_equal_logits_have_no_difference_to_explain():
    model, batch = small(share_decoder_input_output_embed=False), make_batch()
    with torch.no_grad():
        model.decoder.output_projection.weight[8] = model.decoder.output_projection.weight[7]
    one = torch.full_like(batch["prev_output_tokens"], 7)
    found = explain(model, batch, "attnlrp", one, one + 1)
    assert not found.source.any() and not found.conserved.any()


def test_wrong_calls_are_refused():
    model, batch = make_stock(), make_batch()
    with pytest.raises(ValueError, match="^predicted has the shape .3, 2.: it must be .3, 5.$"):
        explain(model, batch, "epsilon", torch.zeros(3, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="alti does not depend on what is predicted"):
        explain(model, batch, "alti", instead_of=batch["prev_output_tokens"])
    with pytest.raises(ValueError, match="a part of class AllAttentionDecoder; choose another method"):
        explain(all_attention.make_model(), {"src_tokens": all_attention.make_blocks()[0][0]}, "epsilon")
    with pytest.raises(ValueError, match="the model has no classification head: fine-tune"):
        explain(make_roberta(classes=0), make_sentences()["net_input"], "attnlrp")
    several = make_roberta()
    several.register_classification_head("mnli", num_classes=3)
    for name in (None, "rte"):
        with pytest.raises(ValueError, match=f"no classification head {name!r}: choose from '{HEAD}', 'mnli'"):
            explain(several, make_sentences()["net_input"], "attnlrp", classification_head=name)
    assert explain(several, make_sentences()["net_input"], "attnlrp", classification_head="mnli").source.any()
    assert relevance.explain is explain
