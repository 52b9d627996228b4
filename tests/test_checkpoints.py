"""Checkpoints through fairseq's own commands: what is pruned computes, generates and goes on training as before."""

import argparse
import contextlib
import copy
import json
import re
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.models.transformer import TransformerModel
from fairseq.optim.adafactor import Adafactor
from fairseq.optim.adamax import Adamax
from fairseq.optim.nag import NAG
from support.commands import (
    ALIVE,
    EVALUATION,
    GATED,
    L0,
    TOY_MODEL,
    TOY_TRAINING,
    TYPES,
    USER_DIR,
    hypotheses,
    logged,
    train_arguments,
    valid_loss,
    worker_arguments,
)
from support.models import assert_same, logits, make_args, make_batch, make_gated, make_stock, make_task

from fairseq_headgates import HeadTable, gate_values, head_sites, masked, prune
from fairseq_headgates.checkpoints import (
    build_model,
    load_checkpoint,
    load_dictionaries,
    prune_checkpoint,
    read_heads,
    save_checkpoint,
    stock_checkpoint,
)
from fairseq_headgates.options.stored_mask import read_mask
from fairseq_headgates.safety import model_args
from fairseq_headgates.surgery import head_counts, kept_mask, open_mask

pytestmark = [
    # of torch's data loader, about machines without a GPU
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    # of the hydra that fairseq brings with it
    pytest.mark.filterwarnings(r"ignore:\s*'config' is validated:UserWarning"),
]

GENERATE = [*EVALUATION, "--gen-subset", "test"]
WITHOUT_PLUGIN = [option for option in EVALUATION if option not in ("--user-dir", USER_DIR)]
VALIDATE = ["--task", "translation", "--max-tokens", 500]

# Gates that are closed, open and between at evaluation (0, 1, about 0.62): a layer without heads in each stack.
C, O, F = -3.0, 3.0, 0.4  # noqa: E741
LOG_ALPHA = {
    "enc-self": [[C, O, F, O], [C, C, C, C]],
    "dec-self": [[O, C, C, F], [O, O, O, O]],
    "dec-enc": [[C, C, C, C], [F, C, O, C]],
}
OPEN = {kind: [[int(a != C) for a in row] for row in rows] for kind, rows in LOG_ALPHA.items()}
NO_DECODER = {**OPEN, "dec-self": [[0] * 4] * 2}
SITES = {"enc-self": "encoder.layers.{}.self_attn", "dec-self": "decoder.layers.{}.self_attn"}
SITES["dec-enc"] = "decoder.layers.{}.encoder_attn"


def read(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def with_gates(state, log_alpha, of="model"):
    """The checkpoint with other gates."""
    state = copy.deepcopy(state)
    for kind, rows in log_alpha.items():
        for layer, row in enumerate(rows):
            name = SITES[kind].format(layer) + ".gate.log_alpha"
            weights = state["model"] if of == "model" else state["extra_state"][of]
            weights[name] = torch.tensor(row).to(weights[name])
    return state


@pytest.fixture(scope="module")
def gated(gated_checkpoint, tmp_path_factory):
    """A checkpoint as training leaves it, but for the gates, which are those of `LOG_ALPHA`."""
    path = tmp_path_factory.mktemp("gates") / "gated.pt"
    torch.save(with_gates(read(gated_checkpoint), LOG_ALPHA), path)
    return path


@pytest.fixture(scope="module")
def pruned(gated, run):
    path = gated.with_name("pruned.pt")
    run("headgates", "prune", gated, path)
    return path


@pytest.fixture(scope="module")
def stock(gated, run):
    path = gated.with_name("stock.pt")
    run("headgates", "prune", gated, path, "--stock")
    return path


def load(path):
    (model,), _, task = load_model_ensemble_and_task([str(path)])
    return model.eval(), task


def predictions(model, task):
    """For the first batch of the validation data, [B, T, V]."""
    task.load_dataset("valid")
    batch = next(task.get_batch_iterator(task.dataset("valid"), max_tokens=500).next_epoch_itr(shuffle=False))
    with torch.no_grad():
        return model.eval()(**batch["net_input"])[0]


def assert_same_tensors(a, b, **tolerance):
    assert a.keys() == b.keys()
    for name in a:
        if tolerance:
            torch.testing.assert_close(a[name], b[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")
        else:
            assert torch.equal(a[name], b[name]), name


def printed(finished):
    """[(H or D, sentence, score, text)]: all hypotheses, tokens and words, in a fixed order."""
    found = re.findall(r"^([HD])-(\d+)\t(\S+)\t(.*)$", finished.out, re.MULTILINE)
    return sorted((kind, int(number), -float(score), text) for kind, number, score, text in found)


def assert_same_output(a, b, number=10):
    first, second = printed(a), printed(b)
    assert len(first) == 2 * number
    assert [(kind, n, text) for kind, n, _, text in first] == [(kind, n, text) for kind, n, _, text in second]
    assert [score for *_, score, _ in first] == pytest.approx([score for *_, score, _ in second], abs=1e-4)


# fairseq's commands on a pruned checkpoint


def test_pruned_is_smaller(gated, pruned):
    before, after = read(gated), read(pruned)
    sizes = [sum(t.numel() for n, t in state["model"].items() if "attn" in n) for state in (before, after)]
    alive = sum(sum(map(sum, rows)) for rows in OPEN.values())
    biases = 6 * 32  # of the output projections
    assert sizes[0] == 24 * 4 * 8 * 32 + 24 * 3 * 8 + biases + 2 * 6 * 32 + 24  # projections, biases, norms, gates
    assert sizes[1] == alive * 4 * 8 * 32 + alive * 3 * 8 + biases + 2 * 6 * 32
    assert pruned.stat().st_size < gated.stat().st_size


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--beam", 1], marks=pytest.mark.rehearsal),
        ["--beam", 4, "--nbest", 4],
        ["--beam", 3, "--print-alignment"],
    ],
)
def test_generate_prints_the_same(options, gated, pruned, stock, run, toy):
    """--print-alignment looks at the attention weights of the last layer, which has heads; see the next test."""
    printed_ = [
        run("fairseq-generate", toy.data, *plugin, "--gen-subset", "test", "--path", path, *options)
        for path, plugin in ((gated, EVALUATION), (pruned, EVALUATION), (stock, WITHOUT_PLUGIN))
    ]
    number = 40 if "--nbest" in options else 10
    assert_same_output(printed_[0], printed_[1], number)
    assert_same_output(printed_[0], printed_[2], number)


def test_alignment_of_a_last_layer_without_heads(gated, run, toy, tmp_path):
    mask = json.dumps({"dec-enc": [[1, 1, 1, 1], [0, 0, 0, 0]]})
    run("headgates", "prune", gated, tmp_path / "x.pt", "--alive", mask)
    done = run("fairseq-generate", toy.data, *GENERATE, "--path", tmp_path / "x.pt", "--print-alignment")
    assert len(hypotheses(done)) == 10 and len(re.findall(r"^A-\d+", done.out, re.MULTILINE)) == 10


def alignments(finished):
    return sorted(re.findall(r"^A-(\d+)\t(.*)$", finished.out, re.MULTILINE))


@pytest.mark.parametrize("beam", [pytest.param(1, marks=pytest.mark.rehearsal), 4])
def test_alignments_are_those_of_every_form(beam, gated, run, toy, tmp_path):
    """Of a mask that says nothing about what attends to what; the stock form of fairseq is among them."""
    mask = json.dumps({"dec-enc": [[0, 1, 1, 0], [0, 1, 0, 1]]})
    state = with_gates(read(gated), {"dec-enc": [[C, O, O, C], [C, O, C, O]]})
    torch.save(state, tmp_path / "gated.pt")
    run("headgates", "prune", tmp_path / "gated.pt", tmp_path / "pruned.pt", "--alive", mask)
    run("headgates", "prune", tmp_path / "gated.pt", tmp_path / "stock.pt", "--alive", mask, "--stock")
    options = ["--gen-subset", "valid", "--print-alignment", "--beam", beam, "--path"]
    found = [
        alignments(run("fairseq-generate", toy.data, *plugin, *options, tmp_path / name))
        for name, plugin in (("gated.pt", EVALUATION), ("pruned.pt", EVALUATION), ("stock.pt", WITHOUT_PLUGIN))
    ]
    assert len(found[0]) == 30 and found[0] == found[1] == found[2]


def test_interactive_and_hub_say_the_same(gated, pruned, stock, run, toy):
    sources = (toy.text / "test.src").read_text()
    options = ["--beam", 4, "--buffer-size", 10, "--batch-size", 10, "--path"]
    done = [
        run("fairseq-interactive", toy.data, *plugin, *options, path, stdin=sources)
        for path, plugin in ((gated, EVALUATION), (pruned, EVALUATION), (stock, WITHOUT_PLUGIN))
    ]
    assert_same_output(done[0], done[1])
    assert_same_output(done[0], done[2])
    for path, plugin in ((pruned, {"user_dir": str(USER_DIR)}), (stock, {})):
        hub = TransformerModel.from_pretrained(str(path.parent), path.name, data_name_or_path=str(toy.data), **plugin)
        assert hub.translate(sources.splitlines(), beam=4) == hypotheses(done[0])


def test_validate_finds_the_same_loss(gated, pruned, stock, run, toy):
    losses = [
        valid_loss(run("fairseq-validate", toy.data, *plugin, *VALIDATE, "--path", path))
        for path, plugin in ((gated, EVALUATION), (pruned, EVALUATION), (stock, WITHOUT_PLUGIN))
    ]
    assert losses[1:] == pytest.approx([losses[0]] * 2, abs=0.0011)  # the last digit printed


def test_ensemble_of_gated_pruned_and_stock_is_each_of_them(gated, pruned, stock, run, toy):
    command = ["fairseq-generate", toy.data, *GENERATE, "--beam", 4, "--path"]
    assert_same_output(run(*command, gated), run(*command, f"{gated}:{pruned}:{stock}"))


@pytest.mark.parametrize("kind", ["baseline", "fixed", "mixed"])
@pytest.mark.parametrize("form", [[], ["--stock"]])
def test_checkpoints_of_every_kind(kind, form, checkpoints, run, tmp_path):
    """Heads that are fixed at 0 go; a baseline has no gates, and keeps what it has."""
    path = tmp_path / "out.pt"
    run("headgates", "prune", checkpoints[kind], path, *form)
    before, task = load(checkpoints[kind])
    after, _ = load(path)
    torch.testing.assert_close(predictions(after, task), predictions(before, task), atol=1e-5, rtol=1e-5)
    alive = {"fixed": {**ALIVE, "dec-self": [[1] * 4] * 2}, "mixed": {"enc-self": ALIVE["enc-self"]}}.get(kind, {})
    expected = {kind: alive.get(kind, [[1] * 4] * 2) for kind in TYPES.split(",")}
    assert type(after).__name__ == ("TransformerModel" if form else "TransformerHeadGatesModel")
    if not form:
        assert kept_mask(after).values == expected


# The form of the file


def test_what_a_pruned_checkpoint_says_of_itself(gated, pruned):
    before, after = read(gated), read(pruned)
    args = model_args(after)
    assert (args.arch, args.gate_heads, args.remove_heads) == ("transformer_head_gates", "", True)
    assert json.loads(args.alive_heads) == {"format": "headgates.heads/1", **OPEN}
    assert args.criterion == "label_smoothed_cross_entropy"
    assert after["optimizer_history"][-1]["criterion_name"] == "LabelSmoothedCrossEntropyCriterion"
    assert after["cfg"]["criterion"]["_name"] == "label_smoothed_cross_entropy"
    assert str(USER_DIR) not in str(after["cfg"])  # a path of another machine
    assert before["extra_state"]["train_iterator"] == after["extra_state"]["train_iterator"]
    assert not any("gate" in name for name in after["model"])


def test_pruning_does_not_change_what_it_is_given(gated):
    state = load_checkpoint(str(gated))
    before, model = copy.deepcopy(state), build_model(state)
    weights = copy.deepcopy(model.state_dict())
    mask = HeadTable({"enc-self": [[1, 1, 0, 0], [1, 0, 0, 1]]})
    for function in (prune_checkpoint, stock_checkpoint):
        function(state, mask, model=model)
        assert_same(state, before)
        assert_same_tensors(model.state_dict(), weights)


def test_a_pruned_checkpoint_holds_exactly_the_pruned_model(gated):
    state = load_checkpoint(str(gated))
    mask = HeadTable({"enc-self": [[1, 1, 0, 0], [1, 1, 1, 1]], "dec-enc": [[1, 1, 1, 1], [1, 1, 0, 1]]})
    expected = prune(build_model(state), mask)
    smaller = prune_checkpoint(state, mask)
    assert_same_tensors(dict(build_model(smaller).state_dict()), dict(expected.state_dict()))
    assert_same_tensors(smaller["model"], dict(expected.state_dict()))


def test_half_precision_stays(gated):
    state = load_checkpoint(str(gated))
    state["model"] = {
        k: v.half() if v.is_floating_point() and "gate" not in k else v for k, v in state["model"].items()
    }
    smaller = prune_checkpoint(state, open_mask(build_model(state)))
    parameters = {name for name, _ in build_model(smaller).named_parameters()}
    assert {smaller["model"][name].dtype for name in parameters} == {torch.float16}
    model, whole = build_model(smaller), build_model(state)
    torch.testing.assert_close(logits(model, toy_batch()), logits(whole, toy_batch()), atol=2e-3, rtol=0)


def toy_batch():
    """Within the 20 symbols of the toy corpus."""
    batch = make_batch()
    return {key: value % 16 + 4 * (value != 1) if "tokens" in key else value for key, value in batch.items()}


VARIANTS = {
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True, "max_source_positions": 50},
    "normalised embeddings": {"layernorm_embedding": True},
    "adaptive softmax": {
        "adaptive_softmax_cutoff": "10,20",
        "adaptive_softmax_dropout": 0,
        "adaptive_softmax_factor": 4,
    },
    "no attention to the encoder": {"no_cross_attention": True},
    "attention to both at once": {"no_cross_attention": True, "cross_self_attention": True},
    "layers dropped in training": {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.3},
    "recomputed activations": {"checkpoint_activations": True},
    "no positions": {"no_token_positional_embeddings": True},
    "narrow output": {"decoder_output_dim": 16},
    "shared embeddings": {"share_all_embeddings": True},
    "wider encoder": {"encoder_embed_dim": 48},
    "more layers": {"decoder_layers": 3},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_models_of_every_build(options):
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


def random_mask(model):
    generator = torch.Generator().manual_seed(3)
    rows = {kind: (torch.rand(size, generator=generator) > 0.5).int() for kind, size in head_counts(model).items()}
    return HeadTable({kind: table.tolist() for kind, table in rows.items()})


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


def test_old_checkpoints_hold_a_namespace(gated, run, toy, tmp_path):
    """As fairseq wrote them before version 0.10: `args`, and no `cfg`."""
    state = read(gated)
    state["args"] = state.pop("cfg")["model"]
    torch.save(state, tmp_path / "old.pt")
    run("headgates", "prune", tmp_path / "old.pt", tmp_path / "pruned.pt")
    run("headgates", "prune", tmp_path / "old.pt", tmp_path / "stock.pt", "--stock")
    assert "cfg" not in read(tmp_path / "pruned.pt")
    before = run("fairseq-generate", toy.data, *GENERATE, "--path", gated)
    for name, plugin in (("pruned.pt", EVALUATION), ("stock.pt", WITHOUT_PLUGIN)):
        command = ["fairseq-generate", toy.data, *plugin, "--gen-subset", "test", "--path", tmp_path / name]
        assert_same_output(before, run(*command))


def test_checkpoints_of_hydra_hold_a_dict(toy, run, tmp_path):
    config = {
        "common": {"cpu": True, "user_dir": str(USER_DIR), "seed": 1},
        "task": {"_name": "translation", "data": str(toy.data)},
        "model": {"_name": "transformer_head_gates", **TOY_MODEL, "gate_heads": TYPES},
        "criterion": {"_name": "label_smoothed_cross_entropy_l0", "l0_weight": 0.05, "label_smoothing": 0.1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "dataset": {"max_tokens": 500, "num_workers": 0, "required_batch_size_multiple": 1},
        "optimization": {"max_update": 2, "lr": [0.005]},
        "checkpoint": {"save_dir": str(tmp_path / "save")},
    }
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


def test_stock_loads_in_a_process_that_knows_nothing_of_the_plugin(stock, toy, tmp_path):
    command = [sys.executable, "-c", FRESH, str(stock), str(toy.data)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "fairseq.models.transformer.transformer_legacy TransformerModel None" in done.stdout
    assert "no plugin" in done.stdout


def test_stock_holds_nothing_but_tensors_and_plain_values(stock, gated):
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


def test_training_goes_on_from_stock_without_the_plugin(stock, train, gated, tmp_path):
    """One update that changes nothing: the loss is that of the gated model."""
    reset = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
    same = ["--lr", 0, "--dropout", 0]
    finetuned = train(tmp_path / "1", *same, "--finetune-from-model", stock, arch="transformer", updates=1)
    restored = train(tmp_path / "2", *same, "--restore-file", stock, *reset, arch="transformer", updates=1)
    gates = [*GATED, *same, "--finetune-from-model", gated]
    loss = valid_loss(train(tmp_path / "3", *gates, updates=1))
    assert [valid_loss(finetuned), valid_loss(restored)] == pytest.approx([loss] * 2, abs=0.0011)


@pytest.mark.parametrize("arch", ["transformer", "transformer_iwslt_de_en"])
def test_a_checkpoint_of_fairseq_is_pruned_by_a_mask(arch, train, run, tmp_path):
    train(tmp_path, "--share-decoder-input-output-embed", arch=arch, updates=2)
    mask = {"enc-self": [[1, 0, 0, 1], [0, 0, 0, 0]], "dec-enc": [[0, 0, 1, 0], [1, 1, 1, 1]]}
    path, out = tmp_path / "checkpoint_last.pt", tmp_path / "pruned.pt"
    run("headgates", "prune", path, out, "--alive", json.dumps(mask))
    whole, task = load(path)
    smaller, _ = load(out)
    assert type(whole) is TransformerModel
    for site in head_sites(whole):  # the same by hand
        for head, alive in enumerate(mask.get(site.kind, [[1] * 4] * 2)[site.layer]):
            site.attention.out_proj.weight.data[:, 8 * head : 8 * head + 8] *= alive
    torch.testing.assert_close(predictions(smaller, task), predictions(whole, task), atol=1e-5, rtol=1e-5)
    assert model_args(read(out)).arch == arch.replace("transformer", "transformer_head_gates")
    assert kept_mask(smaller).values == {**mask, "dec-self": [[1] * 4] * 2}


def test_presets_get_the_name_of_ours_and_back():
    names = {
        "transformer": "transformer_head_gates",
        "transformer_wmt_en_de": "transformer_head_gates_wmt_en_de",
        "transformer_vaswani_wmt_en_de_big": "transformer_head_gates_vaswani_wmt_en_de_big",
        "transformer_wmt_en_de_big_t2t": "transformer_head_gates",  # fairseq's alone: the options say it all
    }
    args = make_args()
    state = {"cfg": {"model": args}, "model": make_stock().state_dict()}
    mask = HeadTable({"enc-self": [[0, 1, 1, 1], [1, 1, 1, 1]]})
    for name, ours in names.items():
        args.arch = name
        smaller = prune_checkpoint(state, mask)
        assert model_args(smaller).arch == ours
        assert model_args(stock_checkpoint(smaller, mask)).arch == (name if "t2t" not in name else "transformer")
    acl = make_gated()
    acl.args.arch = "transformer_head_gates_acl19"
    state = {"cfg": {"model": acl.args}, "model": acl.state_dict()}
    assert model_args(prune_checkpoint(state, mask)).arch == "transformer_head_gates_acl19"
    assert model_args(stock_checkpoint(state, mask)).arch == "transformer"


def test_pruned_again_and_gated_again(pruned, run, train, tmp_path):
    again = tmp_path / "again.pt"
    mask = {"enc-self": [[0, 1, 0, 1], [1, 1, 1, 1]], "dec-self": [[1, 1, 1, 1], [0, 0, 0, 1]]}
    plan = json.loads(run("headgates", "prune", pruned, again, "--alive", json.dumps(mask), "--json").out)
    assert plan["heads"] == {"enc-self": [3, 2], "dec-self": [6, 3], "dec-enc": [2, 2]}
    left = {
        kind: [
            [a * b for a, b in zip(*pair, strict=True)]
            for pair in zip(rows, mask.get(kind, [[1] * 4] * 2), strict=True)
        ]
        for kind, rows in OPEN.items()
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
    assert "headgates show" in line and "--remove-heads" in line and "Traceback" not in done.text


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
        assert read_mask(str(path)).values == {kind: shown[kind] for kind in TYPES.split(",")}
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
def test_files_that_are_no_checkpoint_are_no_mask(content, tmp_path):
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "x.pt"))) as error:
        read_mask(str(tmp_path / "x.pt"))
    assert "\n" not in str(error.value)


def test_heads_are_not_relabelled_in_silence(pruned, train, tmp_path):
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
    text = (Path(__file__).parents[1] / "docs" / "pruning.md").read_text(encoding="utf-8")
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


# Training goes on

ADAM = ["--dropout", 0, "--max-tokens", 300, "--clip-norm", 0.5, "--weight-decay", 0.01, "--lr", 0.002]
ADAM += ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", 4, "--store-ema", "--ema-decay", 0.9, "--ema-fp32"]
EXACT = {"atol": 2e-5, "rtol": 1e-4}


def moved(weights):
    """Without the biases of the keys: a softmax does not see them, and Adam makes steps of what is left by rounding."""
    return {name: tensor for name, tensor in weights.items() if not name.endswith("k_proj.bias")}


@pytest.fixture(scope="module")
def continued(train, run, tmp_path_factory):
    """A model whose removed heads are multiplied by 0, and the same pruned after 3 updates, both up to 10 updates.

    A head that is multiplied by 0 has no gradient, so that the equality is exact but for the order of additions.
    Returns the folder and the logs: masked, pruned, pruned without the state of the optimiser.
    """
    folder = tmp_path_factory.mktemp("continued")
    heads = ["--alive-heads", json.dumps(OPEN)]
    train(folder / "masked", *ADAM, *heads, updates=3)
    last = folder / "masked" / "checkpoint_last.pt"
    run("headgates", "prune", last, folder / "pruned.pt")
    run("headgates", "prune", last, folder / "without.pt", "--no-optimizer")
    logs = {"masked": train(folder / "masked", *ADAM, *heads, updates=10)}
    for name in ("pruned", "without"):
        start = ["--restore-file", folder / f"{name}.pt"]
        logs[name] = train(folder / name, *ADAM, *heads, "--remove-heads", *start, updates=10)
    return folder, logs


def test_training_goes_on_as_if_nothing_had_been_removed(continued):
    folder, logs = continued
    for key in ("loss", "gnorm", "lr"):
        assert len(logged(logs["pruned"], key)) == 7
        assert logged(logs["pruned"], key) == pytest.approx(logged(logs["masked"], key), abs=0.0011)
    assert valid_loss(logs["pruned"]) == pytest.approx(valid_loss(logs["masked"]), abs=0.0011)
    masked_, pruned_ = (read(folder / name / "checkpoint_last.pt") for name in ("masked", "pruned"))
    cut = prune_checkpoint(masked_, HeadTable(OPEN))
    assert_same_tensors(moved(cut["model"]), moved(pruned_["model"]), **EXACT)
    for key in ("ema", "ema_fp32_params"):
        assert_same_tensors(moved(cut["extra_state"][key]), moved(pruned_["extra_state"][key]), **EXACT)
    first, second = (state["last_optimizer_state"]["state"] for state in (cut, pruned_))
    assert first.keys() == second.keys() and len(first) > 40
    for number in first:
        assert first[number]["step"] == second[number]["step"] == 10
        assert_same_tensors(
            {k: first[number][k] for k in ("exp_avg", "exp_avg_sq")},
            {k: second[number][k] for k in ("exp_avg", "exp_avg_sq")},
            **EXACT,
        )
    assert pruned_["optimizer_history"][-1]["num_updates"] == 10
    assert pruned_["extra_state"]["train_iterator"] == masked_["extra_state"]["train_iterator"]


def test_without_the_state_of_the_optimiser_training_starts_anew(continued):
    """What the comparison above would show if the state were lost or cut wrongly."""
    folder, logs = continued
    assert read(folder / "without.pt")["last_optimizer_state"] is None
    losses = logged(logs["without"], "loss")
    assert losses[0] == pytest.approx(logged(logs["masked"], "loss")[0], abs=0.0011)  # the weights are the same
    assert losses[1:7] != pytest.approx(logged(logs["masked"], "loss")[1:], abs=0.0011)


def test_training_goes_on_from_a_checkpoint_of_fairseq(train, run, tmp_path):
    """fairseq's own moments, by fairseq's own numbers: of removed heads they move nothing that counts."""
    options = ["--dropout", 0, "--max-tokens", 300, "--lr", 0.002]
    heads = ["--alive-heads", json.dumps(OPEN)]
    train(tmp_path, *options, arch="transformer", updates=3)
    last, out = tmp_path / "checkpoint_last.pt", tmp_path / "pruned.pt"
    run("headgates", "prune", last, out, "--alive", json.dumps(OPEN))
    masked_ = train(tmp_path / "masked", *options, *heads, "--restore-file", last, updates=8)
    pruned_ = train(tmp_path / "pruned", *options, *heads, "--remove-heads", "--restore-file", out, updates=8)
    assert len(logged(pruned_, "loss")) == 5
    assert logged(pruned_, "loss") == pytest.approx(logged(masked_, "loss"), abs=0.0011)
    states = [read(tmp_path / name / "checkpoint_last.pt") for name in ("masked", "pruned")]
    cut = prune_checkpoint(states[0], HeadTable(OPEN))
    assert_same_tensors(moved(cut["model"]), moved(states[1]["model"]), atol=1e-4, rtol=1e-4)


def test_the_numbers_of_fairseqs_parameters_are_ours():
    """Every parameter's moment holds its number, so that a confusion of two of one shape shows."""
    stock, args = make_stock(), make_args()
    args.arch = "transformer"
    names = [name for name, _ in stock.named_parameters()]
    moments = {i: {"exp_avg": torch.full_like(p, i)} for i, p in enumerate(stock.parameters())}
    optimizer = {"state": moments, "param_groups": [{"params": list(moments)}]}
    state = {"cfg": {"model": args}, "model": stock.state_dict(), "last_optimizer_state": optimizer}
    smaller = prune_checkpoint(state, HeadTable(OPEN))
    pruned = build_model(smaller)
    for i, (name, parameter) in enumerate(pruned.named_parameters()):
        expected = torch.full_like(parameter, names.index(name))
        assert torch.equal(smaller["last_optimizer_state"]["state"][i]["exp_avg"], expected), name


@pytest.mark.rehearsal
def test_two_workers_train_a_pruned_model_as_one_with_two_batches(pruned, start, train, toy, tmp_path):
    """Layers without heads have parameters without elements, which the workers exchange too."""
    heads = ["--alive-heads", json.dumps(OPEN), "--remove-heads", "--finetune-from-model", pruned]
    options = [*heads, "--dropout", 0, "--max-tokens", 100, "--optimizer", "sgd", "--lr", 0.5]
    train(tmp_path / "one", *options, "--update-freq", 2, updates=2)
    workers = [
        start("fairseq-train", *train_arguments(toy, tmp_path / "two", *options, *own, updates=2))
        for own in worker_arguments(2)
    ]
    for worker in workers:
        worker.finish().expect(0)
    one, two = (read(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("one", "two"))
    assert_same_tensors(one, two, atol=1e-5, rtol=1e-5)
    assert max((one[name] - read(pruned)["model"][name]).abs().max() for name in one if one[name].numel()) > 0.01


def test_the_average_is_cut_with_its_own_gates(gated):
    """The heads of the model stay, also where the average of a gate has closed."""
    averages = {"enc-self": [[O, F, O, C], [O, O, O, O]], "dec-enc": [[O, O, O, O], [O, C, F, C]]}
    state = load_checkpoint(str(gated))
    state["extra_state"]["ema"] = {k: v + 0.01 if v.is_floating_point() else v for k, v in state["model"].items()}
    state = with_gates(state, averages, of="ema")
    state["extra_state"]["ema_fp32_params"] = {
        k: v.float() if v.is_floating_point() else v for k, v in state["extra_state"]["ema"].items()
    }
    smaller = prune_checkpoint(state, HeadTable(OPEN))
    average = build_model({**state, "model": state["extra_state"]["ema"]})
    for key in ("ema", "ema_fp32_params"):
        cut = build_model({**smaller, "model": smaller["extra_state"][key]})
        with masked(average, HeadTable(OPEN)):
            expected = logits(average, toy_batch())
        torch.testing.assert_close(logits(cut, toy_batch()), expected, atol=1e-5, rtol=1e-5)
        assert kept_mask(cut).values == OPEN
    assert not torch.allclose(logits(cut, toy_batch()), logits(build_model(smaller), toy_batch()), atol=1e-2)


@pytest.mark.rehearsal
def test_the_loss_does_not_jump_where_gates_are_folded(gated, run, train, tmp_path):
    """From a checkpoint of a gated run, on with the plain criterion."""
    out = tmp_path / "pruned.pt"
    run("headgates", "prune", gated, out)
    heads = ["--alive-heads", json.dumps(OPEN), "--remove-heads", "--restore-file", out, "--dropout", 0]
    still = train(tmp_path / "0", *heads, "--lr", 0, "--reset-lr-scheduler", updates=5)
    before = train(tmp_path / "1", *GATED, "--finetune-from-model", gated, "--lr", 0, updates=1)
    assert valid_loss(still) == pytest.approx(valid_loss(before), abs=0.0011)
    moving = train(tmp_path / "2", *heads, "--lr", 0.0005, "--reset-lr-scheduler", updates=7)
    assert len(logged(moving, "loss")) == 3  # from update 4 on
    assert logged(moving, "loss")[0] == pytest.approx(logged(still, "loss")[0], abs=0.0011)
    assert logged(moving, "loss")[-1] < logged(moving, "loss")[0] + 0.2
    assert valid_loss(moving) < valid_loss(before) + 0.05


# The state of the optimiser, by a second route

OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0, amsgrad=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0),
    "sgd": lambda p: torch.optim.SGD(p, lr=0, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0),
    "nag": lambda p: NAG(p, lr=0, momentum=0.9),
    "fairseq's adamax": lambda p: Adamax(p, lr=0),
}
FREEZE = r"^decoder\.layers\.0\.(self_attn|fc1)|k_proj\.bias|embed_tokens"


def small_state(model, optimizer=None):
    """A checkpoint of a model of support/models.py, which has no name among fairseq's."""
    model.args.arch = "transformer_head_gates"
    state = {"args": None, "cfg": {"model": model.args}, "model": model.state_dict(), "extra_state": {}}
    return {**state, "last_optimizer_state": optimizer and optimizer.state_dict()}


def small_gated(**options):
    model = make_gated(gate_heads=TYPES, dropout=0.0, **options)
    with torch.no_grad():
        for site in head_sites(model):
            site.attention.gate.theta.copy_(torch.tensor(LOG_ALPHA[site.kind][site.layer]) / 50)
    return model.eval()


def accumulate(model, make):
    """What an optimiser remembers of three batches while it changes nothing (its rate is 0)."""
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    for seed in range(3):
        optimizer.zero_grad()
        batch = make_batch(seed)
        output = model(**batch)[0].flatten(0, 1)
        torch.nn.functional.cross_entropy(output, batch["prev_output_tokens"].flatten()).backward()
        for parameter in model.parameters():  # distributed training knows no missing gradient
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("freeze", [None, FREEZE])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_remembered_is_what_the_pruned_model_would_remember(name, freeze):
    """The gates do not move and have no noise, so the pruned model would have seen these very gradients."""
    model = small_gated(freeze_params=freeze)
    state = small_state(model, accumulate(model, OPTIMIZERS[name]))
    for mask in (OPEN, {**OPEN, "dec-self": [[0, 0, 0, 0], [1, 0, 0, 1]]}):
        pruned = prune(model, HeadTable(mask))
        if mask is OPEN:
            expected = accumulate(pruned, OPTIMIZERS[name]).state_dict()
            compare_remembered(prune_checkpoint(state, HeadTable(mask))["last_optimizer_state"], expected)
        else:  # removing an open head changes the gradients, but never the numbers and the shapes
            cut = prune_checkpoint(state, HeadTable(mask))["last_optimizer_state"]
            trained = [p for p in pruned.parameters() if p.requires_grad]
            assert cut["param_groups"][0]["params"] == list(range(len(trained)))
            OPTIMIZERS[name](trained).load_state_dict(cut)
            for number, parameter in enumerate(trained):
                assert all(v.shape == parameter.shape for v in cut["state"][number].values() if getattr(v, "ndim", 0))


def compare_remembered(actual, expected):
    assert actual["param_groups"] == expected["param_groups"]
    assert actual["state"].keys() == expected["state"].keys()
    for number, entry in expected["state"].items():
        assert actual["state"][number].keys() == entry.keys()
        for key, value in entry.items():
            torch.testing.assert_close(
                actual["state"][number][key],
                value,
                atol=1e-7,  # the gradient of the keys' bias is 0 in theory; what is remembered of it is rounding
                rtol=2e-3,
                msg=lambda t, n=number, k=key: f"{n} {k}: {t}",
            )


@pytest.mark.parametrize("freeze", [None, FREEZE])
def test_one_vector_for_all_parameters_is_cut_as_the_parameters_by_themselves(freeze):
    """--fp16 trains one long vector: its moments are those of all trained parameters, one after another."""
    model = small_gated(freeze_params=freeze)
    separate = accumulate(model, OPTIMIZERS["adam"]).state_dict()
    entries = [separate["state"][number] for number in range(len(separate["state"]))]
    flat = {
        "state": {
            0: {"step": 3, **{k: torch.cat([e[k].view(-1) for e in entries]) for k in ("exp_avg", "exp_avg_sq")}}
        },
        "param_groups": [{**separate["param_groups"][0], "params": [0]}],
        "loss_scale": 128.0,
    }
    mask = HeadTable(OPEN)
    cut = prune_checkpoint({**small_state(model), "last_optimizer_state": flat}, mask)["last_optimizer_state"]
    expected = prune_checkpoint({**small_state(model), "last_optimizer_state": separate}, mask)["last_optimizer_state"]
    assert cut["loss_scale"] == 128 and cut["param_groups"] == flat["param_groups"]
    (entry,) = cut["state"].values()
    assert entry["step"] == 3
    for key in ("exp_avg", "exp_avg_sq"):
        joined = torch.cat([expected["state"][n][key].reshape(-1) for n in range(len(expected["state"]))])
        assert torch.equal(entry[key], joined)
    vector = torch.nn.Parameter(torch.zeros(sum(p.numel() for p in prune(model, mask).parameters() if p.requires_grad)))
    assert entry["exp_avg"].shape == vector.shape


def refused_states():
    model = small_gated()
    adam = accumulate(model, OPTIMIZERS["adam"]).state_dict()
    trained = len(adam["state"])
    groups = [{**adam["param_groups"][0], "params": part} for part in ([0], list(range(1, trained)))]
    factored = {"step": 1, "exp_avg_sq_row": torch.ones(3), "exp_avg_sq_col": torch.ones(4), "RMS": 1.0}
    flat = {"step": 1, "exp_avg": torch.zeros(7), "exp_avg_sq": torch.zeros(7)}
    return model, {
        "two groups": {**adam, "param_groups": groups},
        "adafactor": {**adam, "state": dict.fromkeys(range(trained), factored)},
        "other parameters": {**adam, "param_groups": [{**adam["param_groups"][0], "params": list(range(trained - 1))}]},
        "another shape": {**adam, "state": {**adam["state"], 3: {"exp_avg": torch.zeros(2, 2)}}},
        "a vector of another length": {"state": {0: flat}, "param_groups": [{"params": [0]}]},
        "several optimisers": {"0": adam, "1": adam},
        "no groups": {"state": {}},
        "a list": [1, 2],
    }


@pytest.mark.parametrize("kind", refused_states()[1])
def test_states_that_cannot_be_cut_are_left_out_with_a_notice(kind):
    model, states = refused_states()
    state, notices = {**small_state(model), "last_optimizer_state": states[kind]}, []
    smaller = prune_checkpoint(state, HeadTable(OPEN), notice=notices.append)
    assert smaller["last_optimizer_state"] is None
    (notice,) = notices
    assert notice.startswith("the optimiser state is dropped: ") and "\n" not in notice
    prune_checkpoint(state, HeadTable(OPEN), optimizer=False, notice=pytest.fail)
    stock_checkpoint(state, HeadTable(OPEN))


def test_the_state_of_a_composite_optimizer_is_cut_in_its_group():
    model = small_gated()
    adam = accumulate(model, OPTIMIZERS["adam"]).state_dict()
    expected = prune_checkpoint({**small_state(model), "last_optimizer_state": adam}, HeadTable(OPEN))
    state = {**small_state(model), "last_optimizer_state": {"default": adam}}
    smaller = prune_checkpoint(state, HeadTable(OPEN), notice=pytest.fail)
    assert_same(smaller["last_optimizer_state"], {"default": expected["last_optimizer_state"]})


def test_moments_of_an_unknown_optimiser_are_cut_where_no_gate_is_folded():
    """Rows and columns of removed heads go from anything of the parameter's shape; what a factor does is not known."""
    model = small_gated()
    moments = {i: {"hessian": torch.rand_like(p)} for i, p in enumerate(model.parameters())}
    state = {
        **small_state(model),
        "last_optimizer_state": {"state": moments, "param_groups": [{"params": list(moments)}]},
    }
    notices = []
    assert prune_checkpoint(state, HeadTable(OPEN), notice=notices.append)["last_optimizer_state"] is None
    assert "hessian of" in notices[0] and "folded gate" in notices[0]
    with torch.no_grad():
        for site in head_sites(model):
            site.attention.gate.theta.copy_(site.attention.gate.theta.sign() * 0.06)  # closed or open
    state = {**state, "model": model.state_dict()}
    smaller = prune_checkpoint(state, HeadTable(OPEN), notice=pytest.fail)
    kept = dict(enumerate(build_model(smaller).parameters()))
    assert {i: e["hessian"].shape for i, e in smaller["last_optimizer_state"]["state"].items()} == {
        i: p.shape for i, p in kept.items()
    }


def adafactor(parameters):
    """Steps too small to move anything, but remembered; no clipping of steps, which depends on all elements."""
    settings = {"lr": 1e-12, "beta1": 0.9, "clip_threshold": 1e9, "scale_parameter": False, "relative_step": False}
    return Adafactor(parameters, **settings, warmup_init=False)


def adadelta(parameters):
    return torch.optim.Adadelta(parameters, lr=0, eps=1e-20)


# What depends on all columns of the output projection, and is an estimate where gates are folded into them.
ESTIMATED = ("exp_avg_sq_row", "exp_avg")


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("freeze", [None, FREEZE])
@pytest.mark.parametrize("optimizer", [adafactor, adadelta])
def test_other_optimisers_remember_what_the_pruned_model_would_remember(optimizer, freeze, folded):
    """Means of rows and columns of squared gradients; averages of steps, which do not grow with the gradient."""
    model = small_gated(freeze_params=freeze)
    if not folded:
        with torch.no_grad():
            for site in head_sites(model):
                site.attention.gate.theta.copy_(site.attention.gate.theta.sign() * 0.06)
    state = small_state(model, accumulate(model, optimizer))
    pruned = prune(model, HeadTable(OPEN))
    expected = accumulate(pruned, optimizer).state_dict()["state"]
    actual = prune_checkpoint(state, HeadTable(OPEN), notice=pytest.fail)["last_optimizer_state"]["state"]
    trained = {name: parameter for name, parameter in pruned.named_parameters() if parameter.requires_grad}
    assert actual.keys() == expected.keys() == set(range(len(trained)))
    for number, (name, parameter) in enumerate(trained.items()):
        assert actual[number].keys() == expected[number].keys()
        if not parameter.numel() or name.endswith("k_proj.bias"):
            continue
        for key in set(actual[number]) - {"step", "RMS"}:
            one, other = (entry[number][key] for entry in (actual, expected))
            scale = other.abs().max().clamp(min=1e-30)
            estimated = folded and name.endswith("out_proj.weight") and key in ESTIMATED
            tolerance = 0.2 if estimated else 2e-3
            torch.testing.assert_close(one / scale, other / scale, atol=tolerance, rtol=0, msg=f"{name} {key}")


@pytest.mark.rehearsal
def test_training_goes_on_with_adafactor_as_if_nothing_had_been_removed(train, run, tmp_path):
    options = ["--dropout", 0, "--max-tokens", 300, "--optimizer", "adafactor", "--lr", 0.002]
    options += ["--no-epoch-checkpoints", "--clip-norm", 0]
    heads = ["--alive-heads", json.dumps(OPEN)]
    train(tmp_path / "masked", *options, *heads, updates=3)
    last, out = tmp_path / "masked" / "checkpoint_last.pt", tmp_path / "pruned.pt"
    assert run("headgates", "prune", last, out).err == ""
    masked_ = train(tmp_path / "masked", *options, *heads, updates=8)
    pruned_ = train(tmp_path / "pruned", *options, *heads, "--remove-heads", "--restore-file", out, updates=8)
    assert len(logged(pruned_, "loss")) == 5
    assert logged(pruned_, "loss") == pytest.approx(
        logged(masked_, "loss"), abs=0.02
    )  # steps are clipped by their mean


def test_frozen_gates_are_no_longer_named():
    """`--freeze-params '\\.gate\\.'` names nothing in the pruned model, which would not load with it."""
    model = small_gated(freeze_params=r"\.gate\.")
    smaller = prune_checkpoint(small_state(model), HeadTable(OPEN))
    assert model_args(smaller).freeze_params is None
    build_model(smaller)
    kept = prune_checkpoint(small_state(small_gated(freeze_params=FREEZE)), HeadTable(OPEN))
    assert model_args(kept).freeze_params == FREEZE
    assert not build_model(kept).encoder.embed_tokens.weight.requires_grad


def test_a_model_that_trained_its_gates_alone_is_pruned():
    """`--freeze-params '^(?!.*\\.gate\\.)'`: without gates nothing would be left to train, so nothing is frozen."""
    model = small_gated(freeze_params=r"^(?!.*\.gate\.)")
    smaller = prune_checkpoint(small_state(model, accumulate(model, OPTIMIZERS["adam"])), HeadTable(OPEN))
    torch.testing.assert_close(
        logits(build_model(smaller), make_batch()), logits(model, make_batch()), atol=1e-5, rtol=1e-5
    )


def test_a_frozen_parameter_may_go_by_its_other_name():
    """With shared embeddings `decoder.embed_tokens` is `encoder.embed_tokens`; it stays frozen."""
    model = small_gated(freeze_params=r"^decoder\.embed_tokens", share_all_embeddings=True)
    state = small_state(model, accumulate(model, OPTIMIZERS["adam"]))
    smaller = prune_checkpoint(state, HeadTable(OPEN))
    assert not build_model(smaller).encoder.embed_tokens.weight.requires_grad
    prune_checkpoint(smaller, HeadTable(NO_DECODER))  # the numbers of the optimiser still fit


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
def test_what_is_no_checkpoint_is_refused_in_one_line(kind, trust, gated, tmp_path):
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
def test_what_only_looks_like_a_checkpoint_is_refused_in_one_line(kind, tmp_path):
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


@pytest.mark.parametrize(
    ("arch", "sizes", "words"),
    [
        ("lstm", {"encoder_embed_dim": 16, "decoder_embed_dim": 16}, ["'lstm'", "no attention layer"]),
        ("transformer_align", {**TOY_MODEL, "alignment_layer": 1}, ["'transformer_align'"]),
    ],
)
def test_architectures_that_are_not_known_are_refused(arch, sizes, words, run, toy, tmp_path):
    options = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    options += ["--arch", arch, "--save-dir", tmp_path, "--max-update", 1, *TOY_TRAINING]
    run("fairseq-train", toy.data, *options)
    with pytest.raises(ValueError, match="not supported") as error:
        build_model(load_checkpoint(str(tmp_path / "checkpoint_last.pt")))
    assert all(word in str(error.value) for word in [*words, "transformer_head_gates"])
    assert "\n" not in str(error.value)


def test_every_reason_is_listed_at_once():
    args = argparse.Namespace(
        arch="lstm", quant_noise_pq=0.1, encoder_xformers_att_config="{}", decoder_xformers_att_config=None
    )
    state = {"args": args, "model": {"encoder.lstm.weight": torch.ones(1)}, "fsdp_metadata": {}}
    with pytest.raises(ValueError) as error:
        build_model(state)
    for reason in ("'lstm'", "no attention layer", "--quant-noise-pq", "xFormers", "shard"):
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


def test_heads_are_read(gated, pruned):
    heads = read_heads(load_checkpoint(str(gated)), str(gated))
    assert heads.gated == tuple(TYPES.split(",")) and heads.gate.signature == "ckpt:gated.pt|updates:4"
    (model, _) = load(gated)
    for kind, values in gate_values(model).items():
        assert heads.gate.values[kind] == values.tolist()
    left = read_heads(load_checkpoint(str(pruned)), str(pruned))
    assert left.gated == () and left.gate.values == OPEN and left.open_probability.values == OPEN


def test_dictionaries_of_a_run_that_inferred_its_languages(gated, toy):
    """fairseq-train takes the languages from the names of the data, as all of these tests have it do."""
    source, _ = load_dictionaries(load_checkpoint(str(gated)), toy.data)
    assert "a" in source.symbols


def test_dictionaries(gated, toy, tmp_path):
    state = load_checkpoint(str(gated))
    state["cfg"]["task"] |= {"source_lang": "src", "target_lang": "tgt"}  # as -s and -t would have it
    source, target = load_dictionaries(state, toy.data)
    assert source.symbols == target.symbols and len(source) == len(state["model"]["encoder.embed_tokens.weight"])
    for language in ("src", "tgt"):
        (tmp_path / f"dict.{language}.txt").write_text((toy.data / f"dict.{language}.txt").read_text())
    assert load_dictionaries(state, str(tmp_path))[0].symbols == source.symbols
    with (tmp_path / "dict.tgt.txt").open("a") as file:
        file.write("new 1\n")
    with pytest.raises(ValueError, match=rf"dict.tgt.txt has {len(source) + 1} symbols, the checkpoint {len(source)}"):
        load_dictionaries(state, str(tmp_path))
    (tmp_path / "dict.tgt.txt").unlink()
    with pytest.raises(
        ValueError, match=f"no dictionary .*dict.tgt.txt.*--data .the checkpoint was trained on '.*{toy.data.name}"
    ):
        load_dictionaries(state, str(tmp_path))
    state["cfg"]["task"] |= {"source_lang": "../src"}
    with pytest.raises(ValueError, match="cannot infer the languages"):
        load_dictionaries(state, str(tmp_path))


def test_dictionaries_of_languages_that_nothing_names(gated, toy, tmp_path):
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


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_written_whole(tmp_path):
    save_checkpoint({"model": {}, "x": 1}, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt") == {"model": {}, "x": 1}
    with pytest.raises(ValueError, match="a.pt exists.*--force"):
        save_checkpoint({"x": 2}, tmp_path / "a.pt")
    save_checkpoint({"x": 2}, tmp_path / "a.pt", force=True)
    assert torch.load(tmp_path / "a.pt") == {"x": 2} and names(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "No space left on device"), ValueError),
        (RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed\nmore"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_what_breaks_off_leaves_nothing_new(error, raised, existing, tmp_path, monkeypatch):
    if existing:
        (tmp_path / "a.pt").write_text("old")

    def save(state, path):
        Path(path).write_text("half")
        raise error

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(raised) as caught:
        save_checkpoint({"x": 1}, tmp_path / "a.pt", force=True)
    if raised is ValueError:
        assert "a.pt" in str(caught.value) and "\n" not in str(caught.value)
    assert names(tmp_path) == (["a.pt"] if existing else [])
    assert not existing or (tmp_path / "a.pt").read_text() == "old"


def test_a_real_failure_of_the_disk_leaves_nothing(tmp_path):
    """The system refuses to let a file of this process grow beyond 100 kB."""
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(ValueError, match="cannot write .*a.pt") as error:
            save_checkpoint({"x": torch.zeros(1_000_000)}, tmp_path / "a.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == [] and "\n" not in str(error.value)
