"""Masks that come from checkpoints, and training that starts from a pruned checkpoint."""

import argparse
import json
import re
from pathlib import Path

import pytest
import torch
from support.checkpoints import OPEN, C, F, O, load, predictions, read, small_state, with_gates
from support.commands import L0, TOY_MODEL, TOY_TRAINING, TYPES, USER_DIR, logged
from support.models import make_gated

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.attention.cuts import kept_mask
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.pruned import prune_checkpoint
from fairseq_headgates.plugin.options.stored_mask import read_mask
from fairseq_headgates.safety.checkpoint import model_args

pytestmark = [
    # of torch's data loader, about machines without a GPU
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    # of the hydra that fairseq brings with it
    pytest.mark.filterwarnings(r"ignore:\s*'config' is validated:UserWarning"),
]


def test_a_pruned_checkpoint_is_pruned_again_and_gated_again(pruned, run, train, tmp_path):
    again = tmp_path / "again.pt"
    mask = {"enc-self": [[0, 1, 0, 1], [1, 1, 1, 1]], "dec-self": [[1, 1, 1, 1], [0, 0, 0, 1]]}
    plan = json.loads(run("headgates", "prune", pruned, again, "--alive", json.dumps(mask), "--json").out)
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
    assert kept_mask(smaller).values == left
    with masked(whole, HeadTable(mask)):
        torch.testing.assert_close(predictions(smaller, task), predictions(whole, task), atol=1e-5, rtol=1e-5)

    heads = tmp_path / "heads.json"
    run("headgates", "show", again, "--out", heads)
    assert {k: v for k, v in json.loads(heads.read_text()).items() if k in left} == left
    options = ["--alive-heads", heads, "--remove-heads", "--gate-heads", "enc-self,dec-enc", *L0]
    done = train(tmp_path / "gates", *options, "--finetune-from-model", again, "--lr", 0, "--dropout", 0, updates=1)
    assert logged(done, "heads_open") == [4]  # 2 and 2, for the others have no gates
    path = tmp_path / "gates" / "checkpoint_last.pt"
    gates, _ = load(path)
    torch.testing.assert_close(predictions(gates, task), predictions(smaller, task), atol=1e-6, rtol=1e-6)
    state = with_some_closed(read(path))
    torch.save(state, tmp_path / "closed.pt")
    run("headgates", "prune", tmp_path / "closed.pt", tmp_path / "third.pt")
    third, _ = load(tmp_path / "third.pt")
    closed, _ = load(tmp_path / "closed.pt")
    torch.testing.assert_close(predictions(third, task), predictions(closed, task), atol=1e-5, rtol=1e-5)
    assert kept_mask(third).values == {**left, "enc-self": [[0, 0, 0, 1], [0, 0, 0, 0]]}


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
        shown = json.loads(run("headgates", "show", path, "--out", "-").out)
        assert read_mask(str(path)).values == {each: shown[each] for each in TYPES.split(",")}
    left = {"enc-self": [[0, 1, 1, 1], [0] * 4], "dec-self": [[1, 0, 0, 0], [1, 0, 0, 1]], "dec-enc": OPEN["dec-enc"]}
    assert read_mask(str(tmp_path / "again.pt")).values == left
    for form in (["--alive", tmp_path / "again.pt"], ["--alive", json.dumps(left)]):
        plan = json.loads(run("headgates", "prune", gated, tmp_path / "x.pt", "--dry-run", "--json", *form).out)
        assert plan["mask"] == left


def no_mask_in(kind, path):
    """A checkpoint whose options or gates say no mask."""
    state = small_state(make_gated(gate_heads="enc-self"))
    args = vars(state["cfg"]["model"])
    gate = "encoder.layers.0.self_attn.gate.log_alpha"
    changes = {
        "another architecture": {"arch": "transformer"},
        "no architecture": {"arch": None},
        "a mask of another shape": {"alive_heads": '{"enc-self": [[1, 1]]}'},
        "a file as mask": {"alive_heads": "/dev/zero"},
        "a broken mask": {"alive_heads": '{"enc-self": [['},
        "a number as mask": {"alive_heads": 7},
        "a stretch that is none": {"gate_stretch": "wide"},
        "too many heads": {"encoder_attention_heads": 10**9},
        "a negative number of heads": {"encoder_attention_heads": -4},
    }
    if kind in changes:
        state["cfg"]["model"] = argparse.Namespace(**{**args, **changes[kind]})
    elif kind == "too many gates":
        state["model"][gate] = torch.zeros(5)
    elif kind == "a gate of no layer":
        state["model"]["encoder.layers.7.self_attn.gate.log_alpha"] = torch.zeros(4)
    elif kind == "a list":
        state = [1]
    elif kind == "options as text":
        state = {**state, "cfg": "--arch transformer_head_gates"}
    elif kind == "no tensors":
        state = {**state, "model": {gate: 1}}
    torch.save(state, path)
    return path


NO_MASKS = [
    "another architecture", "no architecture", "a mask of another shape", "a file as mask", "a broken mask",
    "a number as mask", "a stretch that is none", "too many heads", "a negative number of heads", "too many gates",
    "a gate of no layer", "a list", "options as text", "no tensors",
]  # fmt: skip


@pytest.mark.parametrize("kind", NO_MASKS)
def test_checkpoints_without_a_mask_are_refused_in_one_line(kind, tmp_path):
    path = no_mask_in(kind, tmp_path / "x.pt")
    with pytest.raises(
        ValueError, match=re.escape(repr(str(path))) + " (cannot be taken as a mask|is not a fairseq checkpoint): "
    ) as error:
        read_mask(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"PK\x03\x04" + b"x" * 100, b""])
def test_files_that_are_not_checkpoints_are_refused_as_masks(content, tmp_path):
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "x.pt"))) as error:
        read_mask(str(tmp_path / "x.pt"))
    assert "\n" not in str(error.value)


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


def documented_commands(word):
    """The arguments of the fairseq-train commands in docs/pruning.md that have `word` in them."""
    text = (Path(__file__).parents[2] / "docs" / "pruning.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.split()[1:] for line in lines if line.startswith("fairseq-train") and word in line]


@pytest.mark.parametrize("number", [0, 1])
def test_training_goes_on_as_documented(number, pruned, run, toy, tmp_path):
    """With the plain criterion, and with gates again."""
    commands = documented_commands("--restore-file pruned.pt")
    assert len(commands) == 2
    text = " ".join(commands[number]).replace("$(headgates path)", str(USER_DIR)).replace("pruned.pt", str(pruned))
    words = text.replace("--save-dir ", f"--save-dir {tmp_path}/").replace("data-bin", str(toy.data)).split()
    assert words.pop() == "..."  # the options of the baseline
    sizes = [f"--{key.replace('_', '-')}={value}" for key, value in TOY_MODEL.items()]
    done = run("fairseq-train", words[0], *sizes, *TOY_TRAINING, "--max-update", 6 - 4 * number, *words[1:])
    (folder,) = tmp_path.iterdir()
    after = read(folder / "checkpoint_last.pt")
    assert after["optimizer_history"][-1]["num_updates"] == 6 - 4 * number
    assert json.loads(model_args(after).alive_heads)["enc-self"] == OPEN["enc-self"]
    if number:
        assert logged(done, "heads_open") == [sum(sum(map(sum, rows)) for rows in OPEN.values())] * 2
