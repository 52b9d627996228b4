"""Evaluation of a run: validation loss, paired bootstrap, a metric of the user (recipes/lib)."""

import json
import os
import shlex
import sys

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU
from support.commands import EVALUATION

import metric
import nll
import significance
from fairseq_headgates import evaluation

# --- nll.py -----------------------------------------------------------------------------------------------------

LINE = '2026-01-01 00:00:00 | INFO | valid | {{"valid_loss": "3.1", "valid_nll_loss": "{}", "valid_ppl": "4.2"}}\n'


def test_the_loss_is_that_of_the_last_validation(tmp_path, capsys):
    log = tmp_path / "validate.log"
    log.write_text("something\n" + LINE.format("2.5") + LINE.format("2.089") + "a warning\n")
    assert nll.main([str(log)]) == 0
    assert json.loads(capsys.readouterr().out)["nll"] == 2.089


@pytest.mark.parametrize("text", ["", "Traceback\n", LINE.format("x"), LINE.format("nan")])
def test_a_log_without_a_loss_is_refused(text, tmp_path, capsys):
    (tmp_path / "validate.log").write_text(text)
    assert nll.main([str(tmp_path / "validate.log")]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "validate.log" in said


def test_fairseq_logs_bits_per_token_without_smoothing_and_penalty(toy, gated_checkpoint, run, tmp_path):
    """fairseq-validate as lib/models.sh runs it, against the probabilities of the model."""
    import torch
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    options = ["--valid-subset", "valid", "--max-tokens", 500, "--log-format", "json", "--task", "translation"]
    overrides = ["--model-overrides", "{'eval_bleu': False}"]
    said = run("fairseq-validate", toy.data, "--path", gated_checkpoint, *options, *overrides, *EVALUATION)
    (tmp_path / "log").write_text(said.out)
    [model], _, task = load_model_ensemble_and_task([str(gated_checkpoint)], {"data": str(toy.data)})
    model.eval()
    task.load_dataset("valid")
    bits = tokens = 0
    with torch.no_grad():
        for batch in task.get_batch_iterator(task.dataset("valid"), max_tokens=500).next_epoch_itr(shuffle=False):
            log_p = torch.log2(torch.softmax(model(**batch["net_input"])[0], -1))
            target = batch["target"]
            kept = target != task.target_dictionary.pad()
            bits -= log_p.gather(-1, target[..., None])[..., 0][kept].sum().item()
            tokens += int(kept.sum())
    assert nll.read(tmp_path / "log") == pytest.approx(bits / tokens, abs=0.0006)


# --- significance.py ----------------------------------------------------------------------------------------------

WORDS = "der die das Hund Katze sieht kennt ein eine kleine gute Haus und oder nicht".split()


def translations(wrong, seed):
    """References, and the same with a share of wrong words."""
    generator = np.random.default_rng(0)
    reference = [[WORDS[i] for i in generator.integers(len(WORDS), size=9)] for _ in range(60)]
    generator = np.random.default_rng(seed)
    changed = [[w if generator.random() > wrong else "x" for w in line] for line in reference]
    return [" ".join(line) for line in reference], [" ".join(line) for line in changed]


def test_a_large_difference_is_significant_and_a_small_one_is_not():
    reference, good = translations(0.1, 1)
    _, bad = translations(0.4, 2)
    _, similar = translations(0.1, 3)
    far, near = significance.compare(reference, good, bad), significance.compare(reference, good, similar)
    assert far["BLEU"]["p"] < 0.01 and far["chrF2"]["p"] < 0.01
    assert near["BLEU"]["p"] > 0.05
    assert "bs:1000" in far["BLEU"]["signature"] and "seed:12345" in far["BLEU"]["signature"]


def test_the_significance_test_equals_that_of_headgates(monkeypatch):
    """Its seed is fixed, and the environment is as before."""
    reference, good = translations(0.2, 1)
    _, other = translations(0.25, 2)
    expected = significance.compare(reference, good, other)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    systems = {"full": good, "same": list(good), "other": other}
    found = evaluation.paired_bootstrap({"BLEU": BLEU()}, systems, reference)["BLEU"]
    assert found.p_values == {"same": 1.0, "other": expected["BLEU"]["p"]}
    assert found.signature == expected["BLEU"]["signature"] and os.environ["SACREBLEU_SEED"] == "7"
    assert found.scores["full"] == found.scores["same"] == sacrebleu.corpus_bleu(good, [reference]).score


def test_case_matters_unless_lowercase_is_set():
    reference, good = translations(0.1, 1)
    upper = [line.upper() for line in good]
    assert significance.compare(reference, good, upper)["BLEU"]["p"] < 0.01
    assert significance.compare(reference, good, upper, lowercase=True)["BLEU"]["p"] == 1.0


def test_the_p_value_is_that_of_a_naive_bootstrap():
    """Centred absolute differences of resampled BLEU (Koehn 2004), written again."""
    reference, good = translations(0.2, 1)
    _, other = translations(0.25, 2)
    samples = np.random.default_rng(12345).choice(len(reference), size=(1000, len(reference)), replace=True)

    def scores(texts):
        """BLEU of all sentences, then that of every sample: from the sums of the n-grams of its sentences."""
        found = (sacrebleu.sentence_bleu(text, [line]) for text, line in zip(texts, reference, strict=True))
        rows = np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in found])
        sums = [rows.sum(0), *rows[samples].sum(1)]
        return [BLEU.compute_bleu(list(n[:4]), list(n[4:8]), *n[8:], smooth_method="exp").score for n in sums]

    observed, *differences = np.abs(np.subtract(scores(good), scores(other)))
    assert observed == abs(np.subtract(*(sacrebleu.corpus_bleu(text, [reference]).score for text in (good, other))))
    more = sum(differences - np.mean(differences) > observed)
    found = significance.compare(reference, good, other)["BLEU"]["p"]
    assert found == pytest.approx((more + 1) / 1001, abs=0.002)


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_line_feeds_end_lines(end, tmp_path):
    (tmp_path / "text").write_bytes(f"a{end}b\nc d\n\ne".encode())
    assert significance.lines(tmp_path / "text") == [f"a{end}b", "c d", "", "e"]


def test_the_program_prints_the_name_of_the_control(tmp_path, capsys):
    reference, good = translations(0.1, 1)
    (tmp_path / "reference").write_text("\n".join(reference) + "\n")
    for name in ("baseline+", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.hyp").write_text("\n".join(good) + "\n")
    arguments = [str(tmp_path / name) for name in ("reference", "baseline+", "run")]
    assert significance.main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["control"] == "baseline+"
    (tmp_path / "run" / "test.hyp").write_text("one line\n")
    assert significance.main(arguments) == 2
    assert "60 references, 60 lines of the control and 1 of the run" in capsys.readouterr().err


# --- metric.py ----------------------------------------------------------------------------------------------------


@pytest.fixture
def metric_of(tmp_path):
    """metric_of(CODE): a command that runs some Python; its path has a blank."""

    def command(code):
        (tmp_path / "my metric.py").write_text("import sys\n" + code)
        return shlex.join([sys.executable, str(tmp_path / "my metric.py")])

    return command


def test_a_metric_gets_three_files_and_prints_a_number(metric_of, capsys):
    command = metric_of("print('loading'); print(len(sys.argv[1:]) + 0.5); print(sys.argv, file=sys.stderr)")
    assert metric.main([command, "a", "b", "c"]) == 0
    assert json.loads(capsys.readouterr().out)["score"] == 3.5


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('good')", "printed 'good': the last line must be one number"),
        ("print('nan')", "printed 'nan'"),
        ("", "printed ''"),
        ("sys.exit(3)", "failed with exit code 3: it printed no reason"),
        ("raise OSError('no model')", "failed with exit code 1: OSError: no model"),
    ],
)
def test_a_metric_that_fails_is_quoted_in_one_line(code, words, metric_of, capsys):
    assert metric.main([metric_of(code), "a", "b", "c"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and words in said
