"""recipes/scripts/table.py: tables, TSV, sweep files and plots, against naive computation and sacreBLEU itself."""

import importlib.util
import json
import re
from pathlib import Path
from statistics import mean

import pytest
from scipy.stats import binomtest
from support.results import by_sacrebleu, cells, classifier, language_model_of, translations, translator, tsv_of

from fairseq_headgates.cli.main import main as headgates
from fairseq_headgates.data import statistics

PATH = Path(__file__).parents[2] / "recipes" / "scripts" / "table.py"
spec = importlib.util.spec_from_file_location("recipes_table", PATH)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


@pytest.fixture(autouse=True)
def resamplings(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLINGS", 100)


@pytest.fixture
def printed(capsys):
    """printed(OUT, "SEEDS", "MODELS", OPTIONS): the lines that the script prints."""

    def run(out, seeds, models, *options):
        chosen = [word for model in models.split() for word in ("--model", model)]
        script.main([str(out), "--seeds", *seeds.split(), *chosen, *map(str, options)])
        return capsys.readouterr().out.splitlines()

    return run


# --- translation ------------------------------------------------------------------------------------------------------

MODELS = "baseline baseline+ half_0.1=baseline+ half_0.1_scratch=baseline+"
NAMES = [model.partition("=")[0] for model in MODELS.split()]


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory):
    """Four models of two seeds, and their translations."""
    out, texts = tmp_path_factory.mktemp("out"), {}
    for i, seed in enumerate("78"):
        for j, (name, wrong) in enumerate(zip(NAMES, (0.15, 0.1, 0.12, 0.5), strict=True)):
            texts[name, seed] = both = translations(wrong, 10 * i + j)
            folder, kept = out / f"seed{seed}" / name, (6, 6, 6) if j < 2 else (4 - i, 2, 1)
            translator(folder, kept, texts=both, nll=2 + i + j / 8, parameters=10**6 * (i + 1))
            (folder / "COMET.txt").write_text(f"loading\nscore: {i + j / 8}\n")
    return out, texts


def test_two_seeds_have_means_ranges_and_significant_seeds(two_seeds, printed, tmp_path):
    out, texts = two_seeds
    lines = printed(out, "7 8", MODELS, "--metric", "COMET", "--tsv", tmp_path / "t.tsv")
    written, found = tsv_of(tmp_path / "t.tsv"), cells(lines)
    assert list(found) == NAMES and list(written) == [(name, seed) for seed in "78" for name in NAMES]
    for j, name in enumerate(NAMES):
        row = found[name]
        truth = [by_sacrebleu(texts["baseline+", seed], texts[name, seed]) for seed in "78"]
        bleu, chrf = ([by[score][1] for by, _ in truth] for score in ("BLEU", "chrF2"))
        differences = [by["BLEU"][1] - by["BLEU"][0] for by, _ in truth]
        assert row["BLEU"] == f"{mean(bleu):.2f} ({min(bleu):.2f}..{max(bleu):.2f})"
        assert row["chrF"] == f"{mean(chrf):.2f} ({min(chrf):.2f}..{max(chrf):.2f})"
        assert row["diff"] == f"{mean(differences):+.2f} ({min(differences):+.2f}..{max(differences):+.2f})"
        assert row["nll"] == f"{2.5 + j / 8:.3f} ({2 + j / 8:.3f}..{3 + j / 8:.3f})"
        assert row["COMET"] == f"{0.5 + j / 8:.4g} ({j / 8:.4g}..{1 + j / 8:.4g})" and row["params"] == "1.50M"
        assert (row["enc-self"], row["total"]) == (("6/6", "18/18") if j < 2 else ("3.5/6", "6.5/18"))
        p = ["-"] * 2 if name == "baseline+" else [by["BLEU"][2] for by, _ in truth]
        assert row["p<0.05"] == ("-" if "-" in p else f"{sum(x < 0.05 for x in p)}/2")
        for (by, signature), seed, expected in zip(truth, "78", p, strict=True):
            line = written[name, seed]
            assert [float(line[score]) for score in by] == [round(of[1], 6) for of in by.values()]
            assert float(line["diff"]) == pytest.approx(by["BLEU"][1] - by["BLEU"][0], abs=2e-6)
            tests = [expected if expected == "-" else str(float(of[2])) for of in by.values()]
            assert [line["p BLEU"], line["p chrF2"]] == tests
            assert (line["p signature"], line["control"]) == ("-" if "-" in p else signature.format(), "baseline+")
    signatures = [f"{name}: {written['baseline', '7'][f'{name} signature']}" for name in ("BLEU", "chrF2")]
    legend = ["diff, p: BLEU against the control (baseline+), paired bootstrap"]
    assert lines[-4:] == [*legend, "nll: bits per token on the validation set (lower is better)", *signatures]


def test_one_seed_has_its_numbers_and_its_speed(two_seeds, printed):
    out, texts = two_seeds
    row = cells(printed(out, "7", MODELS))["half_0.1"]
    (before, bleu, p), (_, chrf, _) = by_sacrebleu(texts["baseline+", "7"], texts["half_0.1", "7"])[0].values()
    expected = {"enc-self": "4/6", "dec-self": "2/6", "dec-enc": "1/6", "total": "7/18", "params": "1.00M"}
    expected |= {"BLEU": f"{bleu:.2f}", "diff": f"{bleu - before:+.2f}", "p": f"{p:.3f}", "chrF": f"{chrf:.2f}"}
    assert row == expected | {"nll": "2.250"}


def test_the_table_of_one_seed_as_text(tmp_path, printed):
    translator(tmp_path / "seed1" / "baseline", (6, 6, 6), 30.0)
    translator(tmp_path / "timed", (6, 6, 6), 30.0, speed=1234.5)
    (tmp_path / "timed" / "evaluation.json").rename(tmp_path / "seed1" / "baseline" / "speed.json")
    assert printed(tmp_path, "1", "baseline")[:5] == [
        "model     enc-self  dec-self  dec-enc  total  params   BLEU   diff  p   chrF    nll  words/s",
        "--------  --------  --------  -------  -----  ------  -----  -----  -  -----  -----  -------",
        "baseline       6/6       6/6      6/6  18/18   1.23M  30.00  +0.00  -  30.00  2.000    1,234",
        "diff, p: BLEU against the control (baseline), paired bootstrap",
        "nll: bits per token on the validation set (lower is better)",
    ]


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ("baseline a=baseline", "baseline a"),
        ("baseline frozen plain a=plain b=frozen c=plain d=baseline", "baseline d frozen b plain a c"),
    ],
)
def test_models_are_listed_after_their_control(models, expected):
    assert " ".join(script.in_order(models.split())) == expected


def test_each_model_is_shown_with_the_nearest_row_of_the_paper(tmp_path, printed):
    models = {
        "baseline": ((48, 48, 48), "48/48/48 29.6"),
        "baseline+": ((48, 48, 48), "-"),
        "all": ((11, 22, 25), "12/21/25 29.36"),
        "all_scratch": ((11, 22, 25), "12/21/25 28.95"),
        "few": ((2, 2, 2), "5/9/12 28.90"),
        "enc": ((9, 48, 48), "10/48/48 -0.15"),
        "cross": ((48, 48, 9), "-"),
    }
    for name, (kept, _) in models.items():
        translator(tmp_path / "seed1" / name, kept, 29.0, of=48)
    pruned = " ".join(f"{name}=baseline+" for name in [*models][2:])
    found = cells(printed(tmp_path, "1", f"baseline baseline+ {pruned}", "--paper", "wmt"))
    assert {name: row["paper"] for name, row in found.items()} == {name: paper for name, (_, paper) in models.items()}


# Heads of the three types, and BLEU of two seeds. baseline+ is the control of all.
SWEEP = {
    "baseline": ((6, 6, 6), (35.0, 36.0)),
    "baseline+": ((6, 6, 6), (37.0, 37.5)),
    "gates_9": ((2, 3, 4), (36.8, 37.6)),
    "gates_4": ((0, 2, 2), (34.0, 34.4)),
    "subset_9": ((3, 3, 3), (36.0, 36.2)),
    "l0_0.03": ((1, 3, 4), (36.9, 36.5)),
}


@pytest.mark.parametrize("speed", [50.0, None])
def test_a_sweep_as_json_report_and_plot(speed, tmp_path, printed):
    for i, seed in enumerate("12"):
        for name, (kept, bleu) in SWEEP.items():
            folder, size = tmp_path / f"seed{seed}" / name, 1000 + sum(kept)
            translator(folder, kept, bleu[i], nll=2.5, speed=speed, parameters=size)
    models = "baseline baseline+ " + " ".join(f"{name}=baseline+" for name in [*SWEEP][2:])
    files = {kind: tmp_path / f"sweep.{kind}" for kind in ("json", "svg")}
    printed(tmp_path, "1 2", models, "--json", files["json"], "--plot", files["svg"])
    found = {model["name"]: model for model in json.loads(files["json"].read_text())["models"]}
    model = found["gates_4"]
    assert model["layers"] == {"enc-self": [0, 0, 0], "dec-self": [2, 0, 0], "dec-enc": [2, 0, 0]}
    assert model["heads"]["total"] == 4 and model["diff"] == pytest.approx([-3.0, -3.1])
    assert (model["method"], found["baseline+"]["method"]) == ("gates", None)
    assert model["words_per_second"] == [speed] * 2
    points = {name: (sum(kept), mean(bleu)) for name, (kept, bleu) in SWEEP.items()}
    expected = {
        name
        for name, (kept, bleu) in points.items()
        if all(k > kept or b < bleu for other, (k, b) in points.items() if other != name)
    }
    assert {name for name, model in found.items() if model["front"]} == expected
    assert expected == {"baseline+", "gates_9", "l0_0.03", "gates_4"}
    assert all(f">{name}</text>" in files["svg"].read_text() for name in ("gates", "subset", "baseline+"))
    assert headgates(["report", str(tmp_path / "report.html"), str(files["json"])]) == 0
    assert "37.20 (36.80..37.60)" in (tmp_path / "report.html").read_text()


# --- language models and classifiers ----------------------------------------------------------------------------------


def test_language_models_have_perplexities_and_the_heads_of_the_paper(tmp_path, printed):
    models = ("baseline", "gates_0.010", "gates_1.0")
    for seed in (1, 2):
        for name, kept, bits in zip(models, (15, 9, 4), (1, 2, 3), strict=True):
            language_model_of(tmp_path / f"seed{seed}" / name, kept - seed * (kept < 15), bits + seed, 1000 * seed)
    files = ["--plot", tmp_path / "t.svg", "--tsv", tmp_path / "t.tsv"]
    lines = printed(
        tmp_path, "1 2", " ".join([models[0], *(f"{name}=baseline" for name in models[1:])]), *files, "--paper", "shim"
    )
    found = cells(lines)
    assert [row["paper"] for row in found.values()] == ["128/128", "106/128", "-"]
    row = {"heads": "7.5/15 (7..8)", "params": "1.23M", "valid": "12.00 (8.00..16.00)", "test": "12.00 (8.00..16.00)"}
    row |= dict.fromkeys(("valid/word", "test/word"), "160.00 (64.00..256.00)")
    assert found["gates_0.010"] == row | {"tokens/s": "1,500 (1,000..2,000)", "paper": "106/128"}
    assert "valid set: 10 tokens, 5 words, 10.00% unknown tokens" in lines
    written = tsv_of(tmp_path / "t.tsv")["gates_0.010", "1"]
    names = ("test loss", "test perplexity", "valid words", "tokens per second", "paper", "heads", "of")
    assert [written[name] for name in names] == ["3", "8", "5", "1000", "106/128", "8", "15"]
    assert "test perplexity per word" in (tmp_path / "t.svg").read_text()


def test_classifiers_have_mcnemars_test_and_points_of_curves(tmp_path, printed):
    labels = [i % 2 for i in range(30)]
    wrong = {"baseline": (5, 7), "baseline+": (4, 0), "half": (9, 12), "random": (1, 2)}
    made, accuracy = {}, {}
    for seed in (0, 1):
        place = tmp_path / f"seed{seed}"
        for name, numbers in wrong.items():
            made[name, seed] = [1 - x if j < numbers[seed] else x for j, x in enumerate(labels)]
            accuracy[name, seed] = classifier(place / name, 6 if "base" in name else 3, labels, made[name, seed])
        (place / "curves").mkdir()
        numbers = ("removed", "heads", "parameters", "accuracy", "p_value", "mask")
        mask = {"enc-self": [[1, 1], [1, 0], [0, 0]]}
        points = [(0, 6, 1000, 80, 1.0, mask), (50, 3, 700, 60.0 + seed, 0.01, mask)]
        points = [dict(zip(numbers, point, strict=True)) for point in points]
        (place / "curves" / "gradient.json").write_text(json.dumps({"points": points}))
    options = ["--curve", "gradient", "--tsv", tmp_path / "t.tsv", "--plot", tmp_path / "t.svg"]
    lines = printed(tmp_path, "0 1", "baseline baseline+ half=baseline+ random=baseline+", *options)
    found, written = cells(lines), tsv_of(tmp_path / "t.tsv")
    assert list(found) == ["baseline", "gradient-50%", "baseline+", "half", "random"]
    for name in wrong:
        control = "baseline" if name == "baseline" else "baseline+"
        values, p = [accuracy[name, seed] for seed in (0, 1)], []
        for seed in (0, 1):
            one, other = (made[model, seed] for model in (name, control))
            first = sum(a == label != b for a, b, label in zip(one, other, labels, strict=True))
            second = sum(b == label != a for a, b, label in zip(one, other, labels, strict=True))
            p.append(binomtest(first, first + second).pvalue if first + second else 1.0)
            row = written[name, str(seed)]
            assert float(row["accuracy"]) == pytest.approx(values[seed], abs=1e-6) and row["control"] == control
            assert row["p accuracy"] == "-" if name == control else float(row["p accuracy"]) == pytest.approx(p[seed])
        assert found[name]["accuracy"] == f"{mean(values):.2f} ({min(values):.2f}..{max(values):.2f})"
        assert found[name]["p<0.05"] == ("-" if name == control else f"{sum(x < 0.05 for x in p)}/2")
    point = written["gradient-50%", "1"]
    names = ("heads", "of", "parameters", "accuracy", "p accuracy")
    assert [point[name] for name in names] == ["3", "6", "700", "61.0", "0.01"]
    assert float(point["diff"]) == pytest.approx(61 - accuracy["baseline", 1], abs=1e-6)
    assert found["gradient-50%"]["p<0.05"] == "2/2" and found["baseline"]["heads"] == "6/6"
    legend = ["diff, p: accuracy against the control (baseline, baseline+), McNemar's exact test"]
    assert lines[-2:] == [*legend, "accuracy on 30 sentences"]
    assert all(f">{name}</text>" in (tmp_path / "t.svg").read_text() for name in ("baseline+", "gradient", "half"))


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "models", "words"),
    [
        ("evaluation.json", None, "", "gated/evaluation.json"),
        ("evaluation.json", '{"heads": {}}', "", "gated/evaluation.json: it has no format: write it with `headgates"),
        ("COMET.txt", None, "", "gated/COMET.txt"),
        ("COMET.txt", "no number\n", "", "gated/COMET.txt must end with a number"),
        ("COMET.txt", "1\n", "half=plain", "the control 'plain' of 'half' is not a model: add --model plain"),
    ],
)
def test_wrong_input_is_refused_in_one_line(name, content, models, words, tmp_path, printed):
    for folder in ("baseline", "gated"):
        translator(tmp_path / "seed1" / folder, (6, 6, 6), 30.0)
        (tmp_path / "seed1" / folder / "COMET.txt").write_text("1\n")
    path = tmp_path / "seed1" / "gated" / name
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(SystemExit) as error:
        printed(tmp_path, "1", f"baseline gated=baseline {models}", "--metric", "COMET")
    assert re.fullmatch(rf"table\.py: .*{re.escape(words)}.*", str(error.value)), error.value
