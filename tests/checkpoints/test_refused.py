"""What is not a checkpoint is refused in one line; nothing stored runs code."""

import argparse
import contextlib
import re
import zipfile
from pathlib import Path

import pytest
import torch
from support.checkpoints import OPEN, read, small_gated, small_state
from support.commands import TOY_TRAINING, USER_DIR
from support.models import make_gated

from fairseq_headgates import HeadTable
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.building import build_model
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint

pytestmark = [
    # of torch's data loader, about machines without a GPU
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    # of the hydra that fairseq brings with it
    pytest.mark.filterwarnings(r"ignore:\s*'config' is validated:UserWarning"),
]


# Reading


class RunsCode:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (open, (self.marker, "w"))


@pytest.mark.parametrize("place", ["model", "args", "extra_state", "last_optimizer_state"])
def test_a_file_that_would_run_code_is_refused(place, gated, tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "evil.pt"
    state = {**read(gated), place: {"x": RunsCode(marker)}}
    torch.save(state, path)
    with pytest.raises(ValueError, match=r"it holds (io|_io)\.open, .*could run code; pass --trust") as error:
        load_checkpoint(str(path))
    assert "\n" not in str(error.value) and not marker.exists()
    with contextlib.suppress(ValueError):  # in place of the weights it is no checkpoint either
        load_checkpoint(str(path), trust=True)
    assert marker.exists()  # the file would have done it


def test_trust_loads_objects_of_any_class(gated, tmp_path):
    state = read(gated)
    state["extra_state"]["path"] = Path("somewhere")
    torch.save(state, tmp_path / "path.pt")
    with pytest.raises(ValueError, match="it holds pathlib.*Path, .*--trust"):
        load_checkpoint(str(tmp_path / "path.pt"))
    assert load_checkpoint(str(tmp_path / "path.pt"), trust=True)["extra_state"]["path"] == Path("somewhere")


def no_checkpoints(good, folder):
    """Files that are no checkpoint, or not any more: {name: path}."""
    content = good.read_bytes()
    middle = len(content) // 20
    made = {
        "truncated": content[: len(content) // 2],
        "truncated at the end": content[:-10],
        "flipped": content[:middle] + bytes(b ^ 0xFF for b in content[middle : middle + 64]) + content[middle + 64 :],
        "empty": b"",
        "text": b"not a checkpoint\n",
        "two bytes": b"PK",
    }
    for name, data in made.items():
        (folder / name).write_bytes(data)
    (folder / "folder").mkdir()
    torch.save([1, 2], folder / "list")
    torch.save({"weights": torch.ones(2)}, folder / "weights alone")
    torch.save({"model": {"x": torch.ones(2)}, "args": None, "cfg": None}, folder / "no options")
    return {path.name: path for path in [*folder.iterdir(), folder / "missing"]}


KINDS = ["truncated", "truncated at the end", "flipped", "empty", "text", "two bytes", "folder", "list"]
KINDS += ["weights alone", "no options", "missing"]


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_not_checkpoints_are_refused_in_one_line(kind, trust, gated, tmp_path):
    path = no_checkpoints(gated, tmp_path)[kind]
    with pytest.raises(ValueError, match=re.escape(repr(str(path)))) as error:
        build_model(load_checkpoint(str(path), trust))
    assert "\n" not in str(error.value)
    if kind == "missing":
        assert "No such file" in str(error.value)


def strange_states():
    """Safe to load, and no checkpoint that fairseq would write."""
    good = small_state(make_gated())
    good["optimizer_history"] = [{"num_updates": 1}]
    args = vars(good["cfg"]["model"])

    def but(**changes):
        return {**good, "cfg": {"model": argparse.Namespace(**{**args, **changes})}}

    without = {k: v for k, v in good["model"].items() if k != "encoder.embed_tokens.weight"}
    return {
        "options without a model": {"model": good["model"], "cfg": {"task": {}}},
        "options as text": {"model": good["model"], "args": "--arch transformer"},
        "a number for the weights": {**good, "model": 5},
        "numbers for weights": {**good, "model": dict.fromkeys(good["model"], 1)},
        "no embeddings": {**good, "model": without},
        "a weight too many": {**good, "model": {**good["model"], "x": torch.ones(1)}},
        "an unknown activation": but(activation_fn="rely"),
        "heads that do not divide the width": but(encoder_attention_heads=5),
        "other sizes": but(encoder_ffn_embed_dim=65),
        "a number as architecture": but(arch=7),
    }


@pytest.mark.parametrize("kind", list(strange_states()))
def test_malformed_checkpoints_are_refused_in_one_line(kind, tmp_path):
    torch.save(strange_states()[kind], tmp_path / "x.pt")
    with pytest.raises(ValueError) as error:
        build_model(load_checkpoint(str(tmp_path / "x.pt")))
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
    "nothing to return": b"\x80\x02.",
    "no end": b"\x80\x02}",
    "no arguments": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "no storage": b"\x80\x02}Q.",
    "no list": b"\x80\x02K\x01K\x02K\x03s.",
    "no memory": b"\x80\x02h\x05.",
    "no text": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    "no such instruction": b"\x80\x02\xff.",
    "no such class": b"\x80\x02cnope\nnope\n.",
    "no such length": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "in itself": b"\x80\x02]q\x00h\x00a.",
}


@pytest.mark.parametrize(
    ("kind", "trust"),
    [pytest.param(kind, trust, id=f"{kind}, {trust}") for kind in BROKEN for trust in (False, True)],
)
def test_damaged_descriptions_are_refused_in_one_line(kind, trust, tmp_path):
    good, path = tmp_path / "good.pt", tmp_path / "damaged.pt"
    torch.save({"model": {}, "args": 1}, good)
    with zipfile.ZipFile(good) as before, zipfile.ZipFile(path, "w") as after:
        for part in before.infolist():
            content = BROKEN[kind] if part.filename.endswith("data.pkl") else before.read(part)
            after.writestr(part, content, zipfile.ZIP_STORED)
    with pytest.raises(ValueError, match=re.escape(repr(str(path)))) as error:
        load_checkpoint(str(path), trust)
    assert "\n" not in str(error.value) and "weights_only" not in str(error.value)


def test_an_architecture_that_is_not_known_is_refused(run, toy, tmp_path):
    options = ["--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--arch", "lstm", "--save-dir", tmp_path]
    options += ["--max-update", 1, *TOY_TRAINING, "--user-dir", USER_DIR]
    run("fairseq-train", toy.data, *options)
    with pytest.raises(ValueError, match="not supported") as error:
        build_model(load_checkpoint(str(tmp_path / "checkpoint_last.pt")))
    assert all(word in str(error.value) for word in ("'lstm'", "no attention layer", "transformer_head_gates"))
    assert "\n" not in str(error.value)


def test_every_reason_is_listed_at_once():
    args = argparse.Namespace(
        arch="lstm", quant_noise_scalar=0.1, encoder_xformers_att_config="{}", decoder_xformers_att_config=None
    )
    state = {"args": args, "model": {"encoder.lstm.weight": torch.ones(1)}, "fsdp_metadata": {}}
    with pytest.raises(ValueError) as error:
        build_model(state)
    for reason in ("'lstm'", "no attention layer", "--quant-noise-scalar", "xFormers", "shard"):
        assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_that_do_not_fit_the_options(gated):
    state = read(gated)
    del state["model"]["encoder.layers.0.fc1.weight"]
    with pytest.raises(
        ValueError, match="model cannot be built .*: .*Missing key.*encoder.layers.0.fc1.weight"
    ) as error:
        build_model(state)
    assert "\n" not in str(error.value)
