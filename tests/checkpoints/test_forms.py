"""Checkpoints of every form in which fairseq has stored options; see also test_families.py."""

import argparse
import subprocess
import sys

import pytest
import torch
from fairseq.models import build_model as fairseq_build_model
from fairseq.models.transformer import TransformerModel
from omegaconf import OmegaConf
from support.checkpoints import WITHOUT_PLUGIN, assert_same_output, read
from support.commands import EVALUATION
from support.models import logits, make_args, make_batch, make_gated, make_stock, make_task

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.checkpoints.pruned import prune_checkpoint, stock_checkpoint
from fairseq_headgates.plugin.models.building import build_model
from fairseq_headgates.safety.checkpoint import model_args


def test_activations_are_not_recomputed_in_a_loaded_model():
    state = {"args": make_args(checkpoint_activations=True, arch="transformer"), "model": make_stock().state_dict()}
    recomputed = fairseq_build_model(state["args"], make_task())
    wrapped = [
        sum(hasattr(module, "precheckpoint_forward") for module in model.modules())
        for model in (recomputed, build_model(state))
    ]
    assert wrapped == [4, 0]


FRESH = """
import sys, torch
path, data = sys.argv[1:]
state = torch.load(path)  # weights_only by default
from fairseq.checkpoint_utils import load_model_ensemble_and_task
(model,), cfg, task = load_model_ensemble_and_task([path], {"data": data})
print(type(model).__module__, type(model).__name__, cfg.common.user_dir, sorted(state))
print("plugin" if any(name.split(".")[0] == "fairseq_headgates" for name in sys.modules) else "no plugin")
"""


@pytest.mark.release
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


@pytest.mark.release
def test_groups_of_options_that_fairseq_stores_as_a_namespace(train, run, toy, tmp_path):
    """Of tasks and optimisers without a dataclass."""
    task = ["--task", "translation_multi_simple_epoch", "--lang-pairs", "src-tgt", "--langs", "src,tgt"]
    train(tmp_path, *task, "--optimizer", "adafactor", arch="transformer", updates=1)
    path, stock = tmp_path / "checkpoint_last.pt", tmp_path / "stock.pt"
    groups = read(path)["cfg"]
    assert isinstance(groups["task"], argparse.Namespace) and isinstance(groups["optimizer"], argparse.Namespace)
    run("headgates", "prune", "--path", path, "--out", stock, "--stock")
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


def test_architecture_names_are_converted_to_the_plugin_and_back():
    names = {
        "transformer": "transformer_head_gates",
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
