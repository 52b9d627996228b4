"""Pruned models against gated, masked and stock ones that compute the same; the steps of a cut."""

import copy

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import assert_same_tensors
from support.models import PAD, logits, make_batch, make_gated, make_stock, make_task
from support.pruning import (
    NO_HEADS_SOMEWHERE,
    OPEN,
    assert_logits,
    cases,
    gate,
    make_case,
    positions,
    rows_of,
    stirred,
    stock_twin,
)

from fairseq_headgates import (
    HeadTable,
    attention_modules,
    fix_heads,
    gate_values,
    insert_gates,
    masked,
    prune,
    remove_heads,
    use_head_attention,
)
from fairseq_headgates.attention.cuts import Cut, kept_mask, removal_plan
from fairseq_headgates.attention.modules import head_counts
from fairseq_headgates.checkpoints.pruned import stock_checkpoint
from fairseq_headgates.heads import TYPES
from fairseq_headgates.safety.checkpoint import model_args


def alive(case):
    """0 and 1 for every head: not removed by the mask, and its gate open."""
    return {each: [[int(f > 0) for f in row] for row in rows] for each, rows in case.factors().items()}


def checkpoint_of(model):
    """As much of a checkpoint as fairseq writes as exporting needs."""
    return {"args": None, "cfg": {"model": model.args}, "model": model.state_dict()}


# Gated, masked, pruned, stock


@settings(max_examples=20)
@given(cases())
def test_gated_masked_pruned_and_stock_compute_the_same(case):
    model, mask, batch = case.model(), HeadTable(case.mask), make_batch()
    expected = logits(stock_twin(model, case.factors()), batch)
    with masked(model, mask):
        assert_logits(logits(model, batch), expected)
    pruned = prune(model, mask)
    assert_logits(logits(pruned, batch), expected)
    assert kept_mask(pruned).layers == alive(case)
    exported = stock_checkpoint(checkpoint_of(model), mask, model)
    args = model_args(exported)
    stock = TransformerModel.build_model(args, make_task()).eval()
    stock.load_state_dict(exported["model"], strict=True)
    assert type(stock) is TransformerModel and "head_gates" not in args.arch
    assert_logits(logits(stock, batch), expected)
    assert_logits(logits(prune(model), batch), logits(model, batch))  # by default the open gates


@settings(max_examples=12)
@given(cases(), st.data())
def test_pruning_and_masking_commute_and_pruning_twice_is_the_intersection(case, data):
    model, batch, first = case.model(), make_batch(), HeadTable(case.mask)
    second = HeadTable(rows_of(data.draw, head_counts(model), [0, 1], [0, 1]))
    both = HeadTable(
        {
            attention_type: [
                [a * b for a, b in zip(*rows, strict=True)]
                for rows in zip(first.layers[attention_type], second.layers[attention_type], strict=True)
            ]
            for attention_type in TYPES
        }
    )
    once = prune(model, both)
    twice = prune(prune(model, first), second)
    assert_same_tensors(once.state_dict(), twice.state_dict())
    assert once.args == twice.args
    with masked(prune(model, first), second) as pruned_and_masked:
        assert_logits(logits(pruned_and_masked, batch), logits(once, batch))
    with masked(model, first), masked(model, second):
        assert_logits(logits(model, batch), logits(once, batch))
        assert_same_tensors(prune(model).state_dict(), once.state_dict())  # fixed heads count as closed gates


@settings(max_examples=8)
@given(cases())
def test_weights_of_a_pruned_model_are_those_of_the_heads_that_stay(case):
    """Exactly, the columns times the gate; nothing else is touched. The original is not touched at all."""
    model = case.model()
    before, args = copy.deepcopy(model.state_dict()), copy.deepcopy(model.args)
    pruned = prune(model, HeadTable(case.mask))
    assert_same_tensors(model.state_dict(), before)
    assert model.args == args
    expected = {name: tensor for name, tensor in before.items() if "gate" not in name}
    for module in attention_modules(model):
        stay = [i for i, factor in enumerate(case.factors()[module.attention_type][module.layer]) if factor > 0]
        rows = positions(stay, module.attention.head_dim)
        for name in ("q_proj", "k_proj", "v_proj"):
            for part in ("weight", "bias"):
                kept = expected.pop(f"{module.name}.{name}.{part}")[rows]
                if stay:
                    expected[f"{module.name}.{name}.{part}"] = kept
        gates = gate_values(model)[module.attention_type][module.layer]
        columns = torch.tensor([gates[i] for i in stay for _ in range(module.attention.head_dim)])
        expected[f"{module.name}.out_proj.weight"] = expected[f"{module.name}.out_proj.weight"][:, rows] * columns
    actual = pruned.state_dict()
    assert actual.keys() == expected.keys()
    assert_same_tensors({name: actual[name] for name in expected}, expected)


@settings(max_examples=8)
@given(cases())
def test_with_all_heads_alive_nothing_changes(case):
    model, batch = case.model(gates=False), make_batch()
    everything = HeadTable({each: [[1] * len(row) for row in rows] for each, rows in case.mask.items()})
    for mask in (None, everything):
        pruned = prune(model, mask)
        assert_same_tensors(pruned.state_dict(), model.state_dict())
        assert torch.equal(logits(pruned, batch), logits(model, batch))


@pytest.mark.parametrize(
    "insert",
    [use_head_attention, prune, lambda model: insert_gates(model, TYPES, init=0.0)],
    ids=["use_head_attention", "prune", "insert_gates"],
)
def test_inserted_modules_keep_evaluation_mode(insert):
    """On a GPU attention dropout goes by the mode of the attention; gates in training draw noise."""
    model = insert(make_stock(attention_dropout=0.1).eval())
    assert [name for name, module in model.named_modules() if module.training] == []


def test_types_that_a_mask_omits_are_not_pruned():
    model = make_case(0, values=[OPEN]).model()
    pruned = prune(model, HeadTable({"dec-self": [[0, 0, 1, 0], [1, 1, 0, 1]]}))
    expected = {"enc-self": [[1] * 4] * 2, "dec-self": [[0, 0, 1, 0], [1, 1, 0, 1]], "dec-enc": [[1] * 4] * 2}
    assert kept_mask(pruned).layers == expected


@pytest.mark.parametrize("normalize_before", [True, False])
def test_without_any_head_attention_is_its_output_bias(normalize_before):
    norm = {"encoder_normalize_before": normalize_before, "decoder_normalize_before": normalize_before}
    model, batch = stirred(make_gated(**norm)), make_batch()
    nothing = HeadTable({attention_type: [[0] * 4] * 2 for attention_type in TYPES})
    pruned = prune(model, nothing)
    for module in attention_modules(pruned):
        x = torch.randn(3, 2, 32)
        output, weights = module.attention(x, x, x, need_weights=False)
        assert torch.equal(output, module.attention.out_proj.bias.expand(3, 2, 32)) and weights is None
        assert [name for name, _ in module.attention.named_parameters()] == ["out_proj.weight", "out_proj.bias"]
    assert_logits(logits(pruned, batch), logits(stock_twin(model, nothing.layers), batch))
    other = {**batch, "src_tokens": batch["src_tokens"].flip(0)}
    assert torch.equal(logits(pruned, other), logits(pruned, batch))  # nothing of the source reaches the decoder


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pruning_adds_no_more_than_rounding_error_in_half_precision(dtype, seed):
    """Truth is single precision. The error of either is that of a few roundings in a row, and of the same size.

    Rounding a folded gate into the weights is one rounding more, but of few heads: twice the error allows for it.
    """
    case, batch = make_case(seed), make_batch()
    model, mask = case.model(), HeadTable(case.mask)
    real = batch["prev_output_tokens"].ne(PAD)
    with masked(model, mask):
        truth = logits(model, batch)[real]
        whole = copy.deepcopy(model).to(dtype)
    error = (logits(whole, batch)[real] - truth).abs().max()
    assert 0 < error < 16 * torch.finfo(dtype).eps * truth.abs().max()
    exported = stock_checkpoint(checkpoint_of(model), mask, model)
    stock = TransformerModel.build_model(model_args(exported), make_task()).eval()
    stock.load_state_dict(exported["model"])
    # rounded after pruning, pruned after rounding, exported
    for smaller in (prune(model, mask).to(dtype), prune(whole, mask), stock.to(dtype)):
        actual = logits(smaller, batch)[real]
        assert actual.dtype == dtype
        assert (actual - truth).abs().max() < 2 * error


def test_weights_in_half_precision_are_folded_with_one_rounding():
    model = make_case(3).model().half()
    for module in attention_modules(pruned := prune(model)):
        original = model.get_submodule(module.name)
        gates = gate_values(model)[module.attention_type][module.layer]
        rows = positions(module.attention.kept, module.attention.head_dim)
        columns = torch.tensor([gates[i] for i in module.attention.kept for _ in range(module.attention.head_dim)])
        exact = original.out_proj.weight[:, rows].double() * columns.double()
        assert torch.equal(module.attention.out_proj.weight, exact.half())
    assert not any(p.dtype != torch.float16 for p in pruned.parameters())


# The parts


def test_a_cut_takes_the_expected_rows_and_columns():
    cut = Cut(3, (2, 0), torch.tensor([0.5, 0.25]), head_dim=2)
    weight = torch.arange(24.0).view(6, 4)
    rows = [4, 5, 0, 1]
    for name in ("q_proj", "k_proj", "v_proj"):
        for power in (1, -1, -2):
            assert torch.equal(cut(f"{name}.weight", weight, power), weight[rows])
    assert torch.equal(cut("q_proj.bias", weight[:, 0]), weight[rows, 0])
    out = weight.t()
    for power, factors in ((1, [0.5, 0.5, 0.25, 0.25]), (-1, [2, 2, 4, 4]), (-2, [4, 4, 16, 16])):
        assert torch.equal(cut("out_proj.weight", out, power), out[:, rows] * torch.tensor(factors))
    bias = torch.randn(4)
    assert cut("out_proj.bias", bias, -2) is bias
    assert cut("out_proj.weight", out.half()).dtype == torch.float16
    assert cut("out_proj.weight", out.double()).dtype == torch.float64


@settings(max_examples=8)
@given(cases())
def test_the_plan_counts_what_pruning_does(case):
    model = case.model()
    mask = HeadTable(case.mask)
    plan = removal_plan(model, prune(model, mask))
    flat = {
        attention_type: list(
            zip(
                [a for row in case.log_alpha[attention_type] for a in row],
                [m for row in case.mask[attention_type] for m in row],
                strict=True,
            )
        )
        for attention_type in TYPES
    }
    stays = {attention_type: [bool(m and gate(a)) for a, m in pairs] for attention_type, pairs in flat.items()}
    every = [pair for attention_type in TYPES for pair in flat[attention_type]]
    assert plan["heads"] == {each: [len(stays[each]), sum(stays[each])] for each in TYPES}
    assert plan["removed_with_open_gate"] == sum(gate(a) > 0 and not m for a, m in every)
    assert plan["folded_gates"] == sum(0 < gate(a) < 1 and bool(m) for a, m in every)
    assert plan["mask"] == alive(case)
    widths = {"enc-self": ("encoder", "encoder"), "dec-self": ("decoder", "decoder"), "dec-enc": ("decoder", "encoder")}
    gone = 0  # a head has a row of weights and a bias for q, k and v, and a column of the output projection
    for attention_type, (to, of) in widths.items():
        width, memory = (case.options[f"{side}_embed_dim"] for side in (to, of))
        size = width // case.options[f"{to}_attention_heads"]
        gone += stays[attention_type].count(False) * size * ((width + 1) + 2 * (memory + 1) + width)
        per_head = 2 * size * 4  # key and value, four bytes each
        assert plan["cache_bytes_per_token"][attention_type] == [
            len(stays[attention_type]) * per_head,
            sum(stays[attention_type]) * per_head,
        ]
    before, after = plan["parameters"]
    assert before == sum(p.numel() for p in model.parameters())
    assert before - after == gone + len(every)  # and its gate


def test_a_stock_model_is_pruned_without_gates():
    stock, batch = stirred(make_stock()), make_batch()
    mask = HeadTable({"dec-enc": [[0, 0, 0, 0], [1, 0, 0, 1]]})
    pruned = prune(stock, mask)
    factors = {"enc-self": [[1] * 4] * 2, "dec-self": [[1] * 4] * 2, **mask.layers}
    assert_logits(logits(pruned, batch), logits(stock_twin(stock, factors), batch))
    assert type(attention_modules(stock)[0].attention).__name__ == "MultiheadAttention"  # the original is as it was
    assert pruned.args == stock.args and not hasattr(stock.args, "alive_heads")  # only checkpoints change options


def test_removing_heads_in_place_of_a_plain_model():
    model = make_gated()
    mask = HeadTable({"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]]})
    expected = prune(model, mask)
    assert remove_heads(model, mask) is model
    assert_same_tensors(model.state_dict(), expected.state_dict())
    assert model.args == expected.args


@pytest.mark.parametrize("mask", [{"enc-self": [[1, 1], [1, 1]]}, {"enc-self": [[1] * 4]}])
def test_a_mask_of_another_shape_changes_nothing(mask):
    model = use_head_attention(make_gated())
    before = copy.deepcopy(model.state_dict())
    for function in (prune, remove_heads, fix_heads):
        with pytest.raises(ValueError, match="the mask does not fit the model: enc-self"):
            function(model, HeadTable(mask))
    with pytest.raises(ValueError, match="no dec-enc"):
        prune(make_gated(no_cross_attention=True), HeadTable({"dec-enc": [[1] * 4] * 2}))
    assert_same_tensors(model.state_dict(), before)
    assert kept_mask(model).layers == {attention_type: [[1] * 4] * 2 for attention_type in TYPES}


@pytest.mark.parametrize("pattern", [None, r"^decoder\.|q_proj"])
def test_what_was_frozen_stays_frozen(pattern):
    model = make_gated(freeze_params=pattern)
    pruned = prune(model, HeadTable(NO_HEADS_SOMEWHERE))
    expected = {name: p.requires_grad for name, p in model.named_parameters()}
    assert {name: p.requires_grad for name, p in pruned.named_parameters()} == {
        name: expected[name] for name, _ in pruned.named_parameters()
    }
