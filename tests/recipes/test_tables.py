"""The last table of a recipe: one seed, several seeds, the papers' (recipes/lib/results.py, seeds.py, evaluated.py)."""

import json
import re
import sys
from dataclasses import replace

import pytest

import results
from evaluated import Run, in_order
from seeds import over_seeds


def run_of(name, kept, bleu, of=(48, 48, 48), control="baseline+", p=0.2, seed="1", **others):
    kinds = ("enc-self", "dec-self", "dec-enc")
    heads = {kind: (k, n) for kind, k, n in zip(kinds, kept, of, strict=True)}
    heads["total"] = (sum(kept), sum(of))
    scores = {n: {"score": bleu, "signature": "s"} for n in ("BLEU", "chrF2")}
    compared = {"control": control, **{n: {"p": p, "signature": "b"} for n in ("BLEU", "chrF2")}}
    others = {"nll": 2.0} | others
    return Run(name, heads, 1_000_000, scores, compared=None if "+" in name else compared, seed=seed, **others)


def test_each_row_is_shown_with_the_nearest_row_of_the_paper():
    runs = [
        run_of("baseline", (48, 48, 48), 29.0),
        run_of("baseline+", (48, 48, 48), 29.2),
        run_of("all_lambda0.01", (11, 22, 25), 28.5),
        run_of("all_lambda0.01_scratch", (11, 22, 25), 28.0),
        run_of("all_heads6", (2, 2, 2), 20.0),
        run_of("enc-self_lambda0.01", (9, 48, 48), 28.9),
        run_of("dec-enc_lambda0.01", (48, 48, 9), 28.9),
    ]
    rows = [line.split() for line in results.as_published(runs, "wmt").splitlines()[2:]]
    assert rows == [
        ["baseline", "48/48/48", "29.00", "-", "48/48/48", "29.6", "-"],
        ["baseline+", "48/48/48", "29.20", "-", "-", "-", "-"],
        ["all_lambda0.01", "11/22/25", "28.50", "28.00", "12/21/25", "29.36", "28.95"],
        ["all_heads6", "2/2/2", "20.00", "-", "5/9/12", "28.90", "28.41"],
        ["enc-self_lambda0.01", "9/48/48", "28.90", "-", "10/48/48", "-0.15", "-"],
        ["dec-enc_lambda0.01", "48/48/9", "28.90", "-", "-", "-", "-"],
    ]
    tsv = [line.split("\t") for line in results.tsv(runs, "wmt").splitlines()]
    assert len({len(row) for row in tsv}) == 1
    assert tsv[4][0] == "all_lambda0.01_scratch" and tsv[4][-2:] == ["12/21/25", "28.95"]


def test_smaller_models_are_matched_to_the_paper_by_share_of_heads():
    small = run_of("all_lambda0.01", (5, 10, 10), 28.5, of=(16, 16, 16))  # 25 of 48, as 75 of 144
    assert results.nearest(small, results.PAPER["wmt"]["all"]).heads == (14, 31, 30)


def test_runs_are_listed_after_their_control():
    names = ["baseline", "enc_a", "baseline+frozen", "all_b", "baseline+", "enc_c"]
    control = {"baseline": "baseline+", "all_b": "baseline+"}
    runs = [run_of(name, (1, 1, 1), 1.0, control=control.get(name, "baseline+frozen")) for name in names]
    ordered = [run.name for run in in_order(runs)]
    assert ordered == ["baseline", "baseline+frozen", "enc_a", "enc_c", "baseline+", "all_b"]
    with pytest.raises(ValueError, match=r"all_b is compared with baseline\+, which is not given"):
        in_order(runs[2:4])


def test_a_baseline_alone_is_its_own_control():
    alone = replace(run_of("baseline", (1, 1, 1), 30.0), compared=None)
    assert results.one_by_one(in_order([alone])).split()[-5:] == ["30.00", "+0.00", "-", "30.00", "2.000"]


def test_a_baseline_without_its_control_has_no_comparison():
    runs = in_order(
        [run_of("baseline", (48,) * 3, 29.0), run_of("enc-self_heads6", (6, 48, 48), 30.0, control="baseline")]
    )
    assert [run.control for run in runs] == ["baseline", "baseline"] and runs[0].p is None
    with pytest.raises(ValueError, match="all_heads9 is compared with"):
        in_order([run_of("baseline", (48,) * 3, 29.0), run_of("all_heads9", (3, 3, 3), 30.0)])


def of_seeds():
    """Two seeds: the baseline, its control, a run that is better once and worse once."""
    return [
        [
            run_of("baseline", (4, 4, 4), 29.0, of=(4, 4, 4), seed=seed, p=0.04, metrics={"COMET": 0.5}),
            run_of("baseline+", (4, 4, 4), 30.2, of=(4, 4, 4), seed=seed, nll=1.9, metrics={"COMET": 0.6}),
            run_of("all_heads6", (kept, 2, 2), bleu, of=(4, 4, 4), seed=seed, p=p, metrics={"COMET": bleu / 50}),
        ]
        for seed, bleu, p, kept in (("1", 30.5, 0.01, 2), ("2", 30.0, 0.5, 3))
    ]


def test_several_seeds_have_means_and_ranges():
    header, _, *rows = [re.split("  +", line) for line in over_seeds(of_seeds()).splitlines()]
    table = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}
    assert list(table) == ["baseline", "baseline+", "all_heads6"]
    assert table["all_heads6"] == {
        **{"enc-self": "2.5/4", "dec-self": "2/4", "dec-enc": "2/4", "total": "6.5/12", "params": "1.00M"},
        **{"BLEU": "30.25 (30.00..30.50)", "diff": "+0.05 (-0.20..+0.30)", "p<0.05": "1/2", "chrF": "30.25"},
        **{"nll": "2.000 (2.000..2.000)", "COMET": "0.605 (0.6..0.61)"},
    }
    assert table["baseline+"]["diff"] == "+0.00 (+0.00..+0.00)" and table["baseline+"]["p<0.05"] == "-"
    assert table["baseline"]["diff"] == "-1.20 (-1.20..-1.20)" and table["baseline"]["p<0.05"] == "2/2"


def test_the_tsv_has_a_row_for_each_run_and_seed():
    runs = [run for of_seed in of_seeds() for run in of_seed]
    header, *rows = [line.split("\t") for line in results.tsv(runs, None).splitlines()]
    table = {(row[0], row[1]): dict(zip(header, row, strict=True)) for row in rows}
    assert list(table) == [(run.name, run.seed) for run in runs]
    last = table["all_heads6", "2"]
    assert [last[name] for name in ("control", "diff", "p BLEU", "nll", "COMET")] == [
        "baseline+",
        "-0.2",
        "0.5",
        "2.0",
        "0.6",
    ]


def test_a_model_that_a_seed_lacks_is_named():
    first, second = of_seeds()
    for seeds in ([first, second[:2]], [first[:2], second]):
        with pytest.raises(ValueError, match="has no all_heads6"):
            over_seeds(seeds)


def write(folder, alive=4, bleu=30.0, **files):
    """The files of an evaluated run; those given as None are missing."""
    folder.mkdir(parents=True)
    kinds = ("enc-self", "dec-self", "dec-enc")
    heads = {
        "heads": {**{kind: [alive, 4] for kind in kinds}, "total": [3 * alive, 12]},
        "parameters": 1_234_567 * alive,
    }
    scores = [{"name": n, "score": s, "signature": "x"} for n, s in (("BLEU", bleu), ("chrF2", 55.5))]
    p = {"control": "baseline+", **{n: {"p": 0.04, "signature": "y"} for n in ("BLEU", "chrF2")}}
    content = {"heads": heads, "scores": scores, "nll": {"nll": 2.089}, "significance": p} | files
    for name, value in content.items():
        if value is not None:
            (folder / f"{name}.json").write_text(json.dumps(value))


def printed(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["results.py", *map(str, arguments)])
    assert results.main() == 0
    return capsys.readouterr().out.splitlines()


def test_folders_of_seeds_are_read_by_their_parent(tmp_path, monkeypatch, capsys):
    for seed, bleu in (("seed7", 30.0), ("seed8", 31.0)):
        write(tmp_path / seed / "baseline", bleu=bleu)
        write(tmp_path / seed / "baseline+", bleu=bleu, significance=None)
    folders = [tmp_path / seed / name for seed in ("seed7", "seed8") for name in ("baseline", "baseline+")]
    lines = printed(monkeypatch, capsys, *folders, "--tsv", tmp_path / "t.tsv", "--paper", "wmt")
    assert "30.50 (30.00..31.00)" in lines[2] and lines[2].startswith("baseline ")
    assert sum("table 2 of Voita" in line for line in lines) == 2
    rows = [line.split("\t")[:2] for line in (tmp_path / "t.tsv").read_text().splitlines()[1:]]
    assert rows == [[name, seed] for seed in "78" for name in ("baseline", "baseline+")]
    model_by_model = [folders[0], folders[2], folders[1], folders[3]]
    assert printed(monkeypatch, capsys, *model_by_model, "--paper", "wmt") == lines


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nll", None, "nll.json is missing or has no number, the loss on the validation set: run the recipe again"),
        ("nll", {"nll": "x"}, "nll.json is missing or has no number"),
        ("significance", None, "significance.json is missing or has no p-values"),
        ("significance", {"control": "baseline+"}, "significance.json is missing or has no p-values"),
        ("metric.COMET", None, "metric.COMET.json is missing or has no number, the user's metric"),
    ],
)
def test_results_without_the_new_files_are_refused(name, content, words, tmp_path, monkeypatch, capsys):
    write(tmp_path / "baseline+", significance=None, **{"metric.COMET": {"score": 1}})
    write(tmp_path / "gated", **{"metric.COMET": {"score": 1}} | {name: content})
    arguments = ["--metric", "COMET", tmp_path / "baseline+", tmp_path / "gated"]
    monkeypatch.setattr(sys, "argv", ["results.py", *map(str, arguments)])
    assert results.main() == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and words in said and "gated" in said
