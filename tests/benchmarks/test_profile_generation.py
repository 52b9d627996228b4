"""Parts of a translation (benchmarks/profile_generation.py) add up to its time, and no operator is unknown."""

import json

import pytest
from support.fairseq_0_12_2 import IS_0_12_2

pytest.importorskip("ctranslate2")  # of generation_speed.py

import bench_models
import bench_profile
import profile_generation

OPTIONS = "--size tiny --vocabulary 90 --batch 3 --beam 2 --length 3 --repetitions 2 --remove 0.5 --operators 3"
STEPS = 4  # with </s>


@pytest.mark.skipif(IS_0_12_2, reason="fairseq 0.12.2 cannot generate from its own transformer")
def test_the_program_prints_its_tables_and_writes_its_figures(monkeypatch, capsys, tmp_path):
    out, seconds = tmp_path / "figures.json", bench_profile.recording_seconds(calls=30)
    monkeypatch.setattr("sys.argv", ["profile_generation.py", *OPTIONS.split(), "--json", str(out)])
    monkeypatch.setitem(bench_models.SIZES, "tiny", (32, 40, 2, 4))
    for name, value in {"peak_flops": 1e12, "copy_bandwidth": 1e10, "recording_seconds": seconds}.items():
        monkeypatch.setattr(profile_generation, name, lambda value=value: value)
    monkeypatch.setattr(profile_generation.gc, "collect", lambda: 0)  # among all that the tests have imported
    profile_generation.main()
    printed = capsys.readouterr().out
    assert "1000.0 GFLOP/s, 10.0 GB/s" in printed and "unknown" not in printed
    for row in ("encoder, ms", "  feed-forward", "translation, ms", "  bound by memory, ms", "operator, ms x calls"):
        assert f"\n{row} " in printed
    figures = json.loads(out.read_text(encoding="utf-8"))["models"]
    assert list(figures) == ["stock", "full", "pruned 50%"]
    for model in figures.values():
        whole = sum(row["seconds"] * (1 if row["part"] == "encoder" else STEPS) for row in model["rows"])
        assert whole == pytest.approx(sum(model["seconds"].values()))
