"""The recipe for translation as a user runs it."""

import gzip
import json
import os
from pathlib import Path

import pytest
from support.recipes import first_lines, make_corpus, refused, run, shell


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def translated(raw, out, *options, **settings):
    return run("translation.sh", *options, raw, out, "en", "de", **settings)


@pytest.mark.parametrize(
    ("tokens", "flags", "fits"),
    [
        (1023, "", True),
        (1024, "", False),
        (1024, "--max-source-positions 1025 --clip-norm 1", True),
        (1024, "--clip-norm 1 --max-source-positions=1025", True),
        (1024, "--max-target-positions 1025", False),
    ],
)
def test_the_longest_line_that_the_model_takes(tokens, flags, fits, tmp_path):
    for split in ("valid", "test"):
        (tmp_path / f"{split}.bpe.en").write_text("a b\n" + "a " * tokens + "\n")
    text = f"text={tmp_path}; train_flags=({flags}); need_short_lines source en"
    result = shell(f'source "$recipes/lib/translation.sh"; {text}', check=False)
    if fits:
        assert result.returncode == 0, result.stderr
    else:
        refused(result, f"line 2 of the valid set has {tokens} tokens in en", "to TRAIN_FLAGS", "take another OUT_DIR")


@pytest.mark.parametrize(("selection", "checkpoint"), [("bleu", "checkpoint_best.pt"), ("last", "checkpoint_last.pt")])
def test_only_selection_bleu_adds_eval_bleu_to_training(selection, checkpoint, raw, tmp_path):
    settings = {"SCHEDULE": "inverse_sqrt", "RUNS": "", "SELECTION": selection}
    result = run("translation.sh", "--dry-run", raw, tmp_path / "out", "en", "de", **settings)
    assert ("--eval-bleu" in result.stdout) == (selection == "bleu")
    assert f"baseline/{checkpoint}" in result.stdout


def test_a_dry_run_compresses_to_a_size_and_to_a_speed(raw, tmp_path):
    given, out = {"RUNS": "params=0.7 speed=1.5@only", "SCRATCH": "params", "SENTENCES": 60}, tmp_path / "out"
    printed = run("translation.sh", "--dry-run", raw, out, "en", "de", **given).stdout
    fit = "--fit-subset train --fit-sentences 60 --gen-subset valid --out"
    for words in (
        f"--path {out}/baseline/checkpoint_last.pt --params 0.7 {fit} {out}/params0.7/start.pt",
        f"--alive-heads {out}/params0.7/start.pt --remove-heads",
        f"--speedup 1.5 {fit} {out}/speed1.5_only/pruned.pt",
        f"--alive-heads {out}/params0.7_scratch/mask.json --remove-heads --ffn-dims {out}/params0.7/pruned.pt",
    ):
        assert words in printed


@pytest.mark.parametrize(
    ("settings", "files", "words"),
    [
        ({"UNTIED": 1}, {"out/settings.txt": "SRC=en TGT=fr\n"}, ["with other settings (TGT=fr", "without UNTIED"]),
        ({"LENPEN": 0.6}, {"out/generation.txt": "BEAM=4 LENPEN=1\n"}, ["made with other settings (LENPEN=1)"]),
        ({"METRIC": "true b"}, {"out/metric.metric.txt": "true a\n"}, ["METRIC_NAME='metric'", "true a", "another"]),
        ({}, {"out/text/raw.txt": "train.en: 7 bytes\n"}, ["OUT_DIR was made from other text (train.en: 7 bytes)"]),
    ],
)
def test_translation_refuses_other_settings_and_text(settings, files, words, raw, tmp_path):
    for name, content in files.items():
        write(tmp_path / name, content)
    refused(translated(raw, tmp_path / "out", **settings), *words)
    assert not list(tmp_path.glob("out/text/*.tok.*"))


TINY = {"EMBED": 16, "FFN": 16, "LAYERS": 1, "HEADS": 2, "BPE": 200, "WARMUP": 2, "LR": 0.01, "MAX_TOKENS": 400}
TINY |= {"PRETOKENIZED": 1, "UPDATES": 6, "PRUNE_UPDATES": 6, "PRUNE_WARMUP": 1, "PRUNE_LR": 0.01, "SENTENCES": 20}


def table_of(result):
    """{model: cells} of the last table."""
    assert result.returncode == 0, result.stdout + result.stderr
    return {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if "/2 " in line}


@pytest.mark.rehearsal
@pytest.mark.release
def test_every_method_keeps_exactly_the_requested_number_of_heads(tmp_path):
    """All kinds of runs with a number of heads; a number of parameters; a metric of the user."""
    make_corpus(tmp_path / "raw")
    script = tmp_path / "metric.sh"
    script.write_text('#!/bin/sh\nwc -l <"$1"\n')
    script.chmod(0o755)
    methods = ["lagrangian", "subset", "random", "ablation-refit"]  # those with gradients are a part of iterative
    runs = [f"all=3@{method}" for method in methods] + ["enc-self=1@iterative"]
    runs += ["params=0.8", "params=0.8@only"]
    settings = TINY | {"RUNS": " ".join(runs), "SCRATCH": "enc-self params", "ITERATIONS": 2, "SPARSITY_WARMUP": 3}
    settings |= {"METRIC": script, "METRIC_NAME": "lines"}
    result = run("translation.sh", tmp_path / "raw", tmp_path / "out", "en", "ru", **settings)
    table = table_of(result)
    plus = ["all_heads3", *(f"all_heads3_{method}" for method in methods[1:]), "enc-self_heads1_iterative_scratch"]
    compressed = [f"params0.8{end}" for end in ("", "_scratch", "_only", "_only_scratch")]
    assert list(table) == ["baseline", "baseline+", *plus, *compressed, "baseline+frozen", "enc-self_heads1_iterative"]
    assert {row[3] for name, row in table.items() if name.startswith("all_")} == {"3/6"}
    assert table["enc-self_heads1_iterative"][:3] == table[plus[-1]][:3] == ["1/2", "2/2", "2/2"]
    assert {row[-1] for row in table.values()} == {"9"}  # lines of the test set
    rows = [line.split("\t") for line in (tmp_path / "out" / "results.tsv").read_text().splitlines()]
    parameters = {row[0]: int(row[rows[0].index("parameters")]) for row in rows[1:]}
    (size,) = {parameters[name] for name in compressed}
    assert 0.7 < size / parameters["baseline"] <= 0.8
    # The second step goes on where the first one ended: updates, learning rate, optimiser.
    folder = tmp_path / "out" / "enc-self_heads1_iterative"
    first, second = ((folder / part / "train.log").read_text() for part in ("step1", "."))
    assert "num_updates 3 | lr 0.006" in first and "num_updates 6 | lr 0 " in second
    assert f"Loaded checkpoint {folder}/checkpoint_last.pt (epoch 1 @ 3 updates)" in second
    dry = run("translation.sh", "--dry-run", tmp_path / "raw", tmp_path / "out", "en", "ru", **settings)
    assert len(dry.stdout.splitlines()) == 1 and "results.table" in dry.stdout  # nothing is left to do but the table
    # Another choice of these runs has another control of the baseline, or none.
    for runs, names in (
        ("enc-self=1@iterative", ["baseline", "baseline+frozen", "enc-self_heads1_iterative"]),
        ("", ["baseline"]),
    ):
        again = run(
            "translation.sh", tmp_path / "raw", tmp_path / "out", "en", "ru", **settings | {"RUNS": runs, "SCRATCH": ""}
        )
        assert list(table_of(again)) == names and "training" not in again.stdout


@pytest.mark.rehearsal
@pytest.mark.release
def test_a_sweep_trains_models_side_by_side(tmp_path):
    """Two jobs: one trains the baseline, for which the other waits."""
    make_corpus(tmp_path / "raw")
    settings = TINY | {"LAMBDAS": 0.1, "TARGETS": "3", "METHODS": "lagrangian gradient-only", "JOBS": 2}
    arguments = (tmp_path / "raw", tmp_path / "out", "en", "ru")
    result = run("sweep.sh", *arguments, **settings)
    names = ["baseline", "baseline+", "all_lambda0.1", "all_heads3", "all_heads3_gradient-only"]
    assert list(table_of(result)) == names
    found = json.loads((tmp_path / "out" / "sweep.json").read_text())["models"]
    assert {model["name"]: model["heads"]["total"] for model in found if "heads" in model["name"]} == {
        "all_heads3": 3,
        "all_heads3_gradient-only": 3,
    }
    assert all(model["words_per_second"][0] > 0 for model in found)
    assert (tmp_path / "out" / "sweep.svg").read_text().endswith("</svg>\n")
    logs = [(tmp_path / "out" / f"job{job}.log").read_text() for job in (1, 2)]
    assert all("is complete" in log for log in logs)
    for name in names[:-1]:
        assert sum(f"training {name} " in log for log in logs) == 1
    dry = run("translation.sh", "--dry-run", *arguments, **settings | {"RUNS": "all:0.1 all=3 all=3@gradient-only"})
    assert len(dry.stdout.splitlines()) == 1 and "results.table" in dry.stdout


@pytest.mark.rehearsal
@pytest.mark.release
def test_seeds_have_folders_and_share_the_text(tmp_path):
    make_corpus(tmp_path / "raw")
    settings = TINY | {"SEEDS": "3 5", "RUNS": "dec-enc:0.1"}
    result = run("translation.sh", tmp_path / "raw", tmp_path / "out", "en", "ru", **settings)
    lines = result.stdout.splitlines()
    assert result.returncode == 0, result.stdout + result.stderr
    assert sum("(" in line and ".." in line for line in lines) == 3  # one row per model
    folders = {"text", "data-bin", "seed3", "seed5"}
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == folders
    rows = [line.split("\t")[:2] for line in (tmp_path / "out" / "results.tsv").read_text().splitlines()]
    assert rows[1:] == [[name, seed] for seed in "35" for name in ("baseline", "baseline+", "dec-enc_lambda0.1")]
    more = run(
        "translation.sh", "--dry-run", tmp_path / "raw", tmp_path / "out", "en", "ru", **settings | {"SEEDS": "3 5 8"}
    )
    trainings = [line for line in more.stdout.splitlines() if "train.py" in line]
    assert len(trainings) == 3 and all("seed8" in line and "--seed 8" in line for line in trainings)


@pytest.mark.rehearsal
def test_translation_goes_from_raw_text_to_a_table(tmp_path):
    """A few compressed lines, of Multi30k where HEADGATES_DATA has it, through every stage; too few to learn from."""
    if "HEADGATES_DATA" in os.environ:
        source, target, text = "en", "de", Path(os.environ["HEADGATES_DATA"]) / "multi30k-en-de"
    else:
        source, target, text = "en", "ru", make_corpus(tmp_path / "corpus")
        for file in [*text.iterdir()]:
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    for split, lines in (("train", 400), ("valid", 30), ("test", 9)):
        for name in (f"{split}.{language}.gz" for language in (source, target)):
            first_lines(text / name, lines, tmp_path / name)
    sizes = {"EMBED": 16, "FFN": 16, "LAYERS": 1, "HEADS": 2, "BPE": 300, "UPDATES": 5, "WARMUP": 2, "PRUNE_UPDATES": 1}
    sizes |= {"MAX_TOKENS": 12000, "KEEP_EPOCHS": 1, "DEV_TRANSLATIONS": 2}
    result = run("translation.sh", tmp_path, tmp_path / "out", source, target, RUNS="dec-enc:0.01", **sizes)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = {line.split()[0]: line.split()[1:4] for line in result.stdout.splitlines() if "/" in line}
    assert rows["baseline"] == rows["dec-enc_lambda0.01"] == ["2/2", "2/2", "2/2"]
    hypotheses = (tmp_path / "out" / "baseline" / "test.hyp").read_text(encoding="utf-8")
    assert hypotheses.count("\n") == 9  # no multiple of 8: none may be lost
    translated = [json.loads(path.read_text()) for path in sorted((tmp_path / "out" / "baseline" / "dev").iterdir())]
    assert translated and all(len(each["predictions"]) == 2 and each["subset"] == "valid" for each in translated)
