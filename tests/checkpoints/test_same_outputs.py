"""The benchmark on real sentences: same_outputs.py (all versions of a model)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.recipes import ROOT, first_lines
from support.workflows import snakemake

from fairseq_headgates.data.results import read_evaluations
from fairseq_headgates.inference.kernels import multiplies_bfloat16

DATA = os.environ.get("HEADGATES_DATA")


def assert_same_outputs(checkpoint, data, folder):
    """Runs the benchmark as a user does; returns {form: figures}."""
    pytest.importorskip("ctranslate2")
    out = folder / "same.json"
    command = [sys.executable, ROOT / "benchmarks" / "same_outputs.py", checkpoint, data, "--json", out, "--all-layers"]
    # CTranslate2's other backend for int8, oneDNN, saturates sums on CPUs without VNNI
    environment = os.environ | {"CT2_USE_MKL": "1"}
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stderr
    (forms,) = json.loads(out.read_text(encoding="utf-8"))["tables"].values()
    reduced = ["bfloat16", "int8", "ctranslate2-int8"]
    assert list(forms) == ["gated", "masked", "pruned", "stock", *reduced[:2], "ctranslate2", *reduced[2:]]
    for name, form in ((name, forms.pop(name)) for name in reduced):  # change some words
        exact = name == "bfloat16" and not multiplies_bfloat16()
        assert (form["max |log p diff|"] <= 1e-5) if exact else 0 < form["max |log p diff|"] < 0.3
        assert float(form["BLEU"]) == pytest.approx(float(forms["gated"]["BLEU"]), abs=3)
    for name, row in forms.items():
        assert row["different"] == 0 and row["max |log p diff|"] <= 1e-5, (name, row)
        if name != "ctranslate2":  # it ends differently at the length limit, which models of so little training reach
            assert row["BLEU"] == forms["gated"]["BLEU"]
    return forms


@pytest.mark.release
@pytest.mark.skipif(DATA is None, reason="HEADGATES_DATA names no folder of real data")
@pytest.mark.parametrize(
    ("corpus", "epochs", "weight"),
    [("multi30k-en-de", 4, 0.03), ("opensubtitles-en-ru", 20, 0.03)],
)
def test_all_forms_translate_real_sentences_alike(corpus, epochs, weight, tmp_path):
    """A small model of the corpus, gates that close within a few updates, and the test sentences."""
    source, target = corpus.split("-")[1:]
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    for split, lines in (("train", 3000), ("valid", 30), ("test", 150)):
        for language in (source, target):
            first_lines(Path(DATA) / corpus / f"{split}.{language}.gz", lines, raw / f"{split}.{language}.gz")
    sizes = {"embed-dim": 32, "ffn-embed-dim": 64, "layers": 2, "attention-heads": 4, "normalize-before": True}
    training = {"cpu": True, "dropout": 0.1, "label-smoothing": 0.1, "optimizer": "adam", "max-tokens": 2500}
    length = {"lr-scheduler": "inverse_sqrt", "lr": 0.01, "warmup-updates": 40, "max-update": 100000}
    further = {"lr-scheduler": "polynomial_decay", "lr": 0.003, "warmup-updates": 5, "max-update": 60}
    gates = {"gates": "all", "lambda": weight, "options": {"gate-lr-scale": 150}}
    config = {"raw": str(raw), "out": str(out), "src": source, "tgt": target, "lowercase": True, "bpe": 600}
    config |= {"joint_bpe": False, "joint_dictionary": False, "runs": {"gated": gates}}
    config |= {"model": {f"{side}-{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}}
    config |= {"training": training, "baseline": length | {"max-epoch": epochs}, "further": further}
    snakemake(tmp_path, "translation", config | {"evaluation": {"beam": 4, "max-tokens": 4000}})
    [evaluation] = read_evaluations(str(out / "seed1" / "gated" / "evaluation.json"))
    heads = evaluation.heads["total"]
    assert 0 < heads[0] < heads[1] == 24  # some heads went, some stayed
    assert_same_outputs(out / "seed1" / "gated" / "checkpoint_last.pt", out / "data-bin", tmp_path)
