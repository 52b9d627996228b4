"""Benchmarks of generation as a user runs them: generation_speed.py, and memory.py, which measures processes."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

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
    options = ["--length", 4, "--repetitions", 2, "--warm-up", 0, "--alive", alive, "--corpus", 5]
    found = run("generation_speed.py", *options, "--parts", "step", "beam", "corpus", tmp_path / "speed.json")
    (result,) = found["results"]
    shares = ("50%", "15% inline")
    smaller = [f"{kind} {share}" for share in shares for kind in ("gated", "masked", "pruned", "native", "compressed")]
    copied = [f"{kind} {share}" for share in shares for kind in ("pruned", "compressed")]
    copies = [" ".join(names) for kind in ("int8", "graph", "device") for names in ((kind,), *product((kind,), copied))]
    assert list(result["models"]) == ["stock", "full", *smaller, *copies]
    assert all(row["same_tokens"] for row in result["agreement"].values())
    agreeing = [names.split(", ") for names in result["agreement"]]
    assert agreeing[0] == ["stock", "full", "graph", "device"] and len(agreeing) == 5
    models, rows = result["models"], result["batches"]["2"]
    for share in shares:
        sizes = [models[f"{kind} {share}"]["parameters"] for kind in ("pruned", "native")]
        assert models[f"compressed {share}"]["parameters"] < sizes[0] == sizes[1] < models["full"]["parameters"]
    exported = [name.replace("int8", kind) for kind in ("ctranslate2", "ctranslate2-int8") for name in copies[:5]]
    assert set(rows) == {*models, *exported}
    for name, row in rows.items():
        seconds = row["beam"]["seconds"]
        assert min(seconds) > 0 and row["beam"]["speed_to_stock"] > 0, name
        assert row["beam"]["tokens_per_s"] == pytest.approx(2 * 4 / (sum(seconds) / 2)), name
        assert ("step" in row) == (not name.startswith(("device", "ctranslate2"))), name
        assert row["corpus"]["first_tokens_per_s"] > 0 and len(row["corpus"]["seconds"]) == 2, name
    assert all(rows[name]["cache_bytes"] > 0 for name in models)
    for names in agreeing:
        assert len({rows[name]["corpus"]["tokens"] for name in names}) == 1


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
