"""fairseq 0.12.2 itself, in programs of their own: what it cannot do with torch 2, and this plugin can."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.fairseq_0_12_2 import IS_0_12_2

pytestmark = pytest.mark.skipif(
    not IS_0_12_2 or torch.__version__ < "2", reason="needs fairseq 0.12.2 with torch 2 (make matrix)"
)
SIZE = "--{0}-embed-dim 32 --{0}-ffn-embed-dim 32 --{0}-layers 2 --{0}-attention-heads 4"
TRAINING = f"{SIZE.format('encoder')} {SIZE.format('decoder')} --optimizer adam --lr 0.003 --max-tokens 500 --cpu"


@pytest.fixture(scope="module")
def program():
    def program(name, *arguments, code=0):
        command = [str(Path(sys.executable).parent / name), *map(str, arguments)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        assert (done.returncode == 0) == (code == 0), done.stdout + done.stderr
        return done.stdout + done.stderr

    return program


@pytest.fixture(scope="module")
def stock(toy, program, tmp_path_factory):
    """A post-norm model, trained by fairseq alone."""
    folder = tmp_path_factory.mktemp("stock")
    program(
        "fairseq-train", toy.data, "--arch", "transformer", *TRAINING.split(), "--max-epoch", 2, "--save-dir", folder
    )
    return folder / "checkpoint_last.pt"


def test_prune_repairs_a_checkpoint_that_fairseq_cannot_generate_from(toy, program, stock, tmp_path):
    plugin = ["--user-dir", program("headgates", "path").strip()]  # since torch 2.6 needed to load the checkpoint
    alone = program("fairseq-generate", toy.data, *plugin, "--path", stock, "--cpu", code=1)
    assert "Mask Type should be defined" in alone
    options = "{'_name': 'transformer_head_gates', 'arch': 'transformer_head_gates'}"
    override = program("fairseq-generate", toy.data, *plugin, "--path", stock, "--cpu", "--model-overrides", options)
    program("headgates", "prune", "--path", stock, "--out", tmp_path / "whole.pt")
    whole = program("fairseq-generate", toy.data, *plugin, "--path", tmp_path / "whole.pt", "--cpu")
    lines = [[line for line in printed.splitlines() if line.startswith("H-")] for printed in (override, whole)]
    assert lines[0] and lines[0] == lines[1]
