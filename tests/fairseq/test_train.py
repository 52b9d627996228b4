"""fairseq-train with gates, run as a user does: resumed, warm-started, by several workers."""

import math
import socket
from pathlib import Path

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from support.checkpoints import GENERATE, load, predictions, read, with_gates
from support.commands import (
    ALIVE,
    GATED,
    L0,
    TYPES,
    USER_DIR,
    logged,
    reserved_port,
    train_arguments,
    valid_loss,
)
from support.models import assert_same
from support.training import RESET

import fairseq_headgates
from fairseq_headgates import gate_values

LAGRANGIAN = ["--criterion", L0[1], "--sparsity-method", "lagrangian", "--target-heads", 3]


# Train, resume, generate


def test_the_user_dir_is_the_imported_package():
    """`--user-dir` must be the folder of the package that the tests import, or one of them tests something else."""
    assert Path(fairseq_headgates.__file__).parent == USER_DIR


def test_without_options_it_trains_as_the_stock_model(tmp_path, toy, train, forked):
    """That of a process without the plugin."""
    ours = train(tmp_path / "ours", updates=4)
    stock = forked("fairseq-train", *train_arguments(toy, tmp_path / "stock", arch="transformer", updates=4))
    for key in ("loss", "gnorm"):
        assert len(logged(ours, key)) == 4
        assert logged(ours, key) == pytest.approx(logged(stock, key), abs=0.0011)  # 0.001: the last digit printed
    assert valid_loss(ours) == pytest.approx(valid_loss(stock), abs=0.0011)


def test_resuming_in_another_process_continues_exactly(gated_checkpoint, tmp_path, train, toy, forked):
    """2 + 2 updates are 4 updates, with dropout and gate noise: fairseq seeds every update by its number."""
    train(tmp_path, *GATED)
    resumed = forked("fairseq-train", *train_arguments(toy, tmp_path, *GATED, updates=4))
    assert "checkpoint_last.pt (epoch 1 @ 2 updates)" in resumed.text  # it went on, it did not start anew
    at_once, resumed = read(gated_checkpoint), read(tmp_path / "checkpoint_last.pt")
    for part in ("model", "last_optimizer_state"):
        assert_same(at_once[part], resumed[part], part)
    assert at_once["optimizer_history"][-1]["num_updates"] == resumed["optimizer_history"][-1]["num_updates"] == 4


@pytest.mark.release
def test_checkpointed_activations_change_nothing(gated_checkpoint, tmp_path, train):
    """The second forward pass, in the backward pass, must see the gates of the first."""
    train(tmp_path, *GATED, "--checkpoint-activations", updates=4)
    usual, recomputed = (read(path)["model"] for path in (gated_checkpoint, tmp_path / "checkpoint_last.pt"))
    for name in usual:
        torch.testing.assert_close(recomputed[name], usual[name], atol=1e-3, rtol=0, msg=name)


def test_schedule_that_closes_no_gate_is_warned_of_in_training_only(gated_checkpoint, tmp_path, train, run, toy):
    warning = "expect few closed gates"
    assert warning in train(tmp_path, *GATED, updates=1).text
    options = [*GENERATE, "--path", gated_checkpoint, "--beam", 1, "--max-len-b", 2]
    assert warning not in run("fairseq-generate", toy.data, *options).text


def test_gates_are_trained_and_saved(gated_checkpoint):
    log_alphas = {k: v for k, v in read(gated_checkpoint)["model"].items() if k.endswith("gate.log_alpha")}
    assert len(log_alphas) == 6
    assert all(v.shape == (4,) and (v - 2.5).abs().min() > 0.001 for v in log_alphas.values())


def test_fixed_heads_are_stored_with_the_checkpoint(checkpoints):
    (model,), _, _ = load_model_ensemble_and_task([str(checkpoints["fixed"])])
    values = {attention_type: v.tolist() for attention_type, v in gate_values(model).items()}
    assert values == {**ALIVE, "dec-self": [[1.0] * 4] * 2}


# Warm start from a stock checkpoint


@pytest.fixture(scope="module", params=["pre-norm, shared embeddings", "post-norm, separate embeddings"])
def stock(request, tmp_path_factory, train):
    """(path, options, loss): a checkpoint of fairseq's `transformer`, the options of its architecture, its loss."""
    pre_norm = ["--encoder-normalize-before", "--decoder-normalize-before", "--share-all-embeddings"]
    options = pre_norm if request.param.startswith("pre") else []
    folder = tmp_path_factory.mktemp("stock")
    done = train(folder, *options, arch="transformer")
    return folder / "checkpoint_last.pt", options, valid_loss(done)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("stock", "route"),
    [("pre-norm, shared embeddings", "finetune"), ("post-norm, separate embeddings", "restore")],
    indirect=["stock"],
)
def test_warm_start_is_the_stock_model_at_step_0(stock, route, tmp_path, train):
    path, options, loss = stock
    start = ["--finetune-from-model", path] if route == "finetune" else ["--restore-file", path, *RESET]
    done = train(tmp_path, *options, *GATED, *start, "--lr", 0, updates=1)  # one update that changes nothing
    gated = tmp_path / "checkpoint_last.pt"

    weights = read(gated)["model"]
    log_alphas = {name: weights.pop(name) for name in list(weights) if name.endswith("gate.log_alpha")}
    assert_same(weights, read(path)["model"])
    assert len(log_alphas) == 6
    torch.testing.assert_close(torch.cat(list(log_alphas.values())), torch.full((24,), 2.5).double())
    torch.testing.assert_close(predictions(*load(gated)), predictions(*load(path)), atol=1e-5, rtol=1e-5)
    # The validation loss of the gated model is that of the stock model, with no L0 penalty in it.
    assert valid_loss(done) == loss


# Lambda against batch size, --update-freq and workers

# Gates so far down that no noise (|logit(u)| < 13.82) opens one, and so far up that none closes one: what the model
# computes has no randomness left, and the gates get no gradient but the penalty's. Plain SGD, because Adam would hide a
# wrong factor.
CERTAIN = 15.0
LAMBDA, RATE, SCALE = 1e6, 0.1, 10.0
PENALTY = ["--gate-heads", TYPES, *L0, "--l0-weight", f"enc-self={LAMBDA},dec-self={LAMBDA}"]
PENALTY += ["--gate-lr-scale", SCALE, "--optimizer", "sgd", "--lr", RATE, "--dropout", 0, "--max-tokens", 100]


def log_alpha_by_hand(updates):
    """SGD on lambda * P(open) alone, scaled learning rate, default temperature and stretch."""
    log_alpha = -CERTAIN
    for _ in range(updates):
        p = 1 / (1 + math.exp(-(log_alpha - 0.33 * math.log(0.1 / 1.1))))
        log_alpha -= RATE * SCALE * LAMBDA * p * (1 - p)
    return log_alpha


@pytest.fixture(scope="module")
def penalised(gated_checkpoint, tmp_path_factory):
    """The options of a training with a penalty on closed gates; the gates of dec-enc are open, and have none."""
    gates = {each: [[CERTAIN if each == "dec-enc" else -CERTAIN] * 4] * 2 for each in TYPES.split(",")}
    path = tmp_path_factory.mktemp("certain") / "certain.pt"
    torch.save(with_gates(read(gated_checkpoint), gates), path)
    return [*PENALTY, "--finetune-from-model", path]


@pytest.fixture(scope="module")
def two_batches(penalised, tmp_path_factory, train):
    """Two updates on two batches each: (log, weights)."""
    folder = tmp_path_factory.mktemp("two_batches")
    done = train(folder, *penalised, "--update-freq", 2)
    return done, read(folder / "checkpoint_last.pt")["model"]


def test_penalty_moves_the_gates_as_computed_by_hand(two_batches):
    found = {name: weight for name, weight in two_batches[1].items() if name.endswith("gate.log_alpha")}
    assert len(found) == 6 and log_alpha_by_hand(2) < -CERTAIN - 1  # they do move
    for name, weight in found.items():
        expected = CERTAIN if "encoder_attn" in name else log_alpha_by_hand(2)
        torch.testing.assert_close(weight, torch.full_like(weight, expected))


def test_the_port_of_workers_is_given_to_no_other_process():
    """Else a port that was free a moment ago is taken before the workers listen."""
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", reserved_port()))


@pytest.mark.release
def test_two_workers_equal_two_batches_of_one(two_batches, penalised, tmp_path, train):
    """In their logs, too: `l0` and `heads_open` are properties of the model, no sums over workers or batches."""
    one_log, one = two_batches
    two_log = train(tmp_path, *penalised, workers=2)
    two = read(tmp_path / "checkpoint_last.pt")["model"]
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-5, msg=name)
    for key in ("loss", "nll_loss", "gnorm"):
        assert logged(two_log, key) == pytest.approx(logged(one_log, key), abs=0.0011)
    for log in (one_log, two_log):
        assert logged(log, "l0") == logged(log, "heads_open") == [8, 8]
        assert [logged(log, f"heads_open_{each}")[0] for each in ("enc_self", "dec_self", "dec_enc")] == [0, 0, 8]


@pytest.mark.parametrize(
    ("workers", "method"),
    [(1, L0), pytest.param(2, LAGRANGIAN, marks=pytest.mark.release)],
    ids=["one, l0", "two, lagrangian"],
)
@pytest.mark.parametrize("stock", ["pre-norm, shared embeddings"], indirect=True)
def test_frozen_parameters_stay_to_the_last_bit(workers, method, stock, tmp_path, train):
    path, options, _ = stock
    own = ["--gate-heads", "enc-self", "--freeze-params", r"^decoder\.", "--freeze-dropout", "--max-tokens", 100]
    own = [*options, "--finetune-from-model", path, *method, *own]
    train(tmp_path, *own, *([] if workers == 2 else ["--update-freq", 2]), workers=workers)
    weights = read(tmp_path / "checkpoint_last.pt")["model"]
    # encoder.version and the positions are constants; a shift of all keys does not change a softmax.
    constant = ("version", "_float_tensor", "k_proj.bias")
    for name, before in read(path)["model"].items():
        frozen = name.startswith("decoder.") or name == "encoder.embed_tokens.weight"  # one tensor with the decoder's
        if frozen or not name.endswith(constant):
            assert torch.equal(weights[name], before) == frozen, name
