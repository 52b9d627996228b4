"""The recipes as a user runs them, and the tables of options in the documentation."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.recipes import RECIPES, ROOT, first_lines, refused, run

from fairseq_headgates.options import DEFAULTS


def test_translation_refuses_a_missing_file(raw, tmp_path):
    (raw / "valid.de").unlink()
    refused(run("translation.sh", raw, tmp_path / "out", "en", "de"), "valid.de", "is missing", "train, valid and test")
    assert not (tmp_path / "out").exists()


def test_translation_refuses_sides_that_are_not_aligned(raw, tmp_path):
    (raw / "valid.de").write_text("b a\n")
    result = run("translation.sh", raw, tmp_path / "out", "en", "de", PRETOKENIZED=1)
    refused(result, "valid has 3 lines in en but 1 in de")


def test_translation_refuses_to_mix_settings(raw, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "settings.txt").write_text("SRC=en TGT=fr\n")
    refused(run("translation.sh", raw, tmp_path / "out", "en", "de"), "was made with other settings", "TGT=fr")


def test_translation_says_how_to_call_it(tmp_path):
    refused(run("translation.sh", tmp_path), "got 1 arguments, needs 4")


def test_results_are_compared_with_the_first_run(tmp_path):
    for name, alive, bleu in (("baseline", 4, 30.0), ("gated", 1, 29.5)):
        folder = tmp_path / name
        folder.mkdir()
        heads = {"heads": {"enc-self": [alive, 4], "total": [alive, 4]}, "parameters": 1_234_567 * alive}
        scores = [{"name": n, "score": s, "signature": "x"} for n, s in (("BLEU", bleu), ("chrF2", 55.5))]
        (folder / "heads.json").write_text(json.dumps(heads))
        (folder / "scores.json").write_text(json.dumps(scores))
    command = [sys.executable, str(RECIPES / "lib" / "results.py"), str(tmp_path / "baseline"), str(tmp_path / "gated")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0].split() == ["model", "enc-self", "total", "params", "BLEU", "diff", "chrF"]
    assert lines[3].split() == ["gated", "1/4", "1/4", "1.23M", "29.50", "-0.50", "55.50"]


@pytest.mark.rehearsal
def test_a_small_demo_learns_and_closes_heads(tmp_path):
    """The whole path in about two minutes: the baseline learns, gates close, translation does not suffer.

    Then again, with everything there and after a loss in the middle: the same table.
    """
    out = tmp_path / "demo"
    settings = {"EPOCHS": 7, "PRUNE_UPDATES": 160, "RUNS": "enc-self:0.05"}
    result = run("demo.sh", out, **settings)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if "/" in line and " " in line}
    baseline, gated = rows["baseline"], rows["enc-self_lambda0.05"]
    assert baseline[0] == "8/8" and float(baseline[5]) > 20
    assert int(gated[0].partition("/")[0]) <= 4
    assert float(gated[4].rstrip("M")) < float(baseline[4].rstrip("M"))
    assert float(gated[5]) > float(baseline[5]) - 1
    (out / "enc-self_lambda0.05" / "test.hyp").unlink()
    (out / "enc-self_lambda0.05" / "scores.json").unlink()
    again = run("demo.sh", out, **settings)
    assert again.stdout.splitlines()[-5:] == result.stdout.splitlines()[-5:]
    assert "training" not in again.stdout
    refused(run("demo.sh", out, **{**settings, "EPOCHS": 8}), "was made with other settings", "EPOCHS=7")


@pytest.mark.rehearsal
@pytest.mark.skipif("HEADGATES_DATA" not in os.environ, reason="HEADGATES_DATA names no folder of real data")
def test_translation_goes_from_raw_text_to_a_table(tmp_path):
    """A few lines of Multi30k, cased and compressed, through every stage of the recipe; too few to learn from."""
    source = Path(os.environ["HEADGATES_DATA"]) / "multi30k-en-de"
    for split, lines in (("train", 400), ("valid", 30), ("test", 21)):
        for language in ("en", "de"):
            name = f"{split}.{language}.gz"
            first_lines(source / name, lines, tmp_path / name)
    sizes = {"EMBED": 16, "FFN": 16, "LAYERS": 1, "HEADS": 2, "BPE": 300, "EPOCHS": 1, "PRUNE_UPDATES": 3}
    result = run("translation.sh", tmp_path, tmp_path / "out", "en", "de", RUNS="dec-enc:0.01", **sizes)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = {line.split()[0]: line.split()[1:4] for line in result.stdout.splitlines() if "/" in line}
    assert rows["baseline"] == rows["dec-enc_lambda0.01"] == ["2/2", "2/2", "2/2"]
    hypotheses = (tmp_path / "out" / "baseline" / "test.hyp").read_text(encoding="utf-8")
    assert hypotheses.count("\n") == 21  # no multiple of 8: none may be lost


def test_the_documentation_has_every_option_and_default(tmp_path):
    """Each row of the generated tables of options is an option that exists, with its default."""
    subprocess.run([sys.executable, ROOT / "docs" / "generate_options.py", tmp_path], check=True)
    text = "".join((tmp_path / f"{part}.md").read_text(encoding="utf-8") for part in ("model", "criterion"))
    rows = re.findall(r"^\| `--([a-z0-9-]+)[^|]*` \|.*\| `?([^|`]*)`? \|$", text, re.MULTILINE)
    said = {name.replace("-", "_"): default for name, default in rows}
    for name, default in DEFAULTS.items():
        assert name in said, f"the table has no --{name}"
        words = {"": "none", None: "none", False: "off"}
        shown = said[name] if not isinstance(default, float) else float(said[name])
        assert shown == words.get(default, default), name
    assert said["l0_weight"] == "0.0" and said["l0_reduction"] == "sum"
