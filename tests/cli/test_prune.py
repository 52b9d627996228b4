"""`headgates prune` on a small checkpoint: what it removes, keeps and prints."""

import json
import re

import pytest
import torch
from support.checkpoints import names
from support.models import assert_same, logits, make_batch, make_gated
from support.prune_command import LOG_ALPHA, OPEN, SCORES, TYPES, F, O, load, score_file, small_state, write

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.checkpoints import build_model
from fairseq_headgates.cli import main as command
from fairseq_headgates.options import read_mask
from fairseq_headgates.surgery import kept_mask

FULL = {attention_type: [[1] * 4] * 2 for attention_type in TYPES}


def by_layer(rows):
    return " ".join(str(sum(row)) for row in rows)


# What it does


def test_open_heads_stay_by_default_with_their_optimiser_state(checkpoint, prune):
    out = checkpoint.with_name("pruned.pt")
    done = prune(checkpoint, out)
    state, before = torch.load(out), load(checkpoint)
    after = build_model(state)
    torch.testing.assert_close(logits(after, make_batch()), logits(before, make_batch()), atol=1e-5, rtol=1e-5)
    moments = state["last_optimizer_state"]["state"]
    assert [moments[i]["exp_avg"].shape for i in range(len(moments))] == [p.shape for p in after.parameters()]
    assert kept_mask(after).values == OPEN
    for attention_type, rows in OPEN.items():
        stay = sum(map(sum, rows))
        assert re.search(rf"^{attention_type} +8 +{stay} +{by_layer(rows)}$", done.out, re.MULTILINE), done.out
    total = sum(sum(map(sum, rows)) for rows in OPEN.values())
    assert re.search(rf"^total +24 +{total}$", done.out, re.MULTILINE)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (before, after)]
    assert f"parameters: {sizes[0]:,} -> {sizes[1]:,} ({100 * (sizes[1] / sizes[0] - 1):+.1f}%)" in done.out
    assert f"written: {out}" in done.out and done.err == ""
    assert names(checkpoint.parent) == ["gated.pt", "pruned.pt"]
    assert not re.search(r"output changes|heads are removed: these", done.out)
    (folded,) = re.findall(r"^.*gates between 0 and 1.*$", done.out, re.MULTILINE)
    assert "4" in folded


def test_a_dry_run_prints_the_same_and_writes_nothing(checkpoint, prune):
    out = write(checkpoint.with_name("pruned.pt"), "mine")
    dry = prune(checkpoint, out, "--dry-run")  # it ignores an existing output file
    assert out.read_text() == "mine" and names(checkpoint.parent) == ["gated.pt", "pruned.pt"]
    wet = prune(checkpoint, out, "--force")
    assert "nothing written (--dry-run)" in dry.out
    assert dry.out.splitlines()[:-1] == wet.out.splitlines()[:-1]
    assert prune(checkpoint, out.parent / "no" / "x.pt", "--dry-run").out == dry.out


@pytest.mark.parametrize(
    ("gates", "words"),
    [("", "the checkpoint has no gates; choose heads with --alive"), (",".join(TYPES), "no gate is")],
)
def test_a_plan_without_removal_says_why(gates, words, prune, tmp_path):
    model = make_gated(gate_heads=gates)
    model.args.arch = "transformer_head_gates"
    torch.save({"args": model.args, "model": model.state_dict()}, tmp_path / "a.pt")
    assert f"\nno head is removed: {words}" in prune(tmp_path / "a.pt", tmp_path / "b.pt").out


def test_the_plan_as_json(checkpoint, plan_of):
    plan = plan_of()
    assert names(checkpoint.parent) == ["gated.pt"]
    assert plan["mask"] == OPEN
    assert plan["heads"] == {attention_type: [8, sum(map(sum, rows))] for attention_type, rows in OPEN.items()}
    assert plan["folded_gates"] == sum(row.count(F) for rows in LOG_ALPHA.values() for row in rows)
    assert plan["removed_with_open_gate"] == 0 and plan["parameters"][0] > plan["parameters"][1]
    assert plan["cache_bytes_per_token"] == {each: [8 * 64, n * 64] for each, (_, n) in plan["heads"].items()}


def test_an_optimiser_that_is_not_known_is_left_out_with_a_notice(checkpoint, prune):
    state = torch.load(checkpoint, weights_only=False)
    for entry in state["last_optimizer_state"]["state"].values():
        entry["exp_avg_sq_row"] = entry.pop("exp_avg_sq")[..., 0]
    torch.save(state, checkpoint)
    out, without = checkpoint.with_name("pruned.pt"), checkpoint.with_name("without.pt")
    done = prune(checkpoint, out)
    assert done.err == (
        "headgates prune: warning: the optimiser state is dropped (its form is unknown): "
        "training from this checkpoint starts with a new optimiser\n"
    )
    assert "written" in done.out
    assert prune(checkpoint, without, "--no-optimizer").err == ""
    assert_same(torch.load(out, weights_only=False), torch.load(without, weights_only=False))
    assert torch.load(out)["last_optimizer_state"] is None


def test_a_mask_from_a_file_or_inline(checkpoint, prune, plan_of):
    """Heads with a closed gate go in any case; that open ones go is said."""
    mask = {"enc-self": [[1, 1, 0, 0], [1, 1, 1, 1]], "dec-enc": [[0, 0, 0, 0], [1, 1, 1, 1]]}
    expected = {
        attention_type: [
            [a * b for a, b in zip(*pair, strict=True)]
            for pair in zip(OPEN[attention_type], mask.get(attention_type, FULL[attention_type]), strict=True)
        ]
        for attention_type in TYPES
    }
    file = write(checkpoint.with_name("heads.json"), {"format": "headgates.heads/1", **mask})
    out = checkpoint.with_name("pruned.pt")
    done = prune(checkpoint, out, "--alive", file)
    (line,) = (line for line in done.out.splitlines() if "the output changes" in line)
    assert "4" in line  # two of layer 0 of the encoder, two of layer 0 of the decoder
    smaller = load(out)
    assert kept_mask(smaller).values == expected
    assert plan_of("--alive", json.dumps(mask))["mask"] == expected
    model = load(checkpoint)
    with masked(model, HeadTable(mask)):
        expected = logits(model, make_batch())
    torch.testing.assert_close(logits(smaller, make_batch()), expected, atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize(("keep", "number"), [("0.5", 7), ("1.0", 13), ("1", 1)])
def test_keep_retains_the_open_heads_with_the_highest_scores(keep, number, plan_of, tmp_path):
    """Of the 13 heads that are open; closed ones are no candidates, however high their score is."""
    assert len(RANKED) == 13
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
    first = {head[:2]: head for head in reversed(RANKED)}  # one of each layer: 5 layers have heads
    rest = [head for head in RANKED if head not in first.values()]
    assert len(first) == 5
    of_layers = plan_of(*scores, "gradient", "--keep", 6, "--min-per-layer", 1)
    assert of_layers["mask"] == mask_of([*first.values(), rest[0]])
    assert plan_of(*scores, "ablation", "--keep", 3)["mask"] == mask_of(RANKED[-3:])


def test_removing_all_heads_of_a_type_prints_a_note(checkpoint, prune):
    scores = write(checkpoint.with_name("scores.json"), score_file(SCORES))
    done = prune(checkpoint, checkpoint.with_name("x.pt"), "--scores", scores, "--keep", 5, "--dry-run")
    assert re.findall(r"^all (\S+) heads are removed: these", done.out, re.MULTILINE) == ["enc-self", "dec-enc"]


def test_an_unfinished_training_of_gates_is_warned_of(prune, tmp_path, capsys, caplog):
    """Its target keeps 6 of the 13 heads whose P(open) is above 0.5."""
    path = tmp_path / "gated.pt"
    torch.save(small_state(sparsity_method="lagrangian", target_heads="6"), path)
    warning = "heads with an evaluation gate of 0 but P(open) above 0.5: 7."
    assert f"headgates prune: warning: {warning}" in prune(path, tmp_path / "out.pt", "--dry-run").err
    assert command.main(["show", str(path), "--json"]) == 0
    assert f"headgates show: warning: {warning}" in capsys.readouterr().err
    read_mask(str(path))
    assert f"{path}: {warning}" in caplog.text


def test_a_stock_checkpoint_has_no_savings(plan_of):
    """But the parameters of the gates."""
    plan = plan_of("--stock")
    before, after = plan["parameters"]
    assert before - after == sum(map(len, [row for rows in OPEN.values() for row in rows]))
    assert all(whole == written > 0 for whole, written in plan["cache_bytes_per_token"].values())
    assert plan["heads"]["enc-self"] == [8, 3]
