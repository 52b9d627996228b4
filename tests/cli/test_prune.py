"""`headgates prune`: what it removes, keeps and prints."""

import json
import re

import pytest
import torch
from support.checkpoints import LOG_ALPHA, OPEN, F, O, load, names, read, small_gated, small_state, toy_batch
from support.models import assert_same, logits, make_gated
from support.prune_command import SCORES, score_file, write

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.attention.cuts import kept_mask
from fairseq_headgates.heads import TYPES
from fairseq_headgates.inference import kernels, packed_linear
from fairseq_headgates.plugin.models.building import read_mask


def by_layer(rows):
    return " ".join(str(sum(row)) for row in rows)


def test_open_heads_stay_by_default_with_their_optimiser_state(checkpoint, prune):
    out = checkpoint.with_name("pruned.pt")
    done = prune(checkpoint, out)
    before, after = (load(path)[0] for path in (checkpoint, out))
    torch.testing.assert_close(logits(after, toy_batch()), logits(before, toy_batch()), atol=1e-5, rtol=1e-5)
    moments = read(out)["last_optimizer_state"]["state"]
    assert [moments[i]["exp_avg"].shape for i in range(len(moments))] == [p.shape for p in after.parameters()]
    assert kept_mask(after).layers == OPEN
    for attention_type, rows in OPEN.items():
        stay = sum(map(sum, rows))
        assert re.search(rf"^{attention_type} +8 +{stay} +{by_layer(rows)}$", done.out, re.MULTILINE), done.out
    total = sum(sum(map(sum, rows)) for rows in OPEN.values())
    assert re.search(rf"^total +24 +{total}$", done.out, re.MULTILINE)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (before, after)]
    assert f"parameters: {sizes[0]:,} -> {sizes[1]:,} ({100 * (sizes[1] / sizes[0] - 1):+.1f}%)" in done.out
    following = f"next: headgates evaluate DATA --path {checkpoint}:{out}"
    assert done.err.splitlines() == [f"written: {out}", following]
    assert names(checkpoint.parent) == ["gated.pt", "pruned.pt"]
    assert "output changes" not in done.out
    (folded,) = re.findall(r"^.*gates between 0 and 1.*$", done.out, re.MULTILINE)
    assert "3" in folded


@pytest.mark.release
def test_a_dry_run_prints_the_same_and_writes_nothing(checkpoint, prune):
    out = write(checkpoint.with_name("pruned.pt"), "mine")
    dry = prune(checkpoint, out, "--dry-run")  # it ignores an existing output file
    assert out.read_text() == "mine" and names(checkpoint.parent) == ["gated.pt", "pruned.pt"]
    wet = prune(checkpoint, out, "--force")
    assert dry.err == "nothing written (--dry-run)\n"
    assert dry.out == wet.out
    assert prune(checkpoint, out.parent / "no" / "x.pt", "--dry-run").out == dry.out


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("gates", "words"),
    [("", "the checkpoint has no gates: pass"), (",".join(TYPES), "no gate is closed: pass a higher --threshold, or")],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_plan_without_removal_says_why(gates, words, options, prune, tmp_path):
    path, out = tmp_path / "a.pt", tmp_path / "b.pt"
    torch.save(small_state(make_gated(gate_heads=gates)), path)
    warning, *others = prune(path, out, *options).err.splitlines()
    score = f"`headgates score DATA --path {path} --method gradient --out FILE`"
    assert warning == (
        f"headgates prune: warning: no head is removed, because {words} --scores FILE --keep 0.5 after {score}, or "
        "--alive MASK"
    )
    assert others == [f"written: {out}"]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("options", "smallest", "line", "warnings"),
    [
        (["--stock"], 1, "--stock saves neither memory nor time: removed heads and neurons are zeros", []),
        (["--inference-dtype", "int8"], 1, "inference dtype: int8 (stored as an option", []),
        (["--inference-dtype", "int8"], 2**20, "inference dtype: int8", ["int8 has no effect: no linear layer"]),
        (["--inference-dtype", "int8", "--threshold", "0.5"], 1, "inference dtype: int8", ["no head is removed"]),
        (["--inference-dtype", "float32"], 2**20, "inference dtype: float32", []),
    ],
)
def test_another_form_of_a_whole_model_is_no_failed_removal(
    options, smallest, line, warnings, prune, tmp_path, monkeypatch
):
    if "int8" in options and not kernels.int8_range():
        pytest.skip("this torch has no int8 multiplication")
    monkeypatch.setattr(packed_linear, "WORTH_PACKING", smallest)
    path, out = tmp_path / "a.pt", tmp_path / "b.pt"
    torch.save(small_state(make_gated()), path)
    done = prune(path, out, *options)
    *found, written = done.err.splitlines()
    assert line in done.out and written == f"written: {out}"
    assert all(warning in one for warning, one in zip(warnings, found, strict=True))


def test_the_plan_as_json(checkpoint, plan_of):
    plan = plan_of()
    assert names(checkpoint.parent) == ["gated.pt"]
    assert plan["mask"] == OPEN
    assert plan["heads"] == {attention_type: [8, sum(map(sum, rows))] for attention_type, rows in OPEN.items()}
    assert plan["folded_gates"] == sum(row.count(F) for rows in LOG_ALPHA.values() for row in rows)
    assert plan["removed_with_open_gate"] == 0 and plan["parameters"][0] > plan["parameters"][1]
    assert plan["cache_bytes_per_token"] == {each: [8 * 64, n * 64] for each, (_, n) in plan["heads"].items()}


def test_an_optimiser_that_is_not_known_is_left_out_with_a_notice(checkpoint, prune):
    state = read(checkpoint)
    for entry in state["last_optimizer_state"]["state"].values():
        entry["exp_avg_sq_row"] = entry.pop("exp_avg_sq")[..., 0]
    torch.save(state, checkpoint)
    out, without = checkpoint.with_name("pruned.pt"), checkpoint.with_name("without.pt")
    done = prune(checkpoint, out)
    dropped, *others = done.err.splitlines()
    assert dropped == (
        "headgates prune: warning: the optimiser state is dropped (exp_avg_sq_row of encoder.embed_tokens.weight is "
        "not a moment of Adam: only its state can be cut): training from this checkpoint starts with a new optimiser"
    )
    assert "warning" not in prune(checkpoint, without, "--no-optimizer").err + "".join(others)
    assert_same(read(out), read(without))
    assert read(out)["last_optimizer_state"] is None


def test_a_mask_from_a_file_or_inline(checkpoint, prune, plan_of):
    """Heads with a closed gate go in any case; that open ones go is said."""
    mask = {"enc-self": [[1, 1, 0, 0], [1, 1, 1, 1]], "dec-enc": [[1, 1, 1, 1], [0, 0, 1, 1]]}
    left = {**OPEN, "enc-self": [[0, 1, 0, 0], [0] * 4], "dec-enc": [[0] * 4, [0, 0, 1, 0]]}
    file = write(checkpoint.with_name("heads.json"), {"format": "headgates.heads/1", **mask})
    out = checkpoint.with_name("pruned.pt")
    done = prune(checkpoint, out, "--alive", file)
    (line,) = (line for line in done.out.splitlines() if "the output changes" in line)
    assert "3" in line  # two of layer 0 of the encoder, one of layer 1 of the decoder
    whole, smaller = (load(path)[0] for path in (checkpoint, out))
    assert kept_mask(smaller).layers == plan_of("--alive", json.dumps(mask))["mask"] == left
    with masked(whole, HeadTable(mask)):
        expected = logits(whole, toy_batch())
    torch.testing.assert_close(logits(smaller, toy_batch()), expected, atol=1e-5, rtol=1e-5)


def test_threshold_removes_heads_by_their_open_probability(plan_of):
    """P(open) is about 0.10, 0.77 and 0.98."""
    plan = plan_of("--threshold", 0.9)
    assert plan["mask"] == {k: [[int(a == O) for a in row] for row in rows] for k, rows in LOG_ALPHA.items()}
    assert plan["removed_with_open_gate"] > 0


RANKED = sorted(  # of the heads whose gate is open, the best first
    (
        (attention_type, i, j)
        for attention_type in TYPES
        for i, row in enumerate(OPEN[attention_type])
        for j, there in enumerate(row)
        if there
    ),
    key=lambda head: -SCORES[head[0]][head[1]][head[2]],
)  # fmt: skip


def mask_of(heads):
    return {each: [[int((each, i, j) in heads) for j in range(4)] for i in range(2)] for each in TYPES}


@pytest.mark.cases(2)
@pytest.mark.parametrize(("keep", "number"), [("0.5", 6), ("1.0", 11), ("1", 1)])
def test_keep_retains_the_open_heads_with_the_highest_scores(keep, number, plan_of, tmp_path):
    """Of the 11 heads that are open; closed ones are no candidates, however high their score is."""
    assert len(RANKED) == 11
    scores = write(tmp_path / "scores.json", score_file(SCORES))
    assert plan_of("--scores", scores, "--keep", keep)["mask"] == mask_of(RANKED[:number])


def test_the_best_of_some_types_of_every_layer_and_by_one_of_several_methods(plan_of, tmp_path):
    other = {attention_type: [[-v for v in row] for row in rows] for attention_type, rows in SCORES.items()}
    tables = [score_file(SCORES), score_file(other, method="ablation")]
    scores = ["--scores", write(tmp_path / "scores.json", tables), "--method"]
    best = [head for head in RANKED if head[0] == "dec-self"][:2]
    others = [head for head in RANKED if head[0] != "dec-self"]
    of_type = plan_of(*scores, "gradient", "--keep", 2, "--types", "dec-self")
    assert of_type["mask"] == mask_of([*best, *others])
    first = {head[:2]: head for head in reversed(RANKED)}  # one of each layer: 4 layers have heads
    rest = [head for head in RANKED if head not in first.values()]
    assert len(first) == 4
    of_layers = plan_of(*scores, "gradient", "--keep", 5, "--min-per-layer", 1)
    assert of_layers["mask"] == mask_of([*first.values(), rest[0]])
    assert plan_of(*scores, "ablation", "--keep", 3)["mask"] == mask_of(RANKED[-3:])


def test_removing_all_heads_of_a_type_prints_a_note(checkpoint, prune):
    scores = write(checkpoint.with_name("scores.json"), score_file(SCORES))
    done = prune(checkpoint, checkpoint.with_name("x.pt"), "--scores", scores, "--keep", 5, "--dry-run")
    assert re.findall(r"^all (\S+) heads are removed: these", done.out, re.MULTILINE) == ["enc-self", "dec-enc"]


def test_an_unfinished_training_of_gates_is_warned_of(run, tmp_path, caplog):
    """Its target keeps 6 of the 11 heads whose P(open) is above 0.5."""
    path = tmp_path / "gated.pt"
    torch.save(small_state(small_gated(sparsity_method="lagrangian", target_heads="6")), path)
    warning = (
        "the choice of heads is not settled (heads with an evaluation gate of 0 but P(open) above 0.5: 5): "
        "train the gates longer before you fix or remove heads\n"
    )
    for command in (["show", "--path", path], ["prune", "--path", path, "--out", tmp_path / "out.pt", "--dry-run"]):
        assert f"headgates {command[0]}: warning: {warning}" in run("headgates", *command).err
    read_mask(str(path))
    assert f"{path}: {warning}" in caplog.text


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("options", "criterion", "update", "reason"),
    [
        (
            {"sparsity_method": "lagrangian", "target_heads": "11", "sparsity_warmup_updates": 9},
            {},
            8,
            "--sparsity-warmup",
        ),
        ({"sparsity_method": "lagrangian", "target_heads": "11", "sparsity_warmup_updates": 9}, {}, 9, ""),
        ({"fix_gates_after": 7}, {}, 6, "--fix-gates-after lasts until update 7, this is update 6"),
        ({}, {"l0_start_update": 3, "l0_warmup_updates": 2}, 4, "--l0-warmup-updates lasts until update 5, this is"),
        ({}, {"l0_start_update": 3, "l0_warmup_updates": 2}, 5, ""),
    ],
)
def test_gates_whose_schedule_has_not_ended_are_warned_of(options, criterion, update, reason, prune, tmp_path, caplog):
    path = tmp_path / "gated.pt"
    state = small_state(small_gated(**options)) | {"optimizer_history": [{"num_updates": update}]}
    state["cfg"]["criterion"] = criterion
    torch.save(state, path)
    said = prune(path, tmp_path / "out.pt", "--dry-run").err
    read_mask(str(path))
    assert (f"warning: the choice of heads is not settled ({reason}" in said) == bool(reason), said
    assert ("is not settled" in caplog.text) == ("is not settled" in said) == bool(reason)


def test_a_stock_checkpoint_has_no_savings(checkpoint, prune, plan_of):
    """But the parameters of the gates."""
    plan = plan_of("--stock")
    before, after = plan["parameters"]
    assert before - after == sum(map(len, [row for rows in OPEN.values() for row in rows]))
    assert all(whole == written > 0 for whole, written in plan["cache_bytes_per_token"].values())
    text = prune(checkpoint, checkpoint.with_name("x.pt"), "--stock", "--dry-run").out
    assert f"parameters: {before:,} -> {after:,} (--stock saves neither memory nor time: " in text
    assert "%" not in text and "cache" not in text
    assert plan["heads"]["enc-self"] == [8, 3]
