"""Arguments and text that recipes refuse in one line, before they write anything; programs that fail."""

import os
import shutil
import subprocess
import sys

import pytest
from support.recipes import RECIPES, environment, refused, run, shell

pytest_plugins = ["support.machines"]
SCRIPTS = [path for path in sorted(RECIPES.glob("*.sh")) if path.name != "slurm.sh"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_recipe_finds_its_checkout_through_links_and_with_cdpath(script, program, tmp_path, monkeypatch):
    program("python3", """printf 'echo %q; exit' "$*" """)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "other name").symlink_to(script)
    monkeypatch.chdir(tmp_path)
    found = subprocess.run(["links/other name"], env=os.environ | {"CDPATH": ".:/"}, capture_output=True, text=True)
    assert found.stdout.startswith(f"{RECIPES}/lib settings.configure links/other name ") and found.stderr == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_copy_as_sbatch_makes_it_says_what_to_do(script, tmp_path):
    copy = shutil.copy(script, tmp_path / "slurm_script")
    hint = "sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS"
    refused(subprocess.run([copy], capture_output=True, text=True), f"beside this copy (sbatch makes one): {hint}")


def test_a_recipe_has_the_settings_of_its_file_under_any_name(tmp_path):
    (tmp_path / "other").symlink_to(RECIPES / "translation.sh")
    result = subprocess.run([tmp_path / "other", "--help"], env=environment({}), capture_output=True, text=True)
    assert result.returncode == 0 and "recipes/translation.sh [--dry-run] RAW_DIR OUT_DIR SRC TGT" in result.stdout


def test_the_path_of_the_makefile_does_not_depend_on_cdpath():
    venv = os.path.relpath(sys.prefix, RECIPES.parent)
    command = ["make", "-C", RECIPES.parent, "--eval", "path: ; @$(IN_VENV) printenv PATH", "-s", "path"]
    settings = {"CDPATH": f".:{RECIPES.parent}", "VENV": venv}
    path = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True).stdout
    assert path.split(":")[0] == f"{sys.prefix}/bin"


@pytest.mark.parametrize("name", ["BASH_ENV", "PYTHONIOENCODING"])
def test_variables_of_other_programs_do_not_change_the_text(name, tmp_path):
    (tmp_path / "hello").write_text("echo hello\n")
    value = {"BASH_ENV": tmp_path / "hello", "PYTHONIOENCODING": "latin-1"}[name]
    write = f"into {tmp_path}/text 'python3 -c \"print(chr(1103))\"'"
    shell(write, **{name: value})
    assert (tmp_path / "text").read_text(encoding="utf-8") == "я\n"


@pytest.mark.parametrize(("name", "file"), [("dev", "models.sh"), ("shown", "devices.sh"), ("answering", "jobs.sh")])
def test_a_variable_of_the_user_is_no_variable_of_a_recipe(name, file):
    assert shell(f'source "$recipes/lib/{file}"; echo "${{{name}[*]}}"', **{name: "1"}).stdout == "\n"


@pytest.mark.parametrize(
    ("recipe", "arguments", "words"),
    [
        ("translation.sh", ["raw", "file", "en", "de"], ["OUT_DIR='file'", "not a folder"]),
        ("translation.sh", ["raw", "a:b", "en", "de"], ["has a colon"]),
        ("demo.sh", [""], ["an argument is empty"]),
        ("prune_pretrained.sh", ["model.pt", "data", "out"], ["CHECKPOINT='model.pt' is not a file"]),
        ("prune_pretrained.sh", ["file", "data", "out"], ["data/valid.en[.gz] is missing"]),
    ],
)
def test_invalid_arguments_are_refused(recipe, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    refused(run(recipe, *arguments, CPU=1), recipe, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "kept"


def test_a_checkpoint_without_its_dictionaries_is_refused(raw, tmp_path):
    (tmp_path / "model.pt").touch()
    (tmp_path / "bpecodes").touch()
    command = ["prune_pretrained.sh", tmp_path / "model.pt", raw, tmp_path / "out"]
    refused(run(*command, TGT="de"), "dict.en.txt is missing")
    assert not (tmp_path / "out").exists()


STOP = "#!/bin/sh\necho it came to the data >&2\nexit 2\n"


@pytest.fixture
def until_binarised(tmp_path):
    """until_binarised(RECIPE, ...): runs a recipe whose fairseq-preprocess fails with a line of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "fairseq-preprocess").write_text(STOP)
    (folder / "fairseq-preprocess").chmod(0o755)
    path = f"{folder}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"

    def run_it(recipe, *arguments, **given):
        env = os.environ | {"PATH": path, "HEADGATES": str(RECIPES.parent / "fairseq_headgates")} | given
        command = ["bash", str(RECIPES / recipe), *map(str, arguments)]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    return run_it


def test_a_missing_line_is_refused_but_not_a_missing_final_newline(raw, tmp_path, until_binarised):
    (raw / "valid.de").write_text("eins zwei\nzwei eins")
    subword_nmt = tmp_path / "bin" / "subword-nmt"
    subword_nmt.write_text("#!/bin/sh\n[ $1 = learn-bpe ] && echo a b || cat\n")
    subword_nmt.chmod(0o755)
    command = ["translation.sh", raw, tmp_path / "out", "en", "de"]
    refused(until_binarised(*command, PRETOKENIZED="1", BPE="5"), "valid has 3 lines in en but 2 in de")
    (raw / "train.de").write_text("eins zwei\nzwei eins\neins eins")
    (raw / "valid.de").write_text("zwei eins\neins eins\neins zwei")
    refused(until_binarised(*command, PRETOKENIZED="1", BPE="5"), "it came to the data")
    for name in ("train.tok", "train.bpe", "valid.bpe"):
        assert (tmp_path / "out" / "text" / f"{name}.de").read_text().count("\n") == 3
    (raw / "train.de").write_text("eins zwei\nzwei eins\nzwei zwei")  # of the same size
    refused(until_binarised(*command), "made from other text (train.de: 29 bytes)")


def test_cleaning_that_leaves_nothing_is_refused(raw, tmp_path, until_binarised):
    text = tmp_path / "out" / "text"
    text.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            (text / f"{split}.tok.{language}").write_bytes((raw / f"{split}.{language}").read_bytes())
    result = until_binarised(
        "translation.sh", raw, tmp_path / "out", "en", "de", PRETOKENIZED="1", CLEAN="--max-length 1", BPE="5"
    )
    refused(result, "CLEAN='--max-length 1' leaves no training text")
    assert "too long" in result.stdout


def test_a_program_that_fails_is_quoted_in_one_line(tmp_path):
    (tmp_path / "train").write_text("a b\n")  # no two letters to merge
    learn = (
        f"recipes={RECIPES}; source $recipes/lib/common.sh; cd {tmp_path}; into codes.en 'subword-nmt learn-bpe <train'"
    )
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", learn]
    result = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
    refused(result, "codes.en cannot be made", "codes.en.log")
    assert not (tmp_path / "codes.en").exists()
