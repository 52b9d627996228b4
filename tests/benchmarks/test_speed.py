"""Benchmarks that no other test runs, on tiny inputs."""

import json

import importance_speed
import pytest
import train_step


@pytest.fixture
def figures(tmp_path, monkeypatch):
    """figures(program, *arguments) runs a benchmark in this process and returns what it writes with --json."""

    def figures(program, *arguments):
        file = tmp_path / "figures.json"
        monkeypatch.setattr(
            "sys.argv", [program.__name__, *map(str, arguments), "--device", "cpu", "--json", str(file)]
        )
        program.main()
        return json.loads(file.read_text(encoding="utf-8"))

    return figures


@pytest.mark.rehearsal
def test_updates_of_all_gating_methods(figures):
    (result,) = figures(train_step, "--updates", 2, "--warm-up", 0, "--sentences", 2, "--vocabulary", 60)
    assert list(result["variants"]) == ["stock", "no gates", "l0", "lagrangian", "subset"]
    assert all(row["ms"] > 0 and row["ratio"] > 0 for row in result["variants"].values())
    assert result["variants"]["stock"]["ratio"] == 1


@pytest.mark.rehearsal
def test_costs_of_all_scores(figures):
    tiny = ["--rounds", 1, "--sentences", 2, "--vocabulary", 60]
    tiny += ["--relevance-sentences", 1, "--relevance-length", 3, "--relevance-layers", 1]
    found = figures(importance_speed, *tiny)
    assert [row["what"].strip() for row in found["ablation"]][1] == "ablation of 72 heads"
    assert all(row["ratio"] > 0 for part in ("gradient", "confidence", "ablation") for row in found[part])
    assert len(found["relevance"]) == 6 and all(row["ms a position"] > 0 for row in found["relevance"])
