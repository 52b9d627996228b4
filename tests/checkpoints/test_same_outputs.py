"""The benchmark on real sentences: same_outputs.py (all versions of a model)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.recipes import ROOT, first_lines, run

from fairseq_headgates.data.results import read_evaluations

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
    assert list(forms) == ["gated", "masked", "pruned", "stock", "int8", "ctranslate2", "ctranslate2-int8"]
    for in_8_bits in (forms.pop("int8"), forms.pop("ctranslate2-int8")):  # change some words
        assert 0 < in_8_bits["max |log p diff|"] < 0.3
        assert float(in_8_bits["BLEU"]) == pytest.approx(float(forms["gated"]["BLEU"]), abs=3)
    for name, row in forms.items():
        assert row["different"] == 0 and row["max |log p diff|"] <= 1e-5, (name, row)
        if name != "ctranslate2":  # it ends differently at the length limit, which models of so little training reach
            assert row["BLEU"] == forms["gated"]["BLEU"]
    return forms


@pytest.mark.rehearsal
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
    sizes = {"EMBED": 32, "FFN": 64, "LAYERS": 2, "HEADS": 4, "BPE": 600, "EPOCHS": epochs, "LR": 0.01, "WARMUP": 40}
    sizes |= {"SCHEDULE": "inverse_sqrt"}
    gates = {"RUNS": f"all:{weight}", "GATE_LR_SCALE": 150, "FIX_AFTER": 0}
    gates |= {"PRUNE_UPDATES": 60, "PRUNE_LR": 0.003, "PRUNE_WARMUP": 5}
    result = run("translation.sh", raw, out, source, target, LOWERCASE=1, JOINT=0, OMP_NUM_THREADS=1, **sizes, **gates)
    assert result.returncode == 0, result.stdout + result.stderr
    [evaluation] = read_evaluations(str(out / f"all_lambda{weight}" / "evaluation.json"))
    heads = evaluation.heads["total"]
    assert 0 < heads[0] < heads[1] == 24  # some heads went, some stayed
    assert_same_outputs(out / f"all_lambda{weight}" / "checkpoint_last.pt", out / "data-bin", tmp_path)
