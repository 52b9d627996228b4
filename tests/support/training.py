"""Options of trainings, checkpoints as fairseq reads them, and the one line of an error."""

import shutil

import pytest
import torch

from support.commands import EVALUATION

GENERATE = [*EVALUATION, "--gen-subset", "test"]
RESET = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
KINDS = ("baseline", "gated", "fixed", "mixed")


def read(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def assert_one_line_error(finished, words):
    """Exit code 2 and one line that says what is wrong; no traceback."""
    assert finished.code == 2, finished.text
    assert "Traceback" not in finished.text and "usage:" not in finished.err
    (line,) = (line for line in finished.err.splitlines() if "error:" in line)
    assert [word for word in words if word not in line] == [], line


@pytest.fixture
def save_dir(checkpoints, tmp_path):
    """A folder with a checkpoint that a mistake in the options must not cost."""
    path = tmp_path / "checkpoint_last.pt"
    shutil.copyfile(checkpoints["baseline"], path)
    yield tmp_path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == checkpoints["baseline"].read_bytes()
