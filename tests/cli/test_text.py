"""`--text`: plain text in place of binarised data, with the dictionaries beside the checkpoint or in DATA."""

import json
import shutil

import pytest
import torch
from support import classifiers, language_models
from support.analysis import READ, SEARCH, one_line
from support.commands import EVALUATION
from support.models import assert_same

from fairseq_headgates import compress
from fairseq_headgates.heads import Signature
from fairseq_headgates.safety.checkpoint import load_checkpoint, model_args

SIDES = ("src", "tgt")


@pytest.fixture
def beside(toy, checkpoints, tmp_path):
    """A checkpoint with its dictionaries beside it."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (checkpoints["baseline"], *toy.data.glob("dict.*.txt")):
        shutil.copy(path, folder)
    return folder / "checkpoint_last.pt"


def text_of(folder, subset):
    return ["--text", *(folder / f"{subset}.{side}" for side in SIDES)]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "command",
    [
        ["score", "--method", "gradient,confidence"],
        ["evaluate", "--gen-subset", "valid", *SEARCH],
        ["ablate", "--gen-subset", "valid"],
        ["explain", "--gen-subset", "valid", "--lines", ",".join(map(str, range(1, 31)))],
    ],
)
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_it_prints_what_it_prints_of_the_binarised_text(command, json, headgates, toy, beside):
    name, *options = command
    expected = headgates(name, toy.data, "--path", beside, *options, *json, *READ)
    kept = options[:2] if name == "explain" else options  # all sentences of a text are explained
    found = headgates(name, "--path", beside, *kept, *json, *READ, *text_of(toy.text, "valid"))
    assert "data:toy/bin|" in expected
    expected = expected.replace("|split:valid", "" if name == "explain" else "|split:valid")
    assert found.replace("data:toy/valid.src:toy/valid.tgt|", "data:toy/bin|") == expected


@pytest.mark.release
def test_compress_fits_nine_tenths_of_a_text_and_measures_the_last(headgates, run, toy, beside, tmp_path):
    for side in SIDES:
        lines = (toy.text / f"train.{side}").read_text().splitlines(keepends=True)
        for name, part in {"whole": lines, "first": lines[:180], "last": lines[180:]}.items():
            (tmp_path / f"{name}.{side}").write_text("".join(part))
    places = [
        f"--{kind}={beside.parent}/dict.{side}.txt" for kind, side in zip(("srcdict", "tgtdict"), SIDES, strict=True)
    ]
    places += ["-s", "src", "-t", "tgt", "--trainpref", tmp_path / "first", "--validpref", tmp_path / "last"]
    run("fairseq-preprocess", *places, "--destdir", tmp_path / "bin")
    options = ["--path", beside, "--params", 0.8, *READ]
    expected = headgates("compress", tmp_path / "bin", *options, "--out", tmp_path / "of-data.pt")
    found = headgates("compress", *options, *text_of(tmp_path, "whole"), "--out", tmp_path / "of-text.pt")
    assert found.splitlines()[:-1] == expected.splitlines()[:-1] and "fit:train-180" in found
    of_data, of_text = (load_checkpoint(str(tmp_path / f"of-{kind}.pt"))["model"] for kind in ("data", "text"))
    assert of_data.keys() == of_text.keys() and all(torch.equal(of_data[name], of_text[name]) for name in of_data)


@pytest.mark.release
@pytest.mark.parametrize("task", [language_models.BLOCKS, classifiers.MASKED])
def test_the_one_text_of_a_language_model(task, headgates, toy_text, toy_classes, train_lm, train_roberta, tmp_path):
    if task is classifiers.MASKED:
        train_roberta(tmp_path, *EVALUATION[:2], arch="roberta", task=task)
        data, text = toy_classes / "input0", toy_classes.parent / "train.txt"
    else:
        train_lm(tmp_path, *EVALUATION[:2], arch="transformer_lm")
        data, text = toy_text, toy_text.parent / "train.txt"
    shutil.copy(data / "dict.txt", tmp_path)
    options = ["--path", tmp_path / "checkpoint_last.pt", *task, *READ, "--json", "--gen-subset", "train"]
    expected, found = (json.loads(headgates("evaluate", *p, *options)) for p in ([data], ["--text", text]))
    assert expected["losses"] == found["losses"]
    (small,) = json.loads(headgates("compress", *options[:-2], "--params", 0.9, "--text", text))
    assert small["ppl"] == pytest.approx([2**bits for bits in small["loss"]])


@pytest.mark.release
def test_languages_and_dictionaries(headgates, toy, train, beside, tmp_path):
    """Languages of the file names, of the checkpoint, or given; one dictionary for both; DATA as their folder."""
    options, pair = ["--method", "gradient", "--json", *READ], ["-s", "src", "-t", "tgt"]

    def score(*words, files=("valid.src", "valid.tgt")):
        text = ["--text", *(tmp_path / file for file in files)]
        return json.loads(headgates("score", *words, *options, *text))["scores"]

    for side in SIDES:
        shutil.copy(toy.text / f"valid.{side}", tmp_path)
        shutil.copy(toy.text / f"valid.{side}", tmp_path / f"{side}.txt")
    expected = score("--path", beside)
    shutil.copy(beside, alone := tmp_path / "alone.pt")
    assert expected == score(toy.data, "--path", alone)
    shutil.copy(toy.data / "dict.src.txt", tmp_path / "dict.txt")
    assert expected == score("--path", alone, *pair, files=("src.txt", "tgt.txt"))
    train(beside.parent / "named", *pair)
    named = (beside.parent / "named" / "checkpoint_last.pt").rename(beside.parent / "named.pt")
    expected = score("--path", named)
    assert expected == score("--path", named, files=("src.txt", "tgt.txt"))


def test_texts_that_are_refused(headgates, toy, beside, toy_classes, tmp_path):
    (tmp_path / "short.tgt").write_text("A B\n")
    source = toy.text / "valid.src"
    score = ["score", "--method", "gradient", *READ, "--path", beside]
    for words, line in (
        (["--text", source, tmp_path / "short.tgt"], "the numbers of lines differ: 30, 1 in --text"),
        (["--text", source], "the files do not end in languages of the dictionaries"),
        (
            ["--text", source, "-s", "src", "-t", "tgt"],
            "the subset 'valid' has no target side, which headgates score needs",
        ),
        (["--text", *[source] * 3, "-s", "src", "-t", "tgt"], "--text names 3 files, this --task reads 2"),
        (["--text", source, "-s", "en", "-t", "tgt"], f"there is no dict.en.txt in {beside.parent}: give"),
        ([*classifiers.CLASSES, "--text", source], "text alone has no labels, which classifiers need"),
        ([], "arguments are required: data"),
    ):
        assert line in one_line(headgates(*score, *words, code=2))
    words = ["--text", source, tmp_path / "short.tgt", "--path", beside, *READ]
    assert "the numbers of lines differ: 30, 1 in --text" in one_line(headgates("explain", *words, code=2))


def test_text_in_words_is_warned_of(run, beside, toy, tmp_path):
    for side in SIDES:
        (tmp_path / f"raw.{side}").write_text("abc def\n" * 20)
    done = run("headgates", "score", "--method", "gradient", *READ, "--path", beside, *text_of(tmp_path, "raw"))
    assert "raw.src has 40 tokens not in dict.src.txt: give text tokenised and in subwords" in done.err


def test_compress_from_python_writes_what_the_command_writes(headgates, toy, beside, tmp_path, capsys):
    options = ["--path", beside, "--params", 0.8, "--fit-sentences", 100, *READ]
    expected = headgates("compress", toy.data, *options, "--out", tmp_path / "small.pt", "--json")
    more = {"fit_sentences": 100, "cpu": True, "num_workers": 0}
    found = compress(beside, data=toy.data, params=0.8, out=beside.parent / "small.pt", **more)
    assert [found] == json.loads(expected) and not capsys.readouterr().out
    state = load_checkpoint(str(beside.parent / "small.pt"))
    assert_same(state, load_checkpoint(str(tmp_path / "small.pt")))
    share, signature = found["parameters"][1] / found["parameters"][0], found["signature"]
    assert signature.startswith(f"headgates|compress|params:{share:.3f}|units:heads+neurons|data:")
    assert "|fit:train-100|" in signature and str(Signature.parse(signature)) == signature
    assert model_args(state).compressed == signature
    with pytest.raises(ValueError, match="exists"):
        compress(beside, data=toy.data, params=0.8, out=tmp_path / "small.pt", **more)
    of_text = compress(str(beside), text=text_of(toy.text, "train")[1:], units=["heads"], params=0.9, **more)
    assert of_text["units"] == ["heads"] and "fit:train-100" in of_text["signature"]
