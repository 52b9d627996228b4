"""Incremental decoding and beam search equal one pass and the stock transformer."""

import pytest
import torch
from support.attention import B, S, padding_mask
from support.models import PAD, VOCABULARY, make_batch, make_gated

from fairseq_headgates import head_sites
from fairseq_headgates.inference import AttentionCache


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
    assert AttentionCache(attention, state).encoder()[0].size(0) == B
    # ... and training is not touched by the beam size of a validation that came before
    torch.testing.assert_close(attention(query, repeated, repeated, repeated_padding, static_kv=True)[0], expected)


def test_a_reordering_reaches_every_cache(monkeypatch):
    """fairseq looks for the modules that have one; `BeamDecoder` knows them."""
    decoder, reached = make_gated().decoder, []
    expected = [module for module in decoder.modules() if hasattr(module, "reorder_incremental_state")]
    expected = [module for module in expected if module is not decoder]
    for module in expected:
        monkeypatch.setattr(module, "reorder_incremental_state", lambda *args, own=module: reached.append(own))
    decoder.reorder_incremental_state_scripting({}, torch.tensor([0]))
    assert len(expected) == 4
    assert reached == expected
