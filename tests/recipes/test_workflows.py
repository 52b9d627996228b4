"""Workflows: the commands of each recipe, small ones run to their end, and interrupted and changed ones."""

import gzip
import json
import os
import re
import shutil

import pytest
import torch
from support.forked_programs import forked_programs
from support.recipes import ROOT, make_corpus
from support.workflows import FAMILIES, RECIPES, configuration, snakemake

from fairseq_headgates.data.results import read_evaluations

GOLDEN = ROOT / "tests" / "golden"
SPLITS = ("train", "valid", "test")


# --- dry runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.cases(4)
@pytest.mark.parametrize("recipe", [each for each in FAMILIES if each not in ("after_compression", "prune_pretrained")])
def test_commands_of_a_recipe(tmp_path, recipe):
    """To change the commands on purpose: remove the file, run this test, and read the difference."""
    config = configuration(recipe)
    if "corpus" not in config:
        ends = {"translation": ("en", "de"), "language_model": ("txt",), "classification": ("tsv",)}[FAMILIES[recipe]]
        for split in SPLITS:
            for end in ends:
                file = tmp_path / config["raw"] / f"{split}.{end}"
                file.parent.mkdir(exist_ok=True)
                file.touch()
    printed = snakemake(tmp_path, FAMILIES[recipe], config, "-n", "-p")
    places = {os.path.relpath(RECIPES / "scripts", tmp_path): "recipes/scripts", str(tmp_path): "."}
    for place, name in places.items():
        printed = printed.replace(place, name)
    commands = re.findall(
        r"^Shell command: (.*?)\s*(?=^\[|^Job stats|^Would remove)", printed, re.MULTILINE | re.DOTALL
    )
    text = "\n".join(sorted(set(commands) - {"None"})) + "\n"  # printed in no fixed order
    golden = GOLDEN / f"{recipe}.txt"
    if not golden.exists():
        golden.write_text(text)
        pytest.fail(f"{golden} was missing and has been written: read it")
    assert text == golden.read_text()


@pytest.mark.release
def test_on_a_cluster_every_rule_is_a_job(tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    profile = RECIPES / "profiles" / "slurm"
    printed = snakemake(tmp_path, "translation", configuration("wmt_en_ru"), "--workflow-profile", profile, "-n")
    resources = re.search(r"^rule train:.*?resources: (.*?)$", printed, re.MULTILINE | re.DOTALL)[1]
    assert {"gpu=1", "runtime=2880", "mem_mb=16000"} <= set(resources.split(", "))


# --- small recipes ----------------------------------------------------------------------------------------------------

TRAINING = {"cpu": True, "dropout": 0.1, "optimizer": "adam"}
SCHEDULE = {"lr": 0.004, "lr-scheduler": "polynomial_decay", "warmup-updates": 4}
GATES = {"sparsity-warmup-updates": 2, "fix-gates-after": 3, "gate-lr-scale": 5}


def encoder_decoder(**options):
    sides = {f"{side}-{name}": value for side in ("encoder", "decoder") for name, value in options.items()}
    return sides | {"decoder-layers": 1}


TRANSLATION = {
    "raw": "raw",
    "out": "out",
    "src": "en",
    "tgt": "ru",
    "tokenized": True,
    "clean": "--max-length 50 --unique",
    "bpe": 300,
    "joint_bpe": False,
    "joint_dictionary": False,
    "model": encoder_decoder(**{"layers": 2, "attention-heads": 4, "embed-dim": 16, "ffn-embed-dim": 16}),
    "training": TRAINING | {"label-smoothing": 0.1, "max-tokens": 100},
    "baseline": SCHEDULE | {"max-update": 24},
    "further": SCHEDULE | {"max-update": 8},
    "sentences": 50,
    "evaluation": {"beam": 2, "max-tokens": 4000},
    "runs": {
        "half": {"gates": "all", "target": 0.5, "options": GATES},
        "refit": {"scores": "refit", "keep": 0.5, "refit": True, "train": False},
        "small": {"params": 0.9, "data": "both"},
    },
}


@pytest.fixture
def forked(tmp_path):
    """A folder of programs that start at once."""
    programs = ("fairseq-preprocess", "fairseq-train", "fairseq-generate", "headgates")
    with forked_programs(tmp_path / "programs", *programs):
        yield tmp_path / "programs"


@pytest.fixture(scope="module")
def parallel(made_once):
    """Raw parallel text."""
    return made_once("recipe_corpus", make_corpus)


def rows(out):
    """Return the lines of results.tsv: {model: {column: cell}}."""
    header, *lines = [line.split("\t") for line in (out / "results.tsv").read_text().splitlines()]
    return {row["model"]: row for row in (dict(zip(header, line, strict=True)) for line in lines)}


def check_results(out, heads):
    """Every model is in the table, the TSV and the report, with the heads and scores of its evaluation."""
    found = rows(out)
    text, report = (out / "results.txt").read_text(), (out / "report.html").read_text()
    for name, kept in heads.items():
        (evaluation,) = read_evaluations(str(out / "seed1" / name / "evaluation.json"))
        assert evaluation.heads["total"] == kept, name
        assert f"\n{name} " in text and name in found and f"{name}/" in report
    assert (out / "results.svg").stat().st_size > 1000
    return found


@pytest.mark.release
def test_uneven_sides_are_refused_before_they_are_tokenised(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "train.en").write_text("one\ntwo\nthree")  # the last line has no end
    with gzip.open(tmp_path / "raw" / "train.ru.gz", "wt") as packed:
        packed.write("one\ntwo\n")
    target = "out/text/train.tok.en"
    printed = snakemake(tmp_path, "translation", TRANSLATION, target, code=1)
    assert "raw/train.en raw/train.ru.gz have 3 2 lines: the sides must be aligned" in printed
    assert not (tmp_path / target).exists()
    (tmp_path / "raw" / "train.en").write_text("one\ntwo")
    snakemake(tmp_path, "translation", TRANSLATION, target)
    assert (tmp_path / target).read_text() == "one\ntwo"


@pytest.mark.release
def test_translation_goes_from_raw_text_to_a_table(tmp_path, parallel, forked):
    raw = tmp_path / "raw"
    shutil.copytree(parallel, raw)
    with gzip.open(raw / "train.en.gz", "wt", encoding="utf-8") as packed:  # plain or compressed
        packed.write((raw / "train.en").read_text(encoding="utf-8"))
    (raw / "train.en").unlink()
    snakemake(tmp_path, "translation", TRANSLATION, first_on_path=forked)
    out = tmp_path / "out"
    found = check_results(out, {"baseline": (16, 16), "baseline+": (16, 16), "half": (8, 16), "refit": (8, 16)})
    controls = {name: row["control"] for name, row in found.items()}
    assert (controls["half"], controls["baseline+both"], controls["small"]) == (*["baseline+"] * 2, "baseline+both")
    texts = [
        (out / "text" / f"{text}.{language}").read_text().splitlines()
        for text in ("train.bpe", "seed1.distilled")
        for language in ("en", "ru")
    ]
    assert sorted(texts[0]) == sorted(texts[2]) and texts[1] != texts[3] and len(texts[1]) == len(texts[3])
    log = (out / "seed1" / "small" / "train.log").read_text()
    assert f"{len(texts[0]) * 2} examples from: out/both/seed1/train.en-ru" in log.replace("\n", "")
    assert json.loads((out / "results.json").read_text())["format"] == "headgates.sweep/1"
    assert snakemake(tmp_path, "translation", TRANSLATION).count("Nothing to be done") == 1


@pytest.mark.release
def test_language_models_go_from_raw_text_to_a_table(tmp_path, parallel, forked):
    (tmp_path / "raw").mkdir()
    for split in SPLITS:
        shutil.copy(parallel / f"{split}.en", tmp_path / "raw" / f"{split}.txt")
    sizes = {f"decoder-{name}-dim": 16 for name in ("embed", "input", "output", "ffn-embed")}
    snakemake(
        tmp_path,
        "language_model",
        {
            **{"raw": "raw", "out": "out", "bpe": 100, "result": "best", "speed": True},
            "task": {"task": "language_modeling", "tokens-per-sample": 32},
            "model": {"decoder-layers": 2, "decoder-attention-heads": 2, "share-decoder-input-output-embed": True}
            | sizes,
            "training": TRAINING | {"max-tokens": 320, "required-batch-size-multiple": 1},
            "baseline": SCHEDULE | {"max-update": 10, "lr-scheduler": "inverse_sqrt"},
            "further": SCHEDULE | {"max-update": 8},
            "evaluation": {"max-tokens": 4096},
            "runs": {"half": {"gates": "all", "target": 0.5, "options": GATES}},
        },
        first_on_path=forked,
    )
    check_results(tmp_path / "out", {"baseline": (4, 4), "baseline+": (4, 4), "half": (2, 4)})


@pytest.mark.release
def test_classifiers_go_from_raw_text_to_a_table(tmp_path, parallel, forked):
    (tmp_path / "raw").mkdir()
    for split in SPLITS:
        lines = (parallel / f"{split}.en").read_text(encoding="utf-8").splitlines()
        text = "".join(f"{line}\t{'long' if len(line) > 30 else 'short'}\n" for line in lines)
        (tmp_path / "raw" / f"{split}.tsv").write_text(text, encoding="utf-8")
    sizes = {"encoder-layers": 2, "encoder-attention-heads": 2, "encoder-embed-dim": 16, "encoder-ffn-embed-dim": 16}
    snakemake(
        tmp_path,
        "classification",
        {
            **{"raw": "raw", "out": "out", "bpe": 100, "classes": 2, "sentences": 50},
            "model": sizes | {"max-positions": 64},
            "training": TRAINING,
            "mlm": SCHEDULE | {"max-update": 6, "max-tokens": 512},
            "baseline": SCHEDULE | {"max-update": 10, "batch-size": 8},
            "further": SCHEDULE | {"max-update": 8, "batch-size": 8},
            "evaluation": {"max-tokens": 4096},
            "curves": ["refit"],
            "steps": "50",
            "runs": {"gradient": {"scores": "gradient", "keep": 0.5}},
        },
        first_on_path=forked,
    )
    found = check_results(tmp_path / "out", {"baseline": (4, 4), "baseline+": (4, 4), "gradient": (2, 4)})
    assert "refit-50%" in found


# --- interrupted and changed ------------------------------------------------------------------------------------------


RESUMED = "Loaded checkpoint out/seed1/baseline/checkpoint_last.pt (epoch 1 @ 12 updates)"


@pytest.mark.release
def test_an_interrupted_training_resumes_and_a_changed_one_begins_again(tmp_path, parallel, forked):
    """The first training ends after 12 of 24 updates, as if it had been killed after a checkpoint."""
    target, model = "out/seed1/baseline/trained.pt", tmp_path / "out" / "seed1" / "baseline"
    shutil.copytree(parallel, tmp_path / "raw")
    snakemake(tmp_path, "translation", TRANSLATION, target)
    undisturbed = torch.load(model / "trained.pt", weights_only=False)["model"]

    stops = tmp_path / "bin" / "fairseq-train"
    stops.parent.mkdir()
    stops.write_text(f'#!/bin/sh\n{forked}/fairseq-train "$@" --max-update 12\nkill -9 $$\n')
    stops.chmod(0o755)
    (model / "trained.pt").unlink()
    (model / "begun").unlink()
    snakemake(tmp_path, "translation", TRANSLATION, target, first_on_path=stops.parent, code=1)
    assert not (model / "trained.pt").exists() and (model / "checkpoint_last.pt").exists()
    snakemake(tmp_path, "translation", TRANSLATION, target, first_on_path=forked)
    assert RESUMED in (model / "train.log").read_text()
    resumed = torch.load(model / "trained.pt", weights_only=False)["model"]
    assert all(torch.equal(weight, resumed[name]) for name, weight in undisturbed.items())

    (model / "train.log").unlink()
    changed = TRANSLATION | {"baseline": TRANSLATION["baseline"] | {"lr": 0.001}}
    snakemake(tmp_path, "translation", changed, target, first_on_path=forked)
    assert (model / "previous" / "checkpoint_last.pt").exists()  # kept, if fairseq-train had refused the new options
    log = (model / "train.log").read_text()
    assert RESUMED not in log and "Loaded checkpoint" not in log and "num_updates: 24" in log.replace("'", "")
