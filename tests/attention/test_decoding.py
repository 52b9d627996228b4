"""Incremental decoding and beam search equal one pass and the stock transformer."""

import pytest
import torch
from support.models import PAD, make_batch, make_gated


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
