"""The recipe for word alignments, with a model that learns nothing."""

import pytest
from support.recipes import run

TINY = {"CPU": 1, "EMBED": 16, "FFN": 16, "LAYERS": 2, "HEADS": 4, "BPE": 500, "UPDATES": 3, "WARMUP": 1}


@pytest.mark.rehearsal
@pytest.mark.release
def test_every_half_of_a_model_is_aligned_and_the_recipe_resumes(tmp_path):
    out = tmp_path / "out"
    result = run("word_alignment.sh", out, **TINY)
    assert result.returncode == 0, result.stderr
    table = (out / "alignment.txt").read_text()
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines()[2:]}
    assert rows["whole"][:2] == ["8", "4"] and len(rows) >= 13
    assert all(float(rate) > 50 for cells in rows.values() for rate in cells[2::3])
    dry = run("word_alignment.sh", "--dry-run", out, **TINY)
    assert "headgates" not in dry.stdout and "results.alignment" in dry.stdout  # only tables are left to print
