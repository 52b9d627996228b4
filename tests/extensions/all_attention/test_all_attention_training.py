"""The all-attention model through fairseq's commands and those of `headgates`, on a toy text."""

import json
import re
import shutil

import pytest
import torch
from support.checkpoints import assert_same_tensors, read
from support.commands import EVALUATION, hypotheses
from support.language_models import BLOCKS, SEGMENTS, by_sentence
from support.models import assert_same
from support.training import assert_one_line_error

GATES = ["--gate-heads", "dec-self", "--l0-weight", "0.05"]
SGD = ["--optimizer", "sgd", "--lr", 0.5, "--dropout", 0, "--attention-dropout", 0]
READING = [*SEGMENTS, *EVALUATION]


@pytest.fixture(scope="module")
def models(forms_of):
    """Checkpoints: gated, with gates that are closed, open and between, and pruned."""
    return {form: path for form, path in forms_of("all-attention").items() if form != "trained"}


def eval_lm(run, data, path, *options):
    """The loss in bits per token that fairseq-eval-lm prints."""
    done = run("fairseq-eval-lm", data, *READING, "--path", path, *options)
    return float(re.search(r"Loss \(base 2\): ([\d.]+), Perplexity", done.text)[1])


def curve(run, data, path, out, *options):
    """The loss in bits per token that `headgates curve` measures without removing heads."""
    run("headgates", "curve", data, "--path", path, *READING, "--by", "gate", "--steps", "0", "--out", out, *options)
    return json.loads(out.read_text())["points"][0]["nll"]


@pytest.mark.release
def test_evaluation_does_not_depend_on_pruning_or_batch_size(models, run, toy_text, tmp_path):
    expected = curve(run, toy_text, models["gated"], tmp_path / "0.json")
    for number, (form, tokens) in enumerate([("gated", 6), ("gated", 1000), ("pruned", 30)], start=1):
        found = curve(run, toy_text, models[form], tmp_path / f"{number}.json", "--max-tokens", tokens)
        assert found == pytest.approx(expected, abs=1e-6)
        if number != 2:
            assert eval_lm(run, toy_text, models[form], "--max-tokens", tokens) == pytest.approx(expected, abs=2e-4)


def test_evaluation_uses_the_memory(models, run, toy_text, tmp_path):
    """Streams of one block reset it at every block, which changes the loss."""
    with_memory, without = (
        curve(run, toy_text, models["gated"], tmp_path / f"{blocks}.json", "--stream-blocks", blocks)
        for blocks in (4, 1)
    )
    assert abs(with_memory - without) > 1e-4
    points = json.loads((tmp_path / "4.json").read_text())["points"]
    assert "|block:6-none-4|" in points[0]["signature"]


def test_a_run_that_stops_between_epochs_continues_exactly(tmp_path, train_all_attention):
    """The memory is empty at the beginning of an epoch."""
    common = [*GATES, "--max-epoch", 2, "--max-tokens", 120]
    train_all_attention(tmp_path / "once", *common, updates=1000)
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "once" / "checkpoint1.pt", tmp_path / "resumed" / "checkpoint_last.pt")
    train_all_attention(tmp_path / "resumed", *common, updates=1000)
    once, resumed = (read(tmp_path / run / "checkpoint_last.pt") for run in ("once", "resumed"))
    assert once["optimizer_history"][-1]["num_updates"] > 20
    for part in ("model", "last_optimizer_state"):
        assert_same(once[part], resumed[part], part)


def assert_two_workers_train_as_one(folder, train, options, of_one, of_two=()):
    """`train` with `options` and those of one worker gives the weights that it gives with those of two workers."""
    train(folder / "one", *options, *of_one, "--save-interval-updates", 1, "--disable-validation", updates=3)
    train(folder / "two", *options, *of_two, "--disable-validation", updates=3, workers=2)
    files = "one/checkpoint_last.pt", "two/checkpoint_last.pt", "one/checkpoint_1_1.pt"
    models = [read(folder / name)["model"] for name in files]
    # `_float_tensor`: see assert_same.
    one, two, start = ({n: w for n, w in model.items() if not n.endswith("_float_tensor")} for model in models)
    assert_same_tensors(one, two, atol=1e-5, rtol=1e-5)
    assert max((one[name] - start[name]).abs().max() for name in one) > 0.01


@pytest.mark.release
def test_two_workers_train_as_one_with_all_rows(train_all_attention, tmp_path):
    """One worker has the streams of both, and the noise of the gates is that of the update, the same in all workers."""
    options = [*GATES, "--gate-init", 1, "--gate-lr-scale", 10, *SGD]
    one, two = ["--max-tokens", 60], ["--max-tokens", 30]  # of six tokens each: ten rows, and five for each worker
    assert_two_workers_train_as_one(tmp_path, train_all_attention, options, one, two)


@pytest.mark.release
def test_two_workers_score_as_one(models, run, toy_text, tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    scoring = ["headgates", "score", toy_text, "--path", models["gated"], *READING]
    scoring += ["--method", "confidence,gradient,ablation", "--out"]
    run(*scoring, one)
    run(*scoring, two, workers=2)
    tables = [[entry["scores"]["dec-self"] for entry in json.loads(path.read_text())] for path in (one, two)]
    torch.testing.assert_close(torch.tensor(tables[0]), torch.tensor(tables[1]), equal_nan=True, rtol=1e-5, atol=1e-6)


@pytest.mark.release
@by_sentence
def test_a_prefix_is_continued_alike(models, run, toy_text):
    found = []
    for form in models.values():
        options = ["--path", form, *READING, "--beam", 3, "--max-len-b", 30]
        found.append(hypotheses(run("fairseq-interactive", toy_text, *options, stdin="b a\nc\n")))
    assert found[0] == found[1] and found[0][0].startswith("b a") and found[0][1].startswith("c")


# --- bad input -------------------------------------------------------------------------------------------------------


def test_memory_with_shuffled_blocks_is_refused(tmp_path, train_all_attention, models, run, toy_text):
    done = train_all_attention(tmp_path, reading=BLOCKS, code=2)
    assert_one_line_error(done, ["--mem-len is 6", "--task language_modeling_segments", "--mem-len 0"])
    done = run("fairseq-eval-lm", toy_text, *BLOCKS, *EVALUATION, "--path", models["gated"], code=2)
    assert_one_line_error(done, ["--mem-len is 6", "--task language_modeling_segments"])


@pytest.mark.release
def test_without_memory_fairseqs_task_is_used(tmp_path, train_all_attention, run, toy_text):
    train_all_attention(tmp_path, *GATES, "--mem-len", 0, reading=BLOCKS)
    done = run("fairseq-eval-lm", toy_text, *BLOCKS, *EVALUATION, "--path", tmp_path / "checkpoint_last.pt")
    assert "Perplexity" in done.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--persistent-vectors", 0], ["--persistent-vectors is 0"]),
        (["--stream-blocks", 0], ["--stream-blocks is 0", "at least 1"]),
        (["--add-bos-token"], ["--add-bos-token is True"]),
        (["--sample-break-mode", "eos"], ["--sample-break-mode is eos", "none or complete_doc"]),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, words, tmp_path, train_all_attention):
    assert_one_line_error(train_all_attention(tmp_path, *options, code=2), words)


def test_models_without_a_memory_are_refused(train_lm, tmp_path):
    done = train_lm(tmp_path, "--task", "language_modeling_segments", code=2)
    assert_one_line_error(done, ["--task language_modeling_segments is for models with a memory"])


def test_headgates_refuses_a_memory_with_shuffled_blocks(models, run, toy_text):
    reading = ["--path", models["gated"], *BLOCKS, *EVALUATION]
    done = run("headgates", "score", toy_text, *reading, "--method", "gradient", code=2)
    assert_one_line_error(done, ["a model with a memory", "--task language_modeling_segments"])
