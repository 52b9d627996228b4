"""Masks that come from checkpoints, and training that starts from a pruned checkpoint."""

import argparse
import json

import pytest
import torch
from support.checkpoints import OPEN, C, F, O, assert_same_tensors, load, predictions, read, small_state, with_gates
from support.commands import L0, TYPES, logged
from support.models import make_gated

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.attention.cuts import kept_mask
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.pruned import prune_checkpoint
from fairseq_headgates.plugin.models.building import read_mask
from fairseq_headgates.safety.checkpoint import model_args


@pytest.mark.release
def test_a_pruned_checkpoint_is_pruned_again_and_gated_again(pruned, run, train, tmp_path):
    again = tmp_path / "again.pt"
    mask = {"enc-self": [[0, 1, 0, 1], [1, 1, 1, 1]], "dec-self": [[1, 1, 1, 1], [0, 0, 0, 1]]}
    plan = json.loads(
        run("headgates", "prune", "--path", pruned, "--out", again, "--alive", json.dumps(mask), "--json").out
    )
    assert plan["heads"] == {"enc-self": [3, 2], "dec-self": [6, 3], "dec-enc": [2, 2]}
    left = {
        attention_type: [
            [a * b for a, b in zip(*pair, strict=True)]
            for pair in zip(rows, mask.get(attention_type, [[1] * 4] * 2), strict=True)
        ]
        for attention_type, rows in OPEN.items()
    }
    whole, task = load(pruned)
    smaller, _ = load(again)
    assert kept_mask(smaller).layers == left
    with masked(whole, HeadTable(mask)):
        torch.testing.assert_close(predictions(smaller, task), predictions(whole, task), atol=1e-5, rtol=1e-5)

    heads = tmp_path / "heads.json"
    run("headgates", "show", "--path", again, "--out", heads)
    assert {k: v for k, v in json.loads(heads.read_text()).items() if k in left} == left
    options = ["--alive-heads", heads, "--remove-heads", "--gate-heads", "enc-self,dec-enc", *L0]
    done = train(tmp_path / "gates", *options, "--finetune-from-model", again, "--lr", 0, "--dropout", 0, updates=1)
    assert logged(done, "heads_open") == [4]  # 2 and 2, for the others have no gates
    path = tmp_path / "gates" / "checkpoint_last.pt"
    gates, _ = load(path)
    torch.testing.assert_close(predictions(gates, task), predictions(smaller, task), atol=1e-6, rtol=1e-6)
    state = with_some_closed(read(path))
    torch.save(state, tmp_path / "closed.pt")
    run("headgates", "prune", "--path", tmp_path / "closed.pt", "--out", tmp_path / "third.pt")
    third, _ = load(tmp_path / "third.pt")
    closed, _ = load(tmp_path / "closed.pt")
    torch.testing.assert_close(predictions(third, task), predictions(closed, task), atol=1e-5, rtol=1e-5)
    assert kept_mask(third).layers == {**left, "enc-self": [[0, 0, 0, 1], [0, 0, 0, 0]]}


def with_some_closed(state):
    """The first of the two encoder heads that are left has a closed gate."""
    state["model"]["encoder.layers.0.self_attn.gate.log_alpha"] = torch.tensor([C, O]).double()
    return state


def test_a_pruned_checkpoint_needs_its_mask_to_be_trained(pruned, train, tmp_path):
    done = train(tmp_path, "--finetune-from-model", pruned, code=2)
    (line,) = (line for line in done.err.splitlines() if "error:" in line)
    assert "enc-self layer 0 has 3 heads in the checkpoint and 4 in the model" in line
    assert "--alive-heads CKPT --remove-heads" in line and "headgates prune" in line and "Traceback" not in done.text


def test_a_mask_from_a_checkpoint_is_the_one_that_show_writes(gated, pruned, run, tmp_path):
    """Gates that are closed, heads that are removed, and gates on what was left of them."""
    again = prune_checkpoint(load_checkpoint(str(pruned)), HeadTable({"enc-self": [[0, 1, 1, 1], [1, 1, 1, 1]]}))
    args = model_args(again)
    args.gate_heads = "dec-self"
    again["cfg"]["model"] = args
    for layer, gates in enumerate(([F, C], [O, C, C, F])):
        again["model"][f"decoder.layers.{layer}.self_attn.gate.log_alpha"] = torch.tensor(gates).double()
    torch.save(again, tmp_path / "again.pt")
    masked_ = with_gates(read(gated), {"enc-self": [[C, C, O, O], [F, F, O, O]]})
    torch.save(masked_, tmp_path / "gated.pt")
    for path in (gated, pruned, tmp_path / "again.pt", tmp_path / "gated.pt"):
        shown = json.loads(run("headgates", "show", "--path", path, "--out", "-").out)
        assert read_mask(str(path)).layers == {each: shown[each] for each in TYPES.split(",")}
    left = {"enc-self": [[0, 1, 1, 1], [0] * 4], "dec-self": [[1, 0, 0, 0], [1, 0, 0, 1]], "dec-enc": OPEN["dec-enc"]}
    assert read_mask(str(tmp_path / "again.pt")).layers == left
    for form in (["--alive", tmp_path / "again.pt"], ["--alive", json.dumps(left)]):
        plan = json.loads(
            run("headgates", "prune", "--path", gated, "--out", tmp_path / "x.pt", "--dry-run", "--json", *form).out
        )
        assert plan["mask"] == left


def test_a_model_draws_the_same_weights_with_the_mask_of_a_checkpoint_as_with_its_json(tmp_path):
    """Although the model of the checkpoint is built before it."""
    path, mask = tmp_path / "x.pt", '{"enc-self": [[1, 0, 1, 1], [1, 1, 1, 1]]}'
    torch.save(small_state(make_gated(alive_heads=mask, remove_heads=True)), path)
    states = [make_gated(seed=1, alive_heads=each, remove_heads=True).state_dict() for each in (str(path), mask)]
    assert_same_tensors(*states)


@pytest.mark.parametrize(
    ("options", "gates"),
    [
        ({"arch": "transformer"}, None),
        ({"alive_heads": '{"enc-self": [[1, 1]]}'}, None),
        ({"alive_heads": "/dev/zero"}, None),
        ({"alive_heads": 7}, None),
        ({"ffn_dims": "/dev/zero"}, None),
        ({"gate_stretch": "wide"}, None),
        ({"encoder_attention_heads": -4}, None),
        ({}, (0, torch.zeros(5))),
        ({}, (7, torch.zeros(4))),
        ({}, (0, torch.tensor([1, float("nan"), 1, 1]))),
    ],
)
def test_checkpoints_without_a_mask_are_refused_in_one_line(options, gates, tmp_path):
    """By their options or their gates."""
    state = small_state(make_gated(gate_heads="enc-self"))
    state["cfg"]["model"] = argparse.Namespace(**{**vars(state["cfg"]["model"]), **options})
    if gates is not None:
        layer, values = gates
        state["model"][f"encoder.layers.{layer}.self_attn.gate.log_alpha"] = values
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"x\.pt: ") as error:
        read_mask(str(tmp_path / "x.pt"))
    assert "\n" not in str(error.value)


@pytest.mark.release
def test_resuming_with_a_mask_of_other_heads_is_refused(pruned, train, tmp_path):
    """Training goes on from a pruned checkpoint with a mask of as many heads, but others."""
    other = {**OPEN, "enc-self": [[1, 1, 1, 0], [0, 0, 0, 0]]}
    heads = ["--alive-heads", json.dumps(other), "--remove-heads", "--restore-file", pruned]
    done = train(tmp_path / "1", *heads, updates=6, code=2)
    (line,) = (line for line in done.err.splitlines() if "error:" in line)
    assert "enc-self layer 0 has the heads 1, 2, 3 in the checkpoint and 0, 1, 2 in the model" in line
    assert "Traceback" not in done.text and not (tmp_path / "1" / "checkpoint_last.pt").exists()
    old = read(pruned)  # as version 0.1 wrote it
    old["model"] = dict(old["model"])
    torch.save(old, tmp_path / "old.pt")
    own = ["--alive-heads", json.dumps(OPEN), "--remove-heads", "--restore-file", tmp_path / "old.pt"]
    train(tmp_path / "2", *own, updates=5)
    again = [*heads[:-1], tmp_path / "2" / "checkpoint_last.pt"]  # training has written it, too
    assert "the heads 1, 2, 3 in the checkpoint" in train(tmp_path / "3", *again, updates=6, code=2).err
