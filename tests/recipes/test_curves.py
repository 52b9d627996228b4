"""recipes/scripts/curves.py: the table of curves."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "recipes" / "scripts" / "curves.py"
spec = importlib.util.spec_from_file_location("recipes_curves", PATH)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def write_curve(path, found):
    names = ["checkpoint", "by", "types", "removed", "heads", "nll", "bleu"]
    path.write_text("\n".join("\t".join(map(str, row)) for row in [names, *found]) + "\n")
    return str(path)


def test_curves_over_training_have_a_row_for_each_epoch(tmp_path, capsys):
    points = [(f"a/checkpoint{e}.pt", "x", "all", p, 9, 1.0, e + p / 100) for e in (1, 30) for p in (0, 50)]
    script.main([write_curve(tmp_path / "c.tsv", points), "--paper"])
    found = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert found[2:] == [["1", "1.00", "1.50", "3.0"], ["30", "30.00", "30.50", "34.7"]]


def test_curves_of_one_model_have_a_row_for_each_score(tmp_path, capsys):
    files = [
        write_curve(tmp_path / f"{by}.tsv", [("m.pt", by, "all", 0, 9, 1.0, 20), ("m.pt", by, "all", step, 5, 1.0, 10)])
        for by, step in (("gradient", 50), ("ablation", 25))
    ]
    script.main(files)
    found = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert found[0] == ["by", "-0%", "-25%", "-50%"]
    assert found[2:] == [["gradient", "20.00", "-", "10.00"], ["ablation", "20.00", "10.00", "-"]]


def test_curves_without_bleu_are_refused(tmp_path):
    (tmp_path / "c.tsv").write_text("checkpoint\tby\ttypes\tremoved\tnll\nm.pt\tx\tall\t0\t1.0\n")
    with pytest.raises(ValueError, match="c.tsv has no BLEU: run headgates curve with --metric bleu"):
        script.main([str(tmp_path / "c.tsv")])
