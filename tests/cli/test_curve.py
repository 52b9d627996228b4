"""`headgates curve`, `correlate` and `compare` as a user runs them, on toy models."""

import itertools
import json
import re

import pytest
from support.analysis import FULL, READ, SEARCH

from fairseq_headgates.attention.choice import best_heads
from fairseq_headgates.heads import HeadTable, scores_to_json


def test_curve(on_toy, toy, checkpoints, tmp_path):
    files = ["--out", tmp_path / "c.json", "--tsv", tmp_path / "c.tsv", "--plot", tmp_path / "c.png"]
    text = on_toy(
        "curve", "--by", "gradient", "--steps", "0,50,100", "--types", "enc-self,dec-enc", "--each-type", *SEARCH,
        *files, checkpoint=checkpoints["baseline"], subset="test",
    )  # fmt: skip
    points = json.loads((tmp_path / "c.json").read_text())["points"]
    assert [(p["types"], p["removed"], p["heads"]) for p in points] == [
        ("enc-self,dec-enc", 0, 16), ("enc-self,dec-enc", 50, 8), ("enc-self,dec-enc", 100, 0),
        ("enc-self", 0, 8), ("enc-self", 50, 4), ("enc-self", 100, 0),
        ("dec-enc", 0, 8), ("dec-enc", 50, 4), ("dec-enc", 100, 0),
    ]  # fmt: skip
    for point in points:
        alive = sum(sum(row) for attention_type, rows in point["mask"].items() for row in rows)
        assert alive == point["heads"] + (8 if "," in point["types"] else 16)
    for whole in points[3::3]:
        assert points[0]["nll"] == whole["nll"] and points[0]["bleu"] == whole["bleu"]
    lines = (tmp_path / "c.tsv").read_text().splitlines()
    names = ["checkpoint", "by", "types", "removed", "heads", "parameters", "nll", "bleu"]
    assert lines[0].split("\t") == names and len(lines) == 10
    assert "dec-enc by gradient" in text
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_curves_of_several_checkpoints_by_a_file_of_scores(headgates, toy, checkpoints, tmp_path):
    scores = tmp_path / "scores.json"
    table = HeadTable({attention_type: [[1, 2, 3, 4], [5, 6, 7, 8]] for attention_type in FULL}, "own")
    scores.write_text(scores_to_json([table, HeadTable(table.layers, "other")]))
    paths = f"{checkpoints['baseline']}:{checkpoints['fixed']}"
    common = ["curve", toy.data, "--path", paths, "--gen-subset", "test", *READ, "--scores", scores, "--metric", "nll"]
    points = json.loads(headgates(*common, "--score-method", "own", "--steps", "0,25", "--json"))
    assert len(points) == 2 * 4 * 2 and len({p["checkpoint"] for p in points}) == 2
    assert all(p["bleu"] is None and p["by"] == "own" for p in points)
    assert points[8]["heads"] == 17  # of the checkpoint with fixed heads: those that are alive
    assert "choose one with --score-method" in headgates(*common, code=2)


@pytest.mark.release
def test_parameters_are_those_of_a_checkpoint_without_the_heads(on_toy, headgates, checkpoints, tmp_path):
    options = ["--by", "magnitude", "--metric", "nll", "--steps", "0,50,100", "--types", "all", "--json"]
    options += ["--tsv", tmp_path / "c.tsv"]
    points = json.loads(on_toy("curve", *options, checkpoint=checkpoints["mixed"]))
    assert (tmp_path / "c.tsv").read_text().partition("\n")[0].endswith("\tparameters\tnll")  # no column without values
    for point in points:
        mask, pruned = tmp_path / "mask.json", tmp_path / "pruned.pt"
        mask.write_text(json.dumps(point["mask"]))
        headgates("prune", "--path", checkpoints["mixed"], "--out", pruned, "--alive", mask, "--force")
        assert json.loads(headgates("show", "--path", pruned, "--json"))["parameters"] == point["parameters"]
    # Queries, keys, values and their biases, and the columns of the output projection.
    head = 8 * (4 * 32 + 3)
    assert points[0]["parameters"] - points[2]["parameters"] == points[0]["heads"] * head


def test_percentages_are_rounded_as_the_fractions_of_prune_are(on_toy, checkpoints):
    """Of 8 heads, 4.5, 6.5 and 7.5 are left."""
    options = ["--by", "magnitude", "--metric", "nll", "--steps", "43.75,18.75,6.25", "--types", "dec-enc", "--json"]
    points = json.loads(on_toy("curve", *options, checkpoint=checkpoints["baseline"]))
    scores = HeadTable({"dec-enc": [[4, 3, 2, 1]] * 2})
    for point, left in zip(points, (8, 7, 5), strict=True):
        assert point["heads"] == sum(map(sum, point["mask"]["dec-enc"])) == left
        kept = best_heads(scores, 1 - point["removed"] / 100, scores.map(lambda _: 1))
        assert kept.count("dec-enc") == (left, 8)


def test_a_tenth_of_the_heads_is_removed_at_each_of_the_default_steps_and_the_others_scored_again(on_toy):
    options = ["--by", "ablation", "--reestimate", "--metric", "nll", "--types", "enc-self", "--sentences", "1"]
    points = json.loads(on_toy("curve", *options, "--json"))
    assert [point["removed"] for point in points] == list(range(0, 100, 10))
    for first, second in itertools.pairwise(point["mask"]["enc-self"] for point in points):
        assert all(a >= b for rows in zip(first, second, strict=True) for a, b in zip(*rows, strict=True))


# --- correlate -------------------------------------------------------------------------------------------------------


def test_correlate(on_toy, headgates, tmp_path):
    files = [tmp_path / "valid.json", tmp_path / "test.json"]
    for path in files:
        on_toy("score", "--method", "gradient,confidence,magnitude", "--out", path, subset=path.stem)
    text = headgates("correlate", files[0])
    assert "gradient ~ confidence" in text and text.startswith("Spearman")
    pairs = json.loads(headgates("correlate", *files, "--method", "gradient", "--each-type", "--json"))
    assert [(pair["types"], pair["heads"]) for pair in pairs] == [
        ("enc-self,dec-self,dec-enc", 24), ("enc-self", 8), ("dec-self", 8), ("dec-enc", 8),
    ]  # fmt: skip
    same = json.loads(headgates("correlate", *files, "--method", "magnitude", "--json", "--top", "3"))
    assert same[0]["pearson"] == pytest.approx(1) and same[0]["shared"] == 1 and same[0]["top"] == 3
    mixed = headgates("correlate", *files, code=2)
    assert "differ in both method (gradient, confidence) and origin (sents 30 and 10, split valid and test)" in mixed
    assert "--any" in mixed
    headgates("correlate", *files, "--any")


# --- compare ---------------------------------------------------------------------------------------------------------


def test_compare(checkpoints, headgates, tmp_path):
    files = {"a": [[1, 1, 0, 0], [1, 0, 0, 0]], "b": [[1, 0, 0, 0], [1, 0, 1, 0]]}
    for name, rows in files.items():
        (tmp_path / name).write_text(json.dumps({"enc-self": rows}))
    a, b, fixed = tmp_path / "a", tmp_path / "b", checkpoints["fixed"]
    found = lambda *masks: json.loads(headgates("compare", *masks, "--json"))["pairs"]  # noqa: E731
    (pair,) = found(a, b)
    assert (pair["kept"], pair["common"], pair["jaccard"]) == ([3, 3], 2, 0.5)
    text = headgates("compare", a, b, fixed)  # the checkpoint keeps 3 heads, of the first layer: 0, 2, 3
    assert text.startswith("Jaccard") and re.search(r"3 and 3 +1 +1\.1 +0\.20", text)
    assert found(a, b, fixed)[1]["common"] == 1
    whole = json.dumps({"enc-self": files["a"], "dec-enc": [[1, 1, 1, 1]] * 2})
    (tmp_path / "whole").write_text(whole)
    (tmp_path / "whole-b").write_text(whole.replace("0", "1", 1))  # nothing is removed from dec-enc in either
    assert [pair["types"] for pair in found(tmp_path / "whole", tmp_path / "whole-b")] == ["enc-self"]
    (tmp_path / "other").write_text(json.dumps({"dec-enc": files["a"]}))
    for wrong in ([a], [a, a], [a, tmp_path / "none"], [a, b, "--types", "dec-enc"], [a, tmp_path / "other", fixed]):
        assert len(headgates("compare", *wrong, code=2).splitlines()) == 1
