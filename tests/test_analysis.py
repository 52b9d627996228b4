"""score, ablate, curve and correlate as a user runs them, on toy models."""

import json
import math
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from commands_for_tests import EVALUATION, run_program, worker_arguments

from fairseq_headgates import cli, evaluation
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
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=Path(cli.__file__).parents[1])
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
    assert default["signature"].startswith("gradient|abs:sentence|normalize:layer|")
    for rows in default["scores"].values():
        assert [math.hypot(*row) for row in rows] == pytest.approx([1, 1])
    token = table("--method", "gradient", "--abs", "token", "--normalize", "none")
    assert token["signature"].startswith("gradient|abs:token|normalize:none|") and token["scores"] != default["scores"]
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
    from fairseq_headgates import ablation

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
    assert "differ in method (gradient, confidence) and in more (sents 30 and 10, split valid and test)" in mixed
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
        ("score", ["--method", "gate", "--plot", "map.xyz"], "no picture of the kind 'xyz' can be drawn"),
        ("score", ["--method", "confidence", "--max-source-positions", "4"], "--skip-invalid-size-inputs-valid-test"),
        ("score", ["--method", "gate", "--max-tokens", "0"], "--max-tokens is 0: it must be at least 1"),
        ("score", ["--method", "gate", "--source-lang", "xx"], "--source-lang is xx, the data in"),
        ("score", ["--method", "gate", "--out", "/nowhere/x.json"], "cannot write /nowhere/x.json"),
        ("score", ["--method", "gate", "--out", ""], "--out is empty"),
        (
            "score",
            ["--method", "gate", "--lm-path", "x", "--scoring", "wer"],
            "--lm-path, --scoring wer cannot be used",
        ),
        ("score", ["--method", "gate", "--user-dir", "/nowhere"], "cannot import --user-dir"),
        ("ablate", ["--metric", "bleu", "--beam", "0"], "--beam is 0: it must be at least 1"),
        ("ablate", ["--metric", "bleu", "--remove-bpe", "x"], "--bpe, --tokenizer or --post-process cannot be used"),
        ("ablate", ["--select-subset", "valid"], "--select-subset is for --mode all-but-one"),
        ("curve", ["--scores", "missing.json"], "cannot read the score file 'missing.json'"),
        ("curve", ["--scores", "x.json", "--reestimate"], "go with --by"),
        ("curve", ["--by", "gate", "--score-method", "gate"], "give it with --scores"),
        ("curve", ["--by", "gate", "--types", "encoder"], "unknown attention type 'encoder'"),
        ("curve", ["--by", "gate", "--types", ","], "names no attention type: choose from all, enc-self"),
    ],
)
def test_bad_input_gets_one_line(command, options, words, on_toy):
    line = one_line(on_toy(command, *options, code=2))
    assert line.startswith(f"headgates {command}: error: ") and words in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["curve", "--by", "guess"], "argument --by: invalid choice: 'guess' (choose from"),
        (["curve", "--by", "gate", "--steps", "0,120"], "120 percent of the heads: it must be from 0 to 100"),
        (["curve", "--by", "gate", "--steps", "ten"], "'ten' is no list of percentages"),
        (["score", "--method", "gate", "--sentenc", "3"], "unrecognized arguments: --sentenc 3"),
        (["show", "x.pt", "--beam", "3"], "unrecognized arguments: --beam 3"),
    ],
)
def test_bad_options_are_argparses(options, words, headgates, toy, gated_checkpoint):
    where = [] if options[0] == "show" else [toy.data, "--path", gated_checkpoint, *READ]
    assert words in headgates(options[0], *where, *options[1:], code=2)


def test_no_checkpoint_or_data_of_another_vocabulary(headgates, on_toy, toy, tmp_path):
    assert "add --path CKPT" in headgates("score", toy.data, "--method", "gate", *READ, code=2)
    assert "cannot read the data in" in on_toy("score", "--method", "gate", data=tmp_path, code=2)
    for side in ("src", "tgt"):
        (tmp_path / f"dict.{side}.txt").write_text("a 1\n")
    (tmp_path / "valid.src-tgt.src.idx").write_bytes(b"")
    line = on_toy("score", "--method", "gate", "--source-lang", "src", "--target-lang", "tgt", data=tmp_path, code=2)
    assert "has 5 symbols, the encoder of the checkpoint" in one_line(line)


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
    assert "the score file does not fit: enc-self layer 0 has 2 heads, the model has 4" in line
    assert "are scores of different heads: enc-self has 2 x 2 and 2 x 3" in one_line(
        headgates("correlate", small, large, code=2)
    )
    assert "1 scores are given, two are needed" in one_line(headgates("correlate", small, code=2))
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


@pytest.mark.parametrize(("visible", "size"), [(8, 8), (8, 1), (0, 1)])
def test_visible_gpus_are_not_taken_for_workers(monkeypatch, visible, size):
    """fairseq's --distributed-world-size is by default the number of GPUs, of which a command takes one."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: visible)
    args = Namespace(distributed_world_size=size, distributed_init_method=None, distributed_rank=5)
    evaluation.join_workers(args)
    assert (args.distributed_world_size, args.distributed_rank) == (1, 0)


def test_workers_without_a_place_to_meet_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    with pytest.raises(ValueError, match="--distributed-world-size 4 without a place to meet"):
        evaluation.join_workers(Namespace(distributed_world_size=4, distributed_init_method=None, distributed_rank=0))
