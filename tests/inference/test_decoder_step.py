"""The steps of a decoder in exact and in bucketed buffers, and the search on the device, against fairseq's own."""

import copy
from collections import Counter

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import make_args, make_gated, make_stock
from support.pruning import ALL_TYPES
from support.recording import record
from support.searching import (
    DICTIONARY,
    FAMILIES,
    TASK,
    anything,
    assert_same_search,
    batch,
    ending,
    orders,
    search,
    sentences_exchanged,
    single_row,
)

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.attention.hooks import observe
from fairseq_headgates.attention.modules import attention_modules
from fairseq_headgates.inference import beam_stacks, graphs, step_buffers
from fairseq_headgates.inference.beam_stacks import StepSearch
from fairseq_headgates.inference.device_search import DeviceSearch
from fairseq_headgates.inference.step_buffers import FIRST_POSITIONS

# The mode of the decoder, and the class of the search.
WAYS = [("static", SequenceGenerator), ("static", DeviceSearch), ("eager", DeviceSearch)]
KINDS = pytest.mark.parametrize("kind", [SequenceGenerator, DeviceSearch])


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1].__name__}")
def way(request):
    return request.param


@pytest.fixture
def recordings(monkeypatch):
    """Graphs by recordings on the CPU; the number of those that were made."""
    made = Counter()

    def capture(work):
        made["graphs"] += 1
        return record(work)

    monkeypatch.setattr(graphs, "capture", capture)
    for module in (graphs, step_buffers, beam_stacks):
        monkeypatch.setattr(module, "can_capture", lambda device: True)
    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beam", [1, 4])
def test_every_family_translates_as_with_eager_steps(family, beam, way):
    model, net_input = ending(FAMILIES[family](), 1.5), batch(17, seed=beam)
    if family == "language-model":
        net_input = {"src_tokens": net_input["src_tokens"]}
    expected = search(model, "eager", beam, net_input)
    assert model.decoder._static_step is None
    assert_same_search(search(model, way[0], beam, net_input, way[1]), expected)
    assert way[0] == "eager" or model.decoder._static_step.is_free()


@pytest.mark.parametrize("beam", [1, 2, 5, 12])
@pytest.mark.parametrize("bias", [-20.0, 0.0, 2.0, 20.0])
def test_sentences_that_end_at_once_early_and_never(beam, bias, way):
    """Against fairseq's own model. 31 to 33 and 63 to 65 positions are the edges of buckets."""
    torch.manual_seed(0)
    stock = ending(TransformerModel.build_model(make_args(), TASK), bias)
    ours = ending(make_gated(), bias)
    ours.load_state_dict(stock.state_dict())
    for length, sentences in ((FIRST_POSITIONS - 2, 1), (FIRST_POSITIONS - 1, 7), (2 * FIRST_POSITIONS, 16)):
        options = {"max_len_b": length, "net_input": batch(sentences, seed=length)}
        found = search(ours, way[0], beam, kind=way[1], **options)
        assert_same_search(found, search(stock, "", beam, **options))
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
def test_options_of_the_search_and_ensembles(options, way):
    models = [ending(make_gated(seed), bias, seed) for seed, bias in ((1, 1.0), (2, 0.0))]
    expected = search(models, "eager", 4, batch(9), **options)
    assert_same_search(search(models, way[0], 4, batch(9), way[1], **options), expected)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_stale_beam_size_does_not_change_the_output(beam):
    """fairseq tells the model the size of a beam, but not that there is none any more."""
    stock, ours = make_stock(), make_gated()
    ours.load_state_dict(stock.state_dict())
    search(ours, "eager", 3, batch(5))
    assert_same_search(search(ours, "eager", beam, batch(5)), search(stock, "", beam, batch(5)))


def test_prefixes_and_the_token_at_the_beginning(way):
    model, sample = ending(make_gated(), 0.0), {"net_input": batch(5)}
    found = []
    for mode, kind in (("eager", SequenceGenerator), way):
        model.decoder.inference_mode = mode
        generator = kind([model], DICTIONARY, beam_size=3, max_len_b=8)
        prefix = torch.tensor([[7, 8], [9, 1], [5, 5], [11, 2], [1, 1]])
        found.append(
            [generator.generate([model], sample, **each) for each in ({"prefix_tokens": prefix}, {"bos_token": 9})]
        )
    for ours, other in zip(*found, strict=True):
        assert_same_search(ours, other)


def test_sampling_draws_the_same_random_numbers_as_with_fairseqs_model(way):
    """With LayerDrop, too, which draws some whenever one iterates over the layers."""
    found = []
    for make, mode, kind in ((make_stock, "", SequenceGenerator), (make_gated, *way)):
        model = ending(make(decoder_layerdrop=0.3), 0.0)
        torch.manual_seed(4)
        found.append(search(model, mode, 2, batch(5), kind, search_strategy=Sampling(DICTIONARY)))
    assert_same_search(*found)


@pytest.mark.parametrize("mode", ["eager", "static"])
def test_dropout_that_is_retained_in_inference(mode):
    """All embeddings are dropped, so every token has the same logits."""
    model = ending(make_gated(dropout=1.0), 0.0)
    model.decoder.inference_mode = mode
    model.decoder.dropout_module.apply_during_inference = True
    with torch.no_grad():
        encoded = model.encoder(**batch(1))
        first, second = (model.decoder(torch.tensor([[token]]), encoded, {})[0] for token in (5, 9))
    assert torch.equal(first, second) and model.decoder._static_step is None


def test_one_model_twice_in_an_ensemble(way):
    """Its buffers are those of one search at a time; the other has eager steps."""
    model = ending(make_gated(), 1.0)
    expected = search([model, copy.deepcopy(model)], "eager", 3, batch(4))
    assert_same_search(search([model, model], way[0], 3, batch(4), way[1]), expected)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    sentences=st.integers(1, 18),
    beam=st.integers(1, 4),
    mode=st.sampled_from(["eager", "static"]),
    strange=st.sampled_from([None, None, None, sentences_exchanged, anything, single_row]),
)
def test_logits_and_attention_whatever_happens_to_the_hypotheses(seed, sentences, beam, mode, strange):
    """Against fairseq's model in one pass; its cache is the truth with padding, but expects sentences to stay."""
    generator = torch.Generator().manual_seed(seed)
    stock, ours = make_stock(seed=3).double(), make_gated(seed=3).double()
    ours.load_state_dict(stock.state_dict())
    ours.set_beam_size(beam)
    ours.decoder.inference_mode = mode
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
    assert any(isinstance(each, StepSearch) for each in state.values()) or strange in (anything, single_row)


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
    (search,) = (each for each in state.values() if isinstance(each, StepSearch))
    assert positions <= search.step.used < 2 * positions < beam * positions


@KINDS
@pytest.mark.parametrize("gates", ["", ALL_TYPES], ids=["", "gates"])
def test_a_recorded_step_and_search_give_the_same(recordings, kind, gates):
    """Nothing in a step depends on Python: neither positions, nor shapes, nor the sentences that have ended."""
    model, options = ending(make_gated(gate_heads=gates), 1.5), {"beam_size": 4, "max_len_b": 70}
    for module in attention_modules(model) if gates else ():
        module.attention.gate.theta.data[:2] = torch.tensor([-0.1, 0.01])  # one is closed, one between
    model.make_generation_fast_()
    expected = search(model, "eager", 4, batch(20), max_len_b=70)
    generator = kind([model], DICTIONARY, **options)
    model.decoder.inference_mode = "graph"
    made = []
    for _ in range(2):
        assert_same_search(generator.generate([model], {"net_input": batch(20)}), expected)
        made.append(recordings["graphs"])
    assert 1 < made[0] == made[1] <= 8


def test_a_graph_is_captured_again_when_weights_masks_or_shapes_change(recordings):
    model, net_input = ending(make_gated(), 1.5), batch(6)
    search(model, "graph", 2, net_input)
    before = recordings["graphs"]
    search(model, "graph", 2, net_input)
    assert recordings["graphs"] == before
    with torch.no_grad():
        model.decoder.layers[0].fc1.weight.mul_(2)
    assert_same_search(search(model, "graph", 2, net_input), search(model, "eager", 2, net_input))
    with masked(model, HeadTable({"dec-self": [[0, 1, 1, 0]] * 2})):
        found = search(model, "graph", 2, net_input)
        assert recordings["graphs"] > before
        assert_same_search(found, search(model, "eager", 2, net_input))
    assert_same_search(search(model, "graph", 2, batch(9)), search(model, "eager", 2, batch(9)))


def test_the_least_recently_used_graph_is_dropped(recordings, monkeypatch):
    monkeypatch.setattr(graphs, "MOST", 2)
    made, x = graphs.Graphs(), torch.zeros(())
    for key in (1, 2, 1, 3, 1, 2):
        made.run(key, lambda: x + 1, x.device)
    assert recordings["graphs"] == 4  # 2 was dropped for 3, and captured again


def test_hooks_on_heads_see_what_fairseq_computes():
    """With one query for each hypothesis: a `DecoderStep` computes those of a sentence together."""
    model = ending(make_gated(), 1.5)
    expected = search(model, "static", 2, batch(3))
    with observe(model) as seen:
        assert_same_search(search(model, "static", 2, batch(3)), expected)
    assert seen


def test_hooks_on_modules_are_called_at_every_step(recordings):
    model, called = ending(make_gated(), -20.0), []
    model.decoder.layers[0].fc1.register_forward_hook(lambda *_: called.append(1))
    search(model, "graph", 2, batch(3))
    assert len(called) == 13 and not recordings["graphs"]


def test_a_search_without_finite_scores_ends_as_in_fairseq(way):
    model = ending(make_gated(), 0.0)
    with torch.no_grad():
        model.decoder.output_projection.weight.fill_(float("nan"))
    for mode, kind in (("eager", SequenceGenerator), way):
        with pytest.raises(AssertionError):
            search(model, mode, 2, batch(3), kind)
    assert way[0] == "eager" or model.decoder._static_step.is_free()


def test_copies_of_a_model_have_their_own_step():
    model = ending(make_gated(), 1.0)
    expected = search(model, "static", 2, batch(3))
    copied = copy.deepcopy(model)
    assert copied.decoder._static_step is None
    assert_same_search(search(copied, "static", 2, batch(3)), expected)
