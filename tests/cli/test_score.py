"""`headgates score` as a user runs it, on toy models."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.analysis import FULL, READ
from support.commands import worker_arguments

from fairseq_headgates.cli import main as cli
from fairseq_headgates.heads import parse_scores, read_scores


def shapes(table):
    return {attention_type: [len(row) for row in rows] for attention_type, rows in table.layers.items()}


# --- score -----------------------------------------------------------------------------------------------------------


def test_all_methods_score_every_kind_of_attention(on_toy, checkpoints, tmp_path):
    out = tmp_path / "scores.json"
    text = on_toy("score", "--method", "all", "--out", out, checkpoint=checkpoints["mixed"], subset="test")
    tables = {table.name: table for table in read_scores(str(out))}
    assert list(tables) == ["confidence", "gradient", "relevance", "ablation", "magnitude", "gate", "random", "refit"]
    for method, table in tables.items():
        assert shapes(table) == FULL
        assert table.signature.startswith(method) and table.signature in text
        assert "|data:" in table.signature and "|split:test|sents:10|ckpt:" in table.signature
    assert {row.split()[0] for row in re.findall(r"^confidence .*$", text, re.MULTILINE)} == {"confidence"}
    # heads that are masked change nothing
    assert tables["ablation"].layers["enc-self"][1] == pytest.approx([0, 0, 0, 0], abs=1e-6)


def test_scores_choose_what_prune_keeps(on_toy, headgates, checkpoints, tmp_path):
    scores, pruned = tmp_path / "scores.json", tmp_path / "pruned.pt"
    on_toy("score", "--method", "gradient", "--out", scores, checkpoint=checkpoints["baseline"])
    headgates("prune", "--path", checkpoints["baseline"], "--out", pruned, "--scores", scores, "--keep", "12")
    shown = json.loads(headgates("show", "--path", pruned, "--json"))
    assert shown["heads"]["total"] == [12, 24]
    ranked = sorted((v for each in FULL for v in parse_scores(str(scores)).heads(each)), reverse=True)
    for attention_type, rows in parse_scores(str(scores)).layers.items():
        for row, gates in zip(rows, shown["gate"][attention_type], strict=True):
            assert [int(value >= ranked[11]) for value in row] == gates
    again = tmp_path / "again.json"  # a pruned checkpoint has scores as well
    on_toy("score", "--method", "all", "--out", again, checkpoint=pruned, subset="test")
    assert all(shapes(table) == FULL for table in read_scores(str(again)))


def assert_same_scores(alone, shared):
    for one, two in zip(read_scores(str(alone)), read_scores(str(shared)), strict=True):
        assert one.signature == two.signature
        for attention_type in FULL:
            assert two.heads(attention_type) == pytest.approx(one.heads(attention_type), rel=1e-5, abs=1e-7), one.name


@pytest.mark.release
def test_the_number_of_processes_makes_no_difference(start, toy, gated_checkpoint, on_toy, tmp_path):
    options = ["--method", "all", "--max-tokens", "20"]
    alone = tmp_path / "alone.json"
    on_toy("score", *options, "--out", alone, subset="test")
    shared = tmp_path / "shared.json"
    arguments = ["score", toy.data, "--path", gated_checkpoint, "--gen-subset", "test", *READ, *options]
    workers = [start("headgates", *arguments, "--out", shared, *own) for own in worker_arguments(2)]
    outputs = [worker.finish().expect(0).out for worker in workers]
    assert outputs[0] and not outputs[1]  # one of them writes
    assert_same_scores(alone, shared)


@pytest.mark.release
def test_torchrun(toy, gated_checkpoint, on_toy, tmp_path):
    """Three processes for fewer batches than that: one has nothing to do."""
    alone, shared = tmp_path / "alone.json", tmp_path / "shared.json"
    on_toy("score", "--method", "gradient,confidence", "--out", alone)
    command = [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 3, "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", "--no-python", sys.executable, "-m", "fairseq_headgates", "score"]
    command += [toy.data, "--path", gated_checkpoint, "--gen-subset", "valid", *READ, "--max-sentences", 15]
    command += ["--method", "gradient,confidence", "--out", shared]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=Path(cli.__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert_same_scores(alone, shared)


@pytest.mark.release
def test_options_of_the_methods(on_toy, tmp_path):
    def table(*options):
        return json.loads(on_toy("score", "--json", *options, subset="test"))

    default = table("--method", "gradient")
    assert default["signature"].startswith("gradient|gradient-unit:sentence|normalize:layer|")
    for rows in default["scores"].values():
        assert [math.hypot(*row) for row in rows] == pytest.approx([1, 1])
    token = table("--method", "gradient", "--gradient-unit", "token", "--normalize", "none")
    assert token["signature"].startswith("gradient|gradient-unit:token|normalize:none|")
    assert token["scores"] != default["scores"]
    relevance = ["--method", "relevance", "--sentences", "3"]
    rules = [table(*relevance, "--rule", rule)["scores"] for rule in ("epsilon", "attn-constant")]
    assert rules[0] != rules[1] != table(*relevance)["scores"]
    assert table("--method", "random", "--seed", "5")["signature"].startswith("random|seed:5|")
    few = table("--method", "confidence", "--sentences", "7")
    assert "|sents:7|" in few["signature"] and few["scores"] != table("--method", "confidence")["scores"]


def test_what_is_written_and_comes_next_is_on_stderr(run, toy, gated_checkpoint, tmp_path):
    """Stdout stays JSON. The commands that come next run."""
    command = ["headgates", "score", toy.data, "--path", gated_checkpoint, *READ, "--method", "magnitude", "--json"]
    plot, out = tmp_path / "maps.png", tmp_path / "maps.png.json"
    done = run(*command, "--plot", plot, "--out", out)
    assert json.loads(done.out)
    *written, subset, following = done.err.splitlines()
    assert subset == "subset: valid (no --gen-subset is given)"
    assert sorted(written) == [f"written: {plot}", f"written: {out}"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    pruned = tmp_path / "pruned.pt"
    assert following.startswith("next: headgates prune ")
    done = run(*following.replace("OUT", str(pruned)).split()[1:])
    *_, written, following = done.err.splitlines()
    assert written == f"written: {pruned}" and following.startswith("next: headgates evaluate DATA --path ")
    done = run(*following.split()[1:3], toy.data, *following.split()[4:], *READ)
    assert f"{pruned.name} " in done.out and done.err == "subset: test (no --gen-subset is given)\n"
