"""benchmarks/gpu.sh without a GPU: what it runs, what it keeps, what it does again."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.sh"
STUB = """#!/usr/bin/env bash
case "$*" in
*is_available\\(\\)\\)*) exit 0 ;;  # the question whether there is a GPU
*importance_speed*) echo "log of scores" >&2; exit ${SCORES:-0} ;;
esac
echo "table of $*"
"""


@pytest.fixture
def gpu(tmp_path):
    """gpu(out, code=0, **environment) runs the script; python3 only prints its arguments."""
    stub = tmp_path / "bin" / "python3"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(0o755)

    def gpu(out, code=0, **environment):
        env = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}", **environment}
        done = subprocess.run([SCRIPT, out], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done

    return gpu


def test_parts_are_kept_and_only_missing_ones_are_run_again(gpu, tmp_path):
    out, parts = tmp_path / "out", "machine step-fp16 corpus update scores"
    failed = gpu(out, code=1, PARTS=parts, SCORES="3")
    assert failed.stderr == f"gpu.sh: scores failed with exit code 3: see {out}/scores.log\n"
    assert (out / "scores.log").read_text() == "log of scores\n"
    page = (out / "benchmarks.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        f"## {name}" for name in parts.split()[:4]
    ]
    assert (
        "$ python3 benchmarks/generation_speed.py --device cuda --warm-up 1 --repetitions 4 --batch 1 8 32 128" in page
    )
    assert "compressed graph --parts step --dtype fp16" in page and "--batch 128 32 --repetitions 2" in page
    assert "--dtype fp32 fp16 bf16" in page and "table of" in page
    again = gpu(out, PARTS=parts)
    assert [line.split()[1] for line in again.stdout.splitlines()[:-1]] == ["scores"]
    assert "## scores" in (out / "benchmarks.md").read_text()
    assert gpu(out, PARTS=parts).stdout == f"{out}/benchmarks.md\n"
