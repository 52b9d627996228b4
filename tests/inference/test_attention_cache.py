"""Encoder states that hypotheses share, outside of a `DecoderStep`: the same attention as with one copy for each."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import make_gated
from support.searching import anything, orders, sentences_exchanged, single_row

from fairseq_headgates.attention.sites import head_sites

E, S = 32, 6  # width, source length


SITES = {site.attention_type: site for site in head_sites(make_gated(seed=3))}


def attention_of(attention_type, beam):
    """The same weights every time, for a search with `beam` hypotheses (1: fairseq's plain cache)."""
    attention = copy.deepcopy(SITES[attention_type].attention)
    attention.set_beam_size(beam)
    return attention


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**20),
    sentences=st.integers(1, 4),
    beam=st.integers(2, 5),
    strange=st.sampled_from([None, sentences_exchanged, anything, single_row]),
    padded=st.booleans(),
    repeats=st.booleans(),
)
def test_attention_to_the_encoder_equals_that_with_the_plain_cache(seed, sentences, beam, strange, padded, repeats):
    """Also where the states of a group differ although its size is that of the beam (a beam of 1 after one of 5)."""
    generator = torch.Generator().manual_seed(seed)
    rows = sentences * beam
    pair = [(attention_of("dec-enc", size), {}) for size in (1, beam)]
    memory = torch.randn(S, rows, E, generator=generator)
    padding = torch.rand(rows, S, generator=generator) > 0.7 if padded else torch.zeros(rows, S, dtype=torch.bool)
    padding[:, 0] = False
    if repeats:
        memory = memory[:, ::beam].repeat_interleave(beam, 1)
        padding = padding[::beam].repeat_interleave(beam, 0)
    for order in orders(generator, 4, sentences, beam, strange):
        x = torch.randn(1, rows, E, generator=generator)
        outputs = []
        for attention, state in pair:
            outputs.append(
                attention(x, memory, memory, padding, incremental_state=state, static_kv=True, need_head_weights=True)
            )
            attention.reorder_incremental_state(state, order)
        memory, padding, rows = memory[:, order], padding[order], order.numel()
        torch.testing.assert_close(outputs[1][0], outputs[0][0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(outputs[1][1], outputs[0][1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_stale_beam_size_does_not_change_the_output(beam):
    """fairseq tells the model the size of a beam, but not that there is none any more."""
    from fairseq.sequence_generator import SequenceGenerator
    from support.models import make_batch, make_stock, make_task

    task, sample = make_task(), {"net_input": make_batch()}
    stock, ours = make_stock(), make_gated()
    ours.load_state_dict(stock.state_dict())
    SequenceGenerator([ours], task.target_dictionary, beam_size=3, max_len_b=8).generate([ours], sample)
    found = []
    for model in (stock, ours):
        generator = SequenceGenerator([model], task.target_dictionary, beam_size=beam, max_len_b=8)
        found.append([[h["tokens"].tolist() for h in hypotheses] for hypotheses in generator.generate([model], sample)])
    assert found[0] == found[1]
