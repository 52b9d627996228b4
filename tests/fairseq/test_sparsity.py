"""Gating methods and schedules in fairseq-train: resumed runs, workers, weight decay."""

import json

import pytest
import torch
from support.checkpoints import read
from support.commands import TYPES, logged
from support.models import assert_same

from fairseq_headgates.plugin.models.building import build_model

GATES = ["--gate-heads", TYPES, "--criterion", "label_smoothed_cross_entropy_l0"]
LAMBDA = ["--l0-weight", 0.5, "--gate-lr-scale", 500]
TARGET = ["--target-heads", 7, "--gate-lr-scale", 200]
STARTED_LATER = ["--l0-start-update", 1, "--l0-warmup-updates", 3]
LAGRANGIAN, SUBSET = (
    [*TARGET, "--sparsity-method", method, "--sparsity-warmup-updates", 3] for method in ("lagrangian", "subset")
)
DECAY = ["--weight-decay", 0.1]
SCHEDULES = {
    "lambda, weight decay, fixed after the resumption": [
        *["--l0-weight", "enc-self=0.5,dec-enc=0.1", "--gate-lr-scale", 500, *STARTED_LATER],
        *["--weight-decay", 0.5, "--fix-gates-after", 3],
    ],
    "subset": SUBSET,
    "fixed before the resumption": [*LAMBDA, "--fix-gates-after", 1],
    "hard, scaled": [*LAMBDA, "--gate-hard", "--gate-output-scale"],
    "lagrangian": LAGRANGIAN,
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_resumed_run_continues_every_schedule_exactly(name, tmp_path, train):
    options = [*GATES, *SCHEDULES[name]]
    train(tmp_path / "once", *options, "--save-interval-updates", 2, updates=4)
    (tmp_path / "resumed").mkdir()
    (tmp_path / "once" / "checkpoint_1_2.pt").rename(tmp_path / "resumed" / "checkpoint_last.pt")
    assert "(epoch 1 @ 2 updates)" in train(tmp_path / "resumed", *options, updates=4).text
    once, resumed = (read(tmp_path / run / "checkpoint_last.pt") for run in ("once", "resumed"))
    for part in ("model", "last_optimizer_state"):
        assert_same(once[part], resumed[part], part)


BY_ONE_STEP = ["--l0-weight", 1e4, "--gate-lr-scale", 10, "--lr", 0.001, "--lr-scheduler", "fixed"]


def test_weight_decay_does_not_move_the_gates(tmp_path, train):
    """lambda pulls each gate by the same step at every update. The decay halves a weight within three updates."""
    found = {}
    for decay in (0, 200):
        train(tmp_path / str(decay), *GATES, *BY_ONE_STEP, "--weight-decay", decay, updates=3)
        found[decay] = read(tmp_path / str(decay) / "checkpoint_last.pt")["model"]
    assert found[200].keys() == found[0].keys()
    for weights in found.values():  # by hand: at each update a step of 10 times the rate
        log_alpha = weights["encoder.layers.0.self_attn.gate.log_alpha"]
        assert log_alpha.tolist() == pytest.approx([2.5 - 0.01 * 3] * 4, abs=1e-4)


@pytest.mark.release
def test_weight_decay_is_switched_off_and_on_on_resumption(tmp_path, train):
    """The gates learn as if there were none."""
    options = [*GATES, *BY_ONE_STEP]
    for updates, decay in ((1, 200), (2, 0), (3, 200)):
        train(tmp_path, *options, "--weight-decay", decay, updates=updates)
        state = read(tmp_path / "checkpoint_last.pt")
        assert state["optimizer_history"][-1]["num_updates"] == updates
        log_alpha = state["model"]["encoder.layers.0.self_attn.gate.log_alpha"]
        assert log_alpha.tolist() == pytest.approx([2.5 - 0.01 * updates] * 4, abs=1e-4)


@pytest.mark.release
def test_a_run_from_a_longer_trained_checkpoint_starts_its_schedules_anew(tmp_path, train):
    """fairseq first tells the model the number of updates of the other training."""
    train(tmp_path / "first", arch="transformer", updates=6)
    start = ["--finetune-from-model", tmp_path / "first" / "checkpoint_last.pt"]
    done = train(tmp_path / "second", *GATES, *LAGRANGIAN, "--fix-gates-after", 3, *start, updates=4)
    expected = logged(done, "l0")
    assert expected[0] == pytest.approx(24 * 0.964, abs=0.2)  # gates begin open, with probability 0.964
    assert expected[3] == pytest.approx(7, abs=0.01)  # and are fixed after three updates


@pytest.fixture
def to_a_target(made_once, train):
    """to_a_target(method): the folder of a training to seven heads by a method, with weight decay."""

    def to_a_target(method):
        options = [*GATES, *{"lagrangian": LAGRANGIAN, "subset": SUBSET}[method], *DECAY]
        return made_once(f"to_a_target_{method}", lambda folder: train(folder, *options))

    return to_a_target


@pytest.mark.release
def test_the_state_of_another_method_or_of_other_targets_is_not_used(tmp_path, train, to_a_target):
    last = to_a_target("lagrangian") / "checkpoint_last.pt"
    assert read(last)["model"]["gate_method.multipliers"].shape == (1, 2)
    start = [*GATES, "--finetune-from-model", last]
    train(tmp_path / "subset", *start, *SUBSET, updates=1)
    assert not any("multipliers" in name for name in read(tmp_path / "subset" / "checkpoint_last.pt")["model"])
    target = ["--sparsity-method", "lagrangian", "--target-heads", "enc-self=2,dec-self=2,dec-enc=3"]
    done = train(tmp_path / "types", *start, *target, updates=1)
    assert "gate_method.multipliers of the checkpoint is not used" in done.text
    assert read(tmp_path / "types" / "checkpoint_last.pt")["model"]["gate_method.multipliers"].shape == (3, 2)


def test_open_probabilities_are_those_at_the_end_of_the_training(to_a_target):
    """Those of subsets depend on a temperature, and so on the update."""
    state = read(to_a_target("subset") / "checkpoint_last.pt")
    method = build_model(state).gate_method
    assert method.num_updates == state["optimizer_history"][-1]["num_updates"]
    log_alpha = torch.linspace(-2, 2, len(method.head_types))
    opened = method.open_probability(log_alpha)
    method.set_num_updates(0)
    assert float((method.open_probability(log_alpha) - opened).abs().max()) > 0.1


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", ["lagrangian", "subset"])
def test_target_models_are_shown_and_pruned_to_exactly_the_target(method, to_a_target, tmp_path, train, run):
    last, pruned = to_a_target(method) / "checkpoint_last.pt", tmp_path / "pruned.pt"
    shown = json.loads(run("headgates", "show", "--path", last, "--json").out)
    assert shown["heads"]["total"] == [7, 24]
    run("headgates", "prune", "--path", last, "--out", pruned, "--no-optimizer")
    left = json.loads(run("headgates", "show", "--path", pruned, "--json").out)
    assert [kept for kept, _ in left["heads"].values()] == [kept for kept, _ in shown["heads"].values()]
    train(tmp_path / "masked", "--alive-heads", last, "--remove-heads", updates=1)
    again = json.loads(run("headgates", "show", "--path", tmp_path / "masked" / "checkpoint_last.pt", "--json").out)
    assert again["heads"]["total"][0] == 7


@pytest.mark.release
def test_pruning_removes_the_multipliers_from_the_optimizer_state(to_a_target, tmp_path, train, run):
    run(
        "headgates",
        "prune",
        "--path",
        to_a_target("lagrangian") / "checkpoint_last.pt",
        "--out",
        tmp_path / "pruned.pt",
    )
    pruned = read(tmp_path / "pruned.pt")
    assert not any("gate" in name for name in pruned["model"])
    moments = {state["exp_avg"].shape for state in pruned["last_optimizer_state"]["state"].values()}
    assert not moments & {torch.Size([]), torch.Size([1, 2])}
    heads = ["--alive-heads", tmp_path / "pruned.pt", "--remove-heads"]
    again = train(tmp_path / "again", *heads, *DECAY, "--restore-file", tmp_path / "pruned.pt", updates=3)
    assert len(logged(again, "loss")) == 1
