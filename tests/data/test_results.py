"""Files of evaluations, their confidence intervals and differences, without a model."""

import copy
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from sacrebleu.metrics import BLEU, CHRF

from fairseq_headgates.cli.commands.evaluate import as_text
from fairseq_headgates.data import statistics
from fairseq_headgates.data.results import (
    ClassScorer,
    Evaluation,
    Loss,
    bleu_of,
    differences,
    read_evaluations,
    scorers,
)
from fairseq_headgates.drawing.evaluations import evaluation_table
from fairseq_headgates.files import read_record, to_json

WORDS = "der die das Hund Katze sieht kennt ein eine kleine gute Haus und oder nicht".split()
BASE = {
    "format": "headgates.evaluation/1",
    "checkpoint": "run/pruned.pt",
    "heads": {"enc-self": [3, 4], "total": [3, 4]},
    "layers": {"enc-self": [1, 2]},
    "parameters": 100,
    "subset": "test",
    "speed": None,
    "signature": "data:x",
}


def draw(seed, wrong=0.0, number=40):
    """Sentences in which a share of the words is wrong."""
    words, noise = numpy.random.default_rng(0), numpy.random.default_rng(seed)
    lines = [[WORDS[i] for i in words.integers(len(WORDS), size=9)] for _ in range(number)]
    return [" ".join("x" if noise.random() < wrong else word for word in line) for line in lines]


def make(seed=1, wrong=0.2, name="run/pruned.pt", **changes):
    """A file of a translation model as an object."""
    random = numpy.random.default_rng(seed)
    counts = numpy.random.default_rng(0).integers(1, 9, size=40).tolist()
    loss = Loss.of((random.random(40) * counts).tolist(), counts, "token")
    predictions, references = draw(seed, wrong), draw(0)
    scores = {name: each.score(predictions) for name, each in scorers(references, BLEU(force=True)).items()}
    content = {**BASE, "checkpoint": name, "losses": {"valid": vars(loss)}}
    content["scores"] = {name: vars(score) for name, score in scores.items()}
    content |= {"predictions": predictions, "references": references, **changes}
    content["losses"]["valid"] = {key: value for key, value in vars(loss).items() if value is not None}
    return json.loads(json.dumps(content))


def parse_evaluation(content):
    return read_record(Evaluation, content, "", "")


@pytest.fixture
def content():
    return make()


# --- statistics ------------------------------------------------------------------------------------------------------


def naive_means(sums, counts):
    samples = numpy.random.default_rng(12345).choice(len(counts), size=(1000, len(counts)), replace=True)
    return numpy.array([sum(sums[i] for i in draw) / sum(counts[i] for i in draw) for draw in samples])


@pytest.mark.usefixtures("all_resamplings")
def test_the_interval_of_a_loss_is_that_of_a_naive_bootstrap():
    random = numpy.random.default_rng(3)
    sums, counts = random.random(25).tolist(), random.integers(1, 5, size=25).tolist()
    expected = numpy.sort(naive_means(sums, counts))[[25, 974]]
    assert statistics.mean_interval(sums, counts) == pytest.approx(tuple(expected))
    loss = Loss.of(sums, counts, "sentence")
    assert loss.interval[0] < loss.mean == sum(sums) / sum(counts) < loss.interval[1] and loss.perplexity is None


def test_a_perplexity_that_is_too_large_is_written_as_null(content):
    """From 1,024 bits on, 2 to the power of the loss is no number in double precision."""
    loss = Loss.of([2047.0, 2048.0], [2, 2], "token", words=2)
    assert loss.perplexity == 2**1023.75 and loss.perplexity_per_word == math.inf
    found = replace(parse_evaluation(content), losses={"test": loss})
    assert "inf" in evaluation_table({"a": found.as_json()})
    read = parse_evaluation(json.loads(to_json(found.as_json())))
    assert read.losses["test"] == replace(loss, perplexity_per_word=None)
    assert "inf" not in evaluation_table({"a": read.as_json()})


def test_resamples_in_which_nothing_counts_are_left_out():
    low, high = statistics.mean_interval([0.0, 3.0], [0, 2])
    assert low == high == 1.5


@pytest.mark.usefixtures("all_resamplings")
def test_the_p_value_of_a_loss_is_that_of_a_naive_bootstrap():
    random = numpy.random.default_rng(4)
    counts = random.integers(1, 5, size=25).tolist()
    a, b = (random.normal(mean, 1, size=25) * counts for mean in (1, 1.3))
    observed = (a.sum() - b.sum()) / sum(counts)
    drawn = naive_means(a, counts) - naive_means(b, counts)
    expected = (1 + sum(abs(drawn - observed) >= abs(observed))) / 1001
    found = statistics.mean_difference_test(a.tolist(), b.tolist(), counts)
    assert found == expected == statistics.mean_difference_test(b.tolist(), a.tolist(), counts) and 0.01 < found < 0.9
    assert statistics.mean_difference_test(a.tolist(), (a + counts).tolist(), counts) == 1 / 1001
    assert statistics.mean_difference_test(a.tolist(), a.tolist(), counts) == 1


@pytest.mark.usefixtures("all_resamplings")
def test_the_p_value_of_bleu_is_that_of_a_naive_bootstrap(monkeypatch):
    """Centred absolute differences of resampled BLEU (Koehn 2004)."""
    references, good, other = draw(0), draw(1, 0.1), draw(2, 0.2)
    samples = numpy.random.default_rng(statistics.SEED).choice(40, size=(1000, 40), replace=True)

    def scores(texts):
        """BLEU of all sentences, then that of every sample: from the sums of the n-grams of its sentences."""
        found = (
            BLEU(effective_order=True).sentence_score(*pair)
            for pair in zip(texts, [[x] for x in references], strict=True)
        )
        counts = numpy.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in found])
        sums = [counts.sum(0), *counts[samples].sum(1)]
        return [BLEU.compute_bleu(list(n[:4]), list(n[4:8]), *n[8:], smooth_method="exp").score for n in sums]

    observed, *resampled = numpy.abs(numpy.subtract(scores(good), scores(other)))
    more = sum(resampled - numpy.mean(resampled) > observed)
    monkeypatch.setenv("SACREBLEU_SEED", "7")  # has no effect
    (found,) = scorers(references, BLEU(force=True))["BLEU"].differences(good, [other])
    assert found.p == pytest.approx((more + 1) / 1001, abs=0.002) and 0.001 < found.p < 0.9
    assert "bs:1000" in found.signature and f"seed:{statistics.SEED}" in found.signature


@pytest.mark.usefixtures("all_resamplings")
@pytest.mark.parametrize("metric", [BLEU(), CHRF()], ids=["BLEU", "chrF2"])
def test_the_interval_of_a_score_is_that_of_sacrebleu(metric, monkeypatch):
    """It gives the middle of its bootstrap scores and half of the width of their interval."""
    predictions, references = draw(1, 0.3), draw(0)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    low, high = statistics.score_interval(metric, predictions, references)
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    theirs = metric.corpus_score(predictions, [references], n_bootstrap=1000)
    assert high - low == pytest.approx(2 * theirs._ci) and low < theirs._mean < high and low < theirs.score < high


def test_the_interval_of_an_accuracy_holds_it():
    labels = [i % 3 for i in range(50)]
    score = ClassScorer(labels).score([label if i % 4 else -1 for i, label in enumerate(labels)])
    assert score.score == 74 and score.interval == pytest.approx((60.4, 84.1), abs=0.1)
    assert score.signature == "accuracy on 50 sentences"
    low, high = ClassScorer([1] * 5).score([1] * 5).interval
    assert low == pytest.approx(100 * 5 / (5 + 1.959964**2)) and high == 100


def test_there_is_no_p_value_without_variance():
    assert statistics.mean_difference_test([5.0], [9.0], [3]) is None
    assert statistics.mean_difference_test([5.0] * 4, [9.0] * 4, [3] * 4) is None
    for metric in (BLEU(), CHRF()):
        for number in (1, 3):
            a, b = ([f"das Haus ist {word}"] * number for word in ("klein", "gut"))
            found = statistics.paired_bootstrap(metric, a, [b, a], a)
            assert [difference.p for difference in found] == [None, 1]
    assert statistics.mcnemar([1], [0], [1]) == 1


@pytest.mark.parametrize("options", [{"lowercase": True}, {"tokenize": "char"}])
def test_bleu_is_made_from_its_signature(options):
    metric, lines = BLEU(force=True, **options), draw(1, 0.3)
    metric.corpus_score(lines, [draw(0)])
    again = bleu_of(str(metric.get_signature()))
    assert again.corpus_score(lines, [draw(0)]).score == metric.corpus_score(lines, [draw(0)]).score
    assert str(again.get_signature()) == str(metric.get_signature())


# --- files and differences -------------------------------------------------------------------------------------------


def test_a_file_is_read_as_it_was_written(content, tmp_path):
    path = tmp_path / "evaluation.json"
    for written in (content, [content, make(2)]):
        path.write_text(json.dumps(written))
        found = [evaluation.as_json() for evaluation in read_evaluations(str(path))]
        assert found == (written if isinstance(written, list) else [written])


def test_differences_of_several_are_those_of_each():
    first, *others = [parse_evaluation(make(seed, wrong)) for seed, wrong in ((1, 0.2), (2, 0.25), (3, 0.5))]
    found = differences(first, others)
    assert found == [other.compare(first) for other in others]
    assert found[1]["BLEU"].value < -10 and found[1]["BLEU"].p < 0.06 < found[0]["BLEU"].p
    assert first.compare(first)["BLEU"][:2] == (0, 1) and differences(first, []) == []


def test_only_what_both_have_is_compared(content):
    other = copy.deepcopy(content)
    other["scores"] = {"accuracy": {"score": 50.0, "interval": [40, 60], "signature": ""}}
    other |= {"predictions": [0, 1], "references": [1, 1], "losses": {}}
    assert parse_evaluation(content).compare(parse_evaluation(other)) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda of: of["losses"]["valid"]["counts"].__setitem__(0, 77), "on 'valid' are of other sentences"),
        (lambda of: of["references"].__setitem__(0, "other"), "have other references"),
        (lambda of: of.update(signature="data:x|options:left-pad-source=False"), "(options 'left-pad-source=False'"),
        (lambda of: of.update(subset="valid"), "(split 'valid' and 'test')"),
        (lambda of: of["scores"]["BLEU"].update(signature="case:lc|tok:13a"), "the signatures of BLEU of"),
    ],
)
def test_evaluations_of_other_data_are_not_compared(change, words, content):
    other = copy.deepcopy(content) | {"checkpoint": "other.pt"}
    change(other)
    with pytest.raises(ValueError, match="compare evaluations of the same data") as error:
        differences(parse_evaluation(content), [parse_evaluation(other)])
    assert words in str(error.value) and "other.pt" in str(error.value)


def test_a_file_controls_no_terminal(content):
    """Names may hold escape sequences, directions of writing and forged lines; translations stay as they are."""
    evil = "x\x1b]0;title\x07\u202e\nFORGED\r"
    content |= {"checkpoint": evil, "signature": f"data:{evil}", "losses": {evil: content["losses"]["valid"]}}
    content["scores"]["BLEU"]["signature"] += evil
    content["predictions"][0] = evil
    found = parse_evaluation(content)
    text = as_text([found, found], differences(found, [found]))
    assert text.isprintable() or {c for c in text if not c.isprintable()} == {"\n"}
    assert "\nFORGED" not in text and r"x\x1b]0;title" in text and found.predictions[0] == evil


@pytest.mark.parametrize(
    ("signature", "differs"),
    [
        ("data:x|block:none-32|split:test,valid|sents:9,40|v:1", "data"),
        ("data:text-en|block:x|split:test,valid|sents:9,40|v:1", "block"),
        ("data:text-en|block:none-32|split:test,valid|sents:8,41|v:1", "sents"),
        ("data:text-en|block:none-32|split:test,valid|sents:8,40|v:2", None),
    ],
)
def test_signatures_tell_the_data_of_language_models(signature, differs, content):
    """Two texts may have as many blocks of as many tokens; of another subset nothing is compared."""
    del content["predictions"], content["references"]
    content |= {"scores": {}, "signature": "data:text-en|block:none-32|split:test,valid|sents:9,40|v:1"}
    own, other = parse_evaluation(content), parse_evaluation({**content, "signature": signature})
    if differs is None:
        assert "loss valid" in own.compare(other)
        return
    with pytest.raises(ValueError, match=rf"on other data \({differs} "):
        differences(own, [other])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda of: of.pop("format"), "it has no format"),
        (
            lambda of: of.update(format="headgates.curve/1"),
            "format must be headgates.evaluation/1, not 'headgates.curve",
        ),
        (lambda of: of["scores"]["BLEU"].update(score="x"), "scores.BLEU.score must be a finite number, not 'x'"),
        (lambda of: of.update(speed={"unit": "words"}), "speed has no per_second"),
    ],
)
def test_other_content_is_refused_in_one_line(change, words, content, tmp_path):
    changed, path = copy.deepcopy(content), tmp_path / "x.json"
    change(changed)
    path.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="write it with `headgates evaluate --out`") as error:
        read_evaluations(str(path))
    assert str(error.value).startswith(f"{path}: {words}") and "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot read the evaluation"):
        read_evaluations(str(tmp_path / "missing"))


def test_reading_and_comparing_need_no_torch(content, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps([content, make(2)]))
    code = "import sys, headgates_start; from fairseq_headgates.data import differences, read_evaluations; "
    code += f"a, b = read_evaluations({str(path)!r}); print(len(differences(a, [b]))); "
    code += "print(*{'torch', 'fairseq'} & {*sys.modules})"
    folder = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout == "1\n\n"


def test_tokenizer_moses_is_the_command_of_sacremoses():
    """Byte for byte."""
    pytest.importorskip("sacremoses")
    from fairseq.data.encoders.moses_tokenizer import MosesTokenizer, MosesTokenizerConfig

    lines = [
        "Er sagte : &quot; Nein ! &quot;",
        "",
        "l&apos; eau @-@ de @-@ vie , 3,5 % .",
        "<unk> , &amp; ( x ) .",
        " a  b ",
    ]
    decoder = MosesTokenizer(MosesTokenizerConfig(target_lang="de"))
    command = [Path(sys.executable).with_name("sacremoses"), "-q", "-l", "de", "detokenize"]
    text = "".join(f"{line}\n" for line in lines).encode()
    done = subprocess.run(command, input=text, capture_output=True, check=True)
    assert "".join(f"{decoder.decode(line)}\n" for line in lines).encode() == done.stdout
