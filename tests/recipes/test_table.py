"""recipes/scripts/table.py: tables, TSV, sweep files and plots, against naive computation and sacreBLEU itself."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from statistics import mean

import pytest
from scipy.stats import binomtest
from support.results import by_sacrebleu, cells, classifier, language_model_of, translations, translator, tsv_of

from fairseq_headgates.cli.main import main as headgates
from fairseq_headgates.data import statistics
from fairseq_headgates.data.results import Speed

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
    for name in NAMES:
        truth = [by_sacrebleu(texts["baseline+", seed], texts[name, seed]) for seed in "78"]
        p = [None] * 2 if name == "baseline+" else [float(by["BLEU"][2]) for by, _ in truth]
        assert found[name]["p<0.05"] == ("-" if None in p else f"{sum(x < 0.05 for x in p)}/2")
        for (by, signature), seed in zip(truth, "78", strict=True):
            line = written[name, seed]
            assert [float(line[score]) for score in by] == [round(of[1], 6) for of in by.values()]
            tests = ["-"] * 3 if None in p else [*(str(float(of[2])) for of in by.values()), signature.format()]
            assert [line[test] for test in ("p BLEU", "p chrF2", "p signature")] == tests
    row = ["half_0.1", "3.5/6", "2/6", "1/6", "6.5/18", "1.50M", "71.35 (71.27..71.43)", "-3.96 (-5.85..-2.08)", "0/2"]
    assert re.split("  +", lines[4]) == [*row, "82.70", "2.750 (2.250..3.250)", "0.75 (0.25..1.25)"]
    assert lines[-4] == "diff, p: BLEU against the control (baseline+), paired bootstrap"
    assert lines[-3] == "nll: bits per token on the validation set (lower is better)"
    assert lines[-2:] == [f"{each}: {written['baseline', '7'][f'{each} signature']}" for each in ("BLEU", "chrF2")]


def test_the_table_of_one_seed_with_a_speed(two_seeds, printed, tmp_path):
    shutil.copytree(two_seeds[0] / "seed7", tmp_path / "seed7")
    translator(tmp_path / "timed", (6, 6, 6), 30.0, speed=1234.5)
    speed = json.loads((tmp_path / "timed" / "evaluation.json").read_text())["speed"]
    for path in (tmp_path / "seed7").glob("*/evaluation.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"speed": speed}))
    p = by_sacrebleu(*(two_seeds[1][name, "7"] for name in ("baseline+", "half_0.1")))[0]["BLEU"][2]
    assert printed(tmp_path, "7", "baseline+ half_0.1=baseline+")[:4] == [
        "model      enc-self  dec-self  dec-enc  total  params   BLEU   diff      p   chrF    nll  words/s",
        "---------  --------  --------  -------  -----  ------  -----  -----  -----  -----  -----  -------",
        "baseline+       6/6       6/6      6/6  18/18   1.00M  77.12  +0.00      -  87.10  2.125    1,234",
        f"half_0.1        4/6       2/6      1/6   7/18   1.00M  71.27  -5.85  {p:.3f}  82.13  2.250    1,234",
    ]


def test_models_are_listed_after_their_control():
    models = "baseline frozen plain a=plain b=frozen c=plain d=baseline"
    assert " ".join(script.in_order(models.split())) == "baseline d frozen b plain a c"


def test_each_model_is_shown_with_the_nearest_row_of_the_paper(tmp_path, printed):
    models = {"baseline": (48, 48, 48), "baseline+": (48, 48, 48), "all": (11, 22, 25), "all_scratch": (11, 22, 25)}
    models |= {"few": (2, 2, 2), "enc": (9, 48, 48), "cross": (48, 48, 9)}
    for name, kept in models.items():
        translator(tmp_path / "seed1" / name, kept, 29.0, of=48)
    pruned = " ".join(f"{name}=baseline+" for name in [*models][2:])
    found = cells(printed(tmp_path, "1", f"baseline baseline+ {pruned}", "--paper", "wmt"))
    expected = ["48/48/48 29.6", "-", "12/21/25 29.36", "12/21/25 28.95", "5/9/12 28.90", "10/48/48 -0.15", "-"]
    assert [row["paper"] for row in found.values()] == expected


# Heads of the three types, and BLEU of two seeds.
SWEEP = {"baseline": ((6, 6, 6), (35.0, 36.0)), "baseline+": ((6, 6, 6), (37.0, 37.5))}
SWEEP |= {"gates_9": ((2, 3, 4), (36.8, 37.6)), "gates_4": ((0, 2, 2), (34.0, 34.4))}
SWEEP |= {"subset_9": ((3, 3, 3), (36.0, 36.2)), "l0_0.03": ((1, 3, 4), (36.9, 36.5))}


@pytest.mark.release
def test_a_sweep_as_json_report_and_plot(tmp_path, printed):
    for i, seed in enumerate("12"):
        for name, (kept, bleu) in SWEEP.items():
            folder, size = tmp_path / f"seed{seed}" / name, 1000 + sum(kept)
            translator(folder, kept, bleu[i], nll=2.5, parameters=size)
    models = "baseline baseline+ " + " ".join(f"{name}=baseline+" for name in [*SWEEP][2:])
    files = {kind: tmp_path / f"sweep.{kind}" for kind in ("json", "svg")}
    printed(tmp_path, "1 2", models, "--json", files["json"], "--plot", files["svg"])
    found = {model["name"]: model for model in json.loads(files["json"].read_text())["models"]}
    model = found["gates_4"]
    assert model["layers"] == {"enc-self": [0, 0, 0], "dec-self": [2, 0, 0], "dec-enc": [2, 0, 0]}
    assert model["heads"]["total"] == 4 and model["diff"] == [-3.0, -3.1] and model["words_per_second"] == [None] * 2
    assert (model["method"], found["baseline+"]["method"]) == ("gates", None)
    sizes = {name: (sum(kept), mean(bleu)) for name, (kept, bleu) in SWEEP.items()}
    worse = {a for a, (h, b) in sizes.items() for k, c in sizes.values() if k <= h and c >= b and (k, c) != (h, b)}
    assert {name for name, model in found.items() if not model["front"]} == worse == {"baseline", "subset_9"}
    assert all(f">{name}</text>" in files["svg"].read_text() for name in ("gates", "subset", "baseline+"))
    assert headgates(["report", "--out", str(tmp_path / "report.html"), str(files["json"])]) == 0
    assert "37.20 (36.80..37.60)" in (tmp_path / "report.html").read_text()


def test_language_models_have_perplexities_and_the_heads_of_the_paper(tmp_path, printed):
    for seed in (1, 2):
        for i, (name, kept) in enumerate({"baseline": 15, "gates_0.010": 9 - seed, "gates_1.0": 4}.items()):
            language_model_of(tmp_path / f"seed{seed}" / name, kept, i + seed + 1, 1000 * seed)
    files = ["--plot", tmp_path / "t.svg", "--tsv", tmp_path / "t.tsv", "--paper", "shim"]
    lines = printed(tmp_path, "1 2", "baseline gates_0.010=baseline gates_1.0=baseline", *files)
    assert [row["paper"] for row in cells(lines).values()] == ["128/128", "106/128", "-"]
    perplexity, per_word = "12.00 (8.00..16.00)", "160.00 (64.00..256.00)"
    cell = ["gates_0.010", "7.5/15 (7..8)", "1.23M", perplexity, perplexity, per_word, per_word]
    assert re.split("  +", lines[3]) == [*cell, "1,500 (1,000..2,000)", "106/128"]
    assert "valid set: 10 tokens, 5 words, 10.00% unknown tokens" in lines
    names, written = ("test loss", "valid words", "tokens per second", "heads", "of"), tsv_of(tmp_path / "t.tsv")
    assert [written["gates_0.010", "1"][name] for name in names] == ["3.0", "5", "1000.0", "8", "15"]
    assert "test perplexity per word" in (tmp_path / "t.svg").read_text()


def test_classifiers_have_mcnemars_test_and_points_of_curves(tmp_path, printed):
    labels = [i % 2 for i in range(30)]
    wrong = {"baseline": (5, 7), "baseline+": (4, 0), "half": (9, 12), "random": (1, 2)}
    made, accuracy, mask, speed = {}, {}, {"enc-self": [[1, 1], [1, 0], [0, 0]]}, Speed("sentences", 9.0)
    for seed in (0, 1):
        place = tmp_path / f"seed{seed}"
        for name, numbers in wrong.items():
            made[name, seed] = [1 - x if j < numbers[seed] else x for j, x in enumerate(labels)]
            accuracy[name, seed] = classifier(
                place / name, 6 if "base" in name else 3, labels, made[name, seed], speed=speed
            )
        point = {"heads": 3, "parameters": 700, "accuracy": 60.0 + seed, "p_value": 0.01, "mask": mask}
        (place / "curves").mkdir()
        content = {"points": [{"removed": 0}, {"removed": 50, **point}]}
        (place / "curves" / "gradient.json").write_text(json.dumps(content))
    options = ["--curve", "gradient", "--tsv", tmp_path / "t.tsv", "--plot", tmp_path / "t.svg"]
    lines = printed(tmp_path, "0 1", "baseline baseline+ half=baseline+ random=baseline+", *options)
    found, written = cells(lines), tsv_of(tmp_path / "t.tsv")
    assert list(found) == ["baseline", "gradient-50%", "baseline+", "half", "random"]
    for name in ("half", "random"):
        p = []
        for row, one, other in ((written[name, s], made[name, int(s)], made["baseline+", int(s)]) for s in "01"):
            pairs = [*zip(one, other, labels, strict=True)]
            first, second = (sum(pair[i] == pair[2] != pair[1 - i] for pair in pairs) for i in (0, 1))
            p.append(binomtest(first, first + second).pvalue)
            assert float(row["p accuracy"]) == pytest.approx(p[-1]) and row["control"] == "baseline+"
            assert float(row["accuracy"]) == round(100 * mean(map(int.__eq__, one, labels)), 6)
        assert found[name]["p<0.05"] == f"{sum(x < 0.05 for x in p)}/2"
    assert found["baseline"]["p<0.05"] == found["baseline+"]["p<0.05"] == "-"
    point = written["gradient-50%", "1"]
    names = ("heads", "of", "parameters", "p accuracy", "sentences per second")
    assert [point[name] for name in names] == ["3", "6", "700", "0.01", "-"]
    assert float(point["diff"]) == pytest.approx(61 - accuracy["baseline", 1], abs=1e-6)
    assert re.split("  +", lines[3])[1:4] == ["3/6", "0.00M", "60.50 (60.00..61.00)"]
    assert lines[-3] == "diff, p: accuracy against the control (baseline, baseline+), McNemar's exact test"
    assert all(f">{name}</text>" in (tmp_path / "t.svg").read_text() for name in ("baseline+", "gradient", "half"))


@pytest.mark.parametrize(
    ("name", "content", "models", "words"),
    [
        ("evaluation.json", None, "", "gated/evaluation.json"),
        ("evaluation.json", '{"heads": {}}', "", "gated/evaluation.json: it has no format: write it with `headgates"),
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
    with pytest.raises(ValueError, match=rf"^.*{re.escape(words)}.*\Z"):
        printed(tmp_path, "1", f"baseline gated=baseline {models}", "--metric", "COMET")
