"""What is not a checkpoint is refused in one line; nothing stored runs code."""

import argparse
import re
import zipfile

import pytest
import torch
from support.checkpoints import OPEN, small_gated, small_state
from support.hostile import save

from fairseq_headgates import HeadTable
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.plugin.models.building import build_model, load_model


class RunsCode:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (open, (self.marker, "w"))


def test_a_file_that_would_run_code_is_refused_unless_it_is_trusted(tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "evil.pt"
    save({**small_state(small_gated()), "extra_state": {"x": RunsCode(marker)}}, path)
    with pytest.raises(ValueError, match=r"it holds (io|_io)\.open, .*could run code; pass --trust") as error:
        load_checkpoint(str(path))
    assert "\n" not in str(error.value) and not marker.exists()
    assert load_checkpoint(str(path), trust=True)["extra_state"]["x"].name == str(marker)
    assert marker.exists()  # the file would have done it


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_named(value, tmp_path):
    """Every command loads its model so: nothing is computed, and no mask drawn from a gate that is NaN."""
    state, name = small_state(small_gated()), "decoder.layers.0.fc1.weight"
    load_model(save(state, tmp_path / "x.pt"))
    state["model"][name][0, 1] = value
    with pytest.raises(ValueError, match=rf"x\.pt: its weight {name} has inf or NaN: take"):
        load_model(save(state, tmp_path / "y.x.pt"))


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("kind", ["truncated", "flipped", "empty", "text", "folder", "list", "no options", "missing"])
def test_files_that_are_not_checkpoints_are_refused_in_one_line(kind, trust, tmp_path):
    path = tmp_path / "x.pt"
    content = save(small_state(small_gated()), path).read_bytes()
    middle = len(content) // 20
    flipped = content[:middle] + bytes(b ^ 0xFF for b in content[middle : middle + 64]) + content[middle + 64 :]
    made = {"truncated": content[: len(content) // 2], "flipped": flipped, "empty": b"", "text": b"not a checkpoint\n"}
    if kind in made:
        path.write_bytes(made[kind])
    elif kind in ("folder", "missing"):
        path = tmp_path if kind == "folder" else tmp_path / "missing.pt"
    else:
        save([1, 2] if kind == "list" else {"model": {"x": torch.ones(2)}, "args": None, "cfg": None}, path)
    with pytest.raises(ValueError, match=re.escape(repr(str(path)))) as error:
        build_model(load_checkpoint(str(path), trust))
    assert "\n" not in str(error.value)
    assert kind != "missing" or "no such file" in str(error.value)


@pytest.mark.parametrize(
    ("weights", "options", "words"),
    [
        ({"encoder.layers.0.fc1.weight": None}, {}, "model cannot be built .*Missing key.*encoder.layers.0.fc1.weight"),
        ({"encoder.embed_tokens.weight": None}, {}, "embed_tokens"),
        ({"x": torch.ones(1)}, {}, "Unexpected key"),
        ({}, {"activation_fn": "rely"}, "rely"),
        ({}, {"encoder_attention_heads": 5}, "heads"),
    ],
)
def test_weights_and_options_that_do_not_fit_are_refused_in_one_line(weights, options, words):
    state = small_state(small_gated())
    kept = {name: weight for name, weight in {**state["model"], **weights}.items() if weight is not None}
    state |= {"model": kept, "cfg": {"model": argparse.Namespace(**{**vars(state["cfg"]["model"]), **options})}}
    with pytest.raises(ValueError, match=words) as error:
        build_model(state)
    assert "\n" not in str(error.value)


def test_options_and_weights_alone_are_enough_for_export():
    """As scripts leave them behind that strip a checkpoint; what is pruned without --stock needs no more."""
    model = small_gated()
    state = {"args": model.args, "model": model.state_dict()}
    model.args.arch = "transformer_head_gates"
    build_model(prune_checkpoint(state, HeadTable(OPEN)))
    stock_checkpoint(state, HeadTable(OPEN))


# What flipped bits have made of the description of the tensors and the options, at its shortest.
BROKEN = {
    "nothing on the stack": b"\x80\x020.",
    "no arguments": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "no memory": b"\x80\x02h\x05.",
    "no text": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    "no such length": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "in itself": b"\x80\x02]q\x00h\x00a.",
}


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("kind", BROKEN)
def test_damaged_descriptions_are_refused_in_one_line(kind, trust, tmp_path):
    good, path = tmp_path / "good.pt", tmp_path / "damaged.pt"
    torch.save({"model": {}, "args": 1}, good)
    with zipfile.ZipFile(good) as before, zipfile.ZipFile(path, "w") as after:
        for part in before.infolist():
            content = BROKEN[kind] if part.filename.endswith("data.pkl") else before.read(part)
            after.writestr(part, content, zipfile.ZIP_STORED)
    with pytest.raises(ValueError, match=re.escape(repr(str(path)))) as error:
        load_checkpoint(str(path), trust)
    assert "\n" not in str(error.value)


def test_every_reason_is_listed_at_once():
    args = argparse.Namespace(
        arch="lstm", quant_noise_scalar=0.1, encoder_xformers_att_config="{}", decoder_xformers_att_config=None
    )
    state = {"args": args, "model": {"encoder.lstm.weight": torch.ones(1)}, "fsdp_metadata": {}}
    with pytest.raises(ValueError, match="not supported") as error:
        build_model(state)
    for reason in ("'lstm'", "no attention layer", "--quant-noise-scalar", "xFormers", "shard"):
        assert reason in str(error.value)
    assert "\n" not in str(error.value)
