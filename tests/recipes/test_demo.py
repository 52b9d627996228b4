"""The demo: every part runs, and it resumes; at its full length, half of the heads are spare."""

import re
import subprocess
import sys

import nbclient
import nbformat
import pytest
from support.recipes import RECIPES, ROOT, refused, run, shell

NOTEBOOK = ROOT / "notebooks" / "tour.ipynb"
# Too few updates and sentences to learn from.
SHORT = {"UPDATES": 6, "WARMUP": 2, "PRUNE_UPDATES": 6, "PRUNE_WARMUP": 1, "SPARSITY_WARMUP": 2, "BPE": 200}
SIZES = ["--train", "300", "--valid", "60", "--test", "20"]  # the notebook reads 50 sentences of the validation set


@pytest.mark.rehearsal
def test_a_short_demo(tmp_path, monkeypatch):
    """Every stage, on a small corpus that the demo finds in its folder; the second run does nothing."""
    out = tmp_path / "demo"
    subprocess.run([sys.executable, RECIPES / "make_corpus.py", out / "corpus", *SIZES], check=True)
    result = ran(out, **SHORT)
    assert [row[3] for row in models(result.stdout).values()] == ["32/32", "32/32", "16/32"]
    assert len(smaller(result.stdout)) == 5
    execute(NOTEBOOK, out, monkeypatch)
    again = run("demo.sh", out, **SHORT)
    assert [table(again.stdout, number) for number in (0, 1)] == [table(result.stdout, number) for number in (0, 1)]
    assert not re.search("  (training (?!models)|evaluating |headgates )", again.stdout)


@pytest.mark.rehearsal
@pytest.mark.release
def test_the_whole_demo(tmp_path, monkeypatch):
    out = tmp_path / "demo"
    printed = ran(out).stdout
    trains_gates(models(printed))
    makes_models_smaller(smaller(printed))
    bleu, left = execute(NOTEBOOK, out, monkeypatch)
    assert left > bleu - 4  # as in the table of the demo
    resumes(out, printed)


def ran(out, **settings):
    """The demo, run to its end: it has a report, and says what comes next."""
    result = run("demo.sh", out, **settings)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"written: {out}/report.html" in result.stderr.splitlines()
    *_, following = result.stderr.splitlines()
    assert following.startswith("next: ") and "headgates compress " in following
    page = (out / "report.html").read_text()
    assert [words for words in ("Trees of the source", "confidence", "dec-enc layer 0") if words not in page] == []
    return result


def test_a_line_for_every_unfinished_training(tmp_path):
    """Of the second whole round: at its end `head` closes the pipe."""
    steps = "num_updates=50, lr=0.1\nnum_updates 78 | lr 0.1\nsaved\n"
    logs = {"a b": f"'max_update': 260,\n{steps}", "c": f"'max_update': 0, {steps}", "seed2/d": "starts", "e": steps}
    for name, text in logs.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "train.log").write_text(text)
    (tmp_path / "e" / "finished").touch()
    lines = shell(f"report_updates '{tmp_path}' 0.01 | head -n 6").stdout.splitlines()
    expected = ["training a b: 78 of 260 updates", "training c: 78 updates", "training seed2/d: 0 updates"]
    assert [line.partition("  ")[2] for line in lines] == 2 * expected


def models(printed):
    """Return the cells of the first table, by model."""
    rows = {line.split()[0]: line.split()[1:] for line in table(printed, 0)}
    assert list(rows) == ["baseline", "baseline+", "all_heads0.5"]
    return rows


def trains_gates(rows):
    heads, parameters, bleu, difference = 3, 4, 5, 6  # columns
    assert [row[heads] for row in rows.values()] == ["32/32", "32/32", "16/32"]
    sizes = [float(row[parameters].rstrip("M")) for row in rows.values()]
    assert sizes[0] == sizes[1] > sizes[2]
    assert float(rows["baseline+"][bleu]) > 98 and rows["baseline+"][difference:8] == ["+0.00", "-"]
    # Measured: at most 1.0 on all versions of Python. Another processor draws another model.
    assert float(rows["all_heads0.5"][difference]) > -2


def smaller(printed):
    """Return the cells of the second table, which has the form of the one in the README."""
    lines, shown = table(printed, 1), table((ROOT / "README.md").read_text(), 0)
    names = [line.partition("  ")[0] for line in lines]
    assert names == [line.partition("  ")[0] for line in shown]
    rows = [re.split(r"\s{2,}", line)[1:] for line in lines]
    assert [row[0] for row in rows][:3] == ["32/32", "16/32", "16/32"] and rows[4][0] == "16/32"
    return rows


def makes_models_smaller(rows):
    """Half of the heads by gradient scores alone is far too much."""
    gradient, refit, compressed = (float(row[3]) for row in rows[1:4])
    # Measured: -0.7 and 0.0; see above. On an AMD EPYC a refit was -7.4, which is below this bound.
    assert gradient < refit - 5 and refit > -6 and compressed > -4
    whole, smallest = (float(rows[number][1].rstrip("M")) for number in (0, 3))
    assert smallest <= 0.71 * whole


def table(text, number):
    """Return the lines of a table, without its header."""
    return text.split("\nmodel  ")[number + 1].split("\ndiff, p: ")[0].splitlines()[2:]


def resumes(out, printed):
    """After a loss in the middle: the same tables."""
    (out / "all_heads0.5" / "test.hyp").unlink()
    (out / "all_heads0.5" / "evaluation.json").unlink()
    again = run("demo.sh", out)
    assert [table(again.stdout, number) for number in (0, 1)] == [table(printed, number) for number in (0, 1)]
    assert not re.search("  training (?!models)", again.stdout)  # as "10:20:30  training baseline"
    refused(run("demo.sh", out, UPDATES=500), "was made with other settings", "UPDATES=260")
    refused(run("demo.sh", out, PRUNE_LR=0.1), "was made with other settings", "PRUNE_LR=0.015")
    refused(run("demo.sh", out, SEEDS="2 3"), "was made with other settings", "SEEDS=1")


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
