"""8 bits, as a user asks for them: stored in a checkpoint, for one command of fairseq, for one of ours."""

import json
import re

import pytest
import torch
from support.analysis import SEARCH, one_line
from support.commands import EVALUATION

from fairseq_headgates.inference import kernels, packed_linear

STORED = ["--inference-dtype", "int8"]
pytestmark = [
    pytest.mark.usefixtures("few_resamplings"),
    pytest.mark.skipif(not kernels.int8_range(), reason="this torch has no int8 multiplication"),
]


@pytest.fixture(autouse=True)
def packs_small_layers(monkeypatch):
    monkeypatch.setattr(packed_linear, "WORTH_PACKING", 1)


@pytest.fixture
def stored(headgates, gated_checkpoint, tmp_path):
    """The gated checkpoint with all its heads, in 8 bits."""
    headgates("prune", "--path", gated_checkpoint, "--out", tmp_path / "int8.pt", "--threshold", 0, *STORED)
    return tmp_path / "int8.pt"


@pytest.fixture
def generated(run, toy):
    """generated(checkpoint, *options): the scores of the hypotheses of fairseq-generate."""

    def generated(checkpoint, *options):
        places = [toy.data, "--path", checkpoint, "--gen-subset", "valid", *SEARCH, "--prefix-size", 5]
        found = run("fairseq-generate", *places, *options, *EVALUATION)
        return re.findall(r"^H-(.*)$", found.out, re.MULTILINE)

    return generated


def test_a_checkpoint_stores_the_precision_and_weights_in_single_precision(
    stored, gated_checkpoint, headgates, tmp_path
):
    plain = tmp_path / "plain.pt"
    headgates("prune", "--path", gated_checkpoint, "--out", plain, "--threshold", 0)
    ours, other = (torch.load(path) for path in (stored, plain))
    assert ours["cfg"]["model"].inference_dtype == "int8"
    assert ours["model"].keys() == other["model"].keys()
    assert all(torch.equal(ours["model"][name], other["model"][name]) for name in other["model"])
    headgates(
        "prune", "--path", stored, "--out", tmp_path / "again.pt", "--threshold", 0
    )  # stays, unless another one is given
    headgates(
        "prune", "--path", stored, "--out", tmp_path / "float.pt", "--threshold", 0, "--inference-dtype", "float32"
    )
    found = [torch.load(tmp_path / name)["cfg"]["model"].inference_dtype for name in ("again.pt", "float.pt")]
    assert found == ["int8", "float32"]


def test_fairseq_generate_takes_it_from_the_checkpoint_or_from_overrides(stored, generated):
    in_8_bits = generated(stored)
    single = generated(stored, "--model-overrides", "{'inference_dtype': 'float32'}")
    assert in_8_bits != single and len(in_8_bits) == len(single) == 30
    assert generated(stored, "--model-overrides", "{'inference_dtype': 'int8'}") == in_8_bits


def test_evaluate_measures_loss_and_translations_in_8_bits(stored, on_toy, generated, tmp_path):
    found = {}
    for name, options in {"stored": [], "int8": STORED, "float32": ["--inference-dtype", "float32"]}.items():
        out = tmp_path / f"{name}.json"
        on_toy("evaluate", *options, *SEARCH, "--prefix-size", 5, "--out", out, checkpoint=stored)
        found[name] = json.loads(out.read_text())
    assert found["stored"] == found["int8"]
    loss, single = (found[name]["losses"]["valid"]["mean"] for name in ("int8", "float32"))
    assert 0 < abs(loss - single) < 0.05
    assert "|dtype:int8" in found["int8"]["signature"] and "dtype" not in found["float32"]["signature"]
    texts = [line.split("\t")[2].replace(" ", "") for line in generated(stored)]
    assert sorted(text.replace(" ", "") for text in found["int8"]["predictions"]) == sorted(texts)


@pytest.mark.skipif(not kernels.multiplies_bfloat16(), reason="this CPU does not multiply in bfloat16")
def test_a_checkpoint_in_bfloat16_is_measured_and_exported(headgates, gated_checkpoint, on_toy, generated, tmp_path):
    path, stock, out = (tmp_path / name for name in ("bfloat16.pt", "stock.pt", "evaluation.json"))
    headgates("prune", "--path", gated_checkpoint, "--out", path, "--inference-dtype", "bfloat16")
    on_toy("evaluate", *SEARCH, "--prefix-size", 5, "--out", out, checkpoint=path)
    found = json.loads(out.read_text())
    assert "|dtype:bfloat16" in found["signature"]
    texts = [line.split("\t")[2].replace(" ", "") for line in generated(path)]
    assert sorted(text.replace(" ", "") for text in found["predictions"]) == sorted(texts)
    headgates("prune", "--path", path, "--out", stock, "--stock")
    ours, exported = torch.load(path), torch.load(stock)
    assert not hasattr(exported["args"], "inference_dtype")
    assert torch.equal(*(state["model"]["decoder.layers.0.fc1.weight"] for state in (ours, exported)))


@pytest.mark.release
def test_training_with_it_is_in_single_precision(train, tmp_path):
    done = train(tmp_path / "int8", *STORED, updates=1)
    train(tmp_path / "float32", updates=1)
    assert "--inference-dtype int8 has no effect on training and validation" in done.text
    ours, other = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("int8", "float32"))
    assert all(torch.equal(ours[name], other[name]) for name in other)


def test_what_cannot_be_stored_or_computed_is_refused(on_toy, headgates, gated_checkpoint, tmp_path):
    words = "unknown inference dtype 'int4': choose from float32, bfloat16, int8"
    assert words in one_line(on_toy("ablate", "--inference-dtype", "int4", code=2))
    stock = ["prune", "--path", gated_checkpoint, "--out", tmp_path / "out.pt", *STORED, "--stock"]
    assert "leave out one" in one_line(headgates(*stock, code=2)) and not (tmp_path / "out.pt").exists()
