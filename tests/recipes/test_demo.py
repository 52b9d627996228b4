"""The demo: every part runs, and it resumes; at its full length, half of the heads are spare."""

import os
import re
import signal
import subprocess
import sys
import time

import nbclient
import nbformat
import pytest
from support.forked_programs import forked_programs
from support.recipes import RECIPES, ROOT, environment, run

NOTEBOOK = ROOT / "notebooks" / "tour.ipynb"
SIZES = ["--train", "1200", "--valid", "60", "--test", "5"]  # the notebook reads 50 sentences of the validation set
WRITTEN = """corpus/train.en.conllu text/codes.en text/reference.ru data-bin/dict.ru.txt baseline/checkpoint_last.pt
baseline/tensorboard baseline+/checkpoint_last.pt all_heads0.5/checkpoint_last.pt all_heads0.5/pruned.pt
smaller/curve.svg smaller/compressed.pt smaller/refit.pt report.html"""


@pytest.fixture
def short(tmp_path):
    """The folder of a demo, with a small corpus, and its settings: too few updates to learn from."""
    out = tmp_path / "demo"
    subprocess.run([sys.executable, RECIPES / "scripts" / "make_corpus.py", out / "corpus", *SIZES], check=True)
    with forked_programs(tmp_path / "bin", "fairseq-preprocess", "fairseq-train", "headgates"):
        yield out, {"UPDATES": 13, "PATH": f"{tmp_path / 'bin'}:{environment({})['PATH']}"}


@pytest.mark.rehearsal
def test_a_short_demo(short):
    out, settings = short
    rows = smaller(ran(out, **settings))
    assert len(rows) == 5 and rows[4][0] == "16/32"
    assert [name for name in WRITTEN.split() if not (out / name).exists()] == []


@pytest.mark.release
def test_a_demo_that_was_killed_in_a_training(short, monkeypatch):
    out, settings = short
    killed_in_training(out, settings)
    ran(out, **settings)
    log = (out / "baseline" / "train.log").read_text()
    assert re.search(r"Loaded checkpoint \S+ \(epoch \d+ @ [1-9]", log) and log.count("done training") == 1
    execute(NOTEBOOK, out, monkeypatch)


@pytest.mark.release
def test_the_whole_demo(tmp_path, monkeypatch):
    out = tmp_path / "demo"
    rows = smaller(ran(out))
    trains_gates(rows)
    makes_models_smaller(rows)
    bleu, left = execute(NOTEBOOK, out, monkeypatch)
    assert left > bleu - 4  # as in the table of the demo
    resumes(out, rows)


def killed_in_training(out, settings):
    """Start the demo, and kill it after some epochs of its first training."""
    log = out / "baseline" / "train.log"
    demo = subprocess.Popen(
        ["bash", RECIPES / "demo.sh", out], env=environment(settings), stdout=subprocess.DEVNULL, start_new_session=True
    )
    while not (log.exists() and "begin training epoch 3" in log.read_text()):
        assert demo.poll() is None
        time.sleep(0.02)
    os.killpg(demo.pid, signal.SIGKILL)
    demo.wait()


def ran(out, **settings):
    """What the demo prints, run to its end: it has a report, and says what comes next."""
    result = run("demo.sh", out, **settings)
    assert result.returncode == 0, result.stdout + result.stderr
    *_, following = result.stderr.splitlines()
    assert following.startswith(f"written: {out}/report.html; next: headgates compress ")
    page = (out / "report.html").read_text()
    assert [words for words in ("Trees of the source", "confidence", "dec-enc layer 0") if words not in page] == []
    return result.stdout


@pytest.mark.parametrize("arguments", [["a", "b"], [""], ["--help"], ["a:b"]])
def test_other_arguments_are_refused(arguments):
    result = run("demo.sh", *arguments)
    assert result.returncode == 2 and result.stderr.startswith("usage: recipes/demo.sh [OUT_DIR]")


def smaller(printed):
    """Return the cells of the table, which has the form of the one in docs/recipes.md."""
    lines, shown = table(printed), table((ROOT / "docs" / "recipes.md").read_text())
    names = [line.partition("  ")[0] for line in lines]
    assert names == [line.partition("  ")[0] for line in shown]
    return [re.split(r"\s{2,}", line)[1:] for line in lines]


def trains_gates(rows):
    heads, parameters, bleu, difference = range(4)  # columns
    whole, gated = rows[0], rows[4]
    assert [whole[heads], gated[heads]] == ["32/32", "16/32"]
    assert float(whole[parameters].rstrip("M")) > float(gated[parameters].rstrip("M"))
    assert float(whole[bleu]) > 98 and whole[difference:5] == ["-", "-"]
    # Measured: at most 1.0 on all versions of Python. Another processor draws another model.
    assert float(gated[difference]) > -2


def makes_models_smaller(rows):
    """Half of the heads by gradient scores alone is far too much."""
    assert [row[0] for row in rows][:3] == ["32/32", "16/32", "16/32"]
    gradient, refit, compressed = (float(row[3]) for row in rows[1:4])
    # Measured: -0.7 and 0.0; see above. On an AMD EPYC a refit was -7.4, which is below this bound.
    assert gradient < refit - 5 and refit > -6 and compressed > -4
    whole, smallest = (float(rows[number][1].rstrip("M")) for number in (0, 3))
    assert smallest <= 0.71 * whole


def table(text):
    """Return the lines of the table, without its header."""
    return text.split("\nmodel  ")[1].split("\ndiff, p: ")[0].splitlines()[2:]


def resumes(out, rows):
    """After a loss in the middle: the same table, without its last column, the speed; nothing is trained again."""
    (out / "all_heads0.5" / "pruned.pt").unlink()
    (out / "smaller" / "evaluation.json").unlink()
    again = ran(out)
    assert [row[:5] for row in smaller(again)] == [row[:5] for row in rows]
    assert "$ fairseq-train" not in again


# --------------------------------------------------------------------------------------- the notebook
def execute(notebook, demo, monkeypatch):
    """Run every cell; an error in one raises. Return BLEU of the whole and of the smaller model."""
    monkeypatch.setenv("DEMO_OUT", str(demo))
    tour = nbformat.read(notebook, 4)
    place = {"metadata": {"path": str(notebook.parent)}}
    nbclient.NotebookClient(tour, timeout=600, kernel_name="python3", resources=place).execute()
    printed = texts(tour)
    assert "open heads have a function" in printed and "in total 16 of 32 heads open" in printed
    found = re.findall(r"^(\S+) +\d+/32 +([\d,]+) .*?\] +[\d.]+ +([\d.]+) \[", printed, re.MULTILINE)
    (whole, parameters, bleu), (small, left, left_bleu) = found
    assert (whole, small) == ("baseline+/checkpoint_last.pt", "tour/small.pt")
    assert int(left.replace(",", "")) <= 0.7 * int(parameters.replace(",", ""))
    return float(bleu), float(left_bleu)


def texts(notebook):
    return "".join(
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    )


def test_the_outputs_in_the_notebook():
    """Every cell was run, in order and without messages; no path of the machine is in the file."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    tour = nbformat.reads(text, 4)
    nbformat.validate(tour)
    code = [cell for cell in tour.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"execute_result", "stream"}
    assert all(output.get("name") != "stderr" for output in outputs)
    assert all([output.output_type for output in cell.outputs].count("stream") <= 1 for cell in code)
    for output in outputs:
        output.get("data", {}).pop("image/png", None)
    path = r"(?<![\w.:/<)}\]+-])/\w"  # one that begins with a slash
    assert not re.search(path, nbformat.writes(tour)) and len(text) < 1_000_000
