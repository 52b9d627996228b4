"""`headgates evaluate` as a user runs it, on toy models, against fairseq's and sacreBLEU's commands."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF
from support import classifiers, language_models
from support.analysis import READ, SEARCH, one_line
from support.commands import EVALUATION, USER_DIR

from fairseq_headgates.data.results import read_evaluations
from fairseq_headgates.data.speed import Rates, speeds
from fairseq_headgates.data.statistics import mcnemar, paired_bootstrap

PLUGIN = ["--user-dir", USER_DIR]  # with it fairseq-train runs in this process
FORCED = [*SEARCH, "--prefix-size", "5"]  # so that toy models translate something


@pytest.fixture
def evaluated(headgates, tmp_path):
    """evaluated(data, *checkpoints, *options): the evaluations in the file of --out."""

    def evaluated(data, checkpoints, *options, reading=READ):
        out = tmp_path / "evaluation.json"
        paths = ":".join(map(str, checkpoints))
        headgates("evaluate", data, "--path", paths, *reading, *options, "--out", out, "--force")
        return read_evaluations(str(out))

    return evaluated


def sentences_of(fairseq_generate):
    """The translations of the log of fairseq-generate, as recipes read them."""
    found = re.findall(r"^D-(\d+)\t\S+\t(.*)$", fairseq_generate.out, re.MULTILINE)
    return [text for _, text in sorted(found, key=lambda pair: int(pair[0]))]


# --- translation -----------------------------------------------------------------------------------------------------


def test_loss_translations_bleu_and_chrf_are_those_of_the_commands(headgates, run, toy, checkpoints, tmp_path):
    """fairseq-validate; fairseq-generate --remove-bpe and sacremoses; sacrebleu on raw references."""
    pytest.importorskip("sacremoses")
    path, raw, hypotheses = checkpoints["baseline"], toy.text / "test.tgt", tmp_path / "test.hyp"
    printed = json.loads(
        headgates(
            "evaluate", toy.data, "--path", path, *READ, *FORCED, "--remove-bpe", "--tokenizer", "moses", "--json",
            "--loss-subset", "valid", "--reference", raw, "--hypotheses", hypotheses, "--out", tmp_path / "out.json",
        )
    )  # fmt: skip
    found = json.loads((tmp_path / "out.json").read_text())
    assert printed == {name: of for name, of in found.items() if name not in ("predictions", "references")}
    options = ["--task", "translation", "--valid-subset", "valid", "--criterion", "cross_entropy", "--batch-size", 8]
    validated = run("fairseq-validate", toy.data, "--path", path, *options, *EVALUATION)
    assert f"{found['losses']['valid']['mean']:.3f}" == re.search(r"nll_loss ([\d.]+)", validated.text).group(1)
    assert found["losses"]["valid"]["perplexity"] == 2 ** found["losses"]["valid"]["mean"]

    options = ["--gen-subset", "test", *FORCED, "--remove-bpe", *EVALUATION]
    lines = sentences_of(run("fairseq-generate", toy.data, "--path", path, *options))
    command = [Path(sys.executable).with_name("sacremoses"), "-q", "-l", "tgt", "detokenize"]
    text = subprocess.run(command, input="".join(f"{x}\n" for x in lines), capture_output=True, text=True).stdout
    assert hypotheses.read_text() == text == "".join(f"{line}\n" for line in found["predictions"])
    assert "|split:test,valid|sents:10,30|" in found["signature"] and found["signature"].endswith("|ref:toy/test.tgt")
    assert found["references"] == raw.read_text().splitlines()

    command = f"{sys.executable} -m sacrebleu {raw} -i {hypotheses} -m bleu chrf --format json -w 6 --force".split()
    for score in json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout):
        name = score["name"]
        assert found["scores"][name]["score"] == pytest.approx(score["score"], abs=1e-6)
        assert found["scores"][name]["signature"] == score["signature"]
    assert found["scores"]["BLEU"]["score"] > 5


def test_without_a_reference_the_binarised_target_is_detokenised(evaluated, toy, checkpoints, tmp_path):
    """Another reference gives another BLEU, its own translations 100."""
    path = [checkpoints["baseline"]]
    (binarised,) = evaluated(toy.data, path, *FORCED)
    assert binarised.references == (toy.text / "test.tgt").read_text().splitlines()
    own = tmp_path / "own.txt"
    own.write_text("".join(f"{line}\n" for line in binarised.predictions))
    (found,) = evaluated(toy.data, path, *FORCED, "--reference", own)
    assert found.predictions == binarised.predictions and found.losses == binarised.losses
    assert found.scores["BLEU"].score == pytest.approx(100) and binarised.scores["BLEU"].score < 90


def test_skipped_sentences_have_lines(evaluated, toy, checkpoints, tmp_path):
    """--hypotheses has an empty one for each; --reference has one for each sentence."""
    raw = toy.text / "test.tgt"
    shorter = ["--skip-invalid-size-inputs-valid-test", "--max-source-positions", "5", "--max-target-positions", "1024"]
    files = ["--reference", raw, "--hypotheses", tmp_path / "x"]
    (found,) = evaluated(toy.data, [checkpoints["baseline"]], *FORCED, *shorter, *files)
    lines = raw.read_text().splitlines()
    assert found.references == [line for line in lines if len(line.split()) < 5] and found.predictions
    translations = iter(found.predictions)
    assert (tmp_path / "x").read_text().splitlines() == [
        next(translations) if len(line.split()) < 5 else "" for line in lines
    ]


def test_differences_are_those_of_paired_bootstrap(evaluated, headgates, toy, checkpoints):
    """Of two checkpoints from the first."""
    paths = [checkpoints[name] for name in ("baseline", "fixed", "mixed")]
    found = evaluated(toy.data, paths, *FORCED)
    metrics = {"BLEU": BLEU(force=True), "chrF2": CHRF()}
    for number in (1, 2):
        differences = found[number].compare(found[0])
        assert list(differences) == ["loss test", "BLEU", "chrF2"]
        for name, metric in metrics.items():
            texts = found[0].predictions, [found[number].predictions], found[0].references
            assert [differences[name]] == paired_bootstrap(metric, *texts)
    text = headgates("evaluate", toy.data, "--path", ":".join(map(str, paths)), *READ, *FORCED)
    table, differences, signatures = text.split("\n\n")
    assert [line.split()[1] for line in table.splitlines()[2:]] == ["24/24", "17/24", "19/24"]
    rows = [line.split() for line in differences.splitlines()[2:]]
    order = [(row[0].split("_")[1].split("/")[0], row[2].split("_")[1].split("/")[0]) for row in rows]
    assert order == [("fixed", "baseline"), ("mixed", "baseline")]
    shown = [f"{value.value:+.2f}" for value in list(found[1].compare(found[0]).values())[1:]]
    assert rows[0][5::2] == shown and "p of BLEU: nrefs:1|bs:20|seed:12345|" in signatures


@pytest.mark.release
def test_gated_pruned_and_stock_checkpoints_have_equal_results(evaluated, toy, forms):
    gated, pruned, stock = evaluated(toy.data, forms.values(), *FORCED, "--speed", "1")
    for other in (pruned, stock):
        assert other.predictions == gated.predictions and other.scores == gated.scores
        assert other.losses["test"].sentences == pytest.approx(gated.losses["test"].sentences, abs=1e-4)
        assert other.compare(gated)["BLEU"][:2] == (0, 1) and other.compare(gated)["chrF2"][:2] == (0, 1)
    assert gated.heads == pruned.heads and gated.layers == pruned.layers
    assert gated.layers["dec-enc"] == [0, 2] and gated.heads["total"][1] == 24
    assert pruned.parameters < stock.parameters < gated.parameters
    assert all(each.speed.unit == "words" and each.speed.per_second > 0 for each in (gated, pruned, stock))


@pytest.mark.release
@pytest.mark.usefixtures("all_resamplings")  # as the second worker, which is another process
def test_two_workers_evaluate_as_one(run, toy, checkpoints, tmp_path):
    outs = [tmp_path / f"{workers}.json" for workers in (1, 2)]
    for workers, out in enumerate(outs, 1):
        options = ["--gen-subset", "test", *READ, *FORCED, "--out", out]
        run("headgates", "evaluate", toy.data, "--path", checkpoints["baseline"], *options, workers=workers)
    one, two = (read_evaluations(str(out))[0] for out in outs)
    assert two.predictions == one.predictions and two.scores == one.scores
    assert two.losses["test"].sentences == pytest.approx(one.losses["test"].sentences, abs=1e-4)


# --- language models and classifiers ---------------------------------------------------------------------------------


def test_a_language_model_has_the_loss_of_fairseq_eval_lm(evaluated, headgates, run, train_lm, toy_text, tmp_path):
    """Perplexity per word by hand; the letter x is unknown."""
    train_lm(tmp_path / "lm", *PLUGIN, arch="transformer_lm")
    path, text = tmp_path / "lm" / "checkpoint_last.pt", tmp_path / "words.txt"
    lines = [*(toy_text.parent / "test.txt").read_text().splitlines(), "b a x x", ""]
    (tmp_path / "tokens.txt").write_text("".join(f"{line}\n" for line in lines))
    text.write_text("".join(line.replace(" ", "", 2) + "\n" for line in lines))  # the first three tokens are a word
    places = ["--srcdict", toy_text / "dict.txt", "--destdir", tmp_path / "bin"]
    run("fairseq-preprocess", "--only-source", "--testpref", tmp_path / "tokens.txt", *places)
    reading = language_models.READING
    said = run("fairseq-eval-lm", tmp_path / "bin", *reading, "--path", path, "--gen-subset", "test").text

    options = ["--words", f"test={text}", "--speed", "1"]
    (found,) = evaluated(tmp_path / "bin", [path], *options, reading=[*language_models.BLOCKS, *READ])
    loss = found.losses["test"]
    assert loss.mean == pytest.approx(float(re.search(r"Loss \(base 2\): ([\d.]+)", said)[1]), abs=2e-4)
    assert loss.tokens == sum(loss.counts) == int(re.search(r"Evaluated (\d+) tokens", said)[1])
    assert (loss.unknown, loss.words) == (2, sum(len(line.split()) + 1 for line in text.read_text().splitlines()))
    assert loss.words == loss.tokens - 2 * 11
    assert loss.perplexity_per_word == pytest.approx(2 ** (loss.mean * loss.tokens / loss.words))
    assert found.predictions is None and found.scores == {} and found.speed.unit == "tokens"
    other = [tmp_path / "bin", "--path", path, *language_models.BLOCKS, *READ, "--words", f"test={tmp_path / 'other'}"]
    (tmp_path / "other").write_text("a b\n" * 9)
    words = "--words test has 9 lines, the subset 12: give the text that was binarised"
    assert words in one_line(headgates("evaluate", *other, code=2))


@pytest.mark.release
def test_the_accuracy_of_classifiers_is_counted(evaluated, run, train_roberta, toy_classes, tmp_path):
    for name, updates in (("a", 8), ("b", 2)):
        train_roberta(tmp_path / name, *PLUGIN, arch="roberta", updates=updates)
    paths = [tmp_path / name / "checkpoint_last.pt" for name in ("a", "b")]
    reading = [*classifiers.CLASSES, *READ]
    found, other = evaluated(toy_classes, paths, "--loss-subset", "valid,test", "--speed", "1", reading=reading)
    symbols = [line.split()[0] for line in (toy_classes / "label" / "dict.txt").read_text().splitlines()]
    labels = (toy_classes.parent / "test.label").read_text().split()
    assert [symbols[label] for label in found.references] == labels
    right = sum(symbols[x] == label for x, label in zip(found.predictions, labels, strict=True))
    accuracy = found.scores["accuracy"]
    assert accuracy.score == 100 * right / 40 and accuracy.interval[0] <= accuracy.score <= accuracy.interval[1]
    options = "--task sentence_prediction --criterion sentence_prediction --valid-subset test --batch-size 40".split()
    said = run("fairseq-validate", toy_classes, "--path", paths[0], *options, *EVALUATION).text
    assert accuracy.score == pytest.approx(float(re.findall(r"\| accuracy ([\d.]+)", said)[-1]), abs=0.051)
    assert found.losses["test"].mean == pytest.approx(float(re.findall(r"\| loss ([\d.]+)", said)[-1]), abs=6e-4)
    difference = other.compare(found)
    assert list(difference) == ["loss valid", "loss test", "accuracy"]
    assert difference["accuracy"].p == mcnemar(found.predictions, other.predictions, found.references)
    assert found.losses["valid"].perplexity is None and found.speed.unit == "sentences"


# --- speed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threads", "clock"), [(1, "process_time"), (2, "perf_counter")])
def test_speeds_are_those_of_the_rounds_after_the_first(threads, clock, monkeypatch):
    """Systems take turns; the seconds of their rounds are pretended."""
    now, order = [0], []
    seconds = {"a": iter([9, 4, 2]), "b": iter([9, 1, 5])}

    def system(name):
        order.append(name)
        now[0] += next(seconds[name])
        return 10

    monkeypatch.setattr(f"time.{clock}", lambda: now[0])
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    systems = [lambda name=name: system(name) for name in seconds]
    a, b = speeds(systems, torch.device("cpu"), 2)
    assert (a, b) == (Rates((2.5, 5)), Rates((10, 2))) and order == ["a", "b"] * 3
    assert (b.interval, b.spread, b.relative_to(a)) == ((2, 10), 5, Rates((4, 0.4)))
    assert Rates((1, 6, 2, 9, 3)).spread == 3


def test_a_speed_has_the_interval_of_its_rounds(on_toy, monkeypatch):
    measured = lambda systems, device, rounds, progress: [Rates((900.0, 1234.0, 1000.0)[:rounds])]  # noqa: E731
    monkeypatch.setattr("fairseq_headgates.data.speed.speeds", measured)
    table = {rounds: on_toy("evaluate", "--speed", rounds, *SEARCH) for rounds in (1, 3)}
    assert " 900\n" in table[1] and " 1,234 [900, 1,234]\n" in table[3]


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        (["evaluate", "--speed", 1], ["bleu", "valid", "speed"]),
        (
            ["compress", "--params", 0.9, "--fit-sentences", 60, "--metric", "bleu", "--speed"],
            ["costs", "repair", "loss", "loss", "loss", "bleu", "loss", "bleu", "work", "speed"],
        ),
        (["explain"], ["sentences"]),
    ],
)
def test_what_takes_long_has_a_progress_bar(command, steps, on_toy, monkeypatch):
    found = []
    progress = lambda text, shown: lambda iterable: found.append(text.split()[-1]) or iterable  # noqa: E731
    monkeypatch.setattr("fairseq_headgates.cli.session.progress", progress)
    monkeypatch.setattr("fairseq_headgates.compression.timing.SECONDS", 0)
    on_toy(*command, *SEARCH)
    assert found == steps


# --- wrong options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--reference", "short.txt"], "--reference has 2 lines, the subset 10 sentences: give a line for each"),
        (["--hypotheses", "x", "--out", "x"], "--hypotheses and --out name the same file"),
        (["--words", "test"], "'test' is not a subset and a file, such as test=test.txt"),
        (["--words", "test=short.txt"], "--words is for language models: leave it out"),
        (["--speed", "0"], "'0' is not a number of rounds: give 1 or more, or no number"),
        (["--loss-subset", "valid,"], "--loss-subset is 'valid,': give names with commas between them"),
    ],
)
def test_wrong_options_are_refused(options, words, on_toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("a\nb\n")
    assert words in one_line(on_toy("evaluate", *options, subset="test", code=2))


def test_options_of_other_tasks_and_numbers_of_checkpoints_are_refused(headgates, toy, checkpoints, toy_text, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a\n")
    two = f"{checkpoints['baseline']}:{checkpoints['mixed']}"
    line = one_line(headgates("evaluate", toy.data, "--path", two, *READ, "--hypotheses", tmp_path / "x", code=2))
    assert "--hypotheses is for one checkpoint, --path names 2" in line
    lm = ["evaluate", toy_text, "--path", checkpoints["baseline"], *language_models.BLOCKS, *READ]
    for options, words in (
        (["--reference", text], "--reference is for translation, which this --task is not: leave it out"),
        (["--words", f"valid={text}"], "choose a subset of --loss-subset, test"),
    ):
        assert words in one_line(headgates(*lm, *options, code=2))
