"""Bad settings, arguments and texts of the recipes: one line with the value and the rule, before anything runs."""

import gzip
import os
import re
import subprocess
import sys

import pytest
from support.recipes import RECIPES, refused, run

import settings

WHOLE = "must be a whole number, 1 or more"
NUMBER = "must be a number of heads (12) or a fraction of them with a decimal point, from 0.0 to 1.0"
SWITCH = "must be 0 or 1"
# NAME=VALUE of translation.sh, and words of the message after it.
BAD = [
    *[(name, v, SWITCH) for name in "LOWERCASE PRETOKENIZED JOINT UNTIED PRE_NORM".split() for v in ("yes", "2")],
    *[(name, "x", SWITCH) for name in ("KEEP_EPOCHS", "CPU", "DRY_RUN")],
    *[(name, "0", WHOLE) for name in "BPE EMBED FFN LAYERS HEADS MAX_TOKENS UPDATE_FREQ TOKENS_PER_UPDATE".split()],
    *[(name, "0", WHOLE) for name in "UPDATES WARMUP SAVE_EVERY PRUNE_UPDATES BEAM GENERATION_TOKENS WORKERS".split()],
    *[(name, "x", "must be a whole number, 0 or more") for name in ("GPUS", "DISK_GB", "EPOCHS", "AVERAGE")],
    *[(name, "-1", "must be a whole number, 0 or more") for name in ("GPUS", "EPOCHS", "AVERAGE", "PRUNE_WARMUP")],
    ("DECODER_LAYERS", "0", WHOLE),
    ("BPE", "x", WHOLE),
    ("BPE", "1e3", WHOLE),
    ("BPE", "6000.5", WHOLE),
    ("BPE", "-5", WHOLE),
    ("BPE", "010", WHOLE),
    ("BPE", "९", WHOLE),
    ("BPE", "9" * 300, WHOLE),
    ("BPE", "1\n2", WHOLE),
    ("EPOCHS", "0", "would train without end"),
    ("SCHEDULE", "linear", "must be polynomial_decay or inverse_sqrt"),
    ("SCHEDULE", "polynomial_decay", "needs UPDATES, the number of updates of the baseline"),
    ("HEADS", "3", "must divide EMBED=128"),
    ("LR", "-0.1", "must be a finite number, above 0"),
    ("LR", "0", "above 0"),
    ("LR", "nan", "above 0"),
    ("LR", "1e999", "above 0"),
    ("LR", "high", "above 0"),
    ("PRUNE_LR", "0.1,x", "above 0"),
    ("GATE_LR_SCALE", "0", "above 0"),
    ("DROPOUT", "1.5", "from 0 to 1"),
    ("DROPOUT", "-0.1", "from 0 to 1"),
    ("LENPEN", "inf", "must be a finite number"),
    ("LENPEN", "0,6", "must be a finite number"),
    ("UPDATE_FREQ", "1,0", WHOLE),
    ("UPDATE_FREQ", "1,", WHOLE),
    ("SEEDS", "1 x", "must be random seeds, separated by spaces; each must be a whole number"),
    ("SEEDS", "1,2", "must be random seeds"),
    ("SEEDS", "1 1", "each once"),
    ("SEEDS", " ", "one or more random seeds"),
    ("SEEDS", "4294967296", "from 0 to 4294967295"),
    ("SEED", "-1", "from 0 to 4294967295"),
    ("SEED", "4294967296", "from 0 to 4294967295"),
    ("PORT", "70000", "from 1 to 65535"),
    ("HOSTS", " ", "at least one word"),
    ("LAUNCHER", "srun python3", "WORKERS must be set to the number of processes"),
    ("AVERAGE", "2", "set SAVE_EVERY"),
    ("PAPER", "WMT", "must be wmt or opensubtitles"),
    ("SPARSITY_METHOD", "l0", "must be lagrangian or subset"),
    *[(name, "-1", "must be a whole number, 0 or more") for name in ("SPARSITY_WARMUP", "FIX_AFTER", "L0_WARMUP")],
    *[(name, "0", WHOLE) for name in ("SENTENCES", "ITERATIONS")],
    ("METRIC", "no-such-program --model x", "must be a command whose program is on the PATH"),
    ("METRIC", "python3 'a", "must be a command: No closing quotation"),
    ("METRIC_NAME", "a b", "must be letters and digits"),
    ("METRIC_NAME", "../x", "must be letters and digits"),
    ("METRIC_NAME", "BLEU", "no column of the table"),
    ("PRUNE_SCHEDULE", "linear", "must be polynomial_decay, inverse_sqrt"),
    ("HEADGATES", "/nope", "must be the folder of the plugin"),
    ("ARCH", "transformer big", "must be one word"),
    ("ARCH", "transfromer", "must be an architecture of fairseq"),
    ("ARCH", "lstm", "must be an architecture of fairseq's encoder-decoder transformer"),
    ("ARCH", "transformer_align", "must be an architecture of fairseq's encoder-decoder transformer"),
    ("ARCH", "transformer_wmt_en_de_big", "set ARCH=transformer, and --attention-dropout 0.1 in TRAIN_FLAGS"),
    ("SEEDS", "1\n2", "must be one line"),
    ("TRAIN_FLAGS", "--dropout 0.3\n--fp16", "must be one line"),
    ("CLEAN", "yes", "unrecognized arguments: yes"),
    ("CLEAN", "--max-lenght 100", "unrecognized arguments: --max-lenght 100"),
    ("CLEAN", "--max-length x", "argument --max-length: 'x' must be a whole number"),
    ("CLEAN", "--max-length", "expected one argument"),
    ("CLEAN", "--max-ratio 0.5", "1 or more"),
    ("CLEAN", "--max-ratio nan", "1 or more"),
    ("RUNS", "all", "'all' has no colon"),
    ("RUNS", "all:", "lambda '' must be a finite number, 0 or more"),
    ("RUNS", ":0.1", "'' is not an attention type"),
    ("RUNS", "all:x", "lambda 'x' must be"),
    ("RUNS", "all:-1", "lambda '-1' must be"),
    ("RUNS", "all:nan", "lambda 'nan' must be"),
    ("RUNS", "all:inf", "lambda 'inf' must be"),
    ("RUNS", "all:1:2", "'all:1' is not an attention type"),
    ("RUNS", "enc:0.1", "'enc' is not an attention type: choose from enc-self, dec-self, dec-enc, or all"),
    ("RUNS", "all,enc-self:0.1", "'all' is not an attention type"),
    ("RUNS", "enc-self,:0.1", "'' is not an attention type"),
    ("RUNS", "enc-self,enc-self:0.1", "'enc-self' is named twice"),
    ("RUNS", "all:0.1 enc-self:0.1 all:0.1", "must not name 'all:0.1' twice"),
    ("RUNS", "all=0.5@nothing", "method 'nothing' must be"),
    ("RUNS", "all=36 all=36@lagrangian", "must not name 'all=36@lagrangian' twice"),
    ("RUNS", "all=73", "'all=73', more heads than there are: it must be at most 72 (enc-self 24, "),
    ("RUNS", "enc-self=25@random", "at most 24"),
    ("SCRATCH", "x", "'x' is not an attention type"),
    ("SCRATCH", "dec-enc", "must be among the types of RUNS (enc-self, all)"),
    ("SRC", "en;ls", "must be a language"),
    ("TGT", "../en", "must be a language"),
]
DEFAULTS = {
    "EMBED": "128",
    "LAYERS": "3",
    "HEADS": "8",
    "EPOCHS": "16",
    "RUNS": "enc-self:0.01 enc-self:0.02 all:0.02 all:0.03",
}


def refusal(recipe, **environment):
    """What is said of the settings; they must be refused, in one line."""
    with pytest.raises(ValueError) as error:
        settings.check(recipe, environment)
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 600
    return str(error.value)


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_an_invalid_setting_is_refused(name, value, words):
    message = refusal("translation.sh", **DEFAULTS | {name: value})
    assert name in message and words in message


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"AVERAGE": "3", "SAVE_EVERY": "4", "UPDATES": "8"}, "AVERAGE=3 must be at most 2"),
        ({"PRUNE_SCHEDULE": "inverse_sqrt", "PRUNE_WARMUP": "0"}, "PRUNE_WARMUP=0 must be 1 or more"),
        ({"SCHEDULE": "polynomial_decay", "EPOCHS": "3"}, "SCHEDULE='polynomial_decay' needs UPDATES"),
        ({"SCHEDULE": "polynomial_decay", "UPDATES": "9", "WARMUP": "9"}, "WARMUP=9 must be below UPDATES=9"),
        (
            {"PRUNE_SCHEDULE": "cosine", "PRUNE_UPDATES": "9", "PRUNE_WARMUP": "9"},
            "PRUNE_WARMUP=9 must be below PRUNE_UPDATES=9",
        ),
        ({"SEED": "3", "SEEDS": "1 2"}, "SEED=3 and SEEDS='1 2': set only SEEDS"),
        ({"RUNS": "all=1@iterative", "ITERATIONS": "4", "PRUNE_UPDATES": "3"}, "ITERATIONS=4 must be at most PRUNE_"),
        ({"RUNS": "all=1 all=1@subset", "SPARSITY_METHOD": "subset"}, "RUNS must not name 'all=1@subset' twice"),
        ({"RUNS": "", "SCRATCH": "all"}, "SCRATCH='all' must be among the types of RUNS (RUNS is empty)"),
        ({"LAUNCHER": "srun python3", "WORKERS": "x"}, f"WORKERS='x' {WHOLE}"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given, words):
    assert words in refusal("translation.sh", **given)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("SAVE_EVERY", "100", "SAVE_EVERY=100 must not be set"), ("SEEDS", "1 2", "SEEDS='1 2' must be one seed")],
)
def test_settings_that_contradict_measured_epochs_are_refused(name, value, words):
    assert words in refusal("iwslt14_de_en.sh", **{"MEASURED": "1 2", name: value})


@pytest.mark.parametrize(
    ("recipe", "name", "value", "words"),
    [
        ("wmt_en_ru.sh", "DEV", "wmt99", "must be"),
        ("wmt_en_ru.sh", "TEST", "iwslt17", "wmt14"),
        ("wmt_en_ru.sh", "PRECISION", "fp8", "must be fp16, amp or fp32"),
        ("wmt_en_ru.sh", "DATA_DIR", "/nowhere", "must be a folder that exists, or the address of a mirror"),
        ("opensubtitles_en_ru.sh", "OVERLAP", "1.5", "from 0 to 1"),
        ("opensubtitles_en_ru.sh", "OVERLAP", "nan", "from 0 to 1"),
        ("opensubtitles_en_ru.sh", "PAIRS", "0", WHOLE),
        ("opensubtitles_en_ru.sh", "HELD_OUT", "-1", WHOLE),
        ("iwslt14_de_en.sh", "MEASURED", "1 2 x", "must be epochs"),
        ("iwslt14_de_en.sh", "MEASURED", "0 1", "must be epochs"),
        ("iwslt14_de_en.sh", "MEASURED", "5 3", "with the largest one last"),
        ("iwslt14_de_en.sh", "MEASURED", "1,2,3", "must be epochs"),
        ("iwslt14_de_en.sh", "STEPS", "0,101", "from 0 to 100"),
        ("prune_pretrained.sh", "STEPS", "0 50", "from 0 to 100"),
        ("prune_pretrained.sh", "KEEP", "1.5", NUMBER),
        ("prune_pretrained.sh", "KEEP", "80%", NUMBER),
        ("prune_pretrained.sh", "SENTENCES", "0", WHOLE),
        ("prune_pretrained.sh", "SRC", "en fr", "must be a language"),
        ("demo.sh", "EPOCHS", "x", "must be a whole number"),
    ],
)
def test_settings_of_the_other_recipes(recipe, name, value, words):
    assert words in refusal(recipe, **{name: value}).removeprefix(f"{name}={value!r} ")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"BPE": "", "GPUS": "", "RUNS": "", "SCRATCH": "", "PAPER": ""},  # empty: the default
        {"LR": "4e-3", "DROPOUT": "0", "LENPEN": "-.5", "GATE_LR_SCALE": "1E2", "SEED": "0"},
        {"EPOCHS": "0", "UPDATES": "100", "UPDATE_FREQ": "1,2, 4", "PRUNE_LR": "0.1,0.05"},
        {"AVERAGE": "2", "SAVE_EVERY": "4", "UPDATES": "5", "PRUNE_UPDATES": "4"},
        {"AVERAGE": "50", "SAVE_EVERY": "4", "EPOCHS": "2"},  # how many updates is not known
        {"CLEAN": "--max-length 200 --max-ratio 1.5 --unique --without a b", "WORKERS": "3"},
        {"CLEAN": "--max-ratio inf --max-len 5"},
        {"RUNS": "enc-self:0 dec-enc,enc-self:1e-2\tall:.5", "SCRATCH": "all  enc-self"},
        {"RUNS": "all=36 all=36@subset all=36@iterative all=0.5@random enc-self=0", "LAYERS": "3", "HEADS": "8"},
        {"SCHEDULE": "polynomial_decay", "UPDATES": "9", "WARMUP": "8", "EPOCHS": "3"},
        {"SEED": "3", "SEEDS": "3"},
        {"SEEDS": "3 1\t2", "METRIC": "python3 -m 'my metric'", "METRIC_NAME": "COMET-22"},
        {"ARCH": "transformer_vaswani_wmt_en_de_big", "PRE_NORM": "0"},
        {"ARCH": "transformer_head_gates", "PRUNE_SCHEDULE": "fixed", "PRUNE_UPDATES": "5", "PRUNE_WARMUP": "9"},
        {"ARCH": "transformer_iwslt_de_en", "GPUS": "0", "PRUNE_SCHEDULE": "inverse_sqrt", "PRUNE_WARMUP": "1"},
        {"LAUNCHER": "srun python3", "WORKERS": "16", "PORT": "29500", "HOSTS": "a b", "SRC": "zh_CN", "TGT": "pt-br"},
    ],
)
def test_valid_settings_are_accepted(given):
    settings.check("translation.sh", given)


def test_every_setting_in_the_scripts_is_in_the_table():
    """${NAME:=...} and ${NAME:-...} in a recipe, and in what it sources."""
    files = [*(RECIPES / "lib").glob("*defaults.sh"), RECIPES / "lib" / "published.sh"]
    sourced = {file.stem: file.read_text() for file in files}
    for name, table in settings.RECIPES.items():
        text = (RECIPES / name).read_text()
        text += "".join(more for part, more in sourced.items() if f"lib/{part}.sh" in text)
        found = set(re.findall(r"\$\{([A-Z_]+):?[=-]", text))
        assert found and found <= table.keys(), name
        assert all(setting.meaning for setting in table.values())


def test_help_lists_every_setting_once_with_its_default():
    said = run("wmt_en_ru.sh", "--help").stdout
    for setting in (
        "BPE=32000",
        "TEST=wmt14",
        "DROPOUT=0.1",
        "SEEDS=1",
        "SCHEDULE=inverse_sqrt",
        "CLEAN='--max-length 200 --max-ratio 9 --unique'",
    ):
        assert said.count(f"\n  {setting}\n      ") == 1
    for name in settings.RECIPES["wmt_en_ru.sh"]:
        assert len(re.findall(rf"^  {name}=", said, re.MULTILINE)) == 1
    assert "\n  BPE=9\n" in run("wmt_en_ru.sh", "--help", BPE=9).stdout


# --- through the shell ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "arguments", "name", "value"),
    [
        ("translation.sh", ["raw", "OUT", "en", "de"], "JOINT", "yes"),
        ("translation.sh", ["raw", "OUT", "en", "de"], "RUNS", "all"),
        ("translation.sh", ["--dry-run", "raw", "OUT", "en", "de"], "CLEAN", "--nope"),
        ("demo.sh", ["OUT"], "EPOCHS", "x"),
        ("wmt_en_ru.sh", ["OUT"], "TEST", "wmt99"),
        ("wmt_en_ru.sh", ["--dry-run", "OUT"], "AVERAGE", "1000"),
        ("wmt_en_ru.sh", ["OUT"], "PRECISION", "x"),
        ("opensubtitles_en_ru.sh", ["OUT"], "OVERLAP", "x"),
        ("opensubtitles_en_ru.sh", ["OUT"], "GPUS", "all"),
        ("iwslt14_de_en.sh", ["OUT"], "MEASURED", "x"),
        ("translation.sh", ["raw", "OUT", "en", "de"], "EPOCHS", "3"),
        ("prune_pretrained.sh", ["transformer.wmt14.en-fr", "data", "OUT"], "KEEP", "x"),
    ],
)
def test_a_recipe_checks_its_settings_first(recipe, arguments, name, value, tmp_path):
    arguments = [tmp_path / "out" if argument == "OUT" else argument for argument in arguments]
    refused(run(recipe, *arguments, **{name: value}), recipe, name, value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "arguments", "words"),
    [
        ("translation.sh", ["raw", "", "en", "de"], ["an argument is empty"]),
        ("translation.sh", ["raw", "out", "en", "d e"], ["TGT='d e'"]),
        ("translation.sh", ["raw", "file", "en", "de"], ["OUT_DIR='file'", "not a folder"]),
        ("translation.sh", ["raw", "file/out", "en", "de"], ["OUT_DIR='file/out'", "file is not a folder"]),
        ("translation.sh", ["raw", "a:b", "en", "de"], ["has a colon"]),
        ("demo.sh", ["a", "b"], ["got 2 arguments, needs 1"]),
        ("demo.sh", [""], ["an argument is empty"]),
        ("demo.sh", ["file"], ["OUT_DIR='file'"]),
        ("demo.sh", ["--dryrun"], ["unknown option '--dryrun'"]),
        ("wmt_en_ru.sh", [""], ["an argument is empty"]),
        ("wmt_en_ru.sh", ["file"], ["OUT_DIR='file'"]),
        ("wmt_en_ru.sh", ["--dryrun"], ["unknown option '--dryrun'"]),
        ("opensubtitles_en_ru.sh", ["file"], ["OUT_DIR='file'"]),
        ("prune_pretrained.sh", ["model.pt", "data", "out"], ["CHECKPOINT='model.pt' is no file"]),
        ("prune_pretrained.sh", ["file", "data", "out"], ["data/valid.en[.gz] is missing"]),
        ("prune_pretrained.sh", ["file", "data", "file"], ["OUT_DIR='file'"]),
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


def test_more_gpus_than_the_machine_shows_are_refused(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: Some'\necho 'GPU 1: Some'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    env = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"} | {"PATH": path}
    command = [
        "bash",
        "-c",
        f"recipes={RECIPES}; source {RECIPES}/lib/common.sh; source {RECIPES}/lib/devices.sh; find_devices; echo $gpus",
    ]
    for gpus, shown in (("2", "2"), ("1", "1"), ("0", "0"), ("", "2")):
        assert subprocess.run(command, env=env | {"GPUS": gpus}, capture_output=True, text=True).stdout == f"{shown}\n"
    refused(subprocess.run(command, env=env | {"GPUS": "3"}, capture_output=True, text=True), "GPUS=3", "at most 2")


def test_a_recipe_prints_its_help():
    for recipe in settings.RECIPES:
        result = run(recipe, "--help")
        assert result.returncode == 0 and f"recipes/{recipe} [--dry-run]" in result.stdout and result.stderr == ""
        assert "#" not in result.stdout and "set -e" not in result.stdout


# --- text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "content"), [("train", ""), ("valid", "\n\n\n"), ("test", " \n\t\n \r\n")])
def test_text_without_a_word_is_refused(split, content, raw, tmp_path):
    for language in ("en", "de"):
        (raw / f"{split}.{language}").write_text(content)
    refused(run("translation.sh", raw, tmp_path / "out", "en", "de"), f"{split}.en", "has no text")
    assert not (tmp_path / "out").exists()


def test_compressed_text_is_checked(raw, tmp_path):
    (raw / "valid.de").unlink()
    (raw / "valid.de.gz").write_bytes(gzip.compress(b"\n\n\n"))
    refused(run("translation.sh", raw, tmp_path / "out", "en", "de"), "valid.de[.gz] has no text")
    (raw / "valid.de.gz").write_bytes(b"no archive")
    refused(run("translation.sh", raw, tmp_path / "out", "en", "de"), "valid.de[.gz] has no text, or cannot be read")


SPLITS, PAIR = ("train", "valid", "test"), ("en", "de")
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
    command = ["translation.sh", raw, tmp_path / "out", "en", "de"]
    refused(until_binarised(*command, PRETOKENIZED="1", BPE="5"), "valid has 3 lines in en but 2 in de")
    for split in ("train", "valid", "test"):
        (raw / f"{split}.de").write_text("eins zwei\nzwei eins\neins eins")
    text = tmp_path / "out" / "text"
    (text / "train.tok.de").unlink()
    for name in ("codes.en", "codes.de", *(f"{split}.bpe.{language}" for split in SPLITS[1:] for language in PAIR)):
        (text / name).write_text("a b\n" * 3)
    refused(until_binarised(*command, PRETOKENIZED="1", BPE="5"), "it came to the data")
    for name in ("tok", "bpe"):
        assert (text / f"train.{name}.de").read_text().count("\n") == 3


def test_cleaning_that_leaves_nothing_is_refused(raw, tmp_path, until_binarised):
    text = tmp_path / "out" / "text"
    text.mkdir(parents=True)
    for split in SPLITS:
        for language in PAIR:
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


def test_settings_py_requires_the_name_of_a_recipe(capsys):
    assert settings.main([]) == settings.main(["nope.sh"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
