"""Checkpoints of every build of model and of every form in which fairseq has stored options."""

import argparse
import json
import subprocess
import sys

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.models import build_model as fairseq_build_model
from fairseq.models.transformer import TransformerModel
from omegaconf import OmegaConf
from support.checkpoints import (
    GENERATE,
    LOG_ALPHA,
    OPEN,
    WITHOUT_PLUGIN,
    assert_same_output,
    assert_same_tensors,
    load,
    predictions,
    read,
    small_state,
    with_gates,
)
from support.commands import EVALUATION, GATED, TYPES, l0_configuration, valid_loss
from support.models import logits, make_args, make_batch, make_gated, make_stock, make_task

from fairseq_headgates import HeadTable, head_sites, masked, prune
from fairseq_headgates.attention.cuts import kept_mask
from fairseq_headgates.attention.sites import head_counts
from fairseq_headgates.checkpoints.building import build_model
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.safety.checkpoint import model_args

pytestmark = [
    # of torch's data loader, about machines without a GPU
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    # of the hydra that fairseq brings with it
    pytest.mark.filterwarnings(r"ignore:\s*'config' is validated:UserWarning"),
]

VARIANTS = {
    "learned positions, normalised and shared embeddings, layers dropped in training": {
        **{"encoder_learned_pos": True, "decoder_learned_pos": True, "max_source_positions": 50},
        **{"layernorm_embedding": True, "share_all_embeddings": True},
        **{"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.3},
    },
    "adaptive softmax, more layers, wider encoder, recomputed activations": {
        **{"adaptive_softmax_cutoff": "10,20", "adaptive_softmax_dropout": 0, "adaptive_softmax_factor": 4},
        **{"decoder_layers": 3, "encoder_embed_dim": 48, "checkpoint_activations": True},
    },
    "no attention to the encoder, no positions": {"no_cross_attention": True, "no_token_positional_embeddings": True},
    "attention to both at once, narrow output": {
        **{"no_cross_attention": True, "cross_self_attention": True, "decoder_output_dim": 16}
    },
    "quantisation noise": {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 8},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_is_built_pruned_and_exported_from_its_checkpoint(options):
    """Built from the file alone, without data; pruned and exported they compute what the masked model computes."""
    model = make_gated(**options)
    state, mask = small_state(model), random_mask(model)
    assert torch.equal(logits(build_model(state), make_batch()), logits(model, make_batch()))
    with masked(model, mask):
        expected = logits(model, make_batch())
    pruned = build_model(prune_checkpoint(state, mask))
    torch.testing.assert_close(logits(pruned, make_batch()), expected, atol=1e-5, rtol=1e-5)
    exported = stock_checkpoint(state, mask)
    stock = TransformerModel.build_model(model_args(exported), make_task()).eval()
    stock.load_state_dict(exported["model"], strict=True)
    torch.testing.assert_close(logits(stock, make_batch()), expected, atol=1e-5, rtol=1e-5)
    again = prune_checkpoint(exported, mask)  # of zeros, which change nothing
    torch.testing.assert_close(logits(build_model(again), make_batch()), expected, atol=1e-5, rtol=1e-5)


def test_activations_are_not_recomputed_in_a_loaded_model():
    state = {"args": make_args(checkpoint_activations=True, arch="transformer"), "model": make_stock().state_dict()}
    recomputed = fairseq_build_model(state["args"], make_task())
    wrapped = [
        sum(hasattr(module, "precheckpoint_forward") for module in model.modules())
        for model in (recomputed, build_model(state))
    ]
    assert wrapped == [4, 0]


def random_mask(model):
    generator = torch.Generator().manual_seed(3)
    rows = {each: (torch.rand(size, generator=generator) > 0.5).int() for each, size in head_counts(model).items()}
    return HeadTable({attention_type: table.tolist() for attention_type, table in rows.items()})


def test_weights_as_fairseq_wrote_them_before_0_9():
    """Queries, keys and values in one: `in_proj_weight`."""
    model = make_gated()
    state, mask = small_state(model), random_mask(model)
    expected = prune_checkpoint(state, mask)["model"]
    exported = stock_checkpoint(state, mask)["model"]
    old = dict(state["model"])
    for name in [site.name for site in head_sites(model)]:
        for part in ("weight", "bias"):
            old[f"{name}.in_proj_{part}"] = torch.cat([old.pop(f"{name}.{p}_proj.{part}") for p in "qkv"])
    assert_same_tensors(prune_checkpoint({**state, "model": old}, mask)["model"], expected)
    assert_same_tensors(stock_checkpoint({**state, "model": old}, mask)["model"], exported)


def test_old_checkpoints_hold_a_namespace(gated, run, tmp_path):
    """As fairseq wrote them before version 0.10: `args`, and no `cfg`."""
    state = read(gated)
    state["args"] = state.pop("cfg")["model"]
    torch.save(state, tmp_path / "old.pt")
    run("headgates", "prune", tmp_path / "old.pt", tmp_path / "pruned.pt")
    run("headgates", "prune", tmp_path / "old.pt", tmp_path / "stock.pt", "--stock")
    assert "cfg" not in read(tmp_path / "pruned.pt")
    model, task = load(gated)
    for name in ("old.pt", "pruned.pt", "stock.pt"):
        found = predictions(load_model_ensemble([str(tmp_path / name)], task=task)[0][0], task)
        torch.testing.assert_close(found, predictions(model, task), atol=1e-5, rtol=1e-5)


@pytest.mark.rehearsal
def test_checkpoints_of_hydra_hold_a_dict(toy, run, tmp_path):
    config = l0_configuration(toy, tmp_path / "save", gate_heads=TYPES)
    (tmp_path / "toy.yaml").write_text(json.dumps(config))  # JSON is YAML
    run("fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "toy")
    state = read(tmp_path / "save" / "checkpoint_last.pt")
    assert isinstance(state["cfg"]["model"], dict)
    gated = tmp_path / "gated.pt"
    torch.save(with_gates(state, LOG_ALPHA), gated)
    before = run("fairseq-generate", toy.data, *GENERATE, "--path", gated)
    for name, form, plugin in (("pruned.pt", [], EVALUATION), ("stock.pt", ["--stock"], WITHOUT_PLUGIN)):
        run("headgates", "prune", gated, tmp_path / name, *form)
        command = ["fairseq-generate", toy.data, *plugin, "--gen-subset", "test", "--path", tmp_path / name]
        assert_same_output(before, run(*command))
    assert isinstance(read(tmp_path / "pruned.pt")["cfg"]["model"], dict)
    whole, task = load(gated)  # with options that are no namespace
    torch.testing.assert_close(predictions(prune(whole), task), predictions(whole, task), atol=1e-5, rtol=1e-5)
    again = {**config, "criterion": {"_name": "label_smoothed_cross_entropy", "label_smoothing": 0.1}}
    again["model"] = {**config["model"], "gate_heads": "", "remove_heads": True, "alive_heads": json.dumps(OPEN)}
    again["optimization"] = {"max_update": 4, "lr": [0.005]}
    again["checkpoint"] = {"save_dir": str(tmp_path / "again"), "restore_file": str(tmp_path / "pruned.pt")}
    (tmp_path / "again.yaml").write_text(json.dumps(again))
    run("fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "again")
    assert read(tmp_path / "again" / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 4


FRESH = """
import sys, torch
path, data = sys.argv[1:]
state = torch.load(path)  # weights_only by default
from fairseq.checkpoint_utils import load_model_ensemble_and_task
(model,), cfg, task = load_model_ensemble_and_task([path], {"data": data})
print(type(model).__module__, type(model).__name__, cfg.common.user_dir, sorted(state))
print("plugin" if any(name.split(".")[0] == "fairseq_headgates" for name in sys.modules) else "no plugin")
"""


@pytest.mark.rehearsal
def test_stock_checkpoint_loads_without_the_plugin(stock, toy, tmp_path):
    command = [sys.executable, "-c", FRESH, str(stock), str(toy.data)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "fairseq.models.transformer.transformer_legacy TransformerModel None" in done.stdout
    assert "no plugin" in done.stdout


def test_stock_checkpoint_holds_only_tensors_and_plain_values(stock, gated):
    state = torch.load(stock, weights_only=True)

    def check(value):
        if isinstance(value, dict):
            return all(map(check, value)) and all(map(check, value.values()))
        if isinstance(value, (list, tuple)):
            return all(map(check, value))
        return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))

    assert check(state)
    text = str({key: value for key, value in state.items() if key != "model"})
    assert not any(word in text for word in ("head_gates", "headgates", "gate_heads", "alive_heads"))
    shapes = {name: tensor.shape for name, tensor in read(gated)["model"].items() if "gate" not in name}
    assert {name: tensor.shape for name, tensor in state["model"].items()} == shapes


def test_groups_of_options_that_fairseq_stores_as_a_namespace(train, run, toy, tmp_path):
    """Of tasks and optimisers without a dataclass."""
    task = ["--task", "translation_multi_simple_epoch", "--lang-pairs", "src-tgt", "--langs", "src,tgt"]
    train(tmp_path, *task, "--optimizer", "adafactor", arch="transformer", updates=1)
    path, stock = tmp_path / "checkpoint_last.pt", tmp_path / "stock.pt"
    groups = read(path)["cfg"]
    assert isinstance(groups["task"], argparse.Namespace) and isinstance(groups["optimizer"], argparse.Namespace)
    run("headgates", "prune", path, stock, "--stock")
    search = [*task, "-s", "src", "-t", "tgt", "--gen-subset", "test", "--max-len-b", 9, "--beam", 2]
    before = run("fairseq-generate", toy.data, *EVALUATION, *search, "--path", path)
    assert_same_output(before, run("fairseq-generate", toy.data, *WITHOUT_PLUGIN, *search, "--path", stock))


def test_nested_options_of_hydra(attempts, tmp_path):
    """`encoder: {layers: 2}`: fairseq reads the group, beside which its preset stores defaults under flat names."""
    sizes = {"layers": 2, "embed_dim": 32, "ffn_embed_dim": 64, "attention_heads": 4}
    options = {"encoder": {**sizes, "normalize_before": True}, "decoder": {**sizes, "layers": 1}}
    options |= {"_name": "transformer", "quant_noise": {"pq": 0.0}, "max_source_positions": 99}
    config = OmegaConf.create(options)
    theirs = fairseq_build_model(config, make_task()).eval()
    stored = OmegaConf.to_container(config)
    assert stored["encoder_layers"] == stored["decoder_layers"] == 6 and not stored["encoder_normalize_before"]
    state = {"args": None, "cfg": {"model": stored, "task": {"_name": "translation"}}, "model": theirs.state_dict()}
    mask = HeadTable({"enc-self": [[1, 0, 0, 1], [0, 0, 0, 0]]})
    assert torch.equal(logits(build_model(state), make_batch()), logits(theirs, make_batch()))
    with masked(build_model(state), mask) as model:
        expected = logits(model, make_batch())
    smaller, exported = prune_checkpoint(state, mask), stock_checkpoint(state, mask)
    again = fairseq_build_model(OmegaConf.create(smaller["cfg"]["model"]), make_task()).eval()
    again.load_state_dict(smaller["model"])
    stock = TransformerModel.build_model(model_args(exported), make_task()).eval()
    stock.load_state_dict(exported["model"])
    for model in (build_model(smaller), again, stock):
        torch.testing.assert_close(logits(model, make_batch()), expected, atol=1e-5, rtol=1e-5)
    stored["encoder"]["depth"] = 3
    with pytest.raises(ValueError, match="the stored option encoder has keys that fairseq does not know: {'depth': 3}"):
        build_model(state)


@pytest.mark.rehearsal
def test_training_goes_on_from_stock_without_the_plugin(stock, train, gated, tmp_path):
    """One update that changes nothing: the loss is that of the gated model."""
    reset = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
    same = ["--lr", 0, "--dropout", 0]
    finetuned = train(tmp_path / "1", *same, "--finetune-from-model", stock, arch="transformer", updates=1)
    restored = train(tmp_path / "2", *same, "--restore-file", stock, *reset, arch="transformer", updates=1)
    gates = [*GATED, *same, "--finetune-from-model", gated]
    loss = valid_loss(train(tmp_path / "3", *gates, updates=1))
    assert [valid_loss(finetuned), valid_loss(restored)] == pytest.approx([loss] * 2, abs=0.0011)


def test_a_checkpoint_of_fairseq_is_pruned_by_a_mask(train, run, tmp_path):
    train(tmp_path, "--share-decoder-input-output-embed", arch="transformer_iwslt_de_en", updates=1)
    mask = {"enc-self": [[1, 0, 0, 1], [0, 0, 0, 0]], "dec-enc": [[0, 0, 1, 0], [1, 1, 1, 1]]}
    path, out = tmp_path / "checkpoint_last.pt", tmp_path / "pruned.pt"
    run("headgates", "prune", path, out, "--alive", json.dumps(mask))
    whole, task = load(path)
    smaller, _ = load(out)
    assert type(whole) is TransformerModel
    for site in head_sites(whole):  # the same by hand
        for head, alive in enumerate(mask.get(site.attention_type, [[1] * 4] * 2)[site.layer]):
            site.attention.out_proj.weight.data[:, 8 * head : 8 * head + 8] *= alive
    torch.testing.assert_close(predictions(smaller, task), predictions(whole, task), atol=1e-5, rtol=1e-5)
    assert model_args(read(out)).arch == "transformer_head_gates_iwslt_de_en"
    assert kept_mask(smaller).values == {**mask, "dec-self": [[1] * 4] * 2}


def test_architecture_names_are_converted_to_the_plugin_and_back():
    names = {
        "transformer": "transformer_head_gates",
        "transformer_wmt_en_de": "transformer_head_gates_wmt_en_de",
        "transformer_vaswani_wmt_en_de_big": "transformer_head_gates_vaswani_wmt_en_de_big",
        "transformer_wmt_en_de_big_t2t": "transformer_head_gates_wmt_en_de_big_t2t",
    }
    args = make_args()
    state = {"cfg": {"model": args}, "model": make_stock().state_dict()}
    mask = HeadTable({"enc-self": [[0, 1, 1, 1], [1, 1, 1, 1]]})
    for name, ours in names.items():
        args.arch = name
        smaller = prune_checkpoint(state, mask)
        assert model_args(smaller).arch == ours
        assert model_args(stock_checkpoint(smaller, mask)).arch == name
    acl = make_gated()
    acl.args.arch = "transformer_head_gates_acl19"
    state = {"cfg": {"model": acl.args}, "model": acl.state_dict()}
    assert model_args(prune_checkpoint(state, mask)).arch == "transformer_head_gates_acl19"
    assert model_args(stock_checkpoint(state, mask)).arch == "transformer"
