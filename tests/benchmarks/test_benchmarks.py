"""Every benchmark on tiny inputs: what it measures, and the tables that it writes."""

import importlib
import json
import os
import subprocess
import sys

import pytest
from support.fairseq_0_12_2 import IS_0_12_2
from support.recipes import ROOT

from fairseq_headgates.cli.main import main

pytest.importorskip("ctranslate2")  # of generation_speed.py and same_outputs.py
pytestmark = pytest.mark.release
TINY = ["--vocabulary", 60, "--length", 4]


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """tables(name, *arguments) runs a benchmark in this process; returns the tables that it writes with --json."""

    def tables(name, *arguments):
        program, file = importlib.import_module(name), tmp_path / "tables.json"
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments), "--json", str(file)])
        monkeypatch.setitem(importlib.import_module("harness").SIZES, "small", (16, 16, 1, 2))
        program.main()
        return json.loads(file.read_text(encoding="utf-8"))["tables"]

    return tables


def test_train_step(tables):
    (rows,) = tables("train_step", *TINY, "--updates", 1, "--sentences", 2, "--device", "cpu").values()
    assert list(rows) == ["stock", "no gates", "l0", "lagrangian", "subset", "pruned"]
    assert all(row["ms/update"] > 0 and row["ratio to stock"] > 0 for row in rows.values())
    assert rows["stock"]["ratio to stock"] == 1


def test_importance_speed(tables):
    options = ["--rounds", 1, "--sentences", 2, "--relevance-sentences", 1, "--relevance-length", 3, "--device", "cpu"]
    found = tables("importance_speed", *TINY, *options)
    assert list(found) == ["gradient", "confidence", "ablation", "relevance"]
    assert list(found["ablation"])[1] == "ablation of 6 heads" and len(found["relevance"]) == 7
    rows = [row for table in found.values() for row in table.values()]
    assert all(value > 0 for row in rows for value in row.values())


@pytest.mark.skipif(IS_0_12_2, reason="fairseq 0.12.2 cannot generate from its own transformer")
def test_generation_speed(tables):
    alive = json.dumps({"enc-self": [[0, 1]], "dec-self": [[0, 0]]})  # removes 3 of 6 heads
    options = ["--repetitions", 1, "--batch", 2, "--remove", 0.5, "--alive", alive, "--device", "cpu"]
    sizes, steps, searches = tables("generation_speed", *TINY, *options).values()
    smaller = [f"{kind} {share}" for share in ("50%", "50% inline") for kind in ("gated", "pruned", "compressed")]
    sources = ["", *(f" {name}" for name in smaller if not name.startswith("gated"))]
    kinds = ("bfloat16", "int8", "ctranslate2", "ctranslate2-int8")
    bfloat16, int8, *exported = ([kind + name for name in sources] for kind in kinds)
    assert list(sizes) == list(steps) == ["stock", "full", *smaller, *bfloat16, *int8]
    assert list(searches) == [*sizes, *exported[0], *exported[1]]
    for share in ("50%", "50% inline"):
        numbers = [sizes[name]["parameters"] for name in (f"compressed {share}", f"pruned {share}", "full")]
        assert numbers == sorted(set(numbers))
    assert all(row["2: ms"] > 0 and row["2: /stock"] > 0 for row in steps.values())
    for row in searches.values():
        assert row["2: tokens/s"] / row["2: /stock"] == pytest.approx(searches["stock"]["2: tokens/s"])


@pytest.mark.skipif(IS_0_12_2, reason="fairseq 0.12.2 cannot generate from its own transformer")
def test_translation(tables, toy, checkpoints, tmp_path):
    """The same translations in every engine."""
    whole, picture = tmp_path / "whole.pt", tmp_path / "table.svg"
    assert main(["prune", "--path", str(checkpoints["baseline"]), "--out", str(whole)]) == 0
    engines = {"fairseq": checkpoints["baseline"], "headgates": whole, "int8": whole, "ctranslate2": whole}
    names = [f"{engine}:{path}" for engine, path in engines.items()]
    options = ["--reference", toy.text / "test.tgt", "--beam", 2, "--rounds", 1, "--every", 10]
    (rows,) = tables("translation", toy.data, *names, *options, "--plot", picture).values()
    assert list(rows) == names
    assert all(row["ms"] > 0 and row["sentences/s"] > 0 for row in rows.values())
    assert rows[names[1]]["BLEU"] == rows[names[0]]["BLEU"]
    assert rows[names[1]]["parameters"] == rows[names[0]]["parameters"]
    assert "whole, ctranslate2" in picture.read_text(encoding="utf-8")


def test_same_outputs(tables, toy, checkpoints):
    (rows,) = tables("same_outputs", checkpoints["gated"], toy.data, "--beam", 2, "--all-layers").values()
    forms = ["gated", "masked", "pruned", "stock", "bfloat16", "int8", "ctranslate2", "ctranslate2-int8"]
    assert list(rows) == forms
    assert rows["int8"]["max |log p diff|"] > 0
    for name in ("masked", "pruned", "stock", "ctranslate2"):
        assert rows[name]["max |log p diff|"] < 1e-5, name
        assert rows[name]["different"] == 0 or name == "ctranslate2"  # differs where models are hardly trained


@pytest.mark.release
def test_memory(tables, tmp_path):
    (rows,) = tables(
        "memory", tmp_path, "--size", "small", *TINY, "--remove", 0.5, "--batch", 2, "--threads", 1
    ).values()
    models = ["full", "bfloat16", "int8", "pruned 50%", "bfloat16 pruned 50%", "int8 pruned 50%"]
    assert list(rows) == ["stock", *models]
    assert rows["pruned 50%"]["file MiB"] < rows["full"]["file MiB"]
    assert all(row["peak MiB"] > 50 for row in rows.values())


def test_gpu(tmp_path, monkeypatch):
    """With a python3 that fails in one part and prints its arguments in the others, which the benchmarks know."""
    stub = tmp_path / "python3"
    stub.write_text('#!/bin/sh\ncase "$*" in *pytest*) [ -e "$MENDED" ] || exit 3 ;; esac\necho "ran $*"\n')
    stub.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MENDED": str(tmp_path / "mended")}
    command = [ROOT / "benchmarks" / "gpu.sh", tmp_path / "out"]
    failed = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert failed.returncode == 1 and failed.stderr.startswith("gpu.sh: tests failed")
    (tmp_path / "mended").touch()
    again = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert len(again.stdout.splitlines()) == 2  # the part that failed
    page = (tmp_path / "out" / "benchmarks.md").read_text()
    ran = [line.split()[1:] for line in page.splitlines() if line.startswith("ran benchmarks/")]
    assert len(ran) == 6
    for script, *arguments in ran:
        name = script.removeprefix("benchmarks/").removesuffix(".py")
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        importlib.import_module(name).parse()
