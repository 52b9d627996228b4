"""Options of trainings, checkpoints as fairseq reads them, and the one line of an error."""

import pytest
import torch

from fairseq_headgates import l0_penalty
from support.checkpoints import assert_same_tensors, read

RESET = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]


def make_forms(run, folder, stack, log_alpha, stock=True):
    """Set the gates of the model in folder/gates: gated.pt; pruned: pruned.pt; if `stock`, in fairseq's form: stock.pt.

    `log_alpha` has a row for every layer of the stack, "decoder" or "encoder.sentence_encoder".
    """
    state = read(folder / "gates" / "checkpoint_last.pt")
    for layer, row in enumerate(log_alpha):
        name = f"{stack}.layers.{layer}.self_attn.gate.log_alpha"
        state["model"][name] = torch.tensor(row).to(state["model"][name])
    torch.save(state, folder / "gated.pt")
    run("headgates", "prune", folder / "gated.pt", folder / "pruned.pt")
    if stock:
        run("headgates", "prune", folder / "gated.pt", folder / "stock.pt", "--stock")


@torch.no_grad()
def assert_penalty_in_training_only(model, sample, ours, stock):
    """A criterion of the plugin adds lambda times the penalty to that of fairseq. Returns size, penalty and logs."""

    def loss_of(criterion):
        torch.manual_seed(5)
        return criterion(model, sample)

    ours.set_l0(0.3)
    assert float(loss_of(ours)[0]) == pytest.approx(float(loss_of(stock)[0]), abs=1e-5)
    model.train()
    (plain, size, _), (loss, _, logs) = loss_of(stock), loss_of(ours)
    penalty = float(l0_penalty(model))
    assert float(loss) - float(plain) == pytest.approx(0.3 * penalty * int(size), rel=1e-4)
    return int(size), penalty, logs


SGD = ["--optimizer", "sgd", "--lr", 0.5, "--dropout", 0, "--attention-dropout", 0]
# Workers and batches would draw different noise; gates that are certainly open have none.
WITHOUT_NOISE = ["--gate-init", 15, *SGD]


def assert_two_workers_train_as_one(folder, train, options, of_one, of_two=()):
    """`train` with `options` and those of one worker gives the weights that it gives with those of two workers."""
    train(folder / "one", *options, *of_one, "--save-interval-updates", 1, "--disable-validation", updates=3)
    train(folder / "two", *options, *of_two, "--disable-validation", updates=3, workers=2)
    files = "one/checkpoint_last.pt", "two/checkpoint_last.pt", "one/checkpoint_1_1.pt"
    models = [read(folder / name)["model"] for name in files]
    # `_float_tensor`: see assert_same.
    one, two, start = ({n: w for n, w in model.items() if not n.endswith("_float_tensor")} for model in models)
    assert_same_tensors(one, two, atol=1e-5, rtol=1e-5)
    assert max((one[name] - start[name]).abs().max() for name in one) > 0.01


def assert_one_line_error(finished, words):
    """Exit code 2 and one line that says what is wrong; no traceback."""
    assert finished.code == 2, finished.text
    assert "Traceback" not in finished.text and "usage:" not in finished.err
    (line,) = (line for line in finished.err.splitlines() if "error:" in line)
    assert [word for word in words if word not in line] == [], line
