"""`--text`: plain text in place of binarised data, with the dictionaries beside the checkpoint or in DATA."""

import json
import shutil

import pytest
import torch
from support import language_models
from support.analysis import READ, SEARCH, one_line

from fairseq_headgates.safety.checkpoint import load_checkpoint


def result_of(text):
    """A result without the names of the data in its signature."""
    found = json.loads(text)
    for each in found if isinstance(found, list) else [found]:
        for part in each.get("scores", {}).values() if "signature" not in each else [each]:
            part.pop("signature", None)
    return found


@pytest.fixture
def beside(toy, checkpoints, tmp_path):
    """A checkpoint with its dictionaries beside it."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (checkpoints["baseline"], *toy.data.glob("dict.*.txt")):
        shutil.copy(path, folder)
    return folder / "checkpoint_last.pt"


def text_of(toy, subset):
    return ["--text", *(toy.text / f"{subset}.{side}" for side in ("src", "tgt"))]


@pytest.mark.parametrize(
    "command",
    [
        ["score", "--method", "gradient,confidence"],
        ["evaluate", "--gen-subset", "valid", *SEARCH],
        ["ablate", "--gen-subset", "valid"],
        ["explain", "--lines", ",".join(map(str, range(1, 31))), "--gen-subset", "valid"],
    ],
)
def test_results_are_those_of_the_binarised_text(command, headgates, toy, beside):
    name, *options = command
    expected = result_of(headgates(name, toy.data, "--path", beside, *options, "--json", *READ))
    options = options[2:] if name == "explain" else options
    found = headgates(name, "--path", beside, *options, "--json", *READ, *text_of(toy, "valid"))
    assert "valid.src:" in found
    assert result_of(found) == expected
