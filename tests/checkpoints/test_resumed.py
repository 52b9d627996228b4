"""Training continues from a pruned checkpoint as if nothing had been removed."""

import json

import pytest
import torch
from support.checkpoints import OPEN, C, F, O, assert_same_tensors, read, toy_batch, with_gates
from support.commands import logged, valid_loss
from support.models import logits, make_args, make_stock

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.attention.cuts import kept_mask
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.pruned import prune_checkpoint
from fairseq_headgates.plugin.models.building import build_model

# Training goes on

ADAM = ["--dropout", 0, "--max-tokens", 300, "--clip-norm", 0.5, "--weight-decay", 0.01, "--lr", 0.002]
ADAM += ["--activation-fn", "gelu"]  # smooth: a ReLU that rounding switches on or off changes the gradient
ADAM += ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", 4, "--store-ema", "--ema-decay", 0.9, "--ema-fp32"]
EXACT = {"atol": 2e-5, "rtol": 1e-4}


def moved(weights):
    """Without the biases of the keys: a softmax does not see them, and Adam makes steps of what is left by rounding."""
    return {name: tensor for name, tensor in weights.items() if not name.endswith("k_proj.bias")}


@pytest.fixture(scope="module")
def continued(train, run, tmp_path_factory):
    """A model whose removed heads are multiplied by 0, and the same pruned after 3 updates, both up to 7 updates.

    A head that is multiplied by 0 has no gradient, so that the equality is exact but for the order of additions.
    Returns the folder and the logs: masked, pruned.
    """
    folder = tmp_path_factory.mktemp("continued")
    heads = ["--alive-heads", json.dumps(OPEN)]
    train(folder / "masked", *ADAM, *heads, updates=3)
    last = folder / "masked" / "checkpoint_last.pt"
    run("headgates", "prune", "--path", last, "--out", folder / "pruned.pt")
    logs = {"masked": train(folder / "masked", *ADAM, *heads, updates=7)}
    start = ["--remove-heads", "--restore-file", folder / "pruned.pt"]
    logs["pruned"] = train(folder / "pruned", *ADAM, *heads, *start, updates=7)
    return folder, logs


def test_pruned_model_trains_on_exactly_as_the_masked_one(continued):
    folder, logs = continued
    for key in ("loss", "gnorm", "lr"):
        assert len(logged(logs["pruned"], key)) == 4
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
        assert first[number]["step"] == second[number]["step"] == 7
        assert_same_tensors(
            {k: first[number][k] for k in ("exp_avg", "exp_avg_sq")},
            {k: second[number][k] for k in ("exp_avg", "exp_avg_sq")},
            **EXACT,
        )
    assert pruned_["optimizer_history"][-1]["num_updates"] == 7
    assert pruned_["extra_state"]["train_iterator"] == masked_["extra_state"]["train_iterator"]


@pytest.mark.release
def test_training_goes_on_from_a_checkpoint_of_fairseq(train, run, tmp_path):
    """fairseq's own moments, by fairseq's own numbers: of removed heads they move nothing that counts."""
    options = ["--dropout", 0, "--max-tokens", 300, "--lr", 0.002]
    heads = ["--alive-heads", json.dumps(OPEN)]
    train(tmp_path, *options, arch="transformer", updates=3)
    last, out = tmp_path / "checkpoint_last.pt", tmp_path / "pruned.pt"
    run("headgates", "prune", "--path", last, "--out", out, "--alive", json.dumps(OPEN))
    masked_ = train(tmp_path / "masked", *options, *heads, "--restore-file", last, updates=6)
    pruned_ = train(tmp_path / "pruned", *options, *heads, "--remove-heads", "--restore-file", out, updates=6)
    assert len(logged(pruned_, "loss")) == 3
    assert logged(pruned_, "loss") == pytest.approx(logged(masked_, "loss"), abs=0.0011)
    states = [read(tmp_path / name / "checkpoint_last.pt") for name in ("masked", "pruned")]
    cut = prune_checkpoint(states[0], HeadTable(OPEN))
    assert_same_tensors(moved(cut["model"]), moved(states[1]["model"]), atol=1e-4, rtol=1e-4)


def test_parameter_order_in_optimizer_states_is_that_of_fairseq():
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


@pytest.mark.release
def test_two_workers_train_a_pruned_model_as_one_with_two_batches(pruned, train, tmp_path):
    """Layers without heads have parameters without elements, which the workers exchange too."""
    heads = ["--alive-heads", json.dumps(OPEN), "--remove-heads", "--finetune-from-model", pruned]
    options = [*heads, "--dropout", 0, "--max-tokens", 100, "--optimizer", "sgd", "--lr", 0.5]
    train(tmp_path / "one", *options, "--update-freq", 2, updates=2)
    train(tmp_path / "two", *options, updates=2, workers=2)
    one, two = (read(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("one", "two"))
    assert_same_tensors(one, two, atol=1e-5, rtol=1e-5)
    assert max((one[name] - read(pruned)["model"][name]).abs().max() for name in one if one[name].numel()) > 0.01


def test_the_moving_average_is_pruned_with_its_own_gates(gated):
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
        assert kept_mask(cut).layers == OPEN
    assert not torch.allclose(logits(cut, toy_batch()), logits(build_model(smaller), toy_batch()), atol=1e-2)
