"""Checkpoints as fairseq before 0.9 wrote them, made by hand from what its code for upgrading them documents.

They hold a namespace of options instead of `cfg`, weights of 16 bits, queries, keys and values in one matrix, layer
norms by number, and the state of the optimiser in its history. The oldest have no `version` of the layers, which means:
no layer norm after the last layer.
"""

import argparse
import json

import pytest
import torch
from support.checkpoints import load, predictions, read
from support.commands import GATED, TOY_MODEL
from support.models import assert_same

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.plugin.models.building import build_model

NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
MASK = {"enc-self": [[1, 0, 0, 1], [0, 0, 0, 0]], "dec-enc": [[0, 0, 1, 0], [1, 1, 1, 1]]}
ALL = {"enc-self": [[1, 1, 1, 1], [1, 1, 1, 1]]}
PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]
VERSIONS = {"oldest": 0, "newer": 3}
OPTIONS = {
    "arch": "transformer", "source_lang": "src", "target_lang": "tgt", "left_pad_source": "True",
    "left_pad_target": "False", "raw_text": False, "lazy_load": False, "criterion": "label_smoothed_cross_entropy",
    "label_smoothing": 0.1, "optimizer": "adam", "adam_betas": "(0.9, 0.98)", "lr": [0.005], "lr_scheduler": "fixed",
    "share_decoder_input_output_embed": True, "fp16": True, "encoder_normalize_before": True,
    "decoder_normalize_before": True, "max_tokens": 500, "remove_bpe": None,
}  # fmt: skip


def old_weights(weights, version):
    """The names of before 0.9, in 16 bits."""
    old = {}
    for name, weight in weights.items():
        side, _, rest = name.partition(".layers.")
        layer, _, inner = rest.partition(".")
        norm, _, kind = inner.partition(".")
        if norm in NORMS.get(side, ()):
            name = f"{side}.layers.{layer}.layer_norms.{NORMS[side].index(norm)}.{kind}"
        if ".q_proj." in name:
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, weight = name.replace("q_proj.", "in_proj_"), torch.cat(parts)
        if any(f".{part}_proj." in name for part in "kv"):
            continue
        old[name] = weight.half() if weight.is_floating_point() else weight
    for side in NORMS:
        old.pop(f"{side}.version", None)
        if version:
            old[f"{side}.version"] = torch.tensor([float(version)])
        else:
            for kind in ("weight", "bias"):
                old.pop(f"{side}.layer_norm.{kind}", None)
        old[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    old.pop("decoder.output_projection.weight", None)  # it is that of the embeddings
    return old


def old_state(weights, data, version):
    """A checkpoint without `cfg`, with the optimiser where it was kept before its history was."""
    args = argparse.Namespace(**TOY_MODEL, **OPTIONS, data=[str(data)])
    history = {"criterion_name": "LabelSmoothedCrossEntropyCriterion", "best_loss": 3.5, "optimizer": None}
    return {
        "args": args,
        "model": old_weights(weights, version),
        "optimizer_history": [{**history, "optimizer_name": "FairseqAdam", "num_updates": 2}],
        "extra_state": {"epoch": 2, "batch_offset": 0, "val_loss": 3.5},
    }


@pytest.fixture(scope="module")
def files(made_once, train, toy):
    """Checkpoints by name: one of today, whose weights fit into 16 bits, and the same as an old one of both kinds."""

    def make(folder):
        train(folder, "--share-decoder-input-output-embed", *PRE_NORM, arch="transformer", updates=1)
        state = read(folder / "checkpoint_last.pt")
        state["model"] = {name: weight.half().float() for name, weight in state["model"].items()}
        torch.save(state, folder / "today.pt")
        for kind, version in VERSIONS.items():
            torch.save(old_state(state["model"], toy.data, version), folder / f"{kind}.pt")

    folder = made_once("old_fairseq", make)
    return {path.stem: path for path in folder.glob("*.pt")}


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", VERSIONS)
def test_pruned_and_stock_compute_the_same(kind, files):
    """The original is of fairseq's own class."""
    state = load_checkpoint(str(files[kind]))
    original, task = load(files[kind])
    whole = predictions(original, task)
    for mask in (HeadTable(ALL), HeadTable(MASK)):
        with masked(original, mask):
            expected = predictions(original, task)
        assert torch.equal(expected, whole) == (mask.layers != MASK)
        pruned = prune_checkpoint(state, mask)
        for model in (build_model(pruned), build_model(stock_checkpoint(state, mask))):
            torch.testing.assert_close(predictions(model.float(), task), expected, atol=1e-5, rtol=1e-5)
    assert pruned["model"]["encoder.layers.0.self_attn.q_proj.weight"].dtype == torch.float16
    assert "encoder.layers.1.self_attn.q_proj.weight" not in pruned["model"]


def test_old_checkpoints_compute_the_same_as_current_ones(files):
    """Also of one without layer norm after the last layer, which is another model."""
    outputs = {name: predictions(*load(files[name])) for name in ("today", *VERSIONS)}
    assert torch.equal(outputs["newer"], outputs["today"])
    assert (outputs["oldest"] - outputs["today"]).abs().max() > 1e-3


def test_an_optimiser_state_of_another_order_is_dropped(files):
    """As one vector, with --fp16, nothing but the names of the weights tells the order of the parameters."""
    state, notices = read(files["newer"]), []
    numbers = sum(weight.numel() for weight in read(files["today"])["model"].values())
    moments = {0: {"step": 2, "exp_avg": torch.zeros(numbers), "exp_avg_sq": torch.zeros(numbers)}}
    state["last_optimizer_state"] = {"state": moments, "param_groups": [{"params": [0]}]}
    pruned = prune_checkpoint(state, HeadTable(MASK), notice=notices.append)
    assert pruned["last_optimizer_state"] is None and "older fairseq" in notices[0]


def test_options_in_a_dictionary_are_exported(files):
    state = read(files["newer"])
    stock = stock_checkpoint(state, HeadTable(MASK))
    other = stock_checkpoint({**state, "args": vars(state["args"])}, HeadTable(MASK))
    assert_same(other, stock)


def test_gates_are_trained_from_an_old_checkpoint(files, run, train, tmp_path):
    options = [*GATED, *PRE_NORM, "--share-decoder-input-output-embed", "--finetune-from-model", files["newer"]]
    train(tmp_path, *options, updates=1)
    gated = run("headgates", "show", "--path", tmp_path / "checkpoint_last.pt", "--json")
    assert json.loads(gated.out)["heads"]["dec-enc"] == [8, 8]
