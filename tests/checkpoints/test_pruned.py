"""Pruned and stock checkpoints through fairseq's own commands compute and generate as before."""

import argparse
import json
import re

import pytest
import torch
from support.checkpoints import (
    GENERATE,
    OPEN,
    WITHOUT_PLUGIN,
    C,
    O,
    assert_same_output,
    assert_same_tensors,
    load,
    predictions,
    read,
    toy_batch,
    with_gates,
)
from support.commands import ALIVE, EVALUATION, TYPES, USER_DIR, hypotheses
from support.models import logits, make_args, make_batch, make_stock

from fairseq_headgates import HeadTable, prune
from fairseq_headgates.attention.cuts import kept_mask, open_mask
from fairseq_headgates.attention.modules import number_of_parameters
from fairseq_headgates.checkpoints import checkpoint_of, load_checkpoint, save_checkpoint
from fairseq_headgates.checkpoints.pruned import prune_checkpoint
from fairseq_headgates.plugin.models.building import build_model, load_model
from fairseq_headgates.safety.checkpoint import model_args

# fairseq's commands on a pruned checkpoint


SHORT = ["--max-len-b", 12]


def test_alignment_of_a_last_layer_without_heads(gated, run, toy, tmp_path):
    mask = json.dumps({"dec-enc": [[1, 1, 1, 1], [0, 0, 0, 0]]})
    run("headgates", "prune", "--path", gated, "--out", tmp_path / "x.pt", "--alive", mask)
    done = run("fairseq-generate", toy.data, *GENERATE, "--path", tmp_path / "x.pt", *SHORT, "--print-alignment")
    assert len(hypotheses(done)) == 10 and len(re.findall(r"^A-\d+", done.out, re.MULTILINE)) == 10


def alignments(finished):
    return sorted(re.findall(r"^A-(\d+)\t(.*)$", finished.out, re.MULTILINE))


@pytest.mark.release
def test_gated_pruned_and_stock_print_the_same_translations_and_alignments(gated, run, toy, tmp_path):
    """Of a mask that says nothing about what attends to what; the stock form of fairseq is among them."""
    mask = json.dumps({"dec-enc": [[0, 1, 1, 0], [0, 1, 0, 1]]})
    state = with_gates(read(gated), {"dec-enc": [[C, O, O, C], [C, O, C, O]]})
    torch.save(state, tmp_path / "gated.pt")
    for name, form in (("pruned.pt", []), ("stock.pt", ["--stock"])):
        places = ["--path", tmp_path / "gated.pt", "--out", tmp_path / name]
        run("headgates", "prune", *places, "--alive", mask, *form)
    options = ["--gen-subset", "valid", "--print-alignment", "--beam", 4, *SHORT, "--path"]
    done = [
        run("fairseq-generate", toy.data, *plugin, *options, tmp_path / name)
        for name, plugin in (("gated.pt", EVALUATION), ("pruned.pt", EVALUATION), ("stock.pt", WITHOUT_PLUGIN))
    ]
    found = [alignments(finished) for finished in done]
    assert len(found[0]) == 30 and found[0] == found[1] == found[2]
    assert_same_output(done[0], done[1], 30)
    assert_same_output(done[0], done[2], 30)


@pytest.mark.cases(2)
@pytest.mark.parametrize(("kind", "form"), [("baseline", []), ("fixed", ["--stock"]), ("mixed", [])])
def test_checkpoints_of_every_kind_compute_the_same_after_pruning(kind, form, checkpoints, run, tmp_path):
    """Heads that are fixed at 0 go; a baseline has no gates, and keeps what it has."""
    path = tmp_path / "out.pt"
    run("headgates", "prune", "--path", checkpoints[kind], "--out", path, *form)
    before, task = load(checkpoints[kind])
    after, _ = load(path)
    torch.testing.assert_close(predictions(after, task), predictions(before, task), atol=1e-5, rtol=1e-5)
    alive = {"fixed": {**ALIVE, "dec-self": [[1] * 4] * 2}, "mixed": {"enc-self": ALIVE["enc-self"]}}.get(kind, {})
    expected = {attention_type: alive.get(attention_type, [[1] * 4] * 2) for attention_type in TYPES.split(",")}
    assert type(after).__name__ == ("TransformerModel" if form else "TransformerHeadGatesModel")
    if not form:
        assert kept_mask(after).layers == expected


# The form of the file


def test_a_pruned_checkpoint_stores_options_that_match_its_model(gated, pruned):
    before, after = read(gated), read(pruned)
    args = model_args(after)
    assert (args.arch, args.gate_heads, args.remove_heads) == ("transformer_head_gates", "", True)
    assert json.loads(args.alive_heads) == {"format": "headgates.heads/1", **OPEN}
    assert args.criterion == "label_smoothed_cross_entropy"
    assert after["optimizer_history"][-1]["criterion_name"] == "LabelSmoothedCrossEntropyCriterion"
    assert after["cfg"]["criterion"]["_name"] == "label_smoothed_cross_entropy"
    assert str(USER_DIR) not in str(after["cfg"])  # a path of another machine
    assert before["extra_state"]["train_iterator"] == after["extra_state"]["train_iterator"]
    assert not any("gate" in name for name in after["model"])


def test_what_prune_and_compress_return_is_saved(gated, tmp_path):
    """Heads and neurons removed, and a weight that repair changed, as `compress` returns it."""
    state = load_checkpoint(str(gated))
    model, mask = build_model(state), {"enc-self": [[1, 1, 0, 0], [1, 1, 1, 1]], "dec-enc": [[1, 1, 1, 1], [0] * 4]}
    for neurons in ({}, {"encoder.layers.0": (1, 4), "decoder.layers.1": ()}):
        small = prune(model, mask, neurons)
        small.encoder.layers[0].fc2.bias.data += 1
        save_checkpoint(checkpoint_of(state, small), tmp_path / "small.pt", force=True)
        again, _ = load(tmp_path / "small.pt")  # as fairseq's commands do
        assert_same_tensors(dict(again.state_dict()), dict(small.state_dict()))
        assert torch.equal(logits(again, toy_batch()), logits(small, toy_batch()))
    with pytest.raises(ValueError, match="cannot be built from its options and weights"):
        checkpoint_of(state, model)  # with gates


def test_layers_that_share_weights(tmp_path):
    """Three encoder layers are one, in the model of their authors: it has fewer parameters, and keeps them."""
    model = make_stock(encoder_layers=3)
    model.encoder.layers[1] = model.encoder.layers[2] = model.encoder.layers[0]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    args = argparse.Namespace(**vars(make_args(encoder_layers=3)), arch="theirs")
    save_checkpoint({"args": args, "model": model.state_dict()}, tmp_path / "whole.pt")
    state, loaded = load_model(tmp_path / "whole.pt")
    assert number_of_parameters(loaded) == number_of_parameters(model) == parameters < all_of(loaded)
    assert torch.equal(logits(loaded, make_batch()), logits(model, make_batch()))
    for mask, neurons in (({"enc-self": [[1] * 4, [1, 1, 0, 1], [1] * 4]}, {}), ({}, {"encoder.layers.1": (0, 5)})):
        with pytest.raises(ValueError, match=r"layers share the weights of encoder\.layers\.1\.\w+ \(the first of \d"):
            prune_checkpoint(state, HeadTable(mask), neurons=neurons)
    save_checkpoint(prune_checkpoint(state, {"dec-enc": [[1, 0, 1, 1], [1] * 4]}), tmp_path / "small.pt")
    head = 4 * 32 * 8 + 3 * 8  # columns and rows of four matrices, and of three biases
    assert number_of_parameters(load_model(tmp_path / "small.pt")[1]) == parameters - head
    once = prune(model, {"enc-self": [[1, 1, 0, 1]]})  # in Python: one module in three places
    assert number_of_parameters(once) == parameters - head and once.encoder.layers[0] is once.encoder.layers[2]


def all_of(model):
    """The number of parameters as a file without shared tensors has them."""
    return sum(parameter.numel() for parameter in model.parameters())


def test_pruning_keeps_half_precision(gated):
    state = load_checkpoint(str(gated))
    state["model"] = {
        k: v.half() if v.is_floating_point() and "gate" not in k else v for k, v in state["model"].items()
    }
    smaller = prune_checkpoint(state, open_mask(build_model(state)))
    parameters = {name for name, _ in build_model(smaller).named_parameters()}
    assert {smaller["model"][name].dtype for name in parameters} == {torch.float16}
    model, whole = build_model(smaller), build_model(state)
    torch.testing.assert_close(logits(model, toy_batch()), logits(whole, toy_batch()), atol=2e-3, rtol=0)
