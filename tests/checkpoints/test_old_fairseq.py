"""Checkpoints as fairseq before 0.9 wrote them, made by hand from what its code for upgrading them documents.

They hold a namespace of options instead of `cfg`, weights of 16 bits, queries, keys and values in one matrix, layer
norms by number, and the state of the optimiser in its history. The oldest have no `version` of the layers, which means:
no layer norm after the last layer.
"""

import argparse
import json
import shutil

import pytest
import torch
from support.checkpoints import WITHOUT_PLUGIN, assert_same_output, load, predictions, read
from support.commands import EVALUATION, GATED, TOY_MODEL
from support.models import assert_same

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.building import build_model
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    # of the hydra that fairseq brings with it
    pytest.mark.filterwarnings(r"ignore:\s*'config' is validated:UserWarning"),
]

NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
MASK = {"enc-self": [[1, 0, 0, 1], [0, 0, 0, 0]], "dec-enc": [[0, 0, 1, 0], [1, 1, 1, 1]]}
ALL = json.dumps({"enc-self": [[1, 1, 1, 1], [1, 1, 1, 1]]})
PRE_NORM = ["--encoder-normalize-before", "--decoder-normalize-before"]
VERSIONS = {"oldest": 0, "newer": 3}
SEARCH = ["--gen-subset", "test", "--beam", 2, "--max-len-b", 12]
METHODS = "confidence,gradient,relevance,ablation,magnitude,random"
OPTIONS = {
    "arch": "transformer", "source_lang": "src", "target_lang": "tgt", "left_pad_source": "True", "seed": 1,
    "left_pad_target": "False", "max_source_positions": 1024, "max_target_positions": 1024, "raw_text": False,
    "lazy_load": False, "criterion": "label_smoothed_cross_entropy", "label_smoothing": 0.1, "optimizer": "adam",
    "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "lr": [0.005], "lr_scheduler": "fixed", "min_lr": 1e-9,
    "share_all_embeddings": False, "share_decoder_input_output_embed": True, "dropout": 0.1, "fp16": True,
    "encoder_normalize_before": True, "decoder_normalize_before": True, "max_tokens": 500, "clip_norm": 0.0,
    "remove_bpe": None, "no_token_positional_embeddings": False, "adaptive_softmax_cutoff": None,
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
    """Checkpoints by name: two of today, whose weights fit into 16 bits, and each as an old one of both kinds."""

    def make(folder):
        for seed in (1, 2):
            options = ["--share-decoder-input-output-embed", *PRE_NORM, "--seed", seed]
            train(folder / "run", *options, arch="transformer", updates=1)
            state = read(folder / "run" / "checkpoint_last.pt")
            state["model"] = {name: weight.half().float() for name, weight in state["model"].items()}
            torch.save(state, folder / f"today{seed}.pt")
            for kind, version in VERSIONS.items():
                torch.save(old_state(state["model"], toy.data, version), folder / f"{kind}{seed}.pt")
            shutil.rmtree(folder / "run")

    folder = made_once("old_fairseq", make)
    return {path.stem: path for path in folder.glob("*.pt")}


@pytest.fixture
def generate(run, toy):
    def generate(*paths, plugin=EVALUATION):
        options = [*plugin, *SEARCH, "--path", ":".join(map(str, paths))]
        return run("fairseq-generate", toy.data, *options)

    return generate


@pytest.mark.parametrize("kind", VERSIONS)
def test_pruned_and_stock_compute_the_same(kind, files):
    """The original is of fairseq's own class."""
    state = load_checkpoint(str(files[f"{kind}1"]))
    original, task = load(files[f"{kind}1"])
    whole = predictions(original, task)
    for mask in (HeadTable(json.loads(ALL)), HeadTable(MASK)):
        with masked(original, mask):
            expected = predictions(original, task)
        assert torch.equal(expected, whole) == (mask.values != MASK)
        pruned = prune_checkpoint(state, mask)
        for model in (build_model(pruned), build_model(stock_checkpoint(state, mask))):
            torch.testing.assert_close(predictions(model.float(), task), expected, atol=1e-5, rtol=1e-5)
    assert pruned["model"]["encoder.layers.0.self_attn.q_proj.weight"].dtype == torch.float16
    assert "encoder.layers.1.self_attn.q_proj.weight" not in pruned["model"]


def test_pruned_and_stock_generate_the_same_output(files, run, generate, tmp_path):
    """As fairseq's own class says: the plugin only lets torch read the file."""
    original, pruned = files["oldest1"], tmp_path / "pruned.pt"
    run("headgates", "prune", original, tmp_path / "whole.pt", "--alive", ALL)
    assert_same_output(generate(original), generate(tmp_path / "whole.pt"))
    run("headgates", "prune", original, pruned, "--alive", json.dumps(MASK))
    run("headgates", "prune", original, tmp_path / "stock.pt", "--alive", json.dumps(MASK), "--stock")
    assert_same_output(generate(pruned), generate(tmp_path / "stock.pt", plugin=WITHOUT_PLUGIN))


def test_old_checkpoints_compute_the_same_as_current_ones(files):
    """Also of one without layer norm after the last layer, which is another model."""
    outputs = {name: logits(load(files[f"{name}1"])) for name in ("today", *VERSIONS)}
    assert torch.equal(outputs["newer"], outputs["today"])
    assert (outputs["oldest"] - outputs["today"]).abs().max() > 1e-3


def logits(loaded):
    return predictions(*loaded)


def test_an_optimiser_state_of_another_order_is_dropped(files):
    """As one vector, with --fp16, nothing but the names of the weights tells the order of the parameters."""
    state, notices = read(files["newer1"]), []
    numbers = sum(weight.numel() for weight in read(files["today1"])["model"].values())
    moments = {0: {"step": 2, "exp_avg": torch.zeros(numbers), "exp_avg_sq": torch.zeros(numbers)}}
    state["last_optimizer_state"] = {"state": moments, "param_groups": [{"params": [0]}]}
    pruned = prune_checkpoint(state, HeadTable(MASK), notice=notices.append)
    assert pruned["last_optimizer_state"] is None and "older fairseq" in notices[0]


def test_options_in_a_dictionary_are_exported(files):
    state = read(files["newer1"])
    stock = stock_checkpoint(state, HeadTable(MASK))
    other = stock_checkpoint({**state, "args": vars(state["args"])}, HeadTable(MASK))
    assert_same(other, stock)


def test_an_ensemble(files, run, generate, tmp_path):
    paths = [files["oldest1"], files["newer2"]]
    for path in paths:
        run("headgates", "prune", path, tmp_path / path.name, "--alive", ALL)
    assert_same_output(generate(*paths), generate(*(tmp_path / path.name for path in paths)))


def test_show_and_score(files, run, toy):
    """The six methods that need no gates."""
    tables = []
    for name in ("newer1", "today1"):
        shown = json.loads(run("headgates", "show", files[name], "--json").out)
        assert shown["heads"]["enc-self"] == [8, 8]
        options = ["--path", files[name], "--gen-subset", "test", "--cpu", "--json", "--method", METHODS]
        tables.append(json.loads(run("headgates", "score", toy.data, *options).out))
    for old, today in zip(*tables, strict=True):
        assert old["scores"].keys() == today["scores"].keys()
        for attention_type, rows in old["scores"].items():
            assert [pytest.approx(row, abs=1e-6) for row in rows] == today["scores"][attention_type], old["method"]


def test_gates_are_trained_from_an_old_checkpoint(files, run, train, tmp_path):
    options = [*GATED, *PRE_NORM, "--share-decoder-input-output-embed", "--finetune-from-model", files["newer1"]]
    train(tmp_path, *options, updates=1)
    gated = run("headgates", "show", tmp_path / "checkpoint_last.pt", "--json")
    assert json.loads(gated.out)["heads"]["dec-enc"] == [8, 8]
