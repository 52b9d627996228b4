"""`headgates prune` on a small checkpoint: what it removes, keeps and prints."""

import itertools
import json
import logging
import re

import pytest
import torch
from support.models import assert_same, logits, make_batch, make_gated
from support.prune_command import LOG_ALPHA, OPEN, SCORES, TYPES, C, F, O, load, names, score_file, small_state, write

from fairseq_headgates import HeadTable, masked
from fairseq_headgates.attention.cuts import kept_mask, open_mask
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.checkpoints.building import build_model
from fairseq_headgates.checkpoints.pruned import stock_checkpoint
from fairseq_headgates.cli import main as command
from fairseq_headgates.plugin.options.stored_mask import read_mask

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


@pytest.mark.parametrize("form", [[], pytest.param(["--stock"], marks=pytest.mark.rehearsal)])
def test_a_dry_run_prints_the_same_and_writes_nothing(form, checkpoint, prune):
    out = write(checkpoint.with_name("pruned.pt"), "mine")
    dry = prune(checkpoint, out, "--dry-run", *form)  # it ignores an existing output file
    assert out.read_text() == "mine" and names(checkpoint.parent) == ["gated.pt", "pruned.pt"]
    wet = prune(checkpoint, out, "--force", *form)
    assert "nothing written (--dry-run)" in dry.out
    assert dry.out.splitlines()[:-1] == wet.out.splitlines()[:-1]
    assert prune(checkpoint, out.parent / "no" / "x.pt", "--dry-run", *form).out == dry.out


@pytest.mark.parametrize(
    ("gates", "words"),
    [("", "the checkpoint has no gates; choose heads with --alive"), (",".join(TYPES), "no gate is")],
)
def test_a_plan_without_removal_says_why(gates, words, prune, tmp_path):
    model = make_gated(gate_heads=gates)
    model.args.arch = "transformer_head_gates"
    torch.save({"args": model.args, "model": model.state_dict()}, tmp_path / "a.pt")
    assert f"\nno head is removed: {words}" in prune(tmp_path / "a.pt", tmp_path / "b.pt").out


def test_the_plan_as_json(checkpoint, prune):
    plan = json.loads(prune(checkpoint, checkpoint.with_name("pruned.pt"), "--json", "--dry-run").out)
    assert names(checkpoint.parent) == ["gated.pt"]
    assert plan["mask"] == OPEN
    assert plan["heads"] == {attention_type: [8, sum(map(sum, rows))] for attention_type, rows in OPEN.items()}
    assert plan["folded_gates"] == sum(row.count(F) for rows in LOG_ALPHA.values() for row in rows)
    assert plan["removed_with_open_gate"] == 0
    before = sum(p.numel() for p in load(checkpoint).parameters())
    gone = 24 - sum(sum(map(sum, rows)) for rows in OPEN.values())
    # a head of 8 dimensions: rows of 32 weights and a bias for q, k and v, columns of the output; and every gate
    assert plan["parameters"] == [before, before - gone * 8 * (3 * 33 + 32) - 24]
    stay = {attention_type: sum(map(sum, rows)) for attention_type, rows in OPEN.items()}
    assert plan["cache_bytes_per_token"] == {each: [8 * 64, number * 64] for each, number in stay.items()}


def test_the_checkpoint_itself_can_be_replaced(checkpoint, prune):
    prune(checkpoint, checkpoint, "--force")
    assert kept_mask(load(checkpoint)).values == OPEN and names(checkpoint.parent) == ["gated.pt"]


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


WRONG_AVERAGE = "ema is dropped: it does not have the weights of this model"
UNKNOWN_FORM = "the optimiser state is dropped (its form is unknown)"
# A moving average, the history and the optimiser state, with the notices on the first and the last.
ODD_STATES = {
    "an average of something else, a number as criterion, a list as entries": (
        {"encoder.layers.0.fc1.weight": 3},
        [{"criterion_name": 3, "num_updates": 1}],
        {"state": [1], "param_groups": [1]},
        ["ema is dropped", UNKNOWN_FORM],
    ),
    "an average of other sizes, a list as criterion, text as groups": (
        {"encoder.layers.0.fc1.weight": torch.ones(2)},
        [{"criterion_name": ["x"]}],
        {"state": {}, "param_groups": "x"},
        [WRONG_AVERAGE, UNKNOWN_FORM],
    ),
    "an average of other heads, no history, text as moments": (
        {"encoder.layers.0.self_attn.out_proj.weight": torch.ones(32, 8)},
        [],
        {"state": {0: "x"}, "param_groups": [{"params": list(range(86))}]},
        [WRONG_AVERAGE, "the optimiser state is dropped ("],
    ),
}


@pytest.mark.parametrize(("average", "history", "optimizer", "notices"), ODD_STATES.values(), ids=ODD_STATES)
def test_malformed_training_state_is_dropped(average, history, optimizer, notices, checkpoint, prune, small_model):
    odd = {"extra_state": {"ema": average}, "optimizer_history": history, "last_optimizer_state": optimizer}
    torch.save({**torch.load(checkpoint, weights_only=False), **odd}, checkpoint)
    out = checkpoint.with_name("pruned.pt")
    lines = prune(checkpoint, out).err.splitlines()
    assert all(notice in line for notice, line in zip(notices, lines, strict=True)), lines
    stock = build_model(stock_checkpoint(load_checkpoint(str(checkpoint)), open_mask(small_model), small_model))
    for smaller in (load(out), stock):
        torch.testing.assert_close(logits(smaller, make_batch()), logits(small_model, make_batch()))


PARTS = ["optimizer_history", "extra_state", "last_optimizer_state", "cfg", "args"]


@pytest.mark.parametrize(
    ("key", "value"), [*itertools.product(PARTS, [7, ["x"]]), ("optimizer_history", [1]), ("cfg", "x")]
)
def test_malformed_parts_of_a_checkpoint_are_refused_in_one_line(key, value, checkpoint, refused):
    torch.save({**torch.load(checkpoint, weights_only=False), key: value}, checkpoint)
    refused(checkpoint, checkpoint.with_name("pruned.pt"), words=[str(checkpoint)])
    assert names(checkpoint.parent) == ["gated.pt"]


def test_a_mask_from_a_file_or_inline(checkpoint, prune, chosen, small_model):
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
    found, notes = chosen("--alive", json.dumps(mask))
    assert found == expected and line in notes
    with masked(small_model, HeadTable(mask)):
        expected = logits(small_model, make_batch())
    torch.testing.assert_close(logits(smaller, make_batch()), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("threshold", "values"), [(0, (C, O, F)), (0.5, (O, F)), (0.9, (O,)), (1, ())])
def test_threshold_removes_heads_by_their_open_probability(threshold, values, chosen):
    """P(open) is about 0.10, 0.77 and 0.98; a gate that is 0 at evaluation goes in any case."""
    found, notes = chosen("--threshold", threshold)
    assert found == {k: [[int(a in values and a != C) for a in row] for row in rows] for k, rows in LOG_ALPHA.items()}
    assert any("the output changes" in note for note in notes) == (threshold > 0.5)
    lost = [note for note in notes if "heads are removed: these attention layers return only the bias" in note]
    assert len(lost) == (3 if threshold == 1 else 0)


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


@pytest.mark.parametrize(
    ("keep", "number"), [("5", 5), ("0.5", 7), ("1.0", 13), ("13", 13), ("1", 1), ("0", 0), ("0.0", 0)]
)
def test_keep_retains_the_open_heads_with_the_highest_scores(keep, number, chosen, tmp_path):
    """Of the 13 heads that are open; closed ones are no candidates, however high their score is."""
    assert len(RANKED) == 13
    scores = write(tmp_path / "scores.json", score_file(SCORES))
    assert chosen("--scores", scores, "--keep", keep)[0] == mask_of(RANKED[:number])


def test_the_best_of_some_types_and_of_every_layer(chosen, tmp_path):
    scores = write(tmp_path / "scores.json", score_file(SCORES))
    best = [head for head in RANKED if head[0] == "dec-self"][:2]
    others = [head for head in RANKED if head[0] != "dec-self"]
    assert chosen("--scores", scores, "--keep", 2, "--types", "dec-self")[0] == mask_of([*best, *others])
    first = {head[:2]: head for head in reversed(RANKED)}  # one of each layer: 5 layers have heads
    rest = [head for head in RANKED if head not in first.values()]
    assert len(first) == 5
    expected = mask_of([*first.values(), rest[0]])
    assert chosen("--scores", scores, "--keep", 6, "--min-per-layer", 1)[0] == expected


def test_removing_all_heads_of_a_type_prints_a_note(chosen, tmp_path):
    scores = write(tmp_path / "scores.json", score_file(SCORES))
    _, notes = chosen("--scores", scores, "--keep", 5)
    lost = [note for note in notes if "heads are removed: these" in note]
    assert len(lost) == 2 and lost[0].startswith("all enc-self") and lost[1].startswith("all dec-enc")


def test_method_chooses_one_of_several_score_tables(chosen, unfit, tmp_path):
    other = {attention_type: [[-v for v in row] for row in rows] for attention_type, rows in SCORES.items()}
    tables = [score_file(SCORES), score_file(other, method="ablation")]
    scores = ["--scores", write(tmp_path / "scores.json", tables), "--keep", 3]
    unfit(*scores, words=["gradient, ablation", "--method"])
    unfit(*scores, "--method", "x", words=["'x'", "gradient, ablation"])
    assert chosen(*scores, "--method", "ablation")[0] == mask_of(RANKED[-3:])


def test_heads_keep_their_original_numbers_when_pruned_again(checkpoint, prune, refused):
    first, second = checkpoint.with_name("1.pt"), checkpoint.with_name("2.pt")
    prune(checkpoint, first)
    scores = write(checkpoint.with_name("scores.json"), score_file(SCORES))
    done = prune(first, second, "--scores", scores, "--keep", 4)
    assert kept_mask(load(second)).values == mask_of(RANKED[:4])
    assert re.search(r"^total +13 +4$", done.out, re.MULTILINE)
    refused(first, checkpoint.with_name("3.pt"), "--scores", scores, "--keep", 14, words=["14", "from 0 to 13"])


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


def test_a_stock_checkpoint_has_no_savings(checkpoint, prune):
    """But the parameters of the gates."""
    plan = json.loads(prune(checkpoint, checkpoint.with_name("stock.pt"), "--stock", "--json", "--dry-run").out)
    before, after = plan["parameters"]
    assert before - after == sum(map(len, [row for rows in OPEN.values() for row in rows]))
    assert all(whole == written > 0 for whole, written in plan["cache_bytes_per_token"].values())
    assert plan["heads"]["enc-self"] == [8, 3]


def test_show_reads_what_prune_writes(checkpoint, prune, capsys):
    out, heads = checkpoint.with_name("pruned.pt"), checkpoint.with_name("heads.json")
    prune(checkpoint, out)
    assert command.main(["show", str(out), "--json", "--out", str(heads)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["gate"] == OPEN and shown["gated"] == []
    assert {each: shown["heads"][each] for each in TYPES} == {k: [sum(map(sum, v)), 8] for k, v in OPEN.items()}
    assert read_mask(str(heads)).values == OPEN


def test_the_command_restores_the_logging_level(prune, tmp_path):
    logger = logging.getLogger("fairseq_headgates")
    before = logger.level
    prune(tmp_path / "missing.pt", tmp_path / "out.pt", code=2)
    assert logger.level == before


def test_the_help_names_every_choice(prune):
    usage = prune("--help").out
    assert all(option in usage for option in ("--alive", "--threshold", "--scores", "--keep", "--stock", "--dry-run"))
