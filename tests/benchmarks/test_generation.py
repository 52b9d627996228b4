"""Benchmarks of generation as a user runs them: generation_speed.py, and memory.py, which measures processes."""

import json
import subprocess
import sys
from argparse import Namespace
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import bench_corpus
import bench_models
import bench_variants
import memory
import pytest
import torch
from torch.autograd import DeviceType

from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel

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


def test_a_corpus_has_all_lengths_and_sentences_end_at_about_those_of_their_sources():
    options = Namespace(size="small", device="cpu", seed=1, beam=2, length=10)
    batches = bench_corpus.make_corpus(options, 60, 100, 16)
    lengths = torch.cat([each["src_lengths"] for each in batches])
    assert lengths.tolist() == sorted(lengths.tolist()) and set(lengths.tolist()) == set(range(5, 22))
    for each in batches:
        source = each["src_tokens"]
        assert torch.equal(source.ne(1).sum(1), each["src_lengths"]) and source.size(1) == each["src_lengths"].max()
        assert source[:, -1].eq(2).all() and source.eq(2).sum() == len(source)
    task = bench_models.make_task(60)
    model = TransformerHeadGatesModel.build_model(bench_models.make_args("small"), task).eval()
    bench_corpus.end_sentences(options, [model])
    generator = bench_models.make_generator(options, model, **bench_corpus.LENGTHS)
    ends = [bench_corpus.best_lengths(generator, each) for each in batches]
    assert sum(sum(each) for each in ends) == pytest.approx(int(lengths.sum()), rel=0.4)
    assert any(len(set(each)) > 1 for each in ends)


def test_launches_and_waits_are_counted(monkeypatch):
    """Of the events that torch reports on a GPU."""
    on_gpu = ["gemm", "Memcpy DtoH", "Memset", "softmax"]
    by_host = ["cudaLaunchKernelExC", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaStreamSynchronize"]
    events = [
        SimpleNamespace(name=name, device_type=getattr(DeviceType, kind))
        for kind, names in (("CUDA", on_gpu), ("CPU", by_host))
        for name in names
    ]
    profiler = nullcontext(SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(bench_models, "profile", lambda **options: profiler)
    monkeypatch.setattr(bench_models, "seconds_of", lambda work, device: work())
    assert bench_models.launches(lambda: None) == {"kernels": 2, "launches": 3, "waits": 1}


@pytest.mark.parametrize("reason", ["not installed", "no GPU", "no library"])
def test_without_ctranslate2_its_variants_are_left_out(reason, monkeypatch, capsys, tmp_path):
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: int(reason == "no library"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # its process fails
    if reason == "not installed":
        monkeypatch.setitem(sys.modules, "bench_ctranslate2", None)
    model = TransformerHeadGatesModel.build_model(bench_models.make_args("small"), bench_models.make_task(60))
    options = Namespace(variants=["full", "ctranslate2"], parts=["beam"], device="cuda", beam=2)
    assert bench_variants.export(options, {"full": model}, "fp16", str(tmp_path)) == {}
    error = capsys.readouterr().err
    assert error.startswith("generation_speed.py: without CTranslate2: ") and error.count("\n") == 1


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
