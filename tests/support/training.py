"""Options of trainings, checkpoints as fairseq reads them, and the one line of an error."""

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
