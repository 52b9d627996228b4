"""Settings in the shell: every name that a recipe uses is declared, help, values as they are given, refusals."""

import re
import subprocess
from functools import cache

import pytest
from support.recipes import RECIPES, environment, refused, run
from support.settings import of_script, read

from settings.configure import describe
from settings.declared import GROUPS
from settings.declared import RECIPES as DECLARED

# Recipes that end as another one, and settings that only Python reads.
INNER = {
    "sweep.sh": "translation.sh",
    "demo.sh": "translation.sh",
    "iwslt14_de_en.sh": "translation.sh",
}
INNER |= {"wmt_en_ru.sh": "translation.sh", "opensubtitles_en_ru.sh": "translation.sh"}
INNER |= {"wikitext103.sh": "language_model.sh", "mnli.sh": "classification.sh"}
PLANNED = {"RUNS", "SCRATCH", "ITERATIONS", "SPARSITY_METHOD", "TYPES", "LAMBDAS", "TARGETS", "METHODS"}
# Variables of the system and of other programs.
OTHERS = "PATH PWD VENV CUDA_VISIBLE_DEVICES BASH_SOURCE MALLOC_ TORCH_ SLURM_ SRUN_ RECIPE NPROC PET_ OMP_NUM_THREADS"


FUNCTION = r"^(\w+)\(\) \{(?: (.*)\}|\n((?:.*\n)*?)\})$"


@cache
def code(file):
    """The code of a file at its top level and in the files that it sources or starts, and {name: code} of functions."""
    text = re.sub(r"(^|\s)#.*", "", (RECIPES / file).read_text(), flags=re.M)
    functions = {name: line or block for name, line, block in re.findall(FUNCTION, text, re.M)}
    top = re.sub(FUNCTION, "", text, flags=re.M)
    for other in dict.fromkeys(re.findall(r"lib/\w+\.sh", text)):  # a later function replaces an earlier one
        top, functions = top + code(other)[0], functions | code(other)[1]
    return top, functions


def names_used(recipe):
    """The variables in capitals in a recipe and in the functions that it can reach."""
    text, functions = code(recipe)[0], dict(code(recipe)[1])
    while reached := {name for name in functions if re.search(rf"\b{name}\b", text)}:
        text += "".join(functions.pop(name) for name in reached)
    inside = " ".join(re.findall(r"\(\((.*?)\)\)", text))
    return {*re.findall(r"\$\{?#?!?([A-Z][A-Z0-9_]+)", text), *re.findall(r"\b[A-Z][A-Z0-9_]+\b", inside)}


@pytest.mark.parametrize("recipe", DECLARED)
def test_every_name_in_capitals_is_a_setting_and_every_setting_is_used(recipe):
    fields, used = {*DECLARED[recipe].model_fields}, names_used(recipe)
    assigned = {*re.findall(r'\b([A-Z]+)=(?:0|"")(?= )', (RECIPES / recipe).read_text()), "METRIC_NAME"}
    assert {name for name in used - fields - assigned if not name.startswith(tuple(OTHERS.split()))} == set()
    used |= names_used(INNER[recipe]) if recipe in INNER else set()
    assert fields - used - PLANNED - {*DECLARED[recipe].ARGUMENTS, "RAW_DIR", "SRC", "OMP_NUM_THREADS"} == set()
    assert of_script(recipe)[0].keys() <= fields


@pytest.mark.parametrize("recipe", DECLARED)
def test_help_has_every_setting_once_with_its_value_in_groups(recipe):
    kind, script = DECLARED[recipe], RECIPES / recipe
    said = describe(script, of_script(recipe)[1], of_script(recipe)[0])
    assert f"recipes/{recipe} [--dry-run]" in said and "#" not in said and max(map(len, said.splitlines())) <= 120
    names = re.findall(r"^  ([A-Z0-9_]+)=", said, re.M)
    assert sorted(names) == sorted(
        {name for name, field in kind.model_fields.items() if field.description} - {*kind.ARGUMENTS, *kind.HIDDEN}
    )
    titles = re.findall(r"^([a-z ]+):$", said, re.M)
    assert titles == ["to begin with", *(group for group in GROUPS if group in titles)]
    assert 4 <= len(re.findall(r"^  [A-Z]", said.split("\n\n")[-len(titles)], re.M)) <= 13
    assert all(read(recipe).texts.get(name, "") in said for name in names)


def test_help_of_the_demo_has_no_settings_of_machines_and_shows_what_is_set():
    said = describe(RECIPES / "demo.sh", {"BPE": "77", "LR": "x"}, of_script("demo.sh")[0])
    assert "HOSTS" not in said and "DISK_GB" not in said and "The other settings of recipes/translation.sh work" in said
    assert "\n  BPE=77\n" in said and "\n  LR=x\n" in said and "\n  RUNS=all=0.5\n" in said
    shown = run("demo.sh", "--help", BPE=77, LR="x")
    assert (shown.returncode, shown.stderr, shown.stdout) == (0, "", said)


def test_the_shell_gets_values_as_they_are_given():
    """Blanks, quotes, signs of the shell, bytes that are not UTF-8, numbers."""
    raw, out = b'it\'s "raw" $HOME `a` \\', b"\xff o'ut  *;"
    code = f'recipes={RECIPES}; source $recipes/lib/common.sh; configure LENPEN=.50 -- "$@"; '
    code += 'printf "%s\\0" "${arguments[@]}" "$TRAIN_FLAGS" "$LR" "$LENPEN" "$DRY_RUN" "${plan_of_runs[@]}"'
    given = environment({"TRAIN_FLAGS": "--a '(0, $x)'  \"", "LR": "1e-5", "RUNS": "\t:1e-5  =0.50@random"})
    command = ["bash", "-c", code, str(RECIPES / "translation.sh"), b"--dry-run", raw, out, b"en", b"de"]
    done = subprocess.run(command, env=given, capture_output=True, check=True)
    runs = ["baseline+ control baseline+ - -", "all_lambda1e-5 l0 baseline+ enc-self,dec-self,dec-enc 1e-5"]
    runs += ["all_heads0.50_random random baseline+ enc-self,dec-self,dec-enc random 36"]
    texts = ["en", "de", "--a '(0, $x)'  \"", "1e-5", ".50", "1", *runs, ""]
    assert done.stdout.split(b"\0") == [raw, out, *(text.encode() for text in texts)]


PAIR = ["raw", "OUT", "en", "de"]


@pytest.mark.parametrize(
    ("recipe", "arguments", "given", "words"),
    [
        ("translation.sh", ["--dry-run", *PAIR], {"CLEAN": "--nope"}, "CLEAN='--nope'"),
        ("translation.sh", ["ra\nw", "OUT", "en", "de"], {}, "RAW_DIR='ra\\nw' must be one line"),
        ("demo.sh", ["--dry\nrun"], {}, "unknown option '--dry\\nrun'"),
        ("demo.sh", ["a", "b"], {}, "got 2 arguments, needs 1: demo.sh [--dry-run] OUT_DIR"),
        ("wmt_en_ru.sh", ["--dry-run", "OUT"], {"AVERAGE": "1000"}, "AVERAGE=1000 must be at most 49"),
    ],
)
def test_a_recipe_checks_its_settings_first(recipe, arguments, given, words, tmp_path):
    arguments = [tmp_path / "out" if argument == "OUT" else argument for argument in arguments]
    refused(run(recipe, *arguments, **given), f"{recipe}: ", words)
    assert list(tmp_path.iterdir()) == []
