"""The results of recipes: tables, TSV, sweep files and plots, against naive computation and sacreBLEU itself."""

import json
import re
from statistics import mean

import numpy as np
import pytest
import sacrebleu
from matplotlib.figure import Figure
from sacrebleu.metrics import BLEU
from scipy.stats import binomtest
from support.results import (
    FROZEN,
    PLAIN,
    by_sacrebleu,
    cells,
    classifier,
    language_model_of,
    lines_of,
    run_line,
    translations,
    translator,
    tsv_of,
)

import commands
from fairseq_headgates.data import statistics
from results import language_model, rows, table
from runs import Model


@pytest.fixture(autouse=True)
def resamplings(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLINGS", 100)


@pytest.fixture
def printed(capsys):
    """printed(ARGUMENTS): the lines that results.table prints."""
    return lambda *arguments: [table.main(list(map(str, arguments))), capsys.readouterr().out.splitlines()][1]


# --- translation ------------------------------------------------------------------------------------------------------

RUNS = ["baseline", "baseline+", "all_lambda0.1", "all_lambda0.1_scratch"]
PLAN = lines_of(PLAIN, run_line(RUNS[2]), run_line(RUNS[3], "scratch", value=RUNS[2]))


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory):
    """Four models of two seeds, and their translations."""
    out, texts = tmp_path_factory.mktemp("out"), {}
    for i, seed in enumerate("78"):
        for j, (name, wrong) in enumerate(zip(RUNS, (0.15, 0.1, 0.12, 0.5), strict=True)):
            texts[name, seed] = both = translations(wrong, 10 * i + j)
            folder, kept = out / f"seed{seed}" / name, (6, 6, 6) if j < 2 else (4 - i, 2, 1)
            translator(folder, kept, texts=both, nll=2 + i + j / 8, parameters=10**6 * (i + 1))
            (folder / "metric.COMET.json").write_text(json.dumps({"score": i + j / 8}))
    return [out / "seed7", out / "seed8"], texts


@pytest.mark.parametrize("name", RUNS)
def test_several_seeds_have_means_ranges_and_significant_seeds(name, two_seeds, printed, tmp_path):
    places, texts = two_seeds
    lines = printed("translation", *places, *PLAN, "--metric", "COMET", "--tsv", tmp_path / "t.tsv")
    written, row, j = tsv_of(tmp_path / "t.tsv"), cells(lines)[name], RUNS.index(name)
    assert list(cells(lines)) == RUNS and list(written) == [(run, seed) for seed in "78" for run in RUNS]
    truth = [by_sacrebleu(texts["baseline+", seed], texts[name, seed]) for seed in "78"]
    bleu, differences = zip(*((by["BLEU"][1], by["BLEU"][1] - by["BLEU"][0]) for by, _ in truth), strict=True)
    assert row["BLEU"] == f"{mean(bleu):.2f} ({min(bleu):.2f}..{max(bleu):.2f})"
    assert row["diff"] == f"{mean(differences):+.2f} ({min(differences):+.2f}..{max(differences):+.2f})"
    assert row["chrF"] == f"{mean(by['chrF2'][1] for by, _ in truth):.2f}"
    assert row["nll"] == f"{2.5 + j / 8:.3f} ({2 + j / 8:.3f}..{3 + j / 8:.3f})"
    assert row["COMET"] == f"{0.5 + j / 8:.4g} ({j / 8:.4g}..{1 + j / 8:.4g})" and row["params"] == "1.50M"
    assert (row["enc-self"], row["total"]) == (("6/6", "18/18") if j < 2 else ("3.5/6", "6.5/18"))
    p = ["-"] * 2 if name == "baseline+" else [by["BLEU"][2] for by, _ in truth]
    assert row["p<0.05"] == ("-" if "-" in p else f"{sum(x < 0.05 for x in p)}/2")
    for (by, signature), seed, expected in zip(truth, "78", p, strict=True):
        found = written[name, seed]
        assert [float(found[score]) for score in by] == [round(of[1], 6) for of in by.values()]
        assert float(found["diff"]) == pytest.approx(by["BLEU"][1] - by["BLEU"][0], abs=2e-6)
        assert [found["p BLEU"], found["p chrF2"]] == [
            expected if expected == "-" else str(float(of[2])) for of in by.values()
        ]
        assert (found["p signature"], found["control"]) == ("-" if "-" in p else signature.format(), "baseline+")
    assert lines[-4] == "diff, p: BLEU against the control (baseline+), paired bootstrap"
    assert lines[-2] == f"BLEU: {written['baseline', '7']['BLEU signature']}"


def test_one_seed_has_its_numbers(two_seeds, printed):
    places, texts = two_seeds
    row = cells(printed("translation", places[0], *PLAN))["all_lambda0.1"]
    (before, bleu, p), (_, chrf, _) = by_sacrebleu(texts["baseline+", "7"], texts["all_lambda0.1", "7"])[0].values()
    expected = {"enc-self": "4/6", "dec-self": "2/6", "dec-enc": "1/6", "total": "7/18", "params": "1.00M"}
    expected |= {"BLEU": f"{bleu:.2f}", "diff": f"{bleu - before:+.2f}", "p": f"{p:.3f}", "chrF": f"{chrf:.2f}"}
    assert row == expected | {"nll": "2.250"}


def test_the_p_value_is_that_of_a_naive_bootstrap(two_seeds, printed, tmp_path, monkeypatch):
    """Centred absolute differences of resampled BLEU (Koehn 2004), written again."""
    places, texts = two_seeds
    (reference, good), (_, other) = (texts[name, "7"] for name in ("baseline+", "all_lambda0.1"))
    samples = np.random.default_rng(12345).choice(len(reference), size=(1000, len(reference)), replace=True)

    def scores(texts):
        """BLEU of all sentences, then that of every sample: from the sums of the n-grams of its sentences."""
        found = (sacrebleu.sentence_bleu(text, [line]) for text, line in zip(texts, reference, strict=True))
        counts = np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in found])
        sums = [counts.sum(0), *counts[samples].sum(1)]
        return [BLEU.compute_bleu(list(n[:4]), list(n[4:8]), *n[8:], smooth_method="exp").score for n in sums]

    observed, *differences = np.abs(np.subtract(scores(good), scores(other)))
    more = sum(differences - np.mean(differences) > observed)
    monkeypatch.setattr(statistics, "RESAMPLINGS", 1000)
    monkeypatch.setenv("SACREBLEU_SEED", "7")  # has no effect
    printed("translation", places[0], *PLAN[:4], "--tsv", tmp_path / "t.tsv")
    found = tsv_of(tmp_path / "t.tsv")["all_lambda0.1", "-"]
    assert float(found["p BLEU"]) == pytest.approx((more + 1) / 1001, abs=0.002)
    assert "bs:1000" in found["p signature"] and "seed:12345" in found["p signature"]


def test_case_matters_unless_the_scores_ignore_it(tmp_path, printed):
    for lowercase in (False, True):
        for name, case in (("baseline", str), ("baseline+", str.upper)):
            translator(tmp_path / name, (6, 6, 6), texts=translations(0.1, 1, case), lowercase=lowercase)
        row = cells(printed("translation", tmp_path, *lines_of(PLAIN)))["baseline"]
        assert (row["p"] == "1.000") == lowercase and (float(row["p"]) < 0.02) != lowercase


def test_runs_are_listed_after_their_control():
    plan = [FROZEN, PLAIN, run_line("a"), run_line("b", control="baseline+frozen"), run_line("c", "random")]
    for lines, expected in (
        ([], "baseline<baseline"),
        ([run_line("a", control="baseline")], "baseline<baseline a<baseline"),
        (
            plan,
            "baseline<baseline+frozen baseline+frozen<baseline+frozen b<baseline+frozen "
            "baseline+<baseline+ a<baseline+ c<baseline+",
        ),
    ):
        assert " ".join(f"{run.name}<{run.control}" for run in rows.in_order(lines, own_control=False)) == expected
    assert rows.in_order(plan, own_control=True)[0].control == "baseline"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (PLAIN, ("", "")),
        (run_line("all_lambda0.02_rate10", "l0"), ("all", "l0")),
        (run_line("x", "scratch", types="enc-self"), ("enc-self", "scratch")),
        (run_line("x", "gradient-only", types="enc-self,dec-enc"), ("enc-self+dec-enc", "gradient-only")),
    ],
)
def test_types_and_method_are_those_of_the_plan(line, expected):
    run = Model.parse(line)
    assert (run.types, run.method) == expected


def test_a_baseline_alone_is_its_own_control(tmp_path, printed):
    translator(tmp_path / "baseline", (6, 6, 6), 30.0)
    row = cells(printed("translation", tmp_path))["baseline"]
    assert [row[name] for name in ("BLEU", "diff", "p", "chrF", "nll")] == ["30.00", "+0.00", "-", "30.00", "2.000"]


def test_each_row_is_shown_with_the_nearest_row_of_the_paper(tmp_path, printed):
    models = {
        "baseline": ((48, 48, 48), 29.0, None),
        "baseline+": ((48, 48, 48), 29.2, PLAIN),
        "all_l": ((11, 22, 25), 28.5, run_line("all_l")),
        "all_l_scratch": ((11, 22, 25), 28.0, run_line("all_l_scratch", "scratch", value="all_l")),
        "all_6": ((2, 2, 2), 20.0, run_line("all_6", "lagrangian")),
        "enc": ((9, 48, 48), 28.9, run_line("enc", types="enc-self")),
        "cross": ((48, 48, 9), 28.9, run_line("cross", types="dec-enc")),
    }
    for name, (kept, bleu, _) in models.items():
        translator(tmp_path / name, kept, bleu, of=48)
    plan = lines_of(*(line for _, _, line in models.values() if line))
    lines = printed("translation", tmp_path, *plan, "--paper", "wmt", "--tsv", tmp_path / "t.tsv")
    assert lines[-9] == "BLEU as in table 2 of Voita et al. 2019 (wmt):"
    assert [" ".join(line.split()) for line in lines[-6:]] == [
        "baseline 48/48/48 29.00 - 48/48/48 29.6 -",
        "baseline+ 48/48/48 29.20 - - - -",
        "all_l 11/22/25 28.50 28.00 12/21/25 29.36 28.95",
        "all_6 2/2/2 20.00 - 5/9/12 28.90 28.41",
        "enc 9/48/48 28.90 - 10/48/48 -0.15 -",
        "cross 48/48/9 28.90 - - - -",
    ]
    found = tsv_of(tmp_path / "t.tsv")["all_l_scratch", "-"]
    assert (found["paper heads"], found["paper BLEU"]) == ("12/21/25", "28.95")
    translator(tmp_path / "all_6", (5, 10, 10), 20.0, of=16)  # 25 of 48, as 75 of 144
    assert "14/31/30" in printed("translation", tmp_path, *plan, "--paper", "wmt")[-3]


# --- sweeps -----------------------------------------------------------------------------------------------------------

# Heads of the three types, and BLEU of two seeds. baseline+ is the control of all.
SWEEP = {
    "baseline": ((6, 6, 6), (35.0, 36.0), None),
    "baseline+": ((6, 6, 6), (37.0, 37.5), "control"),
    "all_heads9": ((2, 3, 4), (36.8, 37.6), "lagrangian"),
    "all_heads9_subset": ((3, 3, 3), (36.0, 36.2), "subset"),
    "all_heads4": ((0, 2, 2), (34.0, 34.4), "lagrangian"),
    "all_lambda0.03": ((1, 3, 4), (36.9, 36.5), "l0"),
    "all_heads9_scratch": ((2, 3, 4), (33.0, 33.0), "scratch"),
}


@pytest.fixture
def sweep(tmp_path):
    """The arguments of a sweep of two seeds, and a function that writes its models."""
    plan = lines_of(*(run_line(name, method) for name, (_, _, method) in SWEEP.items() if method))
    places = [tmp_path / f"seed{seed}" for seed in (1, 2)]

    def write_models(speed):
        for seed, place in enumerate(places):
            for name, (kept, bleu, _) in SWEEP.items():
                translator(place / name, kept, bleu[seed], nll=2.5, speed=speed, parameters=1000 + sum(kept))

    write_models(50.0)
    return ["translation", *places, *plan, "--sweep"], write_models


def test_a_sweep_as_table_tsv_json_and_plot(sweep, tmp_path, printed):
    out = {kind: tmp_path / f"sweep.{kind}" for kind in ("tsv", "json", "svg")}
    lines = printed(*sweep[0], "--tsv", out["tsv"], "--json", out["json"], "--plot", out["svg"])
    (row,) = (line.split() for line in lines if line.startswith("all_heads9 "))
    assert row == ["all_heads9", "*", "2", "3", "4", "9", "0.00M", "37.20", "-0.05", "37.20", "2.500", "50"]
    assert [line.split()[0] for line in lines[2:4]] == ["baseline+", "baseline"]  # most heads first
    header, *found = (line.split("\t") for line in out["tsv"].read_text().splitlines())
    by_name = {row[0]: dict(zip(header, row, strict=True)) for row in found}
    assert list(by_name) == list(SWEEP) and by_name["all_heads9_subset"]["method"] == "subset"
    cell = by_name["all_heads4"]
    assert [cell[name] for name in ("BLEU", "BLEU min", "BLEU max", "seeds")] == ["34.2", "34.0", "34.4", "2"]
    written = json.loads(out["json"].read_text())
    assert written["format"] == "headgates.sweep/1"
    (model,) = (model for model in written["models"] if model["name"] == "all_heads4")
    assert model["layers"] == {"enc-self": [0, 0, 0], "dec-self": [2, 0, 0], "dec-enc": [2, 0, 0]}
    assert model["diff"] == pytest.approx([-3.0, -3.1]) and model["heads"]["total"] == 4
    plot = out["svg"].read_text()
    assert plot.startswith("<?xml") and all(text in plot for text in ("all lagrangian", "all scratch", "baseline+"))


def test_the_pareto_front_equals_one_by_brute_force(sweep, tmp_path, printed):
    printed(*sweep[0], "--json", tmp_path / "sweep.json")
    models = json.loads((tmp_path / "sweep.json").read_text())["models"]
    points = {name: (sum(kept), mean(bleu)) for name, (kept, bleu, _) in SWEEP.items()}
    expected = {
        name
        for name, (heads, bleu) in points.items()
        if all(h > heads or b < bleu for other, (h, b) in points.items() if other != name)
    }
    assert {model["name"] for model in models if model["front"]} == expected
    assert expected == {"baseline+", "all_heads9", "all_lambda0.03", "all_heads4"}


def test_a_speed_that_was_not_measured_is_null(sweep, tmp_path, printed):
    sweep[1](None)
    printed(*sweep[0], "--json", tmp_path / "sweep.json")
    assert json.loads((tmp_path / "sweep.json").read_text())["models"][0]["words_per_second"] == [None, None]


# --- language models --------------------------------------------------------------------------------------------------


def test_the_table_of_language_models_with_the_heads_of_the_paper(tmp_path, printed):
    models, arguments = ("baseline", "lambda0.010", "lambda1"), ["language_model", tmp_path, "--bpe", 2000]
    arguments += lines_of(
        *(run_line(name, types="dec-self", value=name[6:], control="baseline") for name in models[1:])
    )
    for name, kept, speed in zip(models, (15, 7, 0), (100, 2000, 3), strict=True):
        language_model_of(tmp_path / name, kept, 2, speed)
    lines = printed(*arguments, "--paper", "shim", "--tsv", tmp_path / "t.tsv")
    assert lines[0].split() == "model heads paper params valid test valid/word test/word tokens/s".split()
    assert lines[2].split() == "baseline 15/15 128/128 1.23M 4.00 4.00 16.00 16.00 100".split()
    assert [line.split()[:3] for line in lines[3:5]] == [["lambda0.010", "7/15", "106/128"], ["lambda1", "0/15", "-"]]
    assert "valid set: 10 tokens, 5 words, 10.00% unknown tokens" in lines and "BPE, 2,000 merges" in lines[5]
    written = tsv_of(tmp_path / "t.tsv")
    assert [name for name, _ in written] == list(models)
    names = ("test loss", "test perplexity", "valid words", "tokens per second", "paper heads")
    assert [written["lambda0.010", "-"][name] for name in names] == ["2.0", "4.0", "5", "2000.0", "106/128"]
    for name in models:
        language_model_of(tmp_path / name, 7, 2, speed=None)
    lines = printed(*arguments, "--tsv", tmp_path / "t.tsv")
    assert "tokens/s" not in " ".join(lines) and "paper" not in lines[0]
    assert tsv_of(tmp_path / "t.tsv")["lambda1", "-"]["tokens per second"] == "-"


def test_language_models_of_several_seeds_have_means_ranges_and_a_plot(tmp_path, printed):
    plan = [run_line(name, types="dec-self", control="baseline") for name in ("lambda0.1", "lambda1")]
    places = [tmp_path / "seed1", tmp_path / "seed2"]
    for seed, place in enumerate(places, 1):
        for name, kept, bits in (("baseline", 15, 1), ("lambda0.1", 9, 2), ("lambda1", 4, 3)):
            language_model_of(place / name, kept - seed, bits + seed, 1000 * seed)
    files = ["--plot", tmp_path / "t.svg", "--tsv", tmp_path / "t.tsv"]
    row = re.split("  +", printed("language_model", *places, *lines_of(*plan), *files)[2])
    assert row[1:4] == ["13.5/15 (13..14)", "1.23M", "6.00 (4.00..8.00)"]
    assert row[-2:] == ["40.00 (16.00..64.00)", "1,500 (1,000..2,000)"]
    names = ("baseline", "lambda0.1", "lambda1")
    assert list(tsv_of(tmp_path / "t.tsv")) == [(name, seed) for name in names for seed in "12"]
    assert "perplexity per word (test)" in (tmp_path / "t.svg").read_text()
    axes = Figure().subplots()
    seeds = [rows.read(place, rows.in_order(plan, True), place.name, tested=False) for place in places]
    language_model.panels(seeds)[0].draw(axes)
    expected = [[2.5, (4**4 + 4**5) / 2], [7.5, (4**3 + 4**4) / 2]]  # 4 to the power of the loss
    assert axes.containers[0].lines[0].get_xydata().tolist() == expected
    assert [line.get_ydata()[0] for line in axes.lines if line.get_xdata()[-1] == 1] == [(4**2 + 4**3) / 2]


# --- classification ---------------------------------------------------------------------------------------------------


def test_classifiers_have_accuracy_with_mcnemars_test_and_points_of_curves(tmp_path, printed):
    labels = [i % 2 for i in range(30)]
    wrong = {"baseline": (5, 7), "baseline+": (4, 0), "heads0.5": (9, 12), "lambda1": (4, 1), "heads0.5_random": (1, 2)}
    made, accuracy = {}, {}
    for seed in (0, 1):
        place = tmp_path / f"seed{seed}"
        for i, (name, numbers) in enumerate(wrong.items()):
            made[name, seed] = [1 - x if j < numbers[seed] else x for j, x in enumerate(labels)]
            others = {"parameters": 1000 * (i + 1)}
            accuracy[name, seed] = classifier(
                place / name, 6 if "base" in name else 3, labels, made[name, seed], **others
            )
        (place / "curves").mkdir()
        numbers = ("removed", "heads", "parameters", "accuracy", "p_value")
        points = [dict(zip(numbers, p, strict=True)) for p in ((0, 6, 1000, 80, 1.0), (50, 3, 700, 60.0 + seed, 0.01))]
        (place / "curves" / "gradient.json").write_text(json.dumps({"points": points}))
    methods = {"heads0.5": "lagrangian", "lambda1": "l0", "heads0.5_random": "random"}
    plan = lines_of(PLAIN, *(run_line(name, method, types="enc-self") for name, method in methods.items()))
    files = ["--tsv", tmp_path / "t.tsv", "--plot", tmp_path / "t.svg"]
    lines = printed("classification", tmp_path / "seed0", tmp_path / "seed1", *plan, "--curves", "gradient", *files)
    found, written = cells(lines), tsv_of(tmp_path / "t.tsv")
    assert list(found) == ["baseline", "gradient-50%", "baseline+", *methods]
    for name in wrong:
        control = "baseline" if name == "baseline" else "baseline+"
        values, p = [accuracy[name, seed] for seed in (0, 1)], []
        for seed in (0, 1):
            row = written[name, str(seed)]
            one, other = (made[model, seed] for model in (name, control))
            first = sum(a == label != b for a, b, label in zip(one, other, labels, strict=True))
            second = sum(b == label != a for a, b, label in zip(one, other, labels, strict=True))
            p.append(binomtest(first, first + second).pvalue if first + second else 1.0)
            assert (row["kept"], row["of"], row["control"]) == ("6" if "base" in name else "3", "6", control)
            assert float(row["accuracy"]) == values[seed]
            assert float(row["diff"]) == pytest.approx(values[seed] - accuracy[control, seed])
            assert row["p"] == "-" if name == control else float(row["p"]) == pytest.approx(p[seed])
        assert found[name]["accuracy"] == f"{mean(values):.2f} ({min(values):.2f}..{max(values):.2f})"
        assert found[name]["p<0.05"] == ("-" if name == control else f"{sum(x < 0.05 for x in p)}/2")
    point = written["gradient-50%", "1"]
    assert [point[name] for name in ("kept", "of", "parameters", "accuracy", "p")] == ["3", "6", "700", "61.0", "0.01"]
    assert float(point["diff"]) == pytest.approx(61 - accuracy["baseline", 1])
    assert found["gradient-50%"]["p<0.05"] == "2/2" and found["baseline"]["heads"] == "6/6"
    assert lines[-2:] == [
        "diff, p: accuracy against the control (baseline, baseline+), McNemar's exact test",
        "accuracy on 30 sentences of test",
    ]
    plot, names = (tmp_path / "t.svg").read_text(), ("gates", "gates (l0)", "gradient", "random, trained further")
    assert all(f">{name}</text>" in plot for name in ("baseline", "baseline+", *names))


# --- files that are refused -----------------------------------------------------------------------------


def refused(capsys, words, *arguments):
    """The frame of the programs prints one line and returns 2."""
    assert commands.run("results.table", *map(str, arguments)) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and words in said and said.startswith("results.table: "), said


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("evaluation", None, "gated/evaluation.json"),
        ("evaluation", '{"heads": {}}', "gated/evaluation.json: it has no format: write it with `headgates evaluate"),
        ("metric.COMET", None, "metric.COMET.json"),
    ],
)
def test_a_file_that_is_missing_or_malformed_is_refused(name, content, words, tmp_path, capsys):
    for folder in ("baseline", "gated"):
        translator(tmp_path / folder, (6, 6, 6), 30.0)
        (tmp_path / folder / "metric.COMET.json").write_text('{"score": 1}')
    path = tmp_path / "gated" / f"{name}.json"
    path.unlink() if content is None else path.write_text(content)
    plan = lines_of(run_line("gated", control="baseline"))
    refused(capsys, words, "translation", tmp_path, *plan, "--metric", "COMET")


def test_a_seed_that_lacks_a_model_or_a_point_is_named(two_seeds, tmp_path, capsys):
    translator(tmp_path / "seed9" / "baseline", (6, 6, 6), 30.0)
    refused(capsys, "seed9/baseline+/evaluation.json", "translation", two_seeds[0][0], tmp_path / "seed9", *PLAN)
    for seed, point in enumerate(([], [{"removed": 50, "heads": 3, "parameters": 1, "accuracy": 1, "p_value": 1}])):
        classifier(tmp_path / str(seed) / "baseline", 6, [1], [1])
        (tmp_path / str(seed) / "curves").mkdir()
        (tmp_path / str(seed) / "curves" / "random.json").write_text(json.dumps({"points": point}))
    places = [tmp_path / "0", tmp_path / "1"]
    refused(capsys, f"{places[1]} have other points", "classification", *places, "--curves", "random")


# --- the last table of the demo ---------------------------------------------------------------------------------------


def test_the_demo_prints_what_each_model_costs_and_saves(tmp_path, capsys):
    texts = {name: translations(wrong, seed) for seed, (name, wrong) in enumerate((("baseline+", 0.1), ("all", 0.4)))}
    translator(tmp_path / "baseline+", (6, 6, 6), texts=texts["baseline+"], speed=1000.0, parameters=10**6)
    translator(tmp_path / "all", (2, 6, 3), texts=texts["all"], speed=1500.0, parameters=750_000)
    found = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("baseline+", "all", "all")]
    found[2]["checkpoint"] = "smaller/refit.pt"
    (tmp_path / "found.json").write_text(json.dumps(found))
    assert commands.run("results.demo", str(tmp_path / "found.json")) == 0
    before, after, p = by_sacrebleu(texts["baseline+"], texts["all"])[0]["BLEU"]
    cost = ["11/18", "0.75M", f"{after:.2f}", f"{after - before:+.2f}", f"{p:.3f}", "1,500", "[750,", "1,500]"]
    header, _, whole, pruned, refitted, legend = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "heads", "params", "BLEU", "diff", "p", "words/s"]
    assert whole.split()[-8:] == ["18/18", "1.00M", f"{before:.2f}", "-", "-", "1,000", "[500,", "1,000]"]
    assert pruned.split() == [found[1]["checkpoint"], *cost]
    assert refitted.startswith("smaller/refit.pt: half of the heads, by refit scores, refitted ")
    assert refitted.split()[-8:] == cost
    assert legend.startswith(f"diff, p: BLEU against {found[0]['checkpoint']}, paired bootstrap; words/s: fastest ")
