"""Data and checkpoints of the commands that read data: empty, damaged, of other models; workers and devices."""

import json
import re
import sys
import threading
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.tasks import TASK_REGISTRY
from fairseq.tasks.translation import TranslationTask
from support.analysis import READ, SEARCH, one_line
from support.commands import EVALUATION, worker_arguments

from fairseq_headgates.cli.fairseq_options import fairseq_options
from fairseq_headgates.data import workers
from fairseq_headgates.data.corpus import load_corpus
from fairseq_headgates.data.task import setup_task
from fairseq_headgates.data.workers import join_workers
from fairseq_headgates.heads import SCORE_FORMAT, HeadTable, scores_to_json
from fairseq_headgates.plugin.models.building import load_model


@pytest.fixture(scope="module")
def odd_data(tmp_path_factory, toy, run):
    """'valid' has no sentences, 'test' has no target side."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "empty.src").write_text("")
    (folder / "empty.tgt").write_text("")
    (folder / "some.src").write_text("a b c\n")
    common = ["--source-lang", "src", "--target-lang", "tgt", "--destdir", folder / "bin", "--joined-dictionary"]
    common += ["--srcdict", toy.data / "dict.src.txt"]
    run("fairseq-preprocess", *common, "--validpref", folder / "empty")
    run("fairseq-preprocess", *common, "--testpref", folder / "some", "--only-source")
    return folder / "bin"


def test_empty_subsets_and_those_without_a_target(on_toy, odd_data):
    pair = ["--source-lang", "src", "--target-lang", "tgt"]
    line = one_line(on_toy("ablate", *pair, data=odd_data, code=2))
    assert "the subset 'valid' of" in line and "cannot be read (cannot mmap an empty file)" in line
    line = one_line(on_toy("ablate", *pair, data=odd_data, subset="test", code=2))
    assert "the subset 'test' has no target side, which headgates ablate needs" in line


def test_files_are_not_overwritten(on_toy, tmp_path):
    out = tmp_path / "scores.json"
    out.write_text("mine")
    for command in (["score", "--method", "random"], ["ablate"], ["curve", "--by", "random"]):
        assert "pass --force" in one_line(on_toy(*command, "--out", out, code=2))
    assert out.read_text() == "mine"
    on_toy("score", "--method", "random", "--out", out, "--force")
    assert json.loads(out.read_text())["format"] == SCORE_FORMAT


def test_scores_of_other_models_are_refused(on_toy, headgates, tmp_path):
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_text(scores_to_json([HeadTable({"enc-self": [[1, 2], [3, 4]]}, "gate")]))
    large.write_text(scores_to_json([HeadTable({"enc-self": [[1, 2, 3], [3, 4, 5]]}, "gate")]))
    line = one_line(on_toy("curve", "--scores", small, code=2))
    assert "the score file does not fit the model: enc-self layer 0 has 2 heads, the model has 4" in line
    assert "the number of scores is 1: at least two are needed" in one_line(headgates("correlate", small, code=2))
    assert "given twice" in one_line(headgates("correlate", small, small, code=2))
    assert "no file has scores of 'x'" in one_line(headgates("correlate", small, large, "--method", "x", code=2))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("test.src-tgt.src.bin", lambda data: b"", "has 0 bytes, its index describes 112"),
        ("test.src-tgt.tgt.bin", lambda data: b"\xff" * len(data), "the token 65535, its dictionary 24 symbols"),
        ("test.src-tgt.tgt.idx", lambda data: b"garbage" * 9, "Index file doesn't match expected format."),
        ("dict.src.txt", lambda data: data + data, "Duplicate word found when loading Dictionary"),
        ("dict.tgt.txt", lambda data: data + b"more 1\n", "has 25 symbols, the decoder of the checkpoint 24"),
    ],
)
def test_damaged_data(name, change, words, on_toy, copied):
    path = copied() / name
    path.write_bytes(change(path.read_bytes()))
    line = one_line(on_toy("score", "--method", "gate", data=path.parent, subset="test", code=2))
    assert words in line and str(path.parent) in line


@pytest.mark.release
def test_a_worker_that_cannot_write_stops_the_others(start, toy, gated_checkpoint, tmp_path):
    out, full = tmp_path / "x.json", {"RLIMIT_FSIZE": 300}
    common = ["score", toy.data, "--path", gated_checkpoint, "--gen-subset", "test", "--cpu", "--method", "gradient"]
    workers = [
        start("headgates", *common, "--out", out, *own, limits=limits)
        for own, limits in zip(worker_arguments(2), [full, None], strict=True)
    ]
    words = [f"cannot write {out} (File too large)", "another worker has stopped: see its error"]
    for worker, expected in zip(workers, words, strict=True):
        assert expected in one_line(worker.finish(90).expect(2).err)
    assert not list(tmp_path.iterdir())


def test_a_full_standard_output_is_reported_in_one_line(on_toy, headgates, tmp_path, monkeypatch):
    scores = tmp_path / "scores.json"
    on_toy("score", "--method", "magnitude,random", "--out", scores)
    for run in (lambda: on_toy("score", "--method", "gate", code=2), lambda: headgates("correlate", scores, code=2)):
        monkeypatch.setattr(sys, "stdout", open("/dev/full", "w"))  # noqa: SIM115
        assert "No space left on device" in one_line(run())


def test_a_worker_that_waits_says_for_what(monkeypatch):
    """For example with the variables of a cluster left in the environment."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    said, waited = [], threading.Event()
    stream = SimpleNamespace(write=said.append, flush=waited.set)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(workers, "PATIENCE", 0)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: waited.wait(60))
    join_workers(Namespace(distributed_world_size=1, cpu=True))
    assert "worker 0 waits at localhost:1 for the others of 2 workers: start them, or unset WORLD_SIZE" in said[0]


# --- tasks of translation --------------------------------------------------------------------------------------------

MULTILINGUAL = ["--task", "translation_multi_simple_epoch", "--langs", "src,tgt,fr", "--encoder-langtok", "tgt"]
MULTILINGUAL += ["--decoder-langtok", "--lang-pairs"]
PAIR = ["-s", "src", "-t", "tgt"]


@pytest.fixture(scope="module")
def multilingual(made_once, train):
    """A checkpoint of one model for several languages."""
    folder = made_once("multilingual", lambda folder: train(folder, *MULTILINGUAL, "src-tgt", updates=4))
    return folder / "checkpoint_last.pt"


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("options", "others"),
    [
        (["src-tgt"], PAIR),  # fairseq-generate needs them
        (["src-tgt" + ",src-fr" * 9900, *PAIR, "--lang-tok-replacing-bos-eos"], []),
    ],
)
def test_models_of_several_languages_are_measured_as_by_fairseq(options, others, on_toy, multilingual, run, toy):
    """Losses are those of the reference, BLEU that of translations with forced beginnings."""
    options = [*MULTILINGUAL, *options]
    search = [*SEARCH, "--prefix-size", "5"]
    curve = ["--by", "gradient", "--steps", "0", "--types", "all", "--json"]
    (point,) = json.loads(on_toy("curve", *curve, *options, *search, checkpoint=multilingual, subset="test"))
    assert "|langs:src-tgt|options:task=translation_multi_simple_epoch," in point["measured"]
    assert len(point["measured"]) < 500
    fairseq = ["fairseq-generate", toy.data, "--path", multilingual, "--gen-subset", "test", *EVALUATION]
    fairseq += [*options, *others]
    scored = run(*fairseq, "--score-reference").out
    log_p = [float(number) for line in re.findall(r"^P-\d+\t(.*)$", scored, re.MULTILINE) for number in line.split()]
    assert point["nll"] == pytest.approx(-sum(log_p) / len(log_p), abs=1e-4)
    generated = run(*fairseq, *search, "--scoring", "sacrebleu").out
    assert point["bleu"] > 5 and f"{point['bleu']:.2f}" == re.search(r"BLEU = ([\d.]+)", generated)[1]


def test_a_subset_is_loaded_once_and_put_in_batches_for_each_model(multilingual, toy):
    """fairseq keeps the batches of a subset: the second model would get sentences that are too long for it."""
    words = [toy.data, "--path", multilingual, *READ, *MULTILINGUAL, "src-tgt", "--skip-invalid-size-inputs-valid-test"]
    args = fairseq_options("evaluate", list(map(str, [*words, "--sampling-method", "RoundRobin"])))
    task, (_, model) = setup_task(args), load_model(str(multilingual))
    whole = load_corpus(args, task, model)
    model.encoder.max_source_positions = 6
    shorter = load_corpus(args, task, model)
    assert shorter.sentences == sum((batch["net_input"]["src_lengths"] <= 6).sum() for batch in whole.batches) < 10


def test_sentences_of_a_text_have_the_tokens_of_their_languages(on_toy, multilingual, toy, tmp_path):
    source, target = ((toy.data.parent / f"valid.{side}").read_text().splitlines()[0] for side in ("src", "tgt"))
    (tmp_path / "text").write_text(f"{source}\t{target}\n{source}\n")
    options = [*MULTILINGUAL, "src-tgt", "--json", "--max-len-b", "5"]
    (read,) = json.loads(on_toy("attention", *options, "--lines", "1", checkpoint=multilingual))["sentences"]
    typed = json.loads(on_toy("attention", *options, "--text", tmp_path / "text", checkpoint=multilingual))["sentences"]
    assert typed[0] == read and read["dec-enc"]["keys"][0] == "__tgt__" == read["dec-enc"]["queries"][0]
    assert typed[1]["dec-enc"]["keys"][0] == "__tgt__" == typed[1]["dec-enc"]["queries"][0]  # its own translation
    options += ["--lang-tok-replacing-bos-eos", *PAIR]
    (read,) = json.loads(on_toy("attention", *options, "--lines", "1", checkpoint=multilingual))["sentences"]
    assert read["dec-enc"]["keys"][-1] == "__tgt__" == read["dec-self"]["queries"][0]
    message = one_line(on_toy("attention", *options, "--text", tmp_path / "text", checkpoint=multilingual, code=2))
    assert "--text does not support --lang-tok-replacing-bos-eos" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([*MULTILINGUAL, "src-tgt,src-fr"], "add -s SRC -t TGT, a pair of src-tgt, src-fr"),
        (MULTILINGUAL[:-1], "needs languages: add --lang-pairs as in training"),
        ([*MULTILINGUAL, "src-tgt", "-s", "src", "-t", "xx"], "check --lang-pairs, --langs, -s and -t"),
        (["--task", "translation_lev"], "choose from translation, "),
        (["--task", "online_backtranslation", "--mono-langs", "src"], "to evaluate it, use translation"),
        (["--task", "denoising"], "draws its noise anew"),
        (["--task", "sentence_ranking"], "choose from translation, "),
    ],
)
def test_other_tasks_are_refused_with_a_reason(options, words, on_toy):
    assert words in one_line(on_toy("score", "--method", "gate", *options, code=2))


def test_every_task_of_translation_is_evaluated_or_refused():
    """A task of another version of fairseq must be looked at."""
    names = {name for name, task in TASK_REGISTRY.items() if issubclass(task, TranslationTask)}
    tested = {"translation_multi_simple_epoch", "multilingual_translation", "semisupervised_translation"}
    tested |= {"translation", "translation_lev", "online_backtranslation", "simul_text_to_text"}
    tested |= {"translation_from_pretrained_bart", "translation_from_pretrained_xlm"}
    assert {name for name in names if TASK_REGISTRY[name].__module__.startswith("fairseq.")} <= tested


def test_the_signature_names_all_data_folders(on_toy, toy, copied):
    """fairseq reads validation data from the first of them."""
    other = copied("other")
    signature = json.loads(on_toy("score", "--method", "gate", "--json", data=f"{toy.data}:{other}"))["signature"]
    assert f"|data:{toy.data.parent.name}/bin:{other.parent.name}/other|langs:src-tgt|" in signature


def test_the_number_of_visible_gpus_is_not_the_number_of_workers(monkeypatch):
    """fairseq's --distributed-world-size is by default the number of GPUs, of which a command takes one."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    args = Namespace(distributed_world_size=8, distributed_init_method=None, distributed_rank=5)
    join_workers(args)
    assert (args.distributed_world_size, args.distributed_rank) == (1, 0)
    with pytest.raises(ValueError, match="--distributed-world-size is 4, but there is no rendezvous address"):
        join_workers(Namespace(distributed_world_size=4, distributed_init_method=None, distributed_rank=0))
