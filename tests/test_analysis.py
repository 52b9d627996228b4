"""score, ablate, curve and correlate as a user runs them, on toy models."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy
import pytest
import torch
from support.commands import EVALUATION, run_program, worker_arguments

from fairseq_headgates import evaluation
from fairseq_headgates.analysis import ablation, curves
from fairseq_headgates.cli import main as cli
from fairseq_headgates.heads import SCORE_FORMAT, HeadTable, parse_scores, read_scores, scores_to_json

SEARCH = ["--beam", "2", "--max-len-b", "20"]
READ = ["--cpu", "--num-workers", "0"]


@pytest.fixture
def headgates(capsys):
    """headgates(*arguments, code=0): what the command prints (or its one line of complaint)."""

    def headgates(*arguments, code=0):
        capsys.readouterr()
        try:
            ended = cli.main(list(map(str, arguments)))
        except SystemExit as error:  # argparse's
            ended = error.code
        out, err = capsys.readouterr()
        assert ended == code, out + err
        if code:
            assert not out and "Traceback" not in err
            return err
        return out

    return headgates


@pytest.fixture
def on_toy(headgates, toy, gated_checkpoint):
    """on_toy(command, *options): on the validation data and the gated checkpoint."""

    def on_toy(command, *options, checkpoint=gated_checkpoint, data=toy.data, subset="valid", code=0):
        places = [data, "--path", checkpoint, "--gen-subset", subset, *READ]
        return headgates(command, *places, *options, code=code)

    return on_toy


def shapes(table):
    return {kind: [len(row) for row in rows] for kind, rows in table.values.items()}


FULL = {"enc-self": [4, 4], "dec-self": [4, 4], "dec-enc": [4, 4]}


# --- score -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["baseline", "gated", "fixed", "mixed"])
def test_all_methods_score_every_kind_of_checkpoint(name, on_toy, checkpoints, tmp_path):
    out = tmp_path / "scores.json"
    text = on_toy("score", "--method", "all", "--out", out, checkpoint=checkpoints[name])
    tables = {table.name: table for table in read_scores(str(out))}
    assert list(tables) == ["confidence", "gradient", "relevance", "ablation", "magnitude", "gate", "random"]
    for method, table in tables.items():
        assert shapes(table) == FULL
        assert table.signature.startswith(method) and table.signature in text
        assert "|data:" in table.signature and "|split:valid|sents:30|ckpt:" in table.signature
    assert {row.split()[0] for row in re.findall(r"^confidence .*$", text, re.MULTILINE)} == {"confidence"}
    if name == "fixed":  # heads that are masked change nothing
        assert tables["ablation"].values["enc-self"][1] == pytest.approx([0, 0, 0, 0], abs=1e-6)


def test_scores_choose_what_prune_keeps(on_toy, headgates, checkpoints, run, toy, tmp_path):
    scores, pruned = tmp_path / "scores.json", tmp_path / "pruned.pt"
    on_toy("score", "--method", "gradient", "--out", scores, checkpoint=checkpoints["baseline"])
    headgates("prune", checkpoints["baseline"], pruned, "--scores", scores, "--keep", "12")
    shown = json.loads(headgates("show", pruned, "--json"))
    assert shown["heads"]["total"] == [12, 24]
    ranked = sorted((v for kind in FULL for v in parse_scores(str(scores)).heads(kind)), reverse=True)
    for kind, rows in parse_scores(str(scores)).values.items():
        for row, gates in zip(rows, shown["gate"][kind], strict=True):
            assert [int(value >= ranked[11]) for value in row] == gates
    again = tmp_path / "again.json"
    on_toy("score", "--method", "all", "--out", again, checkpoint=pruned)  # a pruned checkpoint has scores as well
    assert all(shapes(table) == FULL for table in read_scores(str(again)))
    run("fairseq-generate", toy.data, "--path", pruned, *EVALUATION)


def test_the_number_of_processes_makes_no_difference(start, toy, gated_checkpoint, on_toy, tmp_path):
    options = ["--method", "all", "--max-tokens", "40"]
    alone = tmp_path / "alone.json"
    on_toy("score", *options, "--out", alone)
    shared = tmp_path / "shared.json"
    arguments = ["score", toy.data, "--path", gated_checkpoint, "--gen-subset", "valid", *READ, *options]
    workers = [start("headgates", *arguments, "--out", shared, *own) for own in worker_arguments(2)]
    outputs = [worker.finish().expect(0).out for worker in workers]
    assert outputs[0] and not outputs[1]  # one of them writes
    for one, two in zip(read_scores(str(alone)), read_scores(str(shared)), strict=True):
        assert one.signature == two.signature
        for kind in FULL:
            assert two.heads(kind) == pytest.approx(one.heads(kind), rel=1e-5, abs=1e-7), one.name


@pytest.mark.rehearsal
def test_torchrun(toy, gated_checkpoint, on_toy, tmp_path):
    """Three processes for fewer batches than that: one has nothing to do."""
    shared = tmp_path / "shared.json"
    command = [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 3, "--master-port", 0, "--no-python"]
    command += [sys.executable, "-m", "fairseq_headgates.cli", "score", toy.data, "--path", gated_checkpoint]
    command += [
        "--gen-subset",
        "valid",
        *READ,
        "--method",
        "gradient,confidence",
        "--max-sentences",
        15,
        "--out",
        shared,
    ]
    command[2:5] = ["3", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=Path(cli.__file__).parents[2])
    assert done.returncode == 0, done.stderr
    alone = tmp_path / "alone.json"
    on_toy("score", "--method", "gradient,confidence", "--out", alone)
    for one, two in zip(read_scores(str(alone)), read_scores(str(shared)), strict=True):
        for kind in FULL:
            assert two.heads(kind) == pytest.approx(one.heads(kind), rel=1e-5, abs=1e-7), one.name


def test_options_of_the_methods(on_toy, tmp_path):
    def table(*options):
        return json.loads(on_toy("score", "--json", *options))

    default = table("--method", "gradient")
    assert default["signature"].startswith("gradient|gradient-unit:sentence|normalize:layer|")
    for rows in default["scores"].values():
        assert [math.hypot(*row) for row in rows] == pytest.approx([1, 1])
    token = table("--method", "gradient", "--gradient-unit", "token", "--normalize", "none")
    assert (
        token["signature"].startswith("gradient|gradient-unit:token|normalize:none|")
        and token["scores"] != default["scores"]
    )
    rules = [table("--method", "relevance", "--rule", rule)["scores"] for rule in ("epsilon", "attn-constant")]
    assert rules[0] != rules[1] != table("--method", "relevance")["scores"]
    assert table("--method", "random", "--seed", "5")["signature"].startswith("random|seed:5|")
    few = table("--method", "confidence", "--sentences", "7")
    assert "|sents:7|" in few["signature"] and few["scores"] != table("--method", "confidence")["scores"]


def test_heat_maps(on_toy, tmp_path):
    for name in ("maps.png", "maps.svg"):
        on_toy("score", "--method", "magnitude,random", "--plot", tmp_path / name)
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "maps.svg").read_text()


# --- ablate ----------------------------------------------------------------------------------------------------------


def test_loss_is_the_one_that_fairseq_logs(on_toy, run, toy, checkpoints):
    found = json.loads(on_toy("ablate", "--json", checkpoint=checkpoints["baseline"]))
    validated = run(
        "fairseq-validate", toy.data, "--task", "translation", "--path", checkpoints["baseline"],
        "--valid-subset", "valid", "--criterion", "cross_entropy", "--batch-size", 8, *EVALUATION,
    )  # fmt: skip
    assert f"{found['nll']:.3f}" == re.search(r"nll_loss ([\d.]+)", validated.text).group(1)
    assert {kind: [len(row) for row in rows] for kind, rows in found["nll_difference"].items()} == FULL


@pytest.mark.parametrize("more", [[], ["--prefix-size", "2", "--lenpen", "0.3"]])
def test_bleu_is_that_of_fairseq_generate(more, on_toy, run, toy, checkpoints):
    search = [*SEARCH, *more]
    found = json.loads(on_toy("ablate", "--json", "--metric", "bleu", *search, "--mode", "all-but-one"))
    generated = run(
        "fairseq-generate", toy.data, "--path", checkpoints["gated"], "--gen-subset", "valid", *search,
        "--scoring", "sacrebleu", *EVALUATION,
    )  # fmt: skip
    assert f"{found['bleu']:.2f}" == re.search(r"BLEU = ([\d.]+)", generated.out).group(1)
    assert len(found["bleu_difference"]) == len(found["p_value"]) == 6  # the best head of every layer
    assert all(0 <= p <= 1 for p in found["p_value"].values())


def test_ablation_of_single_heads_by_bleu(on_toy, toy, tmp_path):
    out = tmp_path / "ablation.json"
    text = on_toy("ablate", "--metric", "bleu", *SEARCH, "--out", out, subset="test")
    found = json.loads(out.read_text())
    assert len(found["bleu_difference"]) == 24 and found["mode"] == "single"
    assert "dec-enc (decoder-encoder attention)" in text and "paired bootstrap" in text
    assert not list(tmp_path.glob("*.part*"))
    best = on_toy(
        "ablate", "--mode", "all-but-one", "--metric", "bleu", "--select-subset", "valid", *SEARCH, subset="test"
    )
    assert len(re.findall(r"\(head \d\)", best)) == 6


def test_a_stopped_ablation_goes_on(on_toy, tmp_path, monkeypatch):
    from fairseq_headgates.analysis import ablation

    translate, calls = ablation.translate, []

    def stop_at_the_fifth(model, corpus):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return translate(model, corpus)

    options = ["--metric", "bleu", *SEARCH, "--out", tmp_path / "out.json"]
    expected = tmp_path / "expected.json"
    on_toy("ablate", *options[:-1], expected, subset="test")
    monkeypatch.setattr(ablation, "translate", stop_at_the_fifth)
    assert on_toy("ablate", *options, subset="test", code=130) == "headgates ablate: stopped\n"
    assert [path.name for path in tmp_path.glob("out*")] == ["out.json.part"]
    on_toy("ablate", *options, subset="test")
    assert len(calls) == 5 + 21
    assert (tmp_path / "out.json").read_text() == expected.read_text()


@pytest.mark.parametrize("changed", ["data", "dictionary", "checkpoint"])
def test_results_of_other_data_are_not_taken_up(changed, on_toy, copied, checkpoints, tmp_path, monkeypatch):
    """A stopped command goes on with copies of its data and checkpoint, not with others in their place."""
    data, checkpoint = copied(), tmp_path / "model.pt"
    shutil.copy(checkpoints["baseline"], checkpoint)
    options = ["--by", "magnitude", "--steps", "0,50", "--types", "all", *SEARCH, "--out", tmp_path / "out.json"]

    def curve(folder=data, model=checkpoint, code=0, more=()):
        return on_toy("curve", *options, *more, checkpoint=model, data=folder, subset="test", code=code)

    with monkeypatch.context() as patched:
        patched.setattr(curves, "translate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        curve(code=130)
    kept = (tmp_path / "out.json.part").read_text()
    assert kept.count("\n") == 2
    if changed == "data":  # as binarised anew: the same sizes, other words
        path = data / "test.src-tgt.tgt.bin"
        tokens = numpy.fromfile(path, numpy.uint16)
        tokens[0] ^= 1
        tokens.tofile(path)
    elif changed == "dictionary":
        path = data / "dict.tgt.txt"
        path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    else:
        stamps = os.stat(checkpoint)
        shutil.copy(checkpoints["gated"], checkpoint)
        os.utime(checkpoint, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    line = one_line(curve(code=2))
    assert "out.json.part is the journal of a command with other data, another checkpoint or other options" in line
    assert (tmp_path / "out.json.part").read_text() == kept
    elsewhere, model = copied("elsewhere"), tmp_path / "moved.pt"
    shutil.copy(checkpoints["baseline"], model)
    with monkeypatch.context() as patched:
        translated, translate = [], curves.translate
        patched.setattr(curves, "mean_loss", lambda *_: translated.append("loss") or 1.0)
        patched.setattr(curves, "translate", lambda *args: translated.append("text") or translate(*args))
        curve(elsewhere, model)
    assert translated == ["text", "loss", "text"]  # the first loss was kept
    assert not (tmp_path / "out.json.part").exists()


# --- curve -----------------------------------------------------------------------------------------------------------


def test_curve(on_toy, toy, checkpoints, tmp_path):
    files = ["--out", tmp_path / "c.json", "--tsv", tmp_path / "c.tsv", "--plot", tmp_path / "c.png"]
    text = on_toy(
        "curve", "--by", "gradient", "--steps", "0,50,100", "--types", "all", "dec-enc", *SEARCH, *files,
        checkpoint=checkpoints["baseline"],
    )  # fmt: skip
    points = json.loads((tmp_path / "c.json").read_text())["points"]
    assert [(p["types"], p["removed"], p["heads"]) for p in points] == [
        ("all", 0, 24), ("all", 50, 12), ("all", 100, 0), ("dec-enc", 0, 8), ("dec-enc", 50, 4), ("dec-enc", 100, 0),
    ]  # fmt: skip
    for point in points:
        alive = sum(sum(row) for kind, rows in point["mask"].items() for row in rows)
        assert alive == point["heads"] + (16 if point["types"] == "dec-enc" else 0)
    assert points[0]["nll"] == points[3]["nll"] and points[0]["bleu"] == points[3]["bleu"]
    lines = (tmp_path / "c.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["checkpoint", "by", "types", "removed", "heads", "nll", "bleu"] and len(lines) == 7
    assert "dec-enc by gradient" in text
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_curves_of_several_checkpoints_by_a_file_of_scores(headgates, toy, checkpoints, tmp_path):
    scores = tmp_path / "scores.json"
    table = HeadTable({kind: [[1, 2, 3, 4], [5, 6, 7, 8]] for kind in FULL}, "own")
    scores.write_text(scores_to_json([table, HeadTable(table.values, "other")]))
    paths = f"{checkpoints['baseline']}:{checkpoints['fixed']}"
    common = ["curve", toy.data, "--path", paths, "--gen-subset", "test", *READ, "--scores", scores, "--metric", "nll"]
    points = json.loads(headgates(*common, "--score-method", "own", "--steps", "0,25", "--json"))
    assert len(points) == 2 * 4 * 2 and len({p["checkpoint"] for p in points}) == 2
    assert all(p["bleu"] is None and p["by"] == "own" for p in points)
    assert points[8]["heads"] == 17  # of the checkpoint with fixed heads: those that are alive
    assert "choose one with --score-method" in headgates(*common, code=2)


def test_a_curve_can_score_anew(on_toy, checkpoints):
    options = ["--by", "ablation", "--metric", "nll", "--steps", "25,50", "--types", "enc-self", "--json"]
    points = json.loads(on_toy("curve", *options, "--reestimate", checkpoint=checkpoints["baseline"]))
    first, second = (point["mask"]["enc-self"] for point in points)
    assert all(a >= b for rows in zip(first, second, strict=True) for a, b in zip(*rows, strict=True))


# --- correlate -------------------------------------------------------------------------------------------------------


def test_correlate(on_toy, headgates, tmp_path):
    files = [tmp_path / "valid.json", tmp_path / "test.json"]
    for path in files:
        on_toy("score", "--method", "gradient,confidence,magnitude", "--out", path, subset=path.stem)
    text = headgates("correlate", files[0])
    assert "gradient ~ confidence" in text and text.startswith("Spearman")
    pairs = json.loads(headgates("correlate", *files, "--method", "gradient", "--each-type", "--json"))
    assert [(pair["types"], pair["heads"]) for pair in pairs] == [
        ("enc-self,dec-self,dec-enc", 24), ("enc-self", 8), ("dec-self", 8), ("dec-enc", 8),
    ]  # fmt: skip
    same = json.loads(headgates("correlate", *files, "--method", "magnitude", "--json", "--top", "3"))
    assert same[0]["pearson"] == pytest.approx(1) and same[0]["shared"] == 1 and same[0]["top"] == 3
    mixed = headgates("correlate", *files, code=2)
    assert "differ in both method (gradient, confidence) and origin (sents 30 and 10, split valid and test)" in mixed
    assert "--any" in mixed
    headgates("correlate", *files, "--any")


# --- bad input -------------------------------------------------------------------------------------------------------


def one_line(text):
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("score", ["--method", "attention"], "unknown method 'attention': choose from confidence, gradient, relevance"),
        ("score", ["--method", "gate,gate"], "the method 'gate' is named twice"),
        ("score", ["--method", "gate", "--gen-subset", "dev"], "there is no subset 'dev' in"),
        ("score", ["--method", "gate", "--sentences", "0"], "--sentences is 0: it must be at least 1"),
        ("score", ["--method", "gate", "--path", "a.pt:b.pt"], "--path names 2 checkpoints"),
        ("score", ["--method", "gate", "--path", "missing.pt"], "cannot read the checkpoint 'missing.pt'"),
        ("score", ["--method", "gate", "--distributed-world-size", "2"], "torchrun --nproc-per-node 2"),
        ("score", ["--method", "gate", "--plot", "map.xyz"], "unknown format 'xyz', choose .png, .pdf or .svg"),
        ("score", ["--method", "confidence", "--max-source-positions", "4"], "--skip-invalid-size-inputs-valid-test"),
        ("score", ["--method", "gate", "--max-tokens", "0"], "--max-tokens is 0: it must be at least 1"),
        ("score", ["--method", "gate", "--source-lang", "xx"], "--source-lang is xx, the data in"),
        ("score", ["--method", "gate", "--out", "/nowhere/x.json"], "cannot write /nowhere/x.json"),
        ("score", ["--method", "gate", "--out", ""], "argument --out: the value is empty: give a name"),
        (
            "score",
            ["--method", "gate", "--lm-path", "x", "--scoring", "wer"],
            "--lm-path, --scoring wer cannot be used",
        ),
        ("score", ["--method", "gate", "--user-dir", "/nowhere"], "cannot import --user-dir"),
        ("ablate", ["--metric", "bleu", "--beam", "0"], "--beam is 0: it must be at least 1"),
        ("ablate", ["--metric", "bleu", "--remove-bpe", "x"], "--bpe, --tokenizer or --post-process cannot be used"),
        ("ablate", ["--select-subset", "valid"], "--select-subset has no effect without --mode all-but-one"),
        ("curve", ["--scores", "missing.json"], "cannot read the score file 'missing.json'"),
        ("curve", ["--scores", "x.json", "--reestimate"], "need --by"),
        ("curve", ["--by", "gate", "--score-method", "gate"], "give it with --scores"),
        ("curve", ["--by", "gate", "--types", "encoder"], "unknown attention type 'encoder'"),
        (
            "curve",
            ["--by", "gate", "--types", ","],
            "names no attention type: choose from enc-self, dec-self, dec-enc, or all",
        ),
        ("score", ["--method", "gate", "--gen-subset", "/abs/path"], "there is no subset '/abs/path' in"),
        ("score", ["--method", "gate", "--gen-subset", ""], "--gen-subset is empty: give a name"),
        ("score", ["--method", "gate", "--path", ""], "--path is empty: give a name"),
        ("score", ["--method", "gate", "--user-dir", ""], "--user-dir is empty: give the folder of a package"),
        ("score", ["--method", "gate", "--dataset-impl", "lazy"], "(Index file doesn't match expected format."),
        ("score", ["--method", "gate", "--dataset-impl", "fasta"], "check the options that say how (--dataset-impl"),
        ("score", ["--method", "gate", "--shard-id", "1"], "--shard-id cannot be used here: leave it out"),
        ("score", ["--method", "gate", "--required-batch-size-multiple", "-8"], "-8: it must be at least 1"),
        ("score", ["--method", "gate", "--required-batch-size-multiple", "99"], "--required-batch-size-multiple 99"),
        ("score", ["--method", "gate", "--required-seq-len-multiple", "0"], "is 0: it must be at least 1"),
        ("score", ["--method", "gate", "--required-seq-len-multiple", str(10**9)], "it must be at most 1024"),
        (
            "score",
            ["--method", "gate", "--max-tokens", "9" * 20],
            "--max-tokens is 99999999999999999999: it must be at",
        ),
        ("score", ["--method", "gate", "--num-workers", "-1"], "--num-workers is -1: it must be at least 0"),
        ("score", ["--method", "gate", "--seed", "-3"], "--seed is -3: it must be at least -1"),
        ("score", ["--method", "gate", "--seed", str(2**32)], "it must be at most 4294967294"),
        ("score", ["--method", "gate", "--distributed-world-size", "-1"], "it must be at least 0"),
        (
            "score",
            ["--method", "gate", *"--distributed-world-size 2 --distributed-rank 2".split()]
            + ["--distributed-init-method", "tcp://127.0.0.1:1"],
            "--distributed-rank is 2: it must be from 0 to 1",
        ),
        (
            "score",
            ["--method", "gate", "--distributed-world-size", "2", "--distributed-init-method", "x"],
            "the rendezvous failed at --distributed-init-method x (",
        ),
        ("score", ["--method", "gate", "--bpe", "bytes"], "fairseq cannot use these options (In 'config'"),
        ("curve", ["--scores", ""], "--scores is empty: give a name"),
        ("curve", ["--by", "gate", "--score-subset", ""], "--score-subset is empty: give a name"),
        ("curve", ["--by", "gate", "--score-method", ""], "--score-method names the scores of a file"),
        ("curve", ["--by", "gate", "--score-reference"], "--score-reference cannot be used here"),
        ("ablate", ["--select-subset", ""], "--select-subset has no effect without --mode all-but-one"),
        ("ablate", [*"--mode all-but-one --metric bleu --select-subset".split(), ""], "--select-subset is empty"),
    ],
)
def test_bad_input_gets_one_line(command, options, words, on_toy):
    line = one_line(on_toy(command, *options, code=2))
    assert line.startswith(f"headgates {command}: error: ") and words in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-len-b", "-1"], "--min-len is 1, but translations of 9 source tokens have at most -1 tokens: lower"),
        (["--max-len-b", "10", "--min-len", "11"], "--min-len is 11, but translations of 9 source tokens have at most"),
        (["--min-len", "2000"], "have at most 200 tokens"),
        (
            ["--match-source-len", "--min-len", "50"],
            "--min-len is 50, but translations of 9 source tokens have at most",
        ),
        (["--max-len-a", "nan"], "--max-len-a is nan: it must be a finite number"),
        (["--max-len-a", "inf"], "--max-len-a is inf: it must be a finite number"),
        (["--lenpen", "nan"], "--lenpen is nan: it must be a finite number"),
        (["--unkpen", "nan"], "--unkpen is nan: it must be a finite number"),
        (["--unkpen=-inf"], "--unkpen is -inf: it must be a finite number"),
        (["--temperature", "0"], "--temperature is 0: it must be above 0"),
        (["--temperature", "-1"], "--temperature is -1.0: it must be at least 0"),
        (["--sampling", "--sampling-topk", "99"], "--sampling-topk is 99: it must be at most 24"),
        (["--sampling", "--sampling-topp", "2"], "--sampling-topp is 2.0: it must be at most 1"),
        (["--sampling-topk", "3"], "the options of the search cannot be used: --sampling-topk requires --sampling"),
        (["--diverse-beam-groups", "2", "--diverse-beam-strength", "nan"], "it must be a finite number"),
        (["--diversity-rate", "nan"], "--diversity-rate is nan"),
        (
            ["--scoring", "sacrebleu", "--sacrebleu-tokenizer", "ja-mecab"],
            "--sacrebleu-tokenizer ja-mecab cannot be used",
        ),
    ],
)
def test_options_of_the_search_are_checked_before_anything_is_computed(options, words, on_toy, monkeypatch):
    for room, name in ((ablation, "ablation_losses"), (ablation, "translate"), (curves, "mean_loss")):
        monkeypatch.setattr(room, name, lambda *_: pytest.fail("it has begun to compute"))
    assert words in one_line(on_toy("ablate", "--metric", "bleu", *options, subset="test", code=2))
    if "--min-len" in options:
        assert words in one_line(on_toy("curve", "--by", "gate", *options, subset="test", code=2))


@pytest.mark.parametrize("options", [["--lenpen", "1e300"], ["--temperature", "1e-300"]])
def test_a_search_without_a_best_translation(options, on_toy):
    line = one_line(on_toy("curve", "--by", "gate", "--steps", "0", "--types", "all", *options, code=2))
    assert "the scores of the search are not finite: use less extreme values of --temperature, --lenpen" in line


def test_extreme_but_possible_options(on_toy):
    """What the search limits by itself, and what is not used, stays allowed."""
    more = ["--beam", "1000000000", "--max-len-b", "9", "--unkpen", "inf", "--temperature", "inf", "--nbest", "0"]
    more += ["--prefix-size", "-1", "--num-workers", "99999", "--seed", "-1", "--sentences", "9" * 20]
    on_toy("curve", "--by", "random", "--steps", "0", "--types", "all", *more, subset="test")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["curve", "--by", "guess"], "argument --by: invalid choice: 'guess' (choose from"),
        (["curve", "--by", "gate", "--steps", "0,120"], "120 percent of the heads: it must be from 0 to 100"),
        (["curve", "--by", "gate", "--steps", "ten"], "'ten' is not a list of percentages"),
        (["score", "--method", "gate", "--sentenc", "3"], "unrecognized arguments: --sentenc 3"),
        (["score", "--method", "gate", "--beam", "x"], "argument --beam: invalid int value: 'x'"),
        (["score", "--method", "gate", "--gen-subset"], "argument --gen-subset: expected one argument"),
        (["score", "--method", "gate", "--user-dir"], "argument --user-dir: expected one argument"),
        (["score", "--method", "gate", "--task", "x"], "argument --task: invalid choice: 'x'"),
        (["score", "--method", "gate", "--dataset-impl", "x"], "argument --dataset-impl: invalid choice: 'x'"),
        (["score", "--method", "gate", "--method", "random"], "argument --method: given twice, as 'gate' and 'random'"),
        (["curve", "--by", "gate", "--by", "random"], "argument --by: given twice, as 'gate' and 'random'"),
        (["show", "x.pt", "--beam", "3"], "unrecognized arguments: --beam 3"),
    ],
)
def test_bad_options_are_argparses(options, words, headgates, toy, gated_checkpoint):
    where = [] if options[0] == "show" else [toy.data, "--path", gated_checkpoint, *READ]
    assert words in one_line(headgates(options[0], *where, *options[1:], code=2))


def test_no_checkpoint_or_data_of_another_vocabulary(headgates, on_toy, toy, tmp_path):
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
        ("broken_import", "import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("broken_at_work", "raise RuntimeError('so\\nand so')", "(RuntimeError: so)"),
        ("broken_exit", "import sys; sys.exit(3)", "(SystemExit: 3)"),
        ("json", "", "is not globally unique"),
        ("copy", "", "AttributeError: module 'copy' has no attribute '__path__'"),
        ("fairseq_headgates", "", "is not globally unique"),
        ("missing", None, "(no such folder)"),
        ("one.two", "", "ModuleNotFoundError: No module named 'one'"),
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


@pytest.fixture(scope="module")
def odd_data(tmp_path_factory, toy):
    """'valid' has no sentences, 'test' has no target side."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "empty.src").write_text("")
    (folder / "empty.tgt").write_text("")
    (folder / "some.src").write_text("a b c\n")
    common = ["--source-lang", "src", "--target-lang", "tgt", "--destdir", folder / "bin", "--joined-dictionary"]
    common += ["--srcdict", toy.data / "dict.src.txt"]
    run_program(folder, "fairseq-preprocess", *common, "--validpref", folder / "empty")
    run_program(folder, "fairseq-preprocess", *common, "--testpref", folder / "some", "--only-source")
    return folder / "bin"


@pytest.mark.parametrize(
    "command", [["score", "--method", "gradient"], ["ablate", "--metric", "bleu"], ["curve", "--by", "gate"]]
)
def test_empty_subsets_and_those_without_a_target(command, on_toy, odd_data):
    pair = ["--source-lang", "src", "--target-lang", "tgt"]
    line = one_line(on_toy(*command, *pair, data=odd_data, code=2))
    assert "the subset 'valid' of" in line and "is empty" in line
    line = one_line(on_toy(*command, *pair, data=odd_data, subset="test", code=2))
    assert f"the subset 'test' has no target side, which headgates {command[0]} needs" in line


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
    assert "are scores of different heads: enc-self has 2 x 2 and 2 x 3" in one_line(
        headgates("correlate", small, large, code=2)
    )
    assert "the number of scores is 1: at least two are needed" in one_line(headgates("correlate", small, code=2))
    assert "given twice" in one_line(headgates("correlate", small, small, code=2))
    assert "no file has scores of 'x'" in one_line(headgates("correlate", small, large, "--method", "x", code=2))


def test_a_hostile_checkpoint_is_not_run(on_toy, tmp_path):
    class Hostile:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    path = tmp_path / "hostile.pt"
    torch.save({"model": {}, "args": Hostile()}, path)
    assert "pass --trust" in one_line(on_toy("score", "--method", "gate", checkpoint=path, code=2))
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def copied(toy, tmp_path):
    """copied(): a folder with the dictionaries and the test data."""

    def copied(name="copy"):
        folder = tmp_path / name
        folder.mkdir()
        for path in [*toy.data.glob("dict.*"), *toy.data.glob("test.*")]:
            shutil.copy(path, folder)
        return folder

    return copied


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("test.src-tgt.src.bin", lambda data: data[:-1], "is cut off: it has 111 bytes, its index describes 112"),
        ("test.src-tgt.tgt.bin", lambda data: b"", "is cut off: it has 0 bytes"),
        ("test.src-tgt.src.idx", lambda data: data[:40], "is cut off: it has 40 bytes, its header says 146"),
        ("test.src-tgt.tgt.idx", lambda data: data[:70] + b"\x07" + data[71:], "is damaged: "),
        ("test.src-tgt.src.bin", lambda data: b"\x18" + data[1:], "the token 24, its dictionary 24 symbols"),
        ("test.src-tgt.tgt.bin", lambda data: b"\xff" * len(data), "the token 65535, its dictionary 24 symbols"),
        ("dict.src.txt", lambda data: data + data, "Duplicate word found when loading Dictionary"),
        ("dict.src.txt", lambda data: data + b"\xff 1\n", "Incorrect encoding detected in"),
        ("dict.tgt.txt", lambda data: data.replace(b" ", b""), "Incorrect dictionary format"),
        ("dict.tgt.txt", lambda data: data + b"more 1\n", "has 25 symbols, the decoder of the checkpoint 24"),
    ],
)
def test_damaged_data(name, change, words, on_toy, copied):
    path = copied() / name
    path.write_bytes(change(path.read_bytes()))
    commands = [["ablate"], ["curve", "--by", "random"], ["score", "--method", "random"]]
    for command in commands if "cut off" in words else commands[:1]:
        line = one_line(on_toy(*command, data=path.parent, subset="test", code=2))
        assert words in line and str(path.parent) in line


def test_damage_of_what_is_not_read_does_not_matter(on_toy, copied):
    """The other direction of the same pair, other languages, alignments without --load-alignments."""
    folder = copied()
    for name in ("test.tgt-src.src.idx", "test.src-xx.src.idx", "test.align.src-tgt.idx", "test.src-tgt.src2.idx"):
        (folder / name).write_bytes(b"damaged")
    languages = ["--source-lang", "src", "--target-lang", "tgt"]
    on_toy("score", "--method", "gate", *languages, data=folder, subset="test")
    line = one_line(
        on_toy("score", "--method", "gate", *languages, "--load-alignments", data=folder, subset="test", code=2)
    )
    assert "test.align.src-tgt.idx is damaged" in line


def test_pipes_and_devices_are_no_data(on_toy, copied):
    folder = copied()
    (folder / "dict.src.txt").unlink()
    os.mkfifo(folder / "dict.src.txt")
    assert "dict.src.txt is not a regular file" in one_line(
        on_toy("score", "--method", "gate", data=folder, subset="test", code=2)
    )


def test_options_that_would_kill_or_hang_a_process(start, toy, gated_checkpoint, tmp_path):
    """Division by zero in compiled code; JPEG on a full disk; workers of which one cannot write."""
    common = ["score", toy.data, "--path", gated_checkpoint, "--gen-subset", "test", "--cpu", "--method", "gradient"]
    full = {"RLIMIT_FSIZE": 300}
    out = tmp_path / "x.json"
    children = [
        start("headgates", *common, "--required-batch-size-multiple", "0"),
        start("headgates", *common, "--plot", tmp_path / "x.jpg", limits=full),
        *(
            start("headgates", *common, "--out", out, *own, limits=limits)
            for own, limits in zip(worker_arguments(2), [full, None], strict=True)
        ),
    ]
    words = [
        "--required-batch-size-multiple is 0: it must be at least 1",
        f"cannot write {tmp_path / 'x.jpg'} (File too large)",
        f"cannot write {out} (File too large)",
        "another worker has stopped: see its error",
    ]
    for child, expected in zip(children, words, strict=True):
        assert expected in one_line(child.finish(90).expect(2).err)
    assert not list(tmp_path.iterdir())


def test_standard_output_without_room(on_toy, headgates, tmp_path, monkeypatch):
    scores = tmp_path / "scores.json"
    on_toy("score", "--method", "magnitude,random", "--out", scores)
    for run in (lambda: on_toy("score", "--method", "gate", code=2), lambda: headgates("correlate", scores, code=2)):
        monkeypatch.setattr(sys, "stdout", open("/dev/full", "w"))  # noqa: SIM115
        assert "cannot write to standard output (No space left on device)" in one_line(run())


def test_workers_named_by_the_environment_have_numbers(monkeypatch):
    for name, value in {"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="the environment variable RANK is 'x': it must be a number"):
        evaluation.join_workers(Namespace(distributed_world_size=1))


def test_a_gpu_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert evaluation.device_of(Namespace(cpu=False, device_id=1)) == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="--device-id is 2: it must be from 0 to 1"):
        evaluation.device_of(Namespace(cpu=False, device_id=2))


@pytest.mark.parametrize("option", ["checkpoint_activations", "offload_activations"])
def test_saved_options_of_training_do_not_matter(option, on_toy, checkpoints, tmp_path):
    state = torch.load(checkpoints["baseline"], weights_only=False)
    options = state.get("args") or state["cfg"]["model"]
    setattr(options, option, True)
    torch.save(state, tmp_path / "saved.pt")
    found = [
        json.loads(on_toy("score", "--method", "gradient", "--json", checkpoint=checkpoint))["scores"]
        for checkpoint in (checkpoints["baseline"], tmp_path / "saved.pt")
    ]
    assert found[0] == found[1]


def test_several_folders_are_all_signed(on_toy, toy, copied):
    """fairseq reads validation data from the first of them."""
    other = copied("other")
    signature = json.loads(on_toy("score", "--method", "gate", "--json", data=f"{toy.data}:{other}"))["signature"]
    assert f"|data:{toy.data.parent.name}/bin:{other.parent.name}/other|langs:src-tgt|" in signature


@pytest.mark.parametrize(("visible", "size"), [(8, 8), (8, 1), (0, 1)])
def test_visible_gpus_are_not_taken_for_workers(monkeypatch, visible, size):
    """fairseq's --distributed-world-size is by default the number of GPUs, of which a command takes one."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: visible)
    args = Namespace(distributed_world_size=size, distributed_init_method=None, distributed_rank=5)
    evaluation.join_workers(args)
    assert (args.distributed_world_size, args.distributed_rank) == (1, 0)


def test_workers_without_a_place_to_meet_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    with pytest.raises(ValueError, match="--distributed-world-size is 4, but there is no rendezvous address"):
        evaluation.join_workers(Namespace(distributed_world_size=4, distributed_init_method=None, distributed_rank=0))
