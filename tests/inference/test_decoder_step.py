"""The steps of a decoder against fairseq's own."""

import copy

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import make_args, make_gated, make_stock
from support.searching import (
    DICTIONARY,
    FAMILIES,
    TASK,
    anything,
    assert_same_search,
    batch,
    cached_search,
    ending,
    orders,
    search,
    sentences_exchanged,
    single_row,
)

from fairseq_headgates.attention.hooks import observe
from fairseq_headgates.inference import decoder_step
from fairseq_headgates.inference.decoder_step import DecoderStep

FIRST_POSITIONS = 4  # so that a short search fills the room for entries several times


@pytest.fixture(scope="module", autouse=True)
def little_room():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_step, "FIRST_POSITIONS", FIRST_POSITIONS)
        yield


@pytest.mark.cases(7)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beam", [1, 4])
def test_every_family_translates_as_with_fairseqs_cache(family, beam):
    model, net_input = ending(FAMILIES[family](), 1.5), batch(17, seed=beam)
    if family == "language-model":
        net_input = {"src_tokens": net_input["src_tokens"]}
    assert_same_search(search(model, beam, net_input), cached_search(model, beam, net_input))


@pytest.mark.cases(4)
@pytest.mark.parametrize("beam", [1, 2, 5, 12])
@pytest.mark.parametrize("bias", [-20.0, 0.0, 2.0, 20.0])
def test_sentences_that_end_at_once_early_and_never(beam, bias):
    """Against fairseq's own model. The room for entries is doubled when it is full."""
    stock = ending(TransformerModel.build_model(make_args(), TASK), bias)
    ours = ending(make_gated(), bias)
    ours.load_state_dict(stock.state_dict())
    for length, sentences in ((FIRST_POSITIONS - 2, 1), (FIRST_POSITIONS - 1, 7), (2 * FIRST_POSITIONS, 16)):
        options = {"max_len_b": length, "net_input": batch(sentences, seed=length)}
        found = search(ours, beam, **options)
        assert_same_search(found, search(stock, beam, **options))
    lengths = {len(each["tokens"]) for sentence in found for each in sentence}
    assert lengths == ({2} if bias == 20 else {length + 1}) or bias in (0, 2)


OPTIONS = {
    "scores": {"len_penalty": 0.6, "unk_penalty": 0.7, "temperature": 1.3, "min_len": 4},
    "not-normalised": {"normalize_scores": False, "max_len_a": 1, "max_len_b": 2},
    "n-grams": {"no_repeat_ngram_size": 2},
    "source-length": {"match_source_len": True},
    "suppressed": {"tokens_to_suppress": ("w3", "w4")},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_of_the_search_and_ensembles(options):
    models = [ending(make_gated(seed), bias, seed) for seed, bias in ((1, 1.0), (2, 0.0))]
    expected = cached_search(models, 4, batch(9), **options)
    assert_same_search(search(models, 4, batch(9), **options), expected)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_stale_beam_size_does_not_change_the_output(beam):
    """fairseq tells the model the size of a beam, but not that there is none any more."""
    stock, ours = make_stock(), make_gated()
    ours.load_state_dict(stock.state_dict())
    search(ours, 3, batch(5))
    assert_same_search(search(ours, beam, batch(5)), search(stock, beam, batch(5)))


@pytest.mark.parametrize("options", [{"prefix_tokens": [[7, 8], [9, 1], [5, 5], [11, 2], [1, 1]]}, {"bos_token": 9}])
def test_prefixes_and_the_token_at_the_beginning(options):
    stock, ours = ending(make_stock(), 0.0), ending(make_gated(), 0.0)
    ours.load_state_dict(stock.state_dict())
    options = {name: torch.tensor(each) if name == "prefix_tokens" else each for name, each in options.items()}
    found = []
    for model in (ours, stock):
        generator = SequenceGenerator([model], DICTIONARY, beam_size=3, max_len_b=8)
        found.append(generator.generate([model], {"net_input": batch(5)}, **options))
    assert_same_search(*found)


def test_sampling_draws_the_same_random_numbers_as_with_fairseqs_model():
    """With LayerDrop, too, which draws some whenever one iterates over the layers."""
    found = []
    for make in (make_stock, make_gated):
        model = ending(make(decoder_layerdrop=0.3), 0.0)
        torch.manual_seed(4)
        found.append(search(model, 2, batch(5), search_strategy=Sampling(DICTIONARY)))
    assert_same_search(*found)


def test_dropout_that_is_retained_in_inference():
    """All embeddings are dropped, so every token has the same logits."""
    model = ending(make_gated(dropout=1.0), 0.0)
    model.decoder.dropout_module.apply_during_inference = True
    with torch.no_grad():
        encoded = model.encoder(**batch(1))
        first, second = (model.decoder(torch.tensor([[token]]), encoded, {})[0] for token in (5, 9))
    assert torch.equal(first, second)


def test_one_model_twice_in_an_ensemble():
    model = ending(make_gated(), 1.0)
    expected = search([model, copy.deepcopy(model)], 3, batch(4))
    assert_same_search(search([model, model], 3, batch(4)), expected)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    sentences=st.integers(1, 18),
    beam=st.integers(1, 4),
    strange=st.sampled_from([None, None, None, sentences_exchanged, anything, single_row]),
)
def test_logits_and_attention_whatever_happens_to_the_hypotheses(seed, sentences, beam, strange):
    """Against fairseq's model in one pass; its cache is the truth with padding, but expects sentences to stay."""
    generator = torch.Generator().manual_seed(seed)
    stock, ours = make_stock(seed=3).double(), make_gated(seed=3).double()
    ours.load_state_dict(stock.state_dict())
    ours.set_beam_size(beam)
    state, cache, net_input = {}, None if strange else {}, batch(sentences, seed)
    order, tokens = torch.arange(sentences).repeat_interleave(beam), torch.empty(sentences * beam, 0, dtype=torch.long)
    with torch.no_grad():
        encoded = [model.encoder.reorder_encoder_out(model.encoder(**net_input), order) for model in (stock, ours)]
        for order in orders(generator, 2 * FIRST_POSITIONS + 3, sentences, beam, strange):
            new = torch.randint(4, 40, (len(tokens), 1), generator=generator)
            if tokens.size(1) and not strange:  # fairseq's attention to padding alone is not a number
                new[torch.rand(new.shape, generator=generator) > 0.9] = 1
            tokens = torch.cat([tokens, new], 1)
            found, real = ours.decoder(tokens, encoded[1], state), new[:, 0] != 1
            expected = stock.decoder(tokens, encoded[0], cache)
            for one, other in ((found[0], expected[0]), (found[1]["attn"][0], expected[1]["attn"][0])):
                # fairseq computes attention weights in single precision
                torch.testing.assert_close(one[real], other[real, -1:], rtol=1e-6, atol=1e-6)
            ours.decoder.reorder_incremental_state_scripting(state, order)
            if cache:
                stock.decoder.reorder_incremental_state_scripting(cache, order)
            encoded = [
                model.encoder.reorder_encoder_out(e, order) for model, e in zip((stock, ours), encoded, strict=True)
            ]
            tokens = tokens[order]
    assert any(isinstance(each, DecoderStep) for each in state.values()) or strange in (anything, single_row)


def test_entries_of_dropped_hypotheses_are_removed():
    """The cache of a long search has about one entry of a sentence for each position, not one for each hypothesis."""
    beam, positions, model, state = 4, 100, make_gated(), {}
    generator = torch.Generator().manual_seed(0)
    model.set_beam_size(beam)
    with torch.no_grad():
        encoded = model.encoder(**batch(2))
        encoded = model.encoder.reorder_encoder_out(encoded, torch.arange(2).repeat_interleave(beam))
        for position in range(positions):
            tokens = torch.randint(4, 40, (2 * beam, position + 1), generator=generator)
            model.decoder(tokens, encoded, state)
            order = torch.randint(0, beam, (2, beam), generator=generator) + beam * torch.arange(2)[:, None]
            model.decoder.reorder_incremental_state_scripting(state, order.view(-1))
    (step,) = (each for each in state.values() if isinstance(each, DecoderStep))
    assert positions <= step.used < 2 * positions < beam * positions


def test_hooks_on_heads_see_what_fairseq_computes():
    """With one query for each hypothesis: a `DecoderStep` computes those of a sentence together."""
    model = ending(make_gated(), 1.5)
    expected = search(model, 2, batch(3))
    with observe(model) as seen:
        assert_same_search(search(model, 2, batch(3)), expected)
    assert seen


def test_hooks_on_modules_are_called_at_every_step():
    model, called = ending(make_gated(), -20.0), []
    model.decoder.layers[0].fc1.register_forward_hook(lambda *_: called.append(1))
    search(model, 2, batch(3))
    assert len(called) == 13


def test_a_search_without_finite_scores_ends_as_in_fairseq():
    model = ending(make_gated(), 0.0)
    with torch.no_grad():
        model.decoder.output_projection.weight.fill_(float("nan"))
    with pytest.raises(AssertionError):
        search(model, 2, batch(3))
