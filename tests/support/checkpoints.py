"""Gated, pruned and stock checkpoints of one toy model, and comparisons of what they compute."""

import copy
import re

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task

from fairseq_headgates import attention_modules
from support.commands import EVALUATION, TYPES, USER_DIR
from support.models import make_batch, make_gated

GENERATE = [*EVALUATION, "--gen-subset", "test"]
WITHOUT_PLUGIN = [option for option in EVALUATION if option not in ("--user-dir", USER_DIR)]

# Gates that are closed, open and between at evaluation (0, 1, about 0.62): a layer without heads in each stack.
C, O, F = -3.0, 3.0, 0.4  # noqa: E741
LOG_ALPHA = {
    "enc-self": [[C, O, F, O], [C, C, C, C]],
    "dec-self": [[O, C, C, F], [O, O, O, O]],
    "dec-enc": [[C, C, C, C], [F, C, O, C]],
}
OPEN = {attention_type: [[int(a != C) for a in row] for row in rows] for attention_type, rows in LOG_ALPHA.items()}
SITES = {"enc-self": "encoder.layers.{}.self_attn", "dec-self": "decoder.layers.{}.self_attn"}
SITES["dec-enc"] = "decoder.layers.{}.encoder_attn"


def read(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def with_gates(state, log_alpha, of="model"):
    """The checkpoint with other gates."""
    state = copy.deepcopy(state)
    for attention_type, rows in log_alpha.items():
        for layer, row in enumerate(rows):
            name = SITES[attention_type].format(layer) + ".gate.log_alpha"
            weights = state["model"] if of == "model" else state["extra_state"][of]
            weights[name] = torch.tensor(row).to(weights[name])
    return state


@pytest.fixture(scope="session")
def forms(gated_checkpoint, made_once, run):
    """A checkpoint as training leaves it, but with the gates of `LOG_ALPHA`; the same pruned, and pruned as stock."""

    def make(folder):
        torch.save(with_gates(read(gated_checkpoint), LOG_ALPHA), folder / "gated.pt")
        run("headgates", "prune", "--path", folder / "gated.pt", "--out", folder / "pruned.pt")
        run("headgates", "prune", "--path", folder / "gated.pt", "--out", folder / "stock.pt", "--stock")

    folder = made_once("forms", make)
    return {kind: folder / f"{kind}.pt" for kind in ("gated", "pruned", "stock")}


@pytest.fixture
def gated(forms):
    return forms["gated"]


@pytest.fixture
def pruned(forms):
    return forms["pruned"]


@pytest.fixture
def stock(forms):
    return forms["stock"]


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


def toy_batch():
    """Within the 20 symbols of the toy corpus."""
    batch = make_batch()
    return {key: value % 16 + 4 * (value != 1) if "tokens" in key else value for key, value in batch.items()}


def small_state(model, optimizer=None):
    """A checkpoint of a model of support/models.py, which has no name among fairseq's."""
    model.args.arch = "transformer_head_gates"
    state = {"args": None, "cfg": {"model": model.args}, "model": model.state_dict(), "extra_state": {}}
    return {**state, "last_optimizer_state": optimizer and optimizer.state_dict()}


def small_gated(**options):
    model = make_gated(gate_heads=TYPES, dropout=0.0, **options)
    with torch.no_grad():
        for module in attention_modules(model):
            module.attention.gate.theta.copy_(torch.tensor(LOG_ALPHA[module.attention_type][module.layer]) / 50)
    return model.eval()


def names(folder):
    return sorted(path.name for path in folder.iterdir())
