"""What a checkpoint says of itself: heads and dictionaries; it is written whole or not at all."""

from pathlib import Path

import pytest
import torch
from support.checkpoints import OPEN, load, names
from support.commands import TYPES

from fairseq_headgates import gate_values
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.building import load_dictionaries, read_heads
from fairseq_headgates.checkpoints.saving import save_checkpoint


def test_gates_and_masks_are_read_from_checkpoints(gated, pruned):
    heads = read_heads(load_checkpoint(str(gated)), str(gated))
    assert heads.gated == tuple(TYPES.split(",")) and heads.gate.signature == "ckpt:gated.pt|updates:4"
    (model, _) = load(gated)
    for attention_type, values in gate_values(model).items():
        assert heads.gate.values[attention_type] == values.tolist()
    left = read_heads(load_checkpoint(str(pruned)), str(pruned))
    assert left.gated == () and left.gate.values == OPEN and left.open_probability.values == OPEN


def test_dictionaries(gated, toy, tmp_path):
    state = load_checkpoint(str(gated))
    state["cfg"]["task"] |= {"source_lang": "src", "target_lang": "tgt"}  # as -s and -t would have it
    source, target = load_dictionaries(state, toy.data)
    assert source.symbols == target.symbols and len(source) == len(state["model"]["encoder.embed_tokens.weight"])
    for language in ("src", "tgt"):
        (tmp_path / f"dict.{language}.txt").write_text((toy.data / f"dict.{language}.txt").read_text())
    assert load_dictionaries(state, str(tmp_path))[0].symbols == source.symbols
    for language in ("tgt", "src"):
        with (tmp_path / f"dict.{language}.txt").open("a") as file:
            file.write("new 1\n")
        sizes = f"dict.{language}.txt has {len(source) + 1} symbols, the checkpoint {len(source)}"
        with pytest.raises(ValueError, match=sizes):
            load_dictionaries(state, str(tmp_path))
    (tmp_path / "dict.src.txt").write_text((toy.data / "dict.src.txt").read_text())
    (tmp_path / "dict.tgt.txt").unlink()
    with pytest.raises(
        ValueError, match=f"no dictionary .*dict.tgt.txt.*--data .the checkpoint was trained on '.*{toy.data.name}"
    ):
        load_dictionaries(state, str(tmp_path))
    state["cfg"]["task"] |= {"source_lang": "../src"}
    with pytest.raises(ValueError, match="cannot infer the languages"):
        load_dictionaries(state, str(tmp_path))


MULTILINGUAL = {"task": "translation_multi_simple_epoch", "lang_pairs": ["src-tgt", "src-fr"]}


@pytest.mark.parametrize(
    ("task", "added"),
    [
        ({**MULTILINGUAL, "langs": ["src", "fr"], "lang_tok_style": "multilingual"}, ["__src__", "__fr__"]),
        ({**MULTILINGUAL, "langs": "src,fr", "lang_tok_style": "mbart"}, ["[src]", "[fr]", "<mask>"]),
        ({"_name": "denoising"}, ["<mask>"]),
        ({**MULTILINGUAL, "langs": 3, "lang_tok_style": "multilingual"}, ["__fr__", "__src__", "__tgt__"]),
        ({"task": "translation_from_pretrained_bart"}, "fine-tune mBART with --task translation_multi_simple_epoch"),
    ],
)
def test_dictionaries_have_the_symbols_that_the_task_adds(task, added, gated, toy, tmp_path):
    state = load_checkpoint(str(gated))
    state["cfg"]["task"] = task
    (tmp_path / "dict.txt").write_text((toy.data / "dict.src.txt").read_text())
    if isinstance(added, str):
        with pytest.raises(ValueError, match=added):
            load_dictionaries(state, tmp_path)
        return
    for side in ("encoder", "decoder"):
        weight = state["model"][f"{side}.embed_tokens.weight"]
        state["model"][f"{side}.embed_tokens.weight"] = torch.cat([weight, weight[: len(added)]])
    source, target = load_dictionaries(state, tmp_path)
    assert source.symbols == target.symbols and source.symbols[-len(added) :] == added


def test_dictionaries_of_unknown_languages_are_refused_with_a_reason(gated, toy, tmp_path):
    """A folder with dictionaries alone, and a run that inferred its languages: the message must say what is missing."""
    for language in ("src", "tgt"):
        (tmp_path / f"dict.{language}.txt").write_text((toy.data / f"dict.{language}.txt").read_text())
    with pytest.raises(ValueError) as error:
        load_dictionaries(load_checkpoint(str(gated)), str(tmp_path))
    assert "None" not in str(error.value)


def test_a_dictionary_in_another_encoding(gated, tmp_path):
    state = load_checkpoint(str(gated))
    state["cfg"]["task"] |= {"source_lang": "src", "target_lang": "tgt"}
    (tmp_path / "dict.src.txt").write_bytes(b"\xff\xfe 1\n")
    with pytest.raises(ValueError, match="dict.src.txt"):
        load_dictionaries(state, str(tmp_path))


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
