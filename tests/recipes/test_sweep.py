"""The sweep: its table, JSON and plot, shares of a recipe, the speed of translation."""

import json
import os
import re
import subprocess

import pytest
from support.recipes import RECIPES, refused, run

import evaluated
import pareto
import speed

# Heads of the three types, and BLEU of two seeds. baseline+ is the control of all.
MODELS = {
    "baseline": ((6, 6, 6), (35.0, 36.0)),
    "baseline+": ((6, 6, 6), (37.0, 37.5)),
    "all_heads9": ((2, 3, 4), (36.8, 37.6)),
    "all_heads9_subset": ((3, 3, 3), (36.0, 36.2)),
    "all_heads4": ((0, 2, 2), (34.0, 34.4)),
    "all_lambda0.03": ((1, 3, 4), (36.9, 36.5)),
    "all_heads9_scratch": ((2, 3, 4), (33.0, 33.0)),
}


def write_run(folder, name, heads, bleu, seconds=2.0):
    """The files of an evaluated model with three layers of two heads."""
    folder = folder / name
    folder.mkdir(parents=True)
    kinds = ("enc-self", "dec-self", "dec-enc")
    gates = {
        kind: [[int(n > 2 * i), int(n > 2 * i + 1)] for i in range(3)] for kind, n in zip(kinds, heads, strict=True)
    }
    counts = {kind: [n, 6] for kind, n in zip(kinds, heads, strict=True)} | {"total": [sum(heads), 18]}
    scores = [{"name": name, "score": bleu + shift, "signature": "s"} for name, shift in (("BLEU", 0), ("chrF2", 20))]
    compared = {"control": "baseline+", **{name: {"p": 0.1, "signature": "s"} for name in ("BLEU", "chrF2")}}
    files = {
        "heads.json": {"gate": gates, "heads": counts, "parameters": 1000 + sum(heads)},
        "scores.json": scores,
        "nll.json": {"nll": 2.5},
        "speed.json": {"words_per_second": 100 / seconds},
    }
    if name != "baseline+":
        files["significance.json"] = compared
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    return folder


@pytest.fixture
def sweep(tmp_path):
    return [
        write_run(tmp_path / f"seed{seed + 1}", name, heads, bleu[seed])
        for seed in (0, 1)
        for name, (heads, bleu) in MODELS.items()
    ]


def run_pareto(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["pareto.py", *map(str, arguments)])
    return pareto.main()


def test_a_sweep_as_table_tsv_json_and_plot(sweep, tmp_path, monkeypatch, capsys):
    out = {kind: tmp_path / f"sweep.{kind}" for kind in ("tsv", "json", "svg")}
    files = ["--tsv", out["tsv"], "--json", out["json"], "--plot", out["svg"]]
    assert run_pareto(monkeypatch, *sweep, *files) == 0
    table = capsys.readouterr().out
    (row,) = re.findall(r"^all_heads9 .*$", table, re.MULTILINE)
    assert row.split() == ["all_heads9", "*", "2", "3", "4", "9", "0.00M", "37.20", "-0.05", "57.20", "2.500", "50"]
    assert [line.split()[0] for line in table.splitlines()[2:4]] == ["baseline+", "baseline"]  # most heads first
    header, *rows = (line.split("\t") for line in out["tsv"].read_text().splitlines())
    by_name = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert by_name.keys() == MODELS.keys()
    assert by_name["all_lambda0.03"]["method"] == "l0" and by_name["all_heads9_subset"]["method"] == "subset"
    assert [by_name["all_heads4"][name] for name in ("BLEU", "BLEU min", "BLEU max", "seeds")] == [
        "34.2", "34.0", "34.4", "2",
    ]  # fmt: skip
    found = json.loads(out["json"].read_text())
    assert found["format"] == "headgates.sweep/1"
    (model,) = (model for model in found["models"] if model["name"] == "all_heads4")
    assert model["layers"] == {"enc-self": [0, 0, 0], "dec-self": [2, 0, 0], "dec-enc": [2, 0, 0]}
    assert model["diff"] == pytest.approx([-3.0, -3.1]) and model["heads"]["total"] == 4
    plot = out["svg"].read_text()
    assert plot.startswith("<?xml") and all(text in plot for text in ("all lagrangian", "all scratch", "baseline+"))


def test_the_pareto_front_equals_one_by_brute_force(sweep, tmp_path, monkeypatch, capsys):
    assert run_pareto(monkeypatch, *sweep, "--json", tmp_path / "sweep.json") == 0
    models = json.loads((tmp_path / "sweep.json").read_text())["models"]
    points = {m["name"]: (m["heads"]["total"], sum(m["BLEU"]) / 2) for m in models}
    expected = {
        name
        for name, (heads, bleu) in points.items()
        if all(h > heads or b < bleu for other, (h, b) in points.items() if other != name)
    }
    assert (
        {m["name"] for m in models if m["front"]}
        == expected
        == {"baseline+", "all_heads9", "all_lambda0.03", "all_heads4"}
    )


def test_a_missing_speed_is_null_and_a_malformed_one_is_refused(sweep, tmp_path, monkeypatch, capsys):
    for folder in sweep:
        (folder / "speed.json").unlink()
    assert run_pareto(monkeypatch, *sweep, "--json", tmp_path / "sweep.json") == 0
    assert json.loads((tmp_path / "sweep.json").read_text())["models"][0]["words_per_second"] == [None, None]
    (sweep[0] / "speed.json").write_text("{}")
    assert run_pareto(monkeypatch, *sweep) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"pareto.py: {sweep[0]}/speed.json has no words_per_second: remove it and run the sweep again"
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("baseline", ("", "")),
        ("baseline+frozen", ("", "")),
        ("all_lambda0.02", ("all", "l0")),
        ("all_lambda0.02_rate10", ("all", "l0")),
        ("all_lambda0.02_rate10_scratch", ("all", "scratch")),
        ("enc-self+dec-enc_heads0.5", ("enc-self+dec-enc", "lagrangian")),
        ("enc-self_heads6_gradient-only", ("enc-self", "gradient-only")),
        ("all_lambda0.02_scratch", ("all", "scratch")),
    ],
)
def test_types_and_method_by_the_name_of_a_run(name, expected):
    assert evaluated.types_and_method(name) == expected


def test_words_per_second(tmp_path, capsys):
    log, translations = tmp_path / "generate.log", tmp_path / "test.hyp"
    translations.write_text("one two three\nfour five\n")
    log.write_text("INFO:fairseq_cli.generate:Translated 1,000 sentences (8,000 tokens) in 2.5s (222.86 sentences/s)\n")
    assert speed.speed(log, translations) == {"sentences": 1000, "seconds": 2.5, "words_per_second": 2.0}
    log.write_text("nothing\n")
    assert speed.main([str(log), str(translations)]) == 2
    assert "has no time of a translation" in capsys.readouterr().err


# Shares


def dry_run(raw, out, recipe="translation.sh", **given):
    environment = {**os.environ, **given}
    command = [RECIPES / recipe, "--dry-run", raw, out, "en", "de"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


def trained(text):
    """The models whose training a dry run prints."""
    found = re.findall(r"train\.py .*--save-dir \S*/out/(\S+) ", text)
    return [name for name in found if not name.endswith("/first")]  # the first part of a training from scratch


RUNS = "all:0.1 enc-self=2 all=4@random all=4@gradient-only"
NAMES = ["baseline", "baseline+", "baseline+frozen", "all_lambda0.1", "enc-self_heads2", "all_heads4_random"]


def test_shares_cover_all_models_once_with_their_baselines(raw, tmp_path):
    given = {"RUNS": RUNS, "SPARSITY_METHOD": "lagrangian", "SCRATCH": "enc-self"}
    whole = trained(dry_run(raw, tmp_path / "out", **given))
    assert sorted(whole) == sorted([*NAMES, "enc-self_heads2_scratch"])
    shares = [trained(dry_run(raw, tmp_path / "out", **given, SHARE=f"{i}/3")) for i in (1, 2, 3)]
    assert all(len(set(share)) == len(share) and share[0] == "baseline" for share in shares)
    assert set().union(*shares) == set(whole)
    runs = [name for share in shares for name in share if not name.startswith("baseline")]
    assert (
        sorted(runs)
        in (  # the scratch model may need another share's run
            sorted([*NAMES[3:], "enc-self_heads2_scratch"]),
            sorted([*NAMES[3:], "enc-self_heads2_scratch", "enc-self_heads2"]),
        )
    )


def test_shares_begin_with_different_seeds(raw, tmp_path):
    given = {"RUNS": "all:0.1 all=4", "SEEDS": "1 2 3"}
    whole = trained(dry_run(raw, tmp_path / "out", **given))
    shares = [trained(dry_run(raw, tmp_path / "out", **given, SHARE=f"{i}/2")) for i in (1, 2)]
    assert [share[0] for share in shares] == ["seed1/baseline", "seed2/baseline"]
    runs = [name for name in shares[0] if "baseline" not in name]
    assert runs == ["seed1/all_heads4", "seed2/all_lambda0.1", "seed3/all_heads4"]
    assert set().union(*shares) == set(whole) and len(whole) == 12


def test_a_job_of_a_slurm_array_has_its_share(raw, tmp_path):
    array = {"SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_MAX": "7", "SLURM_ARRAY_TASK_STEP": "2"}
    given = {"TYPES": "all", "LAMBDAS": "0.1", "TARGETS": "4 0.25", "METHODS": "lagrangian random"}
    found = trained(dry_run(raw, tmp_path / "out", "sweep.sh", **given))
    expected = ["baseline", "baseline+", "all_lambda0.1"]
    expected += [f"all_heads{target}{method}" for target in ("4", "0.25") for method in ("", "_random")]
    assert found == expected
    share = dry_run(raw, tmp_path / "out", "sweep.sh", **given, SHARE="2/3")
    assert dry_run(raw, tmp_path / "out", "sweep.sh", **given, **array, SLURM_ARRAY_TASK_ID="5") == share
    assert 0 < len(trained(share)) < len(expected)


def test_an_array_with_missing_indices_has_the_shares_of_a_complete_one(raw, tmp_path):
    array = {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "4", "SLURM_ARRAY_TASK_STEP": "1"}
    given = {"RUNS": "all:0.1 all=4 all=0.25 enc-self=2"}
    slurm = array | {"SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_ID": "4"}  # of --array=1,3,4
    share = dry_run(raw, tmp_path / "out", SHARE="4/4", **given)
    assert dry_run(raw, tmp_path / "out", "sweep.sh", **given, **slurm) == share


def test_a_sweep_checks_its_settings_first(raw, tmp_path):
    refused(run("sweep.sh", raw, tmp_path / "out", "en", "de", TARGETS="0.5 x"), "TARGETS='0.5 x'")
    assert not (tmp_path / "out").exists()
