"""`headgates prune --refit` and `curve --refit` on toy models, against the function `refit`."""

import json

import pytest
import torch
from support.analysis import READ
from support.commands import worker_arguments

from fairseq_headgates import refit
from fairseq_headgates.cli.fairseq_options import fairseq_options
from fairseq_headgates.data.corpus import load_corpus
from fairseq_headgates.data.task import setup_task
from fairseq_headgates.plugin.models.building import load_model

MASK = json.dumps({"enc-self": [[1, 0, 0, 1], [0, 0, 0, 0]], "dec-enc": [[0, 1, 1, 1], [1, 0, 0, 0]]})


@pytest.fixture
def expected(toy, checkpoints):
    """The refitted model, by the function, on the first 30 training sentences."""
    args = fairseq_options("evaluate", [str(toy.data), "--path", "x", "--gen-subset", "train", "--cpu"])
    _, model = load_model(checkpoints["baseline"])
    corpus = load_corpus(args, setup_task(args), model, 30)
    return refit(model, MASK, corpus.task, corpus.batches)


def options(toy):
    return ["--alive", MASK, "--refit", toy.data, "--refit-sentences", 30, *READ]


def assert_equal(found, expected):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-5)


def test_prune_refit_is_the_function(headgates, toy, checkpoints, expected, tmp_path):
    out = tmp_path / "refitted.pt"
    text = headgates("prune", "--path", checkpoints["baseline"], "--out", out, *options(toy), "--max-tokens", 50)
    assert "refitted on data:" in text and "|split:train|sents:30" in text
    state, model = load_model(out)
    assert_equal(model, expected)
    assert state["last_optimizer_state"] is None
    plan = json.loads(
        headgates("prune", "--path", checkpoints["baseline"], "--out", "x.pt", *options(toy), "--dry-run", "--json")
    )
    assert plan["refit"].endswith("|split:train|sents:30")


@pytest.mark.release
def test_a_stock_checkpoint_is_refitted(headgates, toy, checkpoints, expected, tmp_path):
    headgates("prune", "--path", checkpoints["baseline"], "--out", tmp_path / "stock.pt", *options(toy), "--stock")
    headgates("prune", "--path", tmp_path / "stock.pt", "--out", tmp_path / "again.pt", "--alive", MASK)
    assert_equal(load_model(tmp_path / "again.pt")[1], expected)


def test_a_pruned_checkpoint_is_refitted(headgates, toy, checkpoints, tmp_path):
    once, twice = tmp_path / "once.pt", tmp_path / "twice.pt"
    headgates(
        "prune",
        "--path",
        checkpoints["baseline"],
        "--out",
        once,
        "--alive",
        '{"dec-self": [[1, 1, 1, 0], [1, 1, 1, 1]]}',
    )
    headgates("prune", "--path", once, "--out", twice, *options(toy))
    shown = json.loads(headgates("show", "--path", twice, "--json"))
    assert shown["gate"]["dec-self"][0] == [1, 1, 1, 0] and shown["gate"]["dec-enc"][1] == [1, 0, 0, 0]


@pytest.mark.release
def test_two_workers_refit_as_one(start, toy, checkpoints, expected, tmp_path):
    arguments = [
        "prune",
        "--path",
        checkpoints["baseline"],
        "--out",
        tmp_path / "two.pt",
        *options(toy),
        "--max-tokens",
        50,
    ]
    workers = [start("headgates", *arguments, *own) for own in worker_arguments(2)]
    outputs = [worker.finish().expect(0).out for worker in workers]
    assert outputs[0] and not outputs[1]
    assert_equal(load_model(tmp_path / "two.pt")[1], expected)


@pytest.mark.release
def test_a_curve_is_refitted(on_toy, headgates, toy, checkpoints, tmp_path):
    shared = ["--by", "magnitude", "--types", "all", "--metric", "nll", "--json"]
    places = {"checkpoint": checkpoints["baseline"], "subset": "test"}
    more = ["--refit", "--refit-sentences", 30]
    zeroed = json.loads(on_toy("curve", *shared, "--steps", "0,50", **places))
    whole, half = json.loads(on_toy("curve", *shared, *more, "--steps", "0,50", **places))
    assert whole["nll"] == zeroed[0]["nll"] and half["nll"] != zeroed[1]["nll"]
    assert whole["measured"].endswith("|refit:train-30") and half["mask"] == zeroed[1]["mask"]
    out = tmp_path / "half.pt"
    headgates(
        "prune", "--path", checkpoints["baseline"], "--out", out, "--alive", json.dumps(half["mask"]), *options(toy)[2:]
    )
    curve = json.loads(on_toy("curve", *shared, "--steps", "0", **places | {"checkpoint": out}))
    assert half["nll"] == pytest.approx(curve[0]["nll"], abs=1e-5)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--refit"], "arguments are required: data"),
        (["--cpu"], "unrecognized arguments: --cpu"),
        (["--refit", "{data}", "--refit-sentences", "0"], "'0' is not a number from 1 on"),
        (["--refit", "{data}", "--gen-subset", "valid"], "--gen-subset is valid, which prune --refit does not read"),
        (["--refit", "{data}", "--refit-sentences", "1"], "unknowns for each output"),
    ],
)
def test_bad_input_of_prune_refit(headgates, toy, checkpoints, tmp_path, more, line):
    more = [str(toy.data) if word == "{data}" else word for word in more]
    cpu = READ if more[0] == "--refit" and len(more) > 1 else []
    error = headgates(
        "prune", "--path", checkpoints["baseline"], "--out", tmp_path / "x.pt", "--alive", MASK, *more, *cpu, code=2
    )
    assert line in error and error.count("\n") == 1
    assert not (tmp_path / "x.pt").exists()


def test_a_curve_in_int8_is_not_refitted(on_toy):
    error = on_toy("curve", "--by", "magnitude", "--refit", "--inference-dtype", "int8", code=2)
    assert "--refit needs weights in single precision: leave out --inference-dtype int8" in error
