"""Options of the commands that read data: bad values end with one line, before anything is computed."""

import json
import sys
from argparse import Namespace
from dataclasses import fields

import pytest
from fairseq.dataclass import configs
from support.analysis import READ, SEARCH, one_line
from support.fairseq_0_12_2 import IS_0_12_2

from fairseq_headgates.cli import main as cli
from fairseq_headgates.cli.fairseq_options import MEASURING, SEARCHING, changed_options, fairseq_options
from fairseq_headgates.cli.main import find_commands
from fairseq_headgates.data import metrics

pytestmark = pytest.mark.usefixtures("few_resamplings")


def test_extreme_but_valid_options_are_accepted(on_toy):
    """What the search limits by itself, and what is not used, stays allowed."""
    more = ["--beam", "1000000000", "--max-len-b", "9", "--unkpen", "inf", "--temperature", "inf", "--nbest", "0"]
    least = 0 if IS_0_12_2 else -1  # later versions add 1 to the seed
    more += ["--prefix-size", "-1", "--num-workers", "99999", "--seed", least, "--sentences", "9" * 20]
    on_toy("curve", "--by", "random", "--steps", "0", "--types", "all", *more, subset="test")


def test_a_missing_checkpoint_or_other_vocabulary_is_refused(headgates, on_toy, toy, tmp_path):
    assert "add --path CKPT" in headgates("score", toy.data, "--method", "gate", *READ, code=2)
    assert "cannot read the data in" in on_toy("score", "--method", "gate", data=tmp_path, code=2)
    for side in ("src", "tgt"):
        (tmp_path / f"dict.{side}.txt").write_text("a 1\n")
    (tmp_path / "valid.src-tgt.src.idx").write_bytes(b"")
    line = on_toy("score", "--method", "gate", "--source-lang", "src", "--target-lang", "tgt", data=tmp_path, code=2)
    assert "has 5 symbols, the encoder of the checkpoint" in one_line(line)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("broken_syntax", "def (", "SyntaxError: invalid syntax"),
        ("broken_at_work", "raise RuntimeError('so\\nand so')", "(RuntimeError: so)"),
        ("json", "", "is not globally unique"),
        ("missing", None, "(no such folder)"),
    ],
)
def test_a_broken_user_dir(name, content, words, on_toy, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which fairseq adds the folder
    folder = tmp_path / name
    if content is not None:
        folder.mkdir()
        (folder / "__init__.py").write_text(content)
    monkeypatch.setattr(sys, "argv", ["headgates", "--user-dir", str(folder)])  # which fairseq reads as well
    line = one_line(on_toy("score", "--method", "gate", "--user-dir", folder, code=2))
    assert f"cannot import --user-dir {folder} (" in line and words in line


UNUSED = {
    "--checkpoint-suffix=-shard0": "--checkpoint-suffix",
    "--memory-efficient-bf16": "--bf16",
    "--scoring=sacrebleu --sacrebleu-char-level": "--sacrebleu-char-level",
    "--scoring=chrf": "--scoring chrf",
}


@pytest.mark.parametrize(("given", "name"), UNUSED.items())
def test_options_that_only_fairseq_uses_are_refused(given, name):
    with pytest.raises(ValueError, match=f"^{name} cannot be used here: leave it out"):
        fairseq_options("evaluate", ["data", "--path", "x.pt", *given.split()])


def test_heads_are_scored_on_the_validation_set_and_results_measured_on_the_test_set():
    found = {
        command: fairseq_options(command, ["data", "--path", "x.pt"], find_commands()[command].subset).gen_subset
        for command in ("score", "ablate", "curve", "evaluate")
    }
    assert found == {"score": "valid", "ablate": "test", "curve": "test", "evaluate": "test"}


# --- signatures ------------------------------------------------------------------------------------------------------

# Of the options that all tasks have, those that concern speed, logs and training.
HARMLESS = {
    field.name
    for config in (configs.CommonConfig, configs.CommonEvalConfig, configs.DistributedTrainingConfig)
    for field in [*fields(config), *fields(configs.CheckpointConfig)]
} - {*MEASURING, *SEARCHING}
HARMLESS |= {
    *("num_workers", "data_buffer_size", "max_tokens", "batch_size", "dataset_impl", "gen_subset", "train_subset"),
    *("valid_subset", "combine_valid_subsets", "ignore_unused_valid_subsets", "validate_interval", "max_valid_steps"),
    *("validate_interval_updates", "validate_after_updates", "fixed_validation_seed", "disable_validation"),
    *("max_tokens_valid", "batch_size_valid", "curriculum", "num_shards", "shard_id", "grouped_shuffling"),
    *("update_epoch_batch_itr", "update_ordered_indices_seed", "data", "optimizer", "lr_scheduler", "scoring"),
}
TASKS = ["translation", "translation_multi_simple_epoch", "language_modeling", "masked_lm", "sentence_prediction"]


@pytest.mark.parametrize("task", TASKS)
def test_every_option_that_changes_results_is_signed(task):
    """Each is an option of the data, of the search, or one that changes no result."""
    given = fairseq_options("score", ["data", "--path", "x.pt", "--task", task])
    data, search = changed_options(given)
    assert set(data) <= {"task"} and not search
    chosen = ("task", "criterion")
    changed = Namespace(**{name: value if name in chosen else "other" for name, value in vars(given).items()})
    data, search = changed_options(changed)
    assert "seed" in data and "lenpen" in search and not data.keys() & search.keys()
    assert not (data.keys() | search.keys()) & HARMLESS
    assert set(vars(given)) - HARMLESS - {*chosen, "simul_type"} <= data.keys() | search.keys()


@pytest.mark.release
def test_options_of_speed_and_training_change_no_result(on_toy):
    """Padding and the order of batches do not change losses either, though they are signed."""
    speed = ["--max-tokens", "40", "--data-buffer-size", "2", "--max-valid-steps", "1", "--curriculum", "1"]
    speed += ["--fixed-validation-seed", "3", "--update-ordered-indices-seed", "--log-format", "json"]
    padding = ["--left-pad-source", "--left-pad-target", "--required-seq-len-multiple", "8"]
    expected, fast, padded = (
        json.loads(on_toy("ablate", "--json", *own, subset="test")) for own in ([], speed, padding)
    )
    assert fast["nll"] == pytest.approx(expected["nll"], abs=1e-6) and fast["signature"] == expected["signature"]
    assert padded["nll"] == pytest.approx(expected["nll"], abs=1e-6)
    assert "|options:required-seq-len-multiple=8,left-pad-source=False," in padded["signature"]


def test_a_curve_stores_the_signature_of_its_measurement(on_toy):
    """The data and options of BLEU, besides the signature of the scores, which can be of other data."""
    options = ["--steps", "0", "--types", "all", "--lenpen", "0.5", "--no-repeat-ngram-size"]
    (point,) = json.loads(on_toy("curve", "--by", "gradient", *options, "2", *SEARCH, "--json", subset="test"))
    assert "|split:valid|sents:30|" in point["signature"]
    assert "|split:test|sents:10|" in point["measured"] and "|beam:2|lenpen:0.5|" in point["measured"]
    assert point["measured"].endswith("|search-options:max-len-b=10,no-repeat-ngram-size=2")
    assert "tok:13a" in point["bleu_signature"]


def test_what_sampling_depends_on_is_signed(on_toy):
    sampled = ["curve", "--by", "random", "--steps", "0", "--types", "all", *SEARCH, "--json"]
    sampled += ["--sentences", "2", "--sampling"]
    options = ([], ["--seed", "5"], ["--max-tokens", "50"])
    measured = {json.loads(on_toy(*sampled, *own, subset="test"))[0]["measured"] for own in options}
    assert len(measured) == 3


# --- tokenised text --------------------------------------------------------------------------------------------------


@pytest.mark.release
def test_moses_tokenizer_takes_the_languages_of_the_data(on_toy):
    pytest.importorskip("sacremoses")
    options = ["--by", "random", "--steps", "0", "--types", "all", *SEARCH, "--tokenizer", "moses", "--json"]
    found = [json.loads(on_toy("curve", *options, *own, subset="test")) for own in ([], ["-s", "src", "-t", "tgt"])]
    assert found[0] == found[1] and "|langs:src-tgt|" in found[0][0]["measured"]


@pytest.mark.release
def test_tokenised_references_get_one_warning(toy, checkpoints, capsys, monkeypatch, caplog):
    """It says what to do; sacreBLEU would print three lines for every score."""
    monkeypatch.setattr(metrics, "references", lambda *_: ["A B ."] * 10)
    monkeypatch.setattr(metrics, "translate", lambda *_: ["A C ."] * 10)
    monkeypatch.setattr(metrics, "TOKENISED", 10)
    paths = f"{checkpoints['baseline']}:{checkpoints['gated']}"
    options = ["curve", toy.data, "--path", paths, "--gen-subset", "test", *READ, "--by", "random", "--steps", "0,50"]
    options += ["--types", "enc-self"]
    assert cli.main(list(map(str, options))) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headgates curve: warning: 10 references end in ' .'") and "pass --tokenizer moses" in line
    plain = metrics.bleu_metric(Namespace(cfg=Namespace(scoring=None)))
    plain.corpus_score(["A B ."] * 200, [["A B ."] * 200])
    assert not caplog.records


@pytest.mark.parametrize(
    ("symbols", "line", "given", "options"),
    [
        ("a@@ b", "a@@ b .", {}, "--remove-bpe and --tokenizer moses"),
        ("a@@ b", "a@@ b .", {"tokenizer": "moses"}, "--remove-bpe"),
        ("a@@ b", "ab .", {"post_process": "@@ "}, "--tokenizer moses"),
        ("a@@ b", "a@@b", {"post_process": "@@ "}, ""),
        # in subwords, the full stop of a text that is not tokenised is one of them, too
        ("\u2581a b .", "\u2581a b .", {}, "--post-process sentencepiece"),
        ("\u2581a b .", "ab.", {"post_process": "sentencepiece"}, ""),
        ("\u0120a b", "\u0120a b", {}, "a text in which they are joined, for which fairseq has no option"),
        ("262 13", "262 13", {}, "--bpe gpt2 if they are those of its subwords"),
        ("a b", "a b", {}, ""),
    ],
)
def test_references_in_subwords_name_the_options_that_join_them(symbols, line, given, options):
    chosen = Namespace(tokenizer=given.get("tokenizer"), common_eval=Namespace(post_process=given.get("post_process")))
    corpus = Namespace(cfg=chosen, task=Namespace(target_dictionary=Namespace(symbols=symbols.split())))
    assert metrics.not_comparable(corpus, [line] * 200).partition("; pass ")[2] == options
