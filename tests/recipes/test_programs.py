"""The programs of the recipes: python3 recipes/lib ROOM.PROGRAM. An error is one line, with exit code 2."""

import re
import subprocess
import sys

import pytest
from support.recipes import RECIPES, call

pytest_plugins = ["support.recipes"]
PROGRAM = [sys.executable, str(RECIPES / "lib")]
MODULES = [path for path in (RECIPES / "lib").glob("*/*.py") if "ArgumentParser(__name__" in path.read_text()]


@pytest.mark.parametrize(
    ("program", "arguments", "words"),
    [
        ("training.average", [], "required: RUN_DIR, OUTPUT, --last"),
        ("training.average", ["a", "b", "--last", "0"], "argument --last: '0' must be a whole number, 1 or more"),
        ("text.clean", ["a", "b", "en", "de", "--max-ratio", "nan"], "argument --max-ratio"),
        ("results.table", ["magic", "x"], "argument FAMILY: invalid choice: 'magic'"),
        ("corpora.get", ["fetch", "wmt-en-ru"], "fetch takes 1 folders after the collection, got 0"),
        ("corpora.pretrained", ["model", "folder"], "'model' is not a trained model of fairseq: choose from"),
    ],
)
def test_wrong_arguments_are_refused(program, arguments, words, refuses):
    refuses(program, *arguments, words=words)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_every_program_has_a_help(path, capsys):
    program = f"{path.parent.name}.{path.stem}"
    assert call(program, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: {program} ")


def test_an_error_begins_with_the_recipe_that_runs_the_program(tmp_path):
    env = {"RECIPE": "some.sh", "PATH": "", "PYTHONPATH": ""}
    command = [*PROGRAM, "corpora.get", "list", "none"]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and re.fullmatch(r"some.sh: 'none' is not a collection.*\n", result.stderr)


@pytest.mark.parametrize("name", ["", "text/clean"])
def test_another_name_is_no_program(name, capsys):
    assert call(name) == 2
    assert capsys.readouterr().err == "recipes/lib: give ROOM.PROGRAM, for example text.clean\n"


def test_output_into_a_closed_pipe_prints_no_error():
    """As with `--help | head`."""
    command = f"{sys.executable} {RECIPES / 'lib'} text.clean --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
