"""RoBERTa through fairseq's commands and those of `headgates`, on toy sentences of two classes."""

import argparse
import json
import shutil

import pytest
import torch
from fairseq.models.roberta import RobertaModel
from support.checkpoints import read
from support.classifiers import CLASSES, HEAD, MASKED, READING
from support.commands import EVALUATION
from support.language_models import by_sentence
from support.training import assert_one_line_error

from fairseq_headgates.plugin.models.roberta import RobertaHeadGatesModel

pytestmark = by_sentence  # as its masked sentences are read

TEST = ["--gen-subset", "test"]
GATES = ["--gate-heads", "enc-self", "--l0-weight", "0.05"]


@pytest.fixture(scope="module")
def models(forms_of, made_once, train_roberta):
    """Checkpoints by name: the forms of one with gates; pre-trained by fairseq's model."""
    folder = made_once("masked", lambda folder: train_roberta(folder, arch="roberta", task=MASKED, updates=4))
    return {**forms_of("roberta"), "masked": folder / "checkpoint_last.pt"}


def headgates(run, command, data, path, *options, reading=READING, code=0):
    return run("headgates", command, data, "--path", path, *reading, *options, code=code)


# --- training, pruning, prediction -----------------------------------------------------------------------------------


@pytest.mark.release
def test_the_hub_interface_predicts_with_a_pruned_model(models, toy_classes):
    """RobertaModel.from_pretrained, which needs no architecture to be named."""
    folder = str(models["pruned"].parent)
    found = {}
    for form, model in (("gated", RobertaHeadGatesModel), ("pruned", RobertaHeadGatesModel), ("stock", RobertaModel)):
        hub = model.from_pretrained(folder, f"{form}.pt", str(toy_classes), bpe=None).eval()
        tokens = hub.task.source_dictionary.encode_line("<s> a b c d", add_if_not_exist=False).long()
        found[form] = hub.predict(HEAD, tokens)
    torch.testing.assert_close(found["pruned"], found["gated"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["stock"], found["gated"], rtol=1e-4, atol=1e-5)


@pytest.mark.release
def test_a_checkpoint_with_names_of_its_authors(models, run, toy_classes, train_roberta, tmp_path):
    """Their architecture and criterion are nowhere registered: it is measured, pruned, written for fairseq, trained."""
    state = read(models["masked"])
    args = argparse.Namespace(**{**vars(state["cfg"]["model"]), "arch": "their_small", "criterion": "their_loss"})
    del args._name
    theirs = tmp_path / "theirs.pt"
    torch.save({**state, "args": args, "cfg": None}, theirs)
    data, scores, stock = toy_classes / "input0", tmp_path / "scores.json", tmp_path / "stock.pt"

    def masked(command, path, *options):
        return headgates(run, command, data, path, *options, reading=[*MASKED, *EVALUATION])

    found = [masked("evaluate", path, "--json") for path in (models["masked"], theirs)]
    assert "architecture 'their_small' by roberta, criterion 'their_loss' by masked_lm" in found[1].err
    losses = [json.loads(done.out)["losses"] for done in found]
    assert losses[0] == losses[1]
    masked("score", theirs, "--method", "refit", "--out", scores)
    run("headgates", "prune", "--path", theirs, "--out", stock, "--stock", "--scores", scores, "--keep", "0.5")
    options = ["--task", "masked_lm", "--criterion", "masked_lm", "--valid-subset", "test", "--cpu", "--batch-size", 40]
    run("fairseq-validate", data, "--path", stock, *MASKED[2:], *options, "--num-workers", 0)  # without --user-dir
    train_roberta(tmp_path / "gates", *GATES, "--finetune-from-model", theirs, task=MASKED)
    run("headgates", "prune", "--path", tmp_path / "gates" / "checkpoint_last.pt", "--out", tmp_path / "pruned.pt")


# --- the commands of headgates ---------------------------------------------------------------------------------------


@pytest.mark.release
def test_ablation_by_accuracy(models, run, toy_classes, tmp_path):
    out = tmp_path / "ablation.json"
    for mode, heads in (("single", 3), ("all-but-one", 1)):
        options = ["--mode", mode, "--metric", "accuracy", "--out", out, "--force"]
        done = headgates(run, "ablate", toy_classes, models["pruned"], *options)
        found = json.loads(out.read_text())
        assert len(found["accuracy_difference"]) == len(found["p_value"]) == heads
        assert "McNemar's exact test" in done.out and "bits per sentence" in done.out


@pytest.mark.release
def test_attention_maps_of_typed_text(models, run, toy_classes, tmp_path):
    (tmp_path / "text").write_text("b a c\n")
    out = tmp_path / "maps.json"
    headgates(run, "attention", toy_classes, models["pruned"], "--text", tmp_path / "text", "--out", out)
    (typed,) = json.loads(out.read_text())["sentences"]
    assert typed["enc-self"]["queries"] == ["<s>", "b", "a", "c", "</s>"]
    typing = ["--text", tmp_path / "text", "--out", out, "--force"]
    headgates(run, "explain", toy_classes, models["pruned"], *typing)
    (typed,) = json.loads(out.read_text())["sentences"]
    assert typed["source"] == ["<s>", "b", "a", "c", "</s>"] and typed["prefix"] == []
    assert typed["predicted"] in (["0"], ["1"]) and len(typed["contributions"]) == 1
    other = "01".replace(typed["predicted"][0], "")
    compare = ["explain", toy_classes, models["pruned"], "--text", tmp_path / "text", "--json", "--instead-of"]
    headgates(run, *compare, other)
    done = headgates(run, *compare, typed["predicted"][0], code=2)
    assert_one_line_error(done, ["itself"])


def test_a_typed_pair_is_read_as_one_of_the_data(models, run, toy_classes, changed, tmp_path):
    sentences = (toy_classes.parent / "test.txt").read_text().splitlines()
    line = min(range(40), key=lambda number: len(sentences[number]))
    (tmp_path / "text").write_text(f"{sentences[line]}\t{sentences[line]}\n")
    command = ["attention", changed, models["pruned"], "--json", "--separator-token", 2]
    done = headgates(run, *command, "--text", tmp_path / "text", code=2)  # the data have no second sentences
    assert_one_line_error(done, ["has 2 tab-separated columns, at most 1 are allowed"])
    shutil.copytree(changed / "input0", changed / "input1")
    read, typed = (
        json.loads(headgates(run, *command, *chosen).out)["sentences"][0]
        for chosen in (("--lines", line + 1), ("--text", tmp_path / "text"))
    )
    words = sentences[line].split()
    assert read == typed and typed["enc-self"]["queries"] == ["<s>", *words, "</s>", "</s>", *words, "</s>"]


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["the checkpoint is an encoder: pass --task sentence_prediction or masked_lm"]),
        (CLASSES[:2], ["add --num-classes N"]),
        ([*CLASSES, "--num-classes", 3], ["--num-classes is 3: it must be 2"]),
        (
            [*CLASSES, "--regression-target"],
            ["--regression-target cannot be used here", "--task masked_lm"],
        ),
        ([*CLASSES, "--metric", "bleu"], ["--metric is bleu", "choose nll or accuracy"]),
        ([*MASKED, "--by", "relevance"], ["relevance is that for the next token or a class"]),
    ],
)
def test_options_that_do_not_fit_are_refused(options, words, models, run, toy_classes, toy):
    data = toy.data if not options else toy_classes / ("input0" if MASKED[1] in options else "")
    by = [] if "--by" in options else ["--by", "gate"]
    reading = ["--path", models["gated"], *EVALUATION]
    assert_one_line_error(run("headgates", "curve", data, *reading, *by, *options, code=2), words)


def test_a_checkpoint_without_a_classification_head_and_data_without_labels(models, run, toy_classes):
    for data, form, words in (
        (toy_classes, "masked", [f"no classification head '{HEAD}' (it has none)", "--criterion sentence_prediction"]),
        (toy_classes / "input0", "gated", ["input0 and label of fairseq-preprocess"]),
    ):
        done = headgates(run, "score", data, models[form], "--method", "gradient", code=2)
        assert_one_line_error(done, words)


def test_sentences_and_labels_of_different_numbers(models, run, toy_classes, tmp_path):
    """The files of labels are checked as those of sentences are."""
    data = tmp_path / "data"
    shutil.copytree(toy_classes, data)
    for ending in ("bin", "idx"):
        shutil.copy(data / "label" / f"valid.{ending}", data / "label" / f"train.{ending}")
    done = headgates(run, "score", data, models["gated"], "--method", "gradient", "--gen-subset", "train", code=2)
    assert_one_line_error(done, ["200 in input0/train.idx", "40 in label/train.idx"])


# --- data and checkpoints that do not fit ----------------------------------------------------------------------------


@pytest.fixture
def changed(toy_classes, tmp_path):
    """A copy of the data, to be changed."""
    return shutil.copytree(toy_classes, tmp_path / "data")


def binarise(run, folder, lines, dictionary):
    """Write the subset `train` of a folder anew, as `test`."""
    (folder.parent / "lines").write_text("".join(f"{line}\n" for line in lines))
    options = ["--only-source", f"--testpref={folder.parent / 'lines'}", "--srcdict", dictionary]
    run("fairseq-preprocess", *options, "--destdir", folder.parent / "new")
    for ending in ("bin", "idx"):
        shutil.copy(folder.parent / "new" / f"test.{ending}", folder / f"test.{ending}")


def test_invalid_labels_are_refused(models, run, changed):
    binarise(run, changed / "label", ["9"] + ["1"] * 39, changed / "label" / "dict.txt")
    done = headgates(run, "score", changed, models["gated"], *TEST, "--method", "gradient", code=2)
    assert_one_line_error(done, ["has the label -1", "check --num-classes and label/dict.txt"])


def test_second_sentences_that_are_missing(models, run, changed):
    shutil.copytree(changed / "input0", changed / "input1")
    scoring = ["score", changed, models["gated"], *TEST, "--method", "gradient"]
    headgates(run, *scoring, "--skip-invalid-size-inputs-valid-test")
    for file in (changed / "input1").glob("test.*"):
        file.unlink()
    done = headgates(run, *scoring, code=2)
    assert_one_line_error(done, ["there is no subset 'test' in", "input1"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mask-prob", "0.0001", "--sentences", "2"], ["the data have nothing to predict", "--mask-prob"]),
        (["--tokens-per-sample", "1024"], ["--tokens-per-sample is 1024: it must be at most 16"]),
    ],
)
def test_invalid_masking_options_are_refused(options, words, models, run, toy_classes):
    options, reading = ["--method", "ablation", *options], [*MASKED, *EVALUATION]
    done = headgates(run, "score", toy_classes / "input0", models["masked"], *options, code=2, reading=reading)
    assert_one_line_error(done, words)
