"""Integration: fairseq's own commands, and `headgates`, run as a user does (see support/commands.py)."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.models.transformer import TransformerModel
from support.commands import (
    ALIVE,
    EVALUATION,
    GATED,
    L0,
    TOY_MODEL,
    TYPES,
    USER_DIR,
    hypotheses,
    logged,
    run_program,
    train_arguments,
    valid_loss,
    worker_arguments,
)
from support.models import assert_same

import fairseq_headgates
from fairseq_headgates import gate_values
from fairseq_headgates.cli.main import main

# Of torch's data loader, about machines without a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

GENERATE = [*EVALUATION, "--gen-subset", "test"]
RESET = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
KINDS = ("baseline", "gated", "fixed", "mixed")


def read(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def logits(path):
    """What a checkpoint predicts for the first batch of the validation data, [B, T, V]."""
    (model,), _, task = load_model_ensemble_and_task([str(path)])
    task.load_dataset("valid")
    batch = next(task.get_batch_iterator(task.dataset("valid"), max_tokens=500).next_epoch_itr(shuffle=False))
    with torch.no_grad():
        return model.eval()(**batch["net_input"])[0]


# Train, resume, generate


def test_plugin_is_the_tested_one():
    """`--user-dir` must be the folder of the package that the tests import, or one of them tests something else."""
    assert Path(fairseq_headgates.__file__).parent == USER_DIR


@pytest.mark.parametrize("kind", KINDS)
def test_trained_and_resumed_checkpoint_generates(kind, checkpoints, run, toy):
    done = run("fairseq-generate", toy.data, *GENERATE, "--path", checkpoints[kind], "--beam", 2)
    assert len(hypotheses(done)) == 10


def test_without_options_it_trains_as_the_stock_model(tmp_path, train):
    ours, stock = train(tmp_path / "ours", updates=4), train(tmp_path / "stock", arch="transformer", updates=4)
    for key in ("loss", "gnorm"):
        assert len(logged(ours, key)) == 4
        assert logged(ours, key) == pytest.approx(logged(stock, key), abs=0.0011)  # 0.001: the last digit printed
    assert valid_loss(ours) == pytest.approx(valid_loss(stock), abs=0.0011)


@pytest.mark.rehearsal
def test_forked_and_installed_program_train_alike(tmp_path, train, toy, run):
    train(tmp_path / "forked", *GATED)
    run_program(tmp_path, "fairseq-train", *train_arguments(toy, tmp_path / "installed", *GATED))
    forked, installed = (read(tmp_path / name / "checkpoint_last.pt") for name in ("forked", "installed"))
    for part in ("model", "last_optimizer_state"):
        assert_same(forked[part], installed[part], part)


@pytest.mark.parametrize(("kind", "options"), [("baseline", []), ("gated", GATED)])
def test_resuming_continues_exactly(kind, options, checkpoints, tmp_path, train):
    """2 + 2 updates are 4 updates, with dropout and gate noise: fairseq seeds every update by its number."""
    train(tmp_path, *options, updates=4)
    at_once, resumed = read(tmp_path / "checkpoint_last.pt"), read(checkpoints[kind])
    for part in ("model", "last_optimizer_state"):
        assert_same(at_once[part], resumed[part], part)
    assert at_once["optimizer_history"][-1]["num_updates"] == resumed["optimizer_history"][-1]["num_updates"] == 4


def test_checkpointed_activations_change_nothing(gated_checkpoint, tmp_path, train):
    """The second forward pass, in the backward pass, must see the gates of the first."""
    train(tmp_path, *GATED, "--checkpoint-activations", updates=4)
    usual, recomputed = (read(path)["model"] for path in (gated_checkpoint, tmp_path / "checkpoint_last.pt"))
    for name in usual:
        torch.testing.assert_close(recomputed[name], usual[name], atol=1e-3, rtol=0, msg=name)


def test_schedule_that_closes_no_gate_is_warned_of_in_training_only(gated_checkpoint, tmp_path, train, run, toy):
    warning = "expect few closed gates"
    assert warning in train(tmp_path, *GATED).text
    assert warning not in run("fairseq-generate", toy.data, *GENERATE, "--path", gated_checkpoint).text


def test_gates_are_trained_and_saved(gated_checkpoint):
    log_alphas = {k: v for k, v in read(gated_checkpoint)["model"].items() if k.endswith("gate.log_alpha")}
    assert len(log_alphas) == 6
    assert all(v.shape == (4,) and (v - 2.5).abs().min() > 0.001 for v in log_alphas.values())


def test_fixed_heads_are_stored_with_the_checkpoint(checkpoints):
    (model,), _, _ = load_model_ensemble_and_task([str(checkpoints["fixed"])])
    values = {kind: v.tolist() for kind, v in gate_values(model).items()}
    assert values == {**ALIVE, "dec-self": [[1.0] * 4] * 2}


# Warm start from a stock checkpoint


@pytest.fixture(scope="module", params=["pre-norm, shared embeddings", "post-norm, separate embeddings"])
def stock(request, tmp_path_factory, train):
    """(path, options): a checkpoint of fairseq's `transformer` and the options of its architecture."""
    pre_norm = ["--encoder-normalize-before", "--decoder-normalize-before", "--share-all-embeddings"]
    options = pre_norm if request.param.startswith("pre") else []
    folder = tmp_path_factory.mktemp("stock")
    train(folder, *options, arch="transformer", updates=6)
    return folder / "checkpoint_last.pt", options


@pytest.mark.parametrize("route", ["finetune", "restore"])
def test_warm_start_is_the_stock_model_at_step_0(stock, route, tmp_path, train, run, toy):
    path, options = stock
    start = ["--finetune-from-model", path] if route == "finetune" else ["--restore-file", path, *RESET]
    train(tmp_path, *options, *GATED, *start, "--lr", 0, updates=1)  # one update that changes nothing
    gated = tmp_path / "checkpoint_last.pt"

    weights = read(gated)["model"]
    log_alphas = {name: weights.pop(name) for name in list(weights) if name.endswith("gate.log_alpha")}
    assert_same(weights, read(path)["model"])
    assert len(log_alphas) == 6
    torch.testing.assert_close(torch.cat(list(log_alphas.values())), torch.full((24,), 2.5).double())
    torch.testing.assert_close(logits(gated), logits(path), atol=1e-5, rtol=1e-5)
    # The validation loss of the gated model is that of the stock model, with no L0 penalty in it.
    validate = ["fairseq-validate", toy.data, *EVALUATION, "--task", "translation", "--max-tokens", 500, "--path"]
    assert valid_loss(run(*validate, gated)) == valid_loss(run(*validate, path))


@pytest.mark.parametrize("stock", ["post-norm, separate embeddings"], indirect=True)
def test_stock_weights_load_strictly(stock, checkpoints):
    """As fairseq's trainer loads them, into a model whose gates have already moved: the gates stay as they are."""
    path, _ = stock
    (model,), _, _ = load_model_ensemble_and_task([str(checkpoints["gated"])])
    before = gate_values(model)
    model.load_state_dict(read(path)["model"], strict=True)
    assert_same(gate_values(model), before)
    assert_same(model.state_dict()["encoder.layers.0.fc1.weight"], read(path)["model"]["encoder.layers.0.fc1.weight"])


# Lambda against batch size, --update-freq and workers

# Gates so far down that no noise (|logit(u)| < 13.82) opens one: what the model computes has no randomness left,
# and the gates get no gradient but the penalty's. Plain SGD, because Adam would hide a wrong factor.
CERTAIN = -15.0
LAMBDA, RATE, SCALE = 1e6, 0.1, 10.0
CLOSED = ["--gate-heads", "enc-self,dec-self", f"--gate-init={CERTAIN}", *L0, "--l0-weight", LAMBDA]
CLOSED += ["--gate-lr-scale", SCALE, "--optimizer", "sgd", "--lr", RATE, "--dropout", 0, "--max-tokens", 100]


def log_alpha_by_hand(updates):
    """SGD on lambda * P(open) alone, scaled learning rate, default temperature and stretch."""
    log_alpha = CERTAIN
    for _ in range(updates):
        p = 1 / (1 + math.exp(-(log_alpha - 0.33 * math.log(0.1 / 1.1))))
        log_alpha -= RATE * SCALE * LAMBDA * p * (1 - p)
    return log_alpha


@pytest.fixture(scope="module")
def closed_run(tmp_path_factory, train):
    """Two updates on two batches each: (log, checkpoint)."""
    folder = tmp_path_factory.mktemp("closed")
    done = train(folder, *CLOSED, "--update-freq", 2)
    return done, read(folder / "checkpoint_last.pt")["model"]


def train_by_two(start, toy, save_dir, *options):
    """fairseq-train by two workers on the CPU: the log of the first, which writes the checkpoint, and the weights."""
    workers = [start("fairseq-train", *train_arguments(toy, save_dir, *options, *own)) for own in worker_arguments(2)]
    logs = [worker.finish().expect(0) for worker in workers]
    return logs[0], read(save_dir / "checkpoint_last.pt")["model"]


def test_penalty_moves_the_gates_as_computed_by_hand(closed_run):
    _, weights = closed_run
    for name in (n for n in weights if n.endswith("gate.log_alpha")):
        torch.testing.assert_close(weights[name], torch.full_like(weights[name], log_alpha_by_hand(2)))
        assert weights[name].max() < CERTAIN - 1  # they did move


@pytest.mark.parametrize("options", [["--max-tokens", 1000], ["--sentence-avg"], ["--update-freq", 1]])
def test_penalty_does_not_depend_on_the_batch(options, tmp_path, train):
    train(tmp_path, *CLOSED, *options)
    weights = read(tmp_path / "checkpoint_last.pt")["model"]
    for name in (n for n in weights if n.endswith("gate.log_alpha")):
        torch.testing.assert_close(weights[name], torch.full_like(weights[name], log_alpha_by_hand(2)))


def test_two_workers_equal_two_batches_of_one(closed_run, tmp_path, start, toy):
    one_log, one = closed_run
    two_log, two = train_by_two(start, toy, tmp_path, *CLOSED)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-5, msg=name)
    for key in ("loss", "nll_loss", "l0", "heads_open", "gnorm"):
        assert logged(two_log, key) == pytest.approx(logged(one_log, key), abs=0.0011)


def test_two_workers_log_the_gates_of_one_model(tmp_path, start, toy):
    """`l0` and `heads_open` are properties of the model: no sum over workers or batches."""
    log, _ = train_by_two(start, toy, tmp_path, *GATED, "--update-freq", 2, "--max-tokens", 100)
    p = 1 / (1 + math.exp(-(2.5 - 0.33 * math.log(0.1 / 1.1))))
    assert logged(log, "l0")[0] == pytest.approx(24 * p, abs=0.0051)
    assert logged(log, "heads_open") == [24, 24]
    assert [logged(log, f"heads_open_{kind}")[0] for kind in ("enc_self", "dec_self", "dec_enc")] == [8, 8, 8]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stock", ["pre-norm, shared embeddings"], indirect=True)
def test_frozen_parameters_stay_to_the_last_bit(workers, stock, tmp_path, start, toy, run):
    path, options = stock
    own = ["--gate-heads", "enc-self", "--freeze-params", r"^decoder\.", "--freeze-dropout", "--max-tokens", 100]
    own = [*options, "--finetune-from-model", path, *L0, *own]
    if workers == 1:
        run("fairseq-train", *train_arguments(toy, tmp_path, *own, "--update-freq", 2))
        weights = read(tmp_path / "checkpoint_last.pt")["model"]
    else:
        _, weights = train_by_two(start, toy, tmp_path, *own)
    # encoder.version and the positions are constants; a shift of all keys does not change a softmax.
    constant = ("version", "_float_tensor", "k_proj.bias")
    for name, before in read(path)["model"].items():
        frozen = name.startswith("decoder.") or name == "encoder.embed_tokens.weight"  # one tensor with the decoder's
        if frozen or not name.endswith(constant):
            assert torch.equal(weights[name], before) == frozen, name


# The other commands


def test_installed_generate_equals_the_forked_one(gated_checkpoint, tmp_path, run, toy):
    command = ["fairseq-generate", toy.data, *GENERATE, "--path", gated_checkpoint, "--beam", 4]
    assert hypotheses(run_program(tmp_path, *command)) == hypotheses(run(*command))


@pytest.mark.parametrize("beam", [1, 4])
def test_generate_interactive_and_hub_agree(beam, gated_checkpoint, run, toy):
    options = ["--path", gated_checkpoint, "--beam", beam]
    sources = (toy.text / "test.src").read_text()
    generated = hypotheses(run("fairseq-generate", toy.data, *GENERATE, *options))
    interactive = ["--buffer-size", 10, "--batch-size", 10]  # all sentences at once, as fairseq-generate does
    typed = run("fairseq-interactive", toy.data, *EVALUATION, *options, *interactive, stdin=sources)
    hub = TransformerModel.from_pretrained(
        str(gated_checkpoint.parent), gated_checkpoint.name, data_name_or_path=str(toy.data), user_dir=str(USER_DIR)
    )
    assert len(generated) == 10
    assert hypotheses(typed) == generated
    assert hub.translate(sources.splitlines(), beam=beam) == generated


def test_interactive_reads_lines(gated_checkpoint, toy, either):
    options = [*EVALUATION, "--path", gated_checkpoint]
    done = either("fairseq-interactive", toy.data, *options, stdin="a b c\nd d e f\n")
    assert len(hypotheses(done)) == 2


@pytest.mark.parametrize("beam", [1, 4])
def test_ensemble(beam, checkpoints, run, toy):
    path = f"{checkpoints['gated']}:{checkpoints['mixed']}"
    assert len(hypotheses(run("fairseq-generate", toy.data, *GENERATE, "--path", path, "--beam", beam))) == 10


def test_ensemble_of_a_model_with_itself_is_that_model(gated_checkpoint, run, toy):
    command = ["fairseq-generate", toy.data, *GENERATE, "--beam", 4, "--path"]
    path = str(gated_checkpoint)
    assert hypotheses(run(*command, f"{path}:{path}")) == hypotheses(run(*command, path))


def test_validate_repeats_the_loss_of_training(tmp_path, train, toy, either):
    trained = train(tmp_path, *GATED)
    options = [*EVALUATION, "--task", "translation", "--max-tokens", 500, "--path", tmp_path / "checkpoint_last.pt"]
    validated = either("fairseq-validate", toy.data, *options)
    assert valid_loss(validated) == valid_loss(trained)


def test_hydra_train(tmp_path, toy, run, either):
    mask_file = tmp_path / "mask.json"
    mask_file.write_text(json.dumps({"enc-self": ALIVE["enc-self"]}))
    heads = {"gate_heads": "dec-enc", "alive_heads": str(mask_file)}
    config = {
        "common": {"cpu": True, "user_dir": str(USER_DIR), "seed": 1, "log_format": "simple", "log_interval": 1},
        "task": {"_name": "translation", "data": str(toy.data)},
        "model": {"_name": "transformer_head_gates", **TOY_MODEL, **heads},
        "criterion": {"_name": "label_smoothed_cross_entropy_l0", "l0_weight": 0.05, "label_smoothing": 0.1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "dataset": {"max_tokens": 500, "num_workers": 0, "required_batch_size_multiple": 1},
        "optimization": {"max_update": 2, "lr": [0.005]},
        "checkpoint": {"save_dir": str(tmp_path / "save")},
    }
    (tmp_path / "toy.yaml").write_text(json.dumps(config))  # JSON is YAML
    either("fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "toy")
    mask_file.unlink()  # the checkpoint must not need it
    path = tmp_path / "save" / "checkpoint_last.pt"
    assert len(hypotheses(run("fairseq-generate", toy.data, *GENERATE, "--path", path))) == 10
    shown = json.loads(run("headgates", "show", path, "--json").out)
    assert shown["gated"] == ["dec-enc"]
    assert shown["gate"]["enc-self"] == ALIVE["enc-self"]


HYDRA = {
    "common": {"cpu": True, "user_dir": str(USER_DIR), "seed": 1},
    "criterion": {"_name": "label_smoothed_cross_entropy"},
    "optimizer": {"_name": "adam"},
    "lr_scheduler": {"_name": "fixed"},
    "dataset": {"max_tokens": 500, "num_workers": 0, "required_batch_size_multiple": 1},
    "optimization": {"max_update": 1, "lr": [0.005]},
}


def hydra_train(run, toy, folder, code=0, **model):
    """fairseq-hydra-train with these options of the model."""
    config = {**HYDRA, "task": {"_name": "translation", "data": str(toy.data)}}
    config |= {"model": {"_name": "transformer_head_gates", **TOY_MODEL, **model}}
    config |= {"checkpoint": {"save_dir": str(folder / "save")}}
    (folder / "toy.yaml").write_text(json.dumps(config))
    return run("fairseq-hydra-train", "--config-dir", folder, "--config-name", "toy", code=code)


def test_hydra_takes_lists_and_mappings(tmp_path, toy, run):
    alive = {"enc-self": ALIVE["enc-self"]}
    hydra_train(run, toy, tmp_path, gate_heads=["dec-enc"], gate_stretch=[-0.2, 1.2], alive_heads=alive)
    stored = read(tmp_path / "save" / "checkpoint_last.pt")["cfg"]["model"]
    assert (stored["gate_heads"], stored["gate_stretch"]) == ("dec-enc", "-0.2,1.2")
    assert json.loads(stored["alive_heads"]) == {"format": "headgates.heads/1", **alive}
    done = run("fairseq-generate", toy.data, *GENERATE, "--path", tmp_path / "save" / "checkpoint_last.pt")
    assert len(hypotheses(done)) == 10


def test_hydra_refuses_misspelt_options(tmp_path, toy, run):
    done = hydra_train(run, toy, tmp_path, code=2, gate_heads="enc-self", gate_temprature=0.5)
    assert_one_line_error(done, ["unknown option 'gate_temprature' of the model: did you mean gate_temperature?"])
    assert not list((tmp_path / "save").glob("*.pt"))


def test_eval_bleu(tmp_path, train, run, toy):
    bleu = ["--eval-bleu", "--eval-bleu-args", '{"beam": 2}', "--eval-bleu-detok", "space"]
    bleu += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    train(tmp_path, *GATED, *bleu, updates=2)
    assert "valid | epoch 001 | valid on 'valid' subset" in (second := train(tmp_path, *GATED, *bleu, updates=4)).text
    assert "(epoch 1 @ 2 updates)" in second.text and "best_bleu" in second.text
    best = tmp_path / "checkpoint_best.pt"
    assert len(hypotheses(run("fairseq-generate", toy.data, *GENERATE, "--path", best))) == 10
    run("headgates", "show", best)


def test_without_the_plugin_a_checkpoint_does_not_load(gated_checkpoint, run, toy):
    """The symptom to document: torch >= 2.6 refuses the file, earlier ones let fairseq miss the architecture."""
    options = [option for option in GENERATE if option not in ("--user-dir", USER_DIR)]
    failed = run("fairseq-generate", toy.data, *options, "--path", gated_checkpoint, code=1)
    assert "argparse.Namespace was not an allowed global" in failed.err or "IndexError: Replacement" in failed.err


# TensorBoard


def test_tensorboard(tmp_path, train):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("matplotlib")
    logs = tmp_path / "tensorboard"
    log = train(tmp_path, *GATED, "--tensorboard-logdir", logs)

    def events(folder):
        return accumulator.EventAccumulator(str(logs / folder)).Reload()

    kinds = ("enc_self", "dec_self", "dec_enc")
    for folder in ("train_inner", "train", "valid"):
        assert {"l0", "heads_open", *(f"heads_open_{kind}" for kind in kinds)} <= set(events(folder).Tags()["scalars"])
    l0 = [event.value for event in events("train_inner").Scalars("l0")]
    assert l0 == pytest.approx(logged(log, "l0"))
    (tag,) = events("gates").Tags()["images"]
    (image,) = events("gates").Images(tag)
    assert tag.startswith("gates/")
    assert image.step == events("valid").Scalars("l0")[-1].step == 2
    assert image.encoded_image_string.startswith(b"\x89PNG")


# The `headgates` command


def test_path_is_the_user_dir(tmp_path):
    assert Path(run_program(tmp_path, "headgates", "path").out.rstrip("\n")) == USER_DIR.resolve()


def test_show_prints_a_table_of_every_type(gated_checkpoint, run):
    lines = run("headgates", "show", gated_checkpoint).out.splitlines()
    for kind in TYPES.split(","):
        (title,) = (i for i, line in enumerate(lines) if line.startswith(kind))
        assert lines[title].endswith("8 of 8 heads open")
        assert [line.split()[:2] for line in lines[title + 3 : title + 5]] == [["layer", "0"], ["layer", "1"]]
    assert lines[-1] == "in total 24 of 24 heads open"


def test_show_json_holds_the_gates_of_the_model(checkpoints, run):
    shown = json.loads(run("headgates", "show", checkpoints["mixed"], "--json").out)
    (model,), _, _ = load_model_ensemble_and_task([str(checkpoints["mixed"])])
    assert shown["gated"] == ["dec-self", "dec-enc"]
    assert shown["heads"] == {"enc-self": [3, 8], "dec-self": [8, 8], "dec-enc": [8, 8], "total": [19, 24]}
    for kind, values in gate_values(model).items():
        torch.testing.assert_close(torch.tensor(shown["gate"][kind]).float(), values, atol=1e-6, rtol=0)


def test_heads_from_show_are_accepted_by_alive_heads(tmp_path, train, run):
    closed = train(tmp_path / "gated", *GATED, "--gate-heads", "dec-enc", "--gate-init=-3", "--dropout", 0)
    assert logged(closed, "heads_open")[0] == 0
    heads = tmp_path / "heads.json"
    run("headgates", "show", tmp_path / "gated" / "checkpoint_last.pt", "--out", heads)
    assert json.loads(heads.read_text())["dec-enc"] == [[0] * 4] * 2
    own = ["--alive-heads", heads, "--finetune-from-model"]
    train(tmp_path / "stock", arch="transformer")
    train(tmp_path / "fixed", *own, tmp_path / "stock" / "checkpoint_last.pt")
    shown = json.loads(run("headgates", "show", tmp_path / "fixed" / "checkpoint_last.pt", "--json").out)
    assert shown["heads"] == {"enc-self": [8, 8], "dec-self": [8, 8], "dec-enc": [0, 8], "total": [16, 24]}


def test_show_overwrites_only_with_force(gated_checkpoint, tmp_path, run):
    heads = tmp_path / "heads.json"
    heads.write_text("mine")
    refused = run("headgates", "show", gated_checkpoint, "--out", heads, code=2)
    assert_one_line_error(refused, [str(heads), "--force"])
    assert heads.read_text() == "mine"
    run("headgates", "show", gated_checkpoint, "--out", heads, "--force")
    assert json.loads(heads.read_text())["enc-self"] == [[1] * 4] * 2
    assert [file.name for file in tmp_path.iterdir()] == ["heads.json"]  # nothing temporary left


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_a_mask(kind, checkpoints, tmp_path, train, run):
    """The heads that `headgates show --out` writes, with every kind of checkpoint of ours."""
    path = checkpoints[kind]
    if kind == "baseline":
        path = tmp_path / "stock" / "checkpoint_last.pt"
        train(tmp_path / "stock", arch="transformer")
        refused = train(tmp_path / "x", "--alive-heads", path, code=2)
        return assert_one_line_error(refused, [repr(str(path)), "'transformer'", "transformer_head_gates"])
    heads = json.loads(run("headgates", "show", path, "--out", "-").out)
    train(tmp_path, "--alive-heads", path, "--remove-heads", updates=1)
    stored = read(tmp_path / "checkpoint_last.pt")["cfg"]["model"]
    assert {kind: json.loads(stored.alive_heads)[kind] for kind in TYPES.split(",")} == {
        kind: heads[kind] for kind in TYPES.split(",")
    }


def test_show_prints_the_mask_alone(gated_checkpoint, tmp_path, run):
    printed = run("headgates", "show", gated_checkpoint, "--out", "-").out
    run("headgates", "show", gated_checkpoint, "--out", tmp_path / "heads.json")
    assert printed == (tmp_path / "heads.json").read_text()
    both = run("headgates", "show", gated_checkpoint, "--out", "-", "--json", code=2)
    assert_one_line_error(both, ["--json", "--out -"])


def test_show_does_not_replace_a_device(gated_checkpoint, tmp_path, run):
    """By links of its own."""
    for name, target in (("null", "/dev/null"), ("stdout", "/proc/self/fd/1")):
        (tmp_path / name).symlink_to(target)
        done = run("headgates", "show", gated_checkpoint, "--out", tmp_path / name, "--force", code=2)
        assert_one_line_error(done, [str(tmp_path / name)])
        assert (tmp_path / name).is_symlink()


@pytest.mark.rehearsal
def test_show_on_a_full_disk(gated_checkpoint, tmp_path):
    command = "import sys; from fairseq_headgates.cli.main import main; sys.exit(main(['show', sys.argv[1]]))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", command, gated_checkpoint], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2 and done.stderr.splitlines()[-1:] == done.stderr.splitlines()
    assert "No space left on device" in done.stderr


def test_help_tells_the_exit_codes(run):
    text = " ".join(run("headgates", "--help").out.split())
    assert "exit codes: 0 success; 2 bad input" in text and "130 by Ctrl-C" in text


BAD_COMMAND_LINES = {
    "no command": ([], ["COMMAND"]),
    "an unknown command": (["prnue"], ["'prnue'", "prune"]),
    "an unknown option": (["path", "--nope"], ["--nope"]),
    "no checkpoint": (["show"], ["CKPT"]),
    "no output": (["prune", "x.pt"], ["OUT"]),
    "nothing to prune": (["prune"], ["CKPT, OUT"]),
    "an option of another command": (["show", "x.pt", "--alive", "{}"], ["--alive"]),
    "a word too many": (["path", "x"], ["x"]),
    "lines in a word": (["path", "a\nb"], ["a\\nb"]),
    "no value": (["show", "x.pt", "--out"], ["--out", "expected one argument"]),
    "an empty output": (["show", "x.pt", "--out", ""], ["--out", "empty"]),
    "an empty checkpoint": (["show", ""], ["CKPT", "empty"]),
    "an empty mask": (["prune", "x.pt", "y.pt", "--alive", ""], ["--alive", "empty"]),
    "an empty score file": (["prune", "x.pt", "y.pt", "--scores", "", "--keep", "1"], ["--scores", "empty"]),
    "no engine": (["convert", "x.pt", "y"], ["--to"]),
    "an unknown engine": (["convert", "x.pt", "y", "--to", "onnx"], ["'onnx'", "ctranslate2"]),
    "an empty engine": (["convert", "x.pt", "y", "--to", ""], ["--to", "ctranslate2"]),
    "an empty folder": (["convert", "x.pt", "", "--to", "ctranslate2"], ["OUT", "empty"]),
    "a folder that is printed": (["convert", "x.pt", "-", "--to", "ctranslate2"], ["'-'"]),
    "two masks": (["convert", "x.pt", "y", "--to", "ctranslate2", "--alive", "{}", "--threshold", "1"], ["--alive"]),
    "a threshold of text": (["prune", "x.pt", "y.pt", "--threshold", "x" * 10**5], ["--threshold", "..."]),
    "a value for a switch": (["show", "x.pt", "--json=1"], ["--json"]),
    "no method": (["score"], ["--method"]),
}


@pytest.mark.parametrize(("argv", "words"), BAD_COMMAND_LINES.values(), ids=BAD_COMMAND_LINES)
def test_bad_command_lines_end_with_one_line(argv, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(argv)
    except SystemExit as exit_:
        code = exit_.code
    printed = capsys.readouterr()
    assert code == 2 and printed.out == "" and printed.err.count("\n") == 1 and len(printed.err) < 5000
    assert printed.err.startswith("headgates") and [word for word in words if word not in printed.err] == []


START = (
    "import sys; sys.argv[1:] = ['show', 'x.pt']; import headgates_start; "
    "print('begins', flush=True); headgates_start.main()"
)


def test_ctrl_c_while_the_command_starts():
    """Importing fairseq and torch takes seconds."""
    environment = {**os.environ, "PYTHONPATH": str(USER_DIR.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", START], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "begins\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "headgates: stopped\n")


# Bad input


def assert_one_line_error(finished, words):
    """Exit code 2 and one line that says what is wrong; no traceback."""
    assert finished.code == 2, finished.text
    assert "Traceback" not in finished.text and "usage:" not in finished.err
    (line,) = (line for line in finished.err.splitlines() if "error:" in line)
    assert [word for word in words if word not in line] == [], line


def mask(**rows):
    return json.dumps({kind.replace("_", "-"): layers for kind, layers in rows.items()})


FOUR = [1, 1, 1, 1]
BAD_OPTIONS = {
    "a type in both options": (
        ["--gate-heads", "enc-self", "--alive-heads", mask(enc_self=[FOUR, FOUR])],
        ["enc-self", "--gate-heads", "--alive-heads"],
    ),
    "unknown type": (["--gate-heads", "enc-slef"], ["--gate-heads", "'enc-slef'", TYPES.replace(",", ", ")]),
    "a type twice in a mask": (["--alive-heads", '{"enc-self": [[1]], "enc-self": [[1]]}'], ["'enc-self' twice"]),
    "a mask without end": (["--alive-heads", "/dev/zero"], ["'/dev/zero'", "no regular file"]),
    "gate init without bound": (["--gate-init", "1e300"], ["--gate-init", "1e300", "1e+06"]),
    "stretch out of bounds": (["--gate-stretch=-1e300,1e300"], ["--gate-stretch", "-1e+300,1e+300", "1e+06"]),
    "gate rate too small": (["--gate-heads", "enc-self", "--gate-lr-scale", "1e-40"], ["--gate-lr-scale", "1e-40"]),
    "lambda out of bounds": ([*GATED, "--l0-weight", "1e300"], ["--l0-weight", "1e+300", "1e+09"]),
    "lambda is text": ([*GATED, "--l0-weight", "x"], ["--l0-weight", "'x'", "number"]),
    "unknown reduction": ([*GATED, "--l0-reduction", "mean"], ["--l0-reduction", "'mean'", "sum, layer-mean"]),
    "type named twice": (["--gate-heads", "enc-self,enc-self"], ["'enc-self'", "twice"]),
    "unknown type in a mask": (["--alive-heads", mask(encoder=[FOUR, FOUR])], ["'encoder'", "enc-self"]),
    "layers of a mask": (["--alive-heads", mask(enc_self=[FOUR])], ["enc-self", "1 layers", "has 2"]),
    "heads of a mask": (["--alive-heads", mask(dec_enc=[FOUR, [1, 1]])], ["dec-enc layer 1", "2 heads", "has 4"]),
    "a half": (["--alive-heads", mask(enc_self=[[1, 1, 1, 0.5], FOUR])], ["layer 0", "0.5", "1 (keep)"]),
    "true": (["--alive-heads", mask(enc_self=[FOUR, [1, 1, 1, True]])], ["layer 1", "True", "1 (keep)"]),
    "text": (["--alive-heads", mask(enc_self=[FOUR, [1, 1, 1, "1"]])], ["layer 1", "'1'", "1 (keep)"]),
    "no list": (["--alive-heads", mask(enc_self=1)], ["enc-self", "list"]),
    "an empty mask": (["--alive-heads", "{}"], ["enc-self"]),
    "broken JSON": (["--alive-heads", '{"enc-self": [[1'], ["JSON", "column"]),
    "another format": (["--alive-heads", '{"format": "x/9", "enc-self": [[1]]}'], ["'x/9'", "headgates.heads/1"]),
    "missing mask file": (["--alive-heads", "no/such.json"], ["'no/such.json'", "No such file"]),
    "stretch above 0": (["--gate-stretch=0.1,1.1"], ["0.1,1.1", "LOW < 0"]),
    "stretch below 1": (["--gate-stretch=-0.1,0.9"], ["-0.1,0.9", "HIGH > 1"]),
    "one number as stretch": (["--gate-stretch=-0.1"], ["-0.1", "LOW,HIGH"]),
    "temperature 0": (["--gate-heads", "enc-self", "--gate-temperature", "0"], ["temperature", "0", "above 0"]),
    "temperature below 0": (["--gate-heads", "enc-self", "--gate-temperature=-1"], ["-1", "above 0"]),
    "temperature without bound": (["--gate-heads", "enc-self", "--gate-temperature=inf"], ["inf", "temperature"]),
    "stretch without bound": (["--gate-stretch=-inf,inf"], ["-inf,inf"]),
    "first gate nan": (["--gate-init", "nan"], ["nan", "number"]),
    "first gate": (["--gate-init", "open"], ["'open'", "glorot"]),
    "negative lambda": ([*GATED, "--l0-weight=-0.1"], ["--l0-weight", "-0.1", "from 0 to"]),
    "lambda nan": ([*GATED, "--l0-weight=nan"], ["--l0-weight", "nan"]),
    "lambda inf": ([*GATED, "--l0-weight=inf"], ["--l0-weight", "inf"]),
    "gate rate inf": (["--gate-heads", "enc-self", "--gate-lr-scale=inf"], ["inf", "scale"]),
    "gate rate 0": (["--gate-heads", "enc-self", "--gate-lr-scale", "0"], ["0", "above 0"]),
    "freezing nothing": (["--freeze-params", "decodr"], ["'decodr'", "no parameter"]),
    "freezing everything": (["--freeze-params", "."], ["'.'", "every parameter"]),
    "no regular expression": (["--freeze-params", "(enc"], ["'(enc'", "regular expression"]),
    "gates on missing attention": (["--no-cross-attention", "--gate-heads", "dec-enc"], ["no dec-enc", "enc-self"]),
    "mask on missing attention": (
        ["--no-cross-attention", "--alive-heads", mask(dec_enc=[FOUR, FOUR])],
        ["no dec-enc"],
    ),
    "quantisation noise": (["--quant-noise-pq", "0.1", "--quant-noise-pq-block-size", "4"], ["--quant-noise-pq"]),
    "L0 without gates": ([*L0, *RESET], ["--gate-heads", "no stochastic gates"]),
    "L0 without gates on a stock model": ([*L0, *RESET, "--arch", "transformer"], ["--gate-heads"]),
}


@pytest.fixture
def save_dir(checkpoints, tmp_path):
    """A folder with a checkpoint that a mistake in the options must not cost."""
    path = tmp_path / "checkpoint_last.pt"
    shutil.copyfile(checkpoints["baseline"], path)
    yield tmp_path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == checkpoints["baseline"].read_bytes()


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_end_with_one_line(options, words, save_dir, train):
    assert_one_line_error(train(save_dir, *options, updates=6, code=None), words)


def test_gates_of_a_checkpoint_are_not_dropped_in_silence(gated_checkpoint, tmp_path, train):
    options = [*GATED, "--gate-heads", "enc-self,dec-self", "--finetune-from-model", gated_checkpoint]
    assert_one_line_error(train(tmp_path, *options, code=None), ["gates on dec-enc", "--gate-heads"])


@pytest.mark.rehearsal
def test_bad_options_of_the_installed_program(save_dir, toy):
    options, words = BAD_OPTIONS["a type in both options"]
    command = ["fairseq-train", *train_arguments(toy, save_dir, *options)]
    assert_one_line_error(run_program(save_dir, *command, code=None), words)


def no_checkpoint(kind, path):
    """A file that is no checkpoint of a fairseq transformer."""
    writers = {
        "text": lambda: path.write_text("not a checkpoint\n"),
        "nothing": path.touch,
        "a folder": path.mkdir,
        "another torch file": lambda: torch.save({"weights": torch.ones(2)}, path),
        "a list": lambda: torch.save([1, 2], path),
        "a pickled object": lambda: torch.save({"model": {}, "args": Path("x")}, path),
        "no attention": lambda: torch.save({"model": {}, "cfg": {"model": {"arch": "lstm"}}}, path),
    }
    if kind != "missing":
        writers[kind]()
    return path


@pytest.mark.parametrize(
    "kind",
    ["missing", "text", "nothing", "a folder", "another torch file", "a list", "a pickled object", "no attention"],
)
def test_show_of_no_checkpoint_ends_with_one_line(kind, tmp_path, run):
    path = no_checkpoint(kind, tmp_path / "x.pt")
    assert_one_line_error(run("headgates", "show", path, code=None), [str(path)])


def test_show_of_a_truncated_checkpoint(gated_checkpoint, tmp_path, run):
    (tmp_path / "x.pt").write_bytes(gated_checkpoint.read_bytes()[:10_000])
    assert_one_line_error(run("headgates", "show", tmp_path / "x.pt", code=None), [str(tmp_path / "x.pt")])


def test_missing_checkpoint(either):
    assert_one_line_error(either("headgates", "show", "no.pt", code=None), ["'no.pt'", "No such file"])


def test_out_in_a_missing_folder(gated_checkpoint, tmp_path, run):
    out = tmp_path / "no" / "heads.json"
    assert_one_line_error(run("headgates", "show", gated_checkpoint, "--out", out, code=None), [str(out)])
