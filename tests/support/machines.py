"""Pretended machines for tests of recipes: programs that come first on the PATH, no variables of another machine."""

import os
import sys

import pytest

CLUSTER = ("CUDA_VISIBLE_DEVICES", "GPUS", "HOSTS", "LAUNCHER", "WORKERS", "CPU", "PORT")


@pytest.fixture
def no_other_machine(monkeypatch):
    for name in [*CLUSTER, *(name for name in os.environ if name.startswith(("SLURM_", "SRUN_")))]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(NAME, TEXT): a shell script that comes first on the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()

    def program(name, text):
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{folder}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    return program


@pytest.fixture
def eight_gpus(program):
    program("nvidia-smi", 'for gpu in {0..7}; do echo "GPU $gpu: Some"; done')
