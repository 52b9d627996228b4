"""What the command needs to start: time, modules, files and standard streams."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import USER_DIR
from support.recipes import RECIPES

from fairseq_headgates.cli import main as cli
from fairseq_headgates.cli.output import prepare_streams
from fairseq_headgates.heads import SCORE_FORMAT

READ = "which this command reads: choose another name for the output"
START = "import sys, headgates_start; sys.argv[1:] = {!r}; headgates_start.main()"


@pytest.mark.parametrize(
    "arguments",
    [
        "show --path no",
        "prune --path it --out out --alive no",
        "prune --path it --out out --scores no --keep 1",
        "prune no --path it --out out --refit",
        "convert no --path it --out out --to ctranslate2",
        "evaluate it --path it:no",
        "evaluate it --path it --reference no",
        "score no --path=it --method gate",
        "ablate it:no --path it",
        "curve it --path it --scores no",
        "correlate it no",
        "compare it {} no",
        "explain it --path it --text no",
        "functions it --path it --conllu no",
        "report it no --out out.html",
    ],
)
def test_missing_files_are_reported_before_fairseq_is_imported(arguments, headgates, tmp_path, monkeypatch):
    (tmp_path / "it").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "unsupported", lambda: pytest.fail("it does not look for files first"))
    assert "'no' (No such file or directory): check the path" in headgates(*arguments.split(), code=2)


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("show --path .", "cannot read the checkpoint '.' (it is a folder): give a file"),
        ("curve . --path it --scores .", "cannot read the score file '.' (it is a folder): give a file"),
        ("show --path it --out no/x", "cannot write no/x (No such file or directory): choose another place"),
        ("prune --path it --out no/x", "cannot write no/x (No such file or directory): choose another place"),
        ("prune --path it --out old", "old exists: choose another name, or pass --force to overwrite it"),
        ("score . --path it --method gate --out it", f"the output it would replace the checkpoint 'it', {READ}"),
        ("prune --path it --out link --force", f"the output link would replace the checkpoint 'it', {READ}"),
        (
            "curve . --path=it --scores old --tsv ./old --force",
            f"the output ./old would replace the score file 'old', {READ}",
        ),
        ("evaluate . --path old:it --out ./it --force", f"the output ./it would replace the checkpoint 'it', {READ}"),
    ],
)
def test_wrong_paths_are_reported_by_a_process_without_torch(arguments, problem, tmp_path):
    for name in ("it", "old"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("it")
    (tmp_path / "torch.py").write_text("raise ImportError")  # of the working folder, where Python looks first
    command = [sys.executable, "-m", "fairseq_headgates", *arguments.split()]
    environment = {**os.environ, "PYTHONPATH": str(USER_DIR.parent)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (2, f"headgates {arguments.split()[0]}: error: {problem}\n")


def test_standard_streams_may_be_closed_or_in_another_encoding(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    prepare_streams()
    print("schön", flush=True)
    assert sys.stdout.buffer.getvalue() == b"sch\\xf6n\n"
    assert sys.stdin.buffer.read() == b"" and not sys.stderr.isatty()


def test_correlate_needs_neither_torch_nor_fairseq(tmp_path):
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    common = {"format": SCORE_FORMAT, "method": "gate", "signature": "gate"}
    for number, file in enumerate(files):
        Path(file).write_text(json.dumps({**common, "scores": {"enc-self": [[1, number, 3]]}}))
    code = START.format(["correlate", *files, "--any"]) + "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=USER_DIR.parent, check=True)
    *table, modules = done.stdout.splitlines()
    assert "enc-self      3 " in table[-1]
    assert "scipy" in modules.split() and not {"torch", "fairseq", "matplotlib"} & set(modules.split())


def test_scripts_of_recipes_that_need_no_model_import_neither_torch_nor_fairseq():
    scripts = "clean, curves, labelled, lines, make_corpus, table"
    paths = [str(RECIPES / "scripts"), str(RECIPES.parent)]
    code = f"import sys; sys.path[:0] = {paths}; import {scripts}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "fairseq_headgates.files" in modules and not {"torch", "fairseq"} & modules
