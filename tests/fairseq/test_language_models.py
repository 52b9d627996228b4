"""Language models through fairseq's commands and those of `headgates`, on a toy text."""

import json
import re

import pytest
from support.commands import EVALUATION, USER_DIR, Toy, l0_configuration
from support.functions import conllu
from support.language_models import (
    ALL_ATTENTION,
    BLOCKS,
    READING,
    SIZES,
    by_sentence,
)
from support.training import assert_one_line_error

GATES = ["--gate-heads", "dec-self", "--l0-weight", "0.05"]
PLUGIN = EVALUATION[:2]  # with it a command on fairseq's own model runs in this process
WITHOUT_PLUGIN = [option for option in READING if option not in PLUGIN]


@pytest.fixture(scope="module")
def models(forms_of):
    """Checkpoints with an adaptive softmax: gated, pruned, and in fairseq's form."""
    return forms_of("transformer_lm, adaptive")


@pytest.fixture(scope="module")
def language_model(made_once, train_lm):
    """A checkpoint with gates, of the variant pre-norm."""
    return made_once("lm", lambda folder: train_lm(folder, *GATES)) / "checkpoint_last.pt"


def eval_lm(run, data, path, *options, plugin=True):
    """The loss in bits per token that fairseq-eval-lm prints."""
    done = run("fairseq-eval-lm", data, *(READING if plugin else WITHOUT_PLUGIN), "--path", path, *options)
    return float(re.search(r"Loss \(base 2\): ([\d.]+), Perplexity", done.text)[1])


# --- the commands of headgates ---------------------------------------------------------------------------------------


def headgates(run, command, data, path, *options):
    return run("headgates", command, data, "--path", path, *READING, *options)


@pytest.mark.cases(1)
@by_sentence
@pytest.mark.parametrize(
    "options",
    [
        ["--add-bos-token", "--sample-break-mode", "eos"],
        ["--shorten-method", "random_crop", "--tokens-per-sample", 4, "--seed", 5],
    ],
)
def test_options_that_change_the_perplexity_are_signed(options, language_model, run, toy_text):
    """The perplexity is that of fairseq-eval-lm; the <s> of --add-bos-token is read, and not predicted."""
    found, plain = (
        json.loads(headgates(run, "ablate", toy_text, language_model, "--json", *own).out) for own in (options, [])
    )
    assert found["nll"] == pytest.approx(eval_lm(run, toy_text, language_model, *options), abs=2e-4)
    assert found["signature"] != plain["signature"]
    assert f"{options[0].removeprefix('--')}={'random_crop' if 'crop' in str(options) else True}" in found["signature"]


@pytest.mark.release
def test_embeddings_of_characters(run, toy_text, tmp_path, train_lm):
    characters = ["--character-embeddings", "--character-filters", "[(1, 8), (2, 8)]"]
    train_lm(tmp_path, *characters, "--gate-heads", "dec-self", "--criterion", "cross_entropy_l0")
    path, out = tmp_path / "checkpoint_last.pt", tmp_path / "curve.json"
    headgates(run, "curve", toy_text, path, "--by", "gradient", "--steps", "0", "--out", out)
    run("headgates", "prune", "--path", path, "--out", tmp_path / "pruned.pt")
    for form in (path, tmp_path / "pruned.pt"):
        nll = json.loads(out.read_text())["points"][0]["nll"]
        assert nll == pytest.approx(eval_lm(run, toy_text, form), abs=2e-4)


@by_sentence
def test_trees_of_sentences(language_model, run, toy_text, tmp_path):
    """With --sample-break-mode eos, a block is a sentence, whose tree is known."""
    model, out = language_model, tmp_path / "functions.json"
    lines = [line.split() for line in (toy_text.parent / "test.txt").read_text().splitlines()]
    options = ["--target-conllu", conllu(tmp_path / "trees", lines, "amod")]
    headgates(run, "functions", toy_text, model, *options, "--sample-break-mode", "eos", "--out", out)
    found = json.loads(out.read_text())
    pairs = sum(len(line) - 1 for line in lines)  # from a word to the one before, its dependent
    assert found["relations"]["dec-self"] == {"amod to dependent": {"count": pairs, "offset": -1, "baseline": 1.0}}
    assert found["trees"]["target"]["sentences"] == len(lines)
    done = run("headgates", "functions", toy_text, "--path", model, *READING, *options, code=2)
    assert_one_line_error(done, [f"there are {len(lines)} target trees for", "--sample-break-mode eos"])


@pytest.mark.release
def test_attention_maps_of_blocks_and_of_typed_text(models, run, toy_text, tmp_path):
    out = tmp_path / "maps.json"
    headgates(run, "attention", toy_text, models["pruned"], "--lines", "2", "--heads", "dec-self:0.1", "--out", out)
    (block,) = json.loads(out.read_text())["sentences"]
    assert len(block["dec-self"]["queries"]) == 12
    (tmp_path / "text").write_text("b a c e\n")
    headgates(run, "attention", toy_text, models["pruned"], "--text", tmp_path / "text", "--out", out, "--force")
    (typed,) = json.loads(out.read_text())["sentences"]
    assert typed["dec-self"]["queries"] == typed["dec-self"]["keys"] == ["</s>", "b", "a", "c", "e"]


@pytest.mark.release
def test_relevance(models, language_model, run, toy_text):
    done = headgates(run, "score", toy_text, language_model, "--method", "relevance", "--json")
    (rows,) = json.loads(done.out)["scores"].values()
    assert [len(row) for row in rows] == [4, 4] and all(0 < value < 1 for row in rows for value in row)
    done = run("headgates", "score", toy_text, "--path", models["gated"], *READING, "--method", "relevance", code=2)
    assert_one_line_error(done, ["adaptive softmax", "choose another method"])


def test_contributions_to_the_next_token(language_model, run, toy_text, tmp_path):
    (tmp_path / "text").write_text("b a c e\n")
    done = headgates(run, "explain", toy_text, language_model, "--text", tmp_path / "text", "--json")
    (typed,) = json.loads(done.out)["sentences"]
    assert typed["source"] == [] and typed["prefix"] == ["</s>", "b", "a", "c", "e"]
    assert typed["predicted"][:4] == ["b", "a", "c", "e"] and len(typed["predicted"]) == 5
    assert all(row[i + 1 :] == [0] * (4 - i) for i, row in enumerate(typed["contributions"]))


@pytest.mark.release
@by_sentence
def test_sampling_continues_a_prefix_alike_in_every_form(models, run, toy_text):
    """fairseq-interactive prints the prefix and its continuation."""
    found = {}
    for form in ("gated", "pruned", "stock"):
        search = ["--path", models[form], "--sampling", "--beam", "2", "--nbest", "2", "--max-len-b", 8]
        done = run("fairseq-interactive", toy_text, *READING, *search, stdin="b a\nc\n")
        found[form] = re.findall(r"^H-(\d+)\t\S+\t(.*)$", done.out, re.MULTILINE)
        first, *_, last = [text for _, text in found[form]]
        assert first.startswith("b a") and last.startswith("c")
    assert found["gated"] == found["pruned"] == found["stock"]


@pytest.mark.release
@pytest.mark.parametrize("name", ["transformer_lm_head_gates", "transformer_lm_all_attention"])
def test_hydra(name, tmp_path, run, toy_text):
    """Options that belong to the task are not options of the model there."""
    task, model = "language_modeling", SIZES
    if "all" in name:
        task, model = "language_modeling_segments", ALL_ATTENTION
    config = l0_configuration(Toy(toy_text, toy_text), tmp_path / "run")
    config["task"] = {"_name": task, "data": str(toy_text), "tokens_per_sample": 6}
    config["model"] = {"_name": name, **model, "gate_heads": "dec-self"}
    config["criterion"] = {"_name": "cross_entropy_l0", "l0_weight": 0.05}
    config["dataset"]["max_tokens"] = 60
    (tmp_path / "toy.yaml").write_text(json.dumps(config))  # JSON is YAML
    run("fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "toy")
    path = tmp_path / "run" / "checkpoint_last.pt"
    shown = json.loads(run("headgates", "show", "--path", path, "--json").out)
    assert shown["heads"]["total"] == [8, 8] and shown["gated"] == ["dec-self"]
    reading = ["--user-dir", USER_DIR, "--task", task, "--tokens-per-sample", 6, "--cpu"]
    assert "Perplexity" in run("fairseq-eval-lm", toy_text, *reading, "--path", path).text


# --- bad input -------------------------------------------------------------------------------------------------------


def test_gates_on_cross_attention_are_refused(tmp_path, train_lm):
    done = train_lm(tmp_path, "--gate-heads", "dec-enc", code=2)
    assert_one_line_error(done, ["dec-enc"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["add --task language_modeling"]),
        (["--task", "language_modeling"], ["--tokens-per-sample is 1024", "at most 16"]),
        ([*BLOCKS, "--metric", "bleu"], ["--metric is bleu", "choose nll or ppl"]),
        ([*BLOCKS, "--self-target"], ["--self-target cannot be used here", "predict the next token"]),
        ([*BLOCKS, "--pad-to-fixed-bsz", "--batch-size", 64], ["--pad-to-fixed-bsz cannot be used here"]),
    ],
)
def test_options_of_another_task_are_refused(options, words, language_model, run, toy_text):
    reading = ["--path", language_model, *EVALUATION]
    done = run("headgates", "curve", toy_text, *reading, "--by", "gate", *options, code=2)
    assert_one_line_error(done, words)


def test_a_translation_model_is_no_language_model(gated_checkpoint, language_model, run, toy, toy_text):
    done = run("headgates", "score", toy_text, *READING, "--path", gated_checkpoint, "--method", "gradient", code=2)
    assert_one_line_error(done, ["the checkpoint is a translator", "--task translation"])
    done = run("headgates", "score", toy.data, *EVALUATION, "--path", language_model, "--method", "gradient", code=2)
    assert_one_line_error(done, ["the checkpoint is a language model", "--task language_modeling"])


def test_conversion_to_ctranslate2_needs_the_dictionary(language_model, run, toy_text, tmp_path):
    command = ["convert", "--path", language_model, "--out", tmp_path / "out", "--to", "ctranslate2"]
    assert_one_line_error(run("headgates", *command, code=2), ["there is no dictionary", "give DATA"])
    run("headgates", *command, toy_text)
    assert (tmp_path / "out" / "model.bin").is_file()
