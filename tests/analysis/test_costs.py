"""Costs of heads: parameters and cache against what pruning removes, time against the numbers of heads; their table."""

import json

import pytest
import torch
from support.all_attention import make_model
from support.models import make_gated, make_stock
from support.prune_command import OPEN

from fairseq_headgates import prune as pruned
from fairseq_headgates.analysis import costs
from fairseq_headgates.analysis.costs import Translation, layer_costs
from fairseq_headgates.heads import TYPES
from fairseq_headgates.inference.beam_cache import Beams
from fairseq_headgates.report import speed_notes, speed_table
from fairseq_headgates.surgery import head_sites
from fairseq_headgates.surgery.cuts import cache_bytes

TRANSLATION = Translation(sentences=4, beam=3, length=20)


@pytest.mark.parametrize("make", [make_gated, make_stock])
def test_costs_are_what_pruning_removes(make):
    model = make()
    names = [site.name for site in head_sites(model)]
    everything = {attention_type: [[1] * 4] * 2 for attention_type in TYPES}
    for cost, name in zip(layer_costs(model, TRANSLATION, rounds=1), names, strict=True):
        mask = {attention_type: [list(row) for row in rows] for attention_type, rows in everything.items()}
        mask[cost.attention_type][cost.layer][1] = 0
        smaller = pruned(model, mask)
        before, after = (sum(p.numel() for p in one.parameters()) for one in (model, smaller))
        assert cost.head_parameters == before - after
        saved = cache_bytes(pruned(model, everything), cost.attention_type) - cache_bytes(smaller, cost.attention_type)
        assert cost.head_cache_bytes == (0 if cost.attention_type == "enc-self" else saved)
        assert cost.heads == 4
        assert name.endswith("encoder_attn") == (cost.attention_type == "dec-enc")


def test_times_are_those_of_every_number_of_heads():
    model = pruned(make_gated(encoder_attention_heads=8), {"enc-self": [[1, 0, 0, 1, 0, 0, 1, 0], [0] * 8]})
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    costs = layer_costs(model, TRANSLATION)
    assert [cost.heads for cost in costs] == [3, 0, 4, 4, 4, 4]
    for cost in costs:
        assert len(cost.seconds) == (9 if cost.attention_type == "enc-self" else 5)
        assert 0 < cost.seconds[0] < cost.seconds[-1]  # a layer without heads computes nothing
    assert costs[0].seconds is costs[1].seconds  # measured once
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert not any(getattr(site.attention, "_prepared", False) for site in head_sites(model))


def test_attention_that_is_not_measured_is_refused():
    with pytest.raises(ValueError, match="the time of AllAttention is not measured: leave out --by-speed"):
        layer_costs(make_model())


SPEED = {
    "sentences": 8,
    "beam": 5,
    "length": 25,
    "threads": 2,
    "layers": [
        {"type": "enc-self", "layer": 0, "heads": [4, 3], "head_parameters": 1056, "head_cache_bytes": 0},
        {"type": "dec-self", "layer": 0, "heads": [4, 1], "head_parameters": 1056, "head_cache_bytes": 64},
        {"type": "dec-self", "layer": 1, "heads": [1, 0], "head_parameters": 1056, "head_cache_bytes": 64},
    ],
}
for _layer, _ms in zip(SPEED["layers"], [[0, 2, 3, 4, 5], [0.5, 8, 9, 10, 11], [0.5, 8, 9, 10, 11]], strict=True):
    _layer["ms_by_heads"] = _ms


def test_the_table_and_its_notes():
    lines = [line.split() for line in speed_table(SPEED).splitlines()[2:]]
    assert lines[0] == ["enc-self", "layer", "0", "3", "1,056", "4.00", "1.00", "2.00"]
    assert lines[1] == ["dec-self", "layer", "0", "1", "1,056", "64", "8.00", "7.50"]
    assert lines[2] == ["dec-self", "layer", "1", "0", "1,056", "64", "0.50"]
    notes = speed_notes(SPEED)
    assert "attention: 24.0 -> 12.5 ms" in notes
    assert "layers that lose all heads, and the ms that this saves: dec-self layer 1 (7.50 ms)" in notes
    assert notes[-1].endswith("dec-self layer 0 (7.50 ms)")
    whole = {**SPEED, "layers": SPEED["layers"][:1]}
    assert not any("all heads" in note or "one head left" in note for note in speed_notes(whole)[4:])
    several = {**SPEED, "layers": [{**SPEED["layers"][2], "heads": [4, 0]}]}
    assert speed_notes(several)[-1].endswith("dec-self layer 1 (10.50 ms)")


def test_prune_by_speed_prints_the_costs(checkpoint, prune, monkeypatch):
    monkeypatch.setattr(costs, "_seconds", lambda device, work: (work(), 0.001)[1])
    out = checkpoint.with_name("pruned.pt")
    plain = prune(checkpoint, out, "--dry-run")
    done = prune(checkpoint, out, "--dry-run", "--by-speed", "--batch-size", 2)
    assert done.out.startswith(plain.out.removesuffix("nothing written (--dry-run)\n"))
    assert "of 2 sentences with 25 tokens on each side" in done.out
    assert "layers that lose all heads, and the ms that this saves: enc-self layer 1 (" in done.out
    speed = json.loads(prune(checkpoint, out, "--by-speed", "--json", "--batch-size", 3).out)["speed"]
    assert speed["sentences"] == 3
    kept = [layer["heads"] for layer in speed["layers"]]
    assert kept == [[4, sum(row)] for attention_type in TYPES for row in OPEN[attention_type]]
    assert out.exists()


def test_nothing_is_written_if_attention_cannot_be_timed(checkpoint, prune, monkeypatch):
    out = checkpoint.with_name("unmeasured.pt")
    monkeypatch.setattr("fairseq_headgates.analysis.costs.HeadAttention", None)
    done = prune(checkpoint, out, "--by-speed", code=2)
    assert done.err.endswith("leave out --by-speed\n") and not out.exists()


def test_the_size_of_stock_checkpoints_does_not_change(checkpoint, prune):
    done = prune(checkpoint, checkpoint.with_name("x.pt"), "--by-speed", "--stock", code=2)
    assert done.err.startswith("headgates prune: error: --stock keeps the size of the model")


def test_cache_operations_shared_by_layers_are_not_timed(monkeypatch):
    """Another layer extends and reorders the table of entries first."""
    first = []

    def spy_on(name):
        original = vars(Beams)[name]

        def spy(beams, *arguments):
            first.append((name, clock[0]))
            return original(beams, *arguments)

        monkeypatch.setattr(Beams, name, spy)

    clock = [False]
    spy_on("reorder")
    spy_on("extend")

    def seconds(device, work):
        clock[0] = True
        work()
        clock[0] = False
        return 1.0

    monkeypatch.setattr(costs, "_seconds", seconds)
    layer_costs(make_stock(), TRANSLATION, rounds=1)
    assert {name for name, _ in first} == {"reorder", "extend"}
    assert not any(timed for _, timed in first)


def test_a_batch_without_sentences_is_refused(checkpoint, prune):
    done = prune(checkpoint, checkpoint.with_name("x.pt"), "--by-speed", "--batch-size", 0, code=2)
    assert done.err == "headgates prune: error: --batch-size is 0: it must be at least 1\n"
