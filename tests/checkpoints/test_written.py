"""What a checkpoint says of its heads; it is written whole or not at all."""

from pathlib import Path

import pytest
import torch
from support.checkpoints import OPEN, load, names
from support.commands import TYPES

from fairseq_headgates import gate_values
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.saving import save_checkpoint
from fairseq_headgates.plugin.models.building import read_heads


def test_gates_and_masks_are_read_from_checkpoints(gated, pruned):
    heads = read_heads(load_checkpoint(str(gated)), str(gated))
    assert heads.gated == tuple(TYPES.split(",")) and heads.gate.signature == "ckpt:gated.pt|updates:4"
    (model, _) = load(gated)
    for attention_type, values in gate_values(model).items():
        assert heads.gate.layers[attention_type] == values.tolist()
    left = read_heads(load_checkpoint(str(pruned)), str(pruned))
    assert left.gated == () and left.gate.layers == OPEN and left.open_probability.layers == OPEN


# Writing


def test_a_checkpoint_is_overwritten_only_with_force(tmp_path):
    save_checkpoint({"model": {}, "x": 1}, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt") == {"model": {}, "x": 1}
    with pytest.raises(ValueError, match="a.pt exists.*--force"):
        save_checkpoint({"x": 2}, tmp_path / "a.pt")
    save_checkpoint({"x": 2}, tmp_path / "a.pt", force=True)
    assert torch.load(tmp_path / "a.pt") == {"x": 2} and names(tmp_path) == ["a.pt"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "No space left on device"), ValueError),
        (RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed\nmore"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_an_interrupted_save_keeps_the_old_file(error, raised, tmp_path, monkeypatch):
    (tmp_path / "a.pt").write_text("old")

    def save(state, path):
        Path(path).write_text("half")
        raise error

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(raised) as caught:
        save_checkpoint({"x": 1}, tmp_path / "a.pt", force=True)
    if raised is ValueError:
        assert "a.pt" in str(caught.value) and "\n" not in str(caught.value)
    assert names(tmp_path) == ["a.pt"] and (tmp_path / "a.pt").read_text() == "old"
