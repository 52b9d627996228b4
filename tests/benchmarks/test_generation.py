"""Benchmarks of generation as a user runs them: generation_speed.py, and memory.py, which measures processes."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import memory
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script, *arguments):
    """Runs a benchmark on tiny inputs; returns what it writes with --json."""
    json_file = arguments[-1]
    command = [sys.executable, BENCHMARKS / script, "--vocabulary", 60, "--remove", 0.5, "--batch", 2, "--threads", 1]
    command += [*arguments[:-1], "--json", json_file]
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return json.loads(json_file.read_text(encoding="utf-8"))


@pytest.mark.rehearsal
def test_speed_of_all_variants(tmp_path):
    pytest.importorskip("ctranslate2")
    alive = json.dumps({"enc-self": [[1, 0, 0, 0, 1, 1, 1, 1], [0] * 8, [1] * 8]})  # removes 11 of 72 heads
    options = ["--length", 4, "--repetitions", 2, "--warm-up", 0, "--alive", alive]
    found = run("generation_speed.py", *options, tmp_path / "speed.json")
    (result,) = found["results"]
    shares = ("50%", "15% inline")
    pruned = [f"{kind} {share}" for share in shares for kind in ("gated", "masked", "pruned", "native")]
    in_8_bits = ["int8", *(f"int8 pruned {share}" for share in shares)]
    assert list(result["models"]) == ["stock", "full", *pruned, *in_8_bits]
    assert all(row["same_tokens"] for row in result["agreement"].values()) and len(result["agreement"]) == 3
    models, rows = result["models"], result["batches"]["2"]
    for share in shares:
        sizes = [models[f"{kind} {share}"]["parameters"] for kind in ("pruned", "native")]
        assert sizes[0] == sizes[1] < models["full"]["parameters"]
    kinds = ("ctranslate2", "ctranslate2-int8")
    assert set(rows) == {*models, *kinds, *(f"{kind} pruned {share}" for kind in kinds for share in shares)}
    for name, row in rows.items():
        ratios = sorted(row["beam"]["seconds"][i] for i in range(2))
        assert ratios[0] > 0 and row["beam"]["speed_to_stock"] > 0, name
        assert row["beam"]["tokens_per_s"] == pytest.approx(2 * 4 / (sum(ratios) / 2)), name
    assert all(rows[name]["cache_bytes"] > 0 for name in models)


@pytest.mark.rehearsal
@pytest.mark.release
def test_memory_of_all_models(tmp_path):
    found = run("memory.py", tmp_path, "--size", "small", "--length", 5, tmp_path / "memory.json")["models"]
    assert list(found) == ["training", "stock", "full", "pruned 50%", "int8", "int8 pruned 50%"]
    files = {name: row["file"] for name, row in found.items()}
    assert files["pruned 50%"] < files["full"] == pytest.approx(files["stock"], rel=0.02)
    assert files["training"] > 2.5 * files["stock"]  # two moments for every parameter
    for name, row in found.items():
        assert 50 < row["import"] < row["load"] < row["import"] + 100, name
        assert row["import"] < row["generate"], name


def test_memory_of_a_process(tmp_path):
    options = Namespace(folder=tmp_path, threads=1)
    empty, full = (
        memory.peak([sys.executable, "-c", f"{memory.PEAK}x = b'x' * ({n} * 2**20)"], options) for n in (1, 200)
    )
    assert empty < 50  # and not that of this process
    assert full - empty == pytest.approx(199, abs=5)
    with pytest.raises(SystemExit, match=r"^memory.py: .* failed: see .*log$"):
        memory.run([sys.executable, "-c", "print('why'); exit(3)"], options)
    assert (tmp_path / "log").read_text() == "why\n"


def test_a_folder_of_checkpoints_with_other_settings_is_refused(tmp_path, capsys):
    options = {"folder": tmp_path / "new", "size": "small", "vocabulary": 60, "batch": 8, "length": 5}
    for _ in range(2):
        memory.claim(Namespace(**options))
    with pytest.raises(SystemExit) as stopped:
        memory.claim(Namespace(**{**options, "length": 6}))
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith("holds checkpoints of --length 5: name another folder\n")


def test_memory_relative_to_file_and_stock():
    rows = {
        "stock": {"file": 100.0, "import": 300.0, "load": 500.0, "generate": 800.0},
        "full": {"file": 50.0, "import": 310.0, "load": 435.0, "generate": 600.0},
    }
    stock, full = (line.split() for line in memory.table(rows).splitlines()[-2:])
    assert stock[-3:] == ["2.00", "1.00", "1.00"]
    assert full[-3:] == ["2.50", "0.75", "0.58"]  # 125 / 50, 600 / 800, 290 / 500
