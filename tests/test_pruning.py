"""Pruned models against gated, masked and stock ones that compute the same, and choosing heads against brute force."""

import argparse
import copy
import itertools
import json
import math
from dataclasses import dataclass

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import PAD, VOCABULARY, logits, make_args, make_batch, make_gated, make_stock, make_task
from torch.multiprocessing.reductions import StorageWeakRef

from fairseq_headgates import (
    HardConcrete,
    HeadTable,
    fix_heads,
    gate_values,
    head_sites,
    insert_gates,
    l0_penalty,
    masked,
    open_probabilities,
    prune,
    remove_heads,
    use_head_attention,
)
from fairseq_headgates.checkpoints import stock_checkpoint
from fairseq_headgates.heads import TYPES, mask_to_json
from fairseq_headgates.models import TransformerHeadGatesModel
from fairseq_headgates.surgery import best_heads, head_counts, kept_mask, open_mask
from fairseq_headgates.surgery.cuts import Cut, cut_tensors, cuts, pad_heads, removal_plan, with_gates_of

ALL_TYPES = ",".join(TYPES)
PRESETS = ["", "_tiny", "_iwslt_de_en", "_wmt_en_de", "_vaswani_wmt_en_de_big", "_acl19"]

# log_alpha of gates that are 0, 1 and between at evaluation. The last is barely open: its gate is about 4e-4.
CLOSED, OPEN, FRACTIONS = -3.0, 3.0, (0.4, -1.3, -2.394)


@dataclass(frozen=True)
class Case:
    """A model, the log_alpha of its gates and a mask: {type: one row for every layer}."""

    preset: str
    options: dict
    log_alpha: dict
    mask: dict

    def model(self, seed=0, gates=True):
        """With `gates`, every head has one; else the heads of the mask are fixed and nothing is removed."""
        args = argparse.Namespace(arch=f"transformer_head_gates{self.preset}", **self.options)
        ARCH_CONFIG_REGISTRY[args.arch](args)
        args.gate_heads = ALL_TYPES if gates else ""
        torch.manual_seed(seed)
        model = stirred(TransformerHeadGatesModel.build_model(args, make_task()).eval())
        return set_gates(model, self.log_alpha) if gates else model

    def factors(self):
        """What each head is multiplied by: its gate, or 0 where the mask removes it."""
        return {
            kind: [
                [gate(a) * m for a, m in zip(*rows, strict=True)]
                for rows in zip(self.log_alpha[kind], self.mask[kind], strict=True)
            ]
            for kind in TYPES
        }


def gate(log_alpha):
    """The evaluation gate, by hand."""
    return min(1.0, max(0.0, 1.2 / (1 + math.exp(-log_alpha)) - 0.1))


def stirred(model, seed=5):
    """Biases and norms that are not 0 and 1, and sharp attention: they hide no mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gate" in name:
                continue
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
            elif "attn" in name:
                parameter *= 1.5
    return model


def set_gates(model, log_alpha):
    for site in head_sites(model):
        row = torch.tensor(log_alpha[site.kind][site.layer])
        if site.attention.gate is not None:
            with torch.no_grad():
                site.attention.gate.theta.copy_(row / site.attention.gate.lr_scale)
    return model


def random_rows(generator, shapes, values):
    """{type: [L][H]} of random choices of `values`."""
    return {
        kind: [[values[i] for i in torch.randint(len(values), (heads,), generator=generator)] for _ in range(layers)]
        for kind, (layers, heads) in shapes.items()
    }


def rows_of(draw, shapes, values, extremes):
    """The same for hypothesis, where now and then a whole layer is alike."""
    return {
        kind: [
            draw(
                st.one_of(
                    st.sampled_from([[value] * heads for value in extremes]),
                    st.lists(st.sampled_from(values), min_size=heads, max_size=heads),
                )
            )
            for _ in range(layers)
        ]
        for kind, (layers, heads) in shapes.items()
    }


@st.composite
def cases(draw, fractions=FRACTIONS):
    share = draw(st.sampled_from(["none", "decoder", "all"]))
    encoder_width = draw(st.sampled_from([12, 24]))
    decoder_width = encoder_width if share == "all" else draw(st.sampled_from([12, 24]))
    options = {"share_decoder_input_output_embed": share == "decoder", "share_all_embeddings": share == "all"}
    for side, width in (("encoder", encoder_width), ("decoder", decoder_width)):
        options |= {
            f"{side}_embed_dim": width,
            f"{side}_ffn_embed_dim": 16,
            f"{side}_layers": draw(st.integers(1, 2)),
            f"{side}_attention_heads": draw(st.sampled_from([1, 2, 3, 4, 6])),
        }
        if draw(st.booleans()):  # else as the preset has it
            options[f"{side}_normalize_before"] = draw(st.booleans())
    shapes = {
        kind: (options[f"{side}_layers"], options[f"{side}_attention_heads"])
        for kind, side in (("enc-self", "encoder"), ("dec-self", "decoder"), ("dec-enc", "decoder"))
    }
    log_alpha = rows_of(draw, shapes, [CLOSED, OPEN, *fractions], [OPEN])
    return Case(draw(st.sampled_from(PRESETS)), options, log_alpha, rows_of(draw, shapes, [0, 1], [0, 1]))


def alive(case):
    """0 and 1 for every head: not removed by the mask, and its gate open."""
    return {kind: [[int(f > 0) for f in row] for row in rows] for kind, rows in case.factors().items()}


def stock_twin(model, factors, dtype=torch.float32):
    """fairseq's own transformer with the same weights, and the columns of every head times its factor."""
    twin = TransformerModel.build_model(model.args, make_task()).eval()
    twin.load_state_dict({k: v for k, v in model.state_dict().items() if "gate" not in k}, strict=True)
    for site in head_sites(twin):
        size = site.attention.head_dim
        for head, factor in enumerate(factors[site.kind][site.layer]):
            site.attention.out_proj.weight.data[:, head * size : (head + 1) * size] *= factor
    return twin.to(dtype)


def assert_logits(actual, expected, atol=1e-5, rtol=1e-5):
    """At the positions that are no padding."""
    real = make_batch()["prev_output_tokens"].ne(PAD)
    assert actual.isfinite().all()
    torch.testing.assert_close(actual[real], expected[real], atol=atol, rtol=rtol)


def assert_same_tensors(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def checkpoint_of(model):
    """As much of a checkpoint as fairseq writes as exporting needs."""
    return {"args": None, "cfg": {"model": model.args}, "model": model.state_dict()}


def positions(heads, size):
    """The rows of the query, key and value projections (columns of the output projection) of `heads`."""
    return [head * size + i for head in heads for i in range(size)]


def make_case(seed, values=(CLOSED, OPEN, *FRACTIONS), **options):
    """A case with random gates and mask on the model of support/models.py."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {
        f"{side}_{k}": v
        for side in ("encoder", "decoder")
        for k, v in {"layers": 2, "attention_heads": 4, "embed_dim": 32, "ffn_embed_dim": 64}.items()
    }
    shapes = dict.fromkeys(TYPES, (2, 4))
    log_alpha = random_rows(generator, shapes, list(values))
    return Case("", {**sizes, **options}, log_alpha, random_rows(generator, shapes, [0, 1, 1]))


# Gated, masked, pruned, stock


@settings(max_examples=60)
@given(cases())
def test_gated_masked_pruned_and_stock_compute_the_same(case):
    model, mask, batch = case.model(), HeadTable(case.mask), make_batch()
    expected = logits(stock_twin(model, case.factors()), batch)
    with masked(model, mask):
        assert_logits(logits(model, batch), expected)
    pruned = prune(model, mask)
    assert_logits(logits(pruned, batch), expected)
    assert kept_mask(pruned).values == alive(case)
    exported = stock_checkpoint(checkpoint_of(model), mask, model)
    args = argparse.Namespace(**exported["cfg"]["model"])
    stock = TransformerModel.build_model(args, make_task()).eval()
    stock.load_state_dict(exported["model"], strict=True)
    assert type(stock) is TransformerModel and "head_gates" not in args.arch
    assert_logits(logits(stock, batch), expected)
    assert_logits(logits(prune(model), batch), logits(model, batch))  # by default the open gates


@settings(max_examples=30)
@given(cases(), st.data())
def test_pruning_and_masking_commute_and_pruning_twice_is_the_intersection(case, data):
    model, batch, first = case.model(), make_batch(), HeadTable(case.mask)
    second = HeadTable(rows_of(data.draw, head_counts(model), [0, 1], [0, 1]))
    both = HeadTable(
        {
            kind: [
                [a * b for a, b in zip(*rows, strict=True)]
                for rows in zip(first.values[kind], second.values[kind], strict=True)
            ]
            for kind in TYPES
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


@settings(max_examples=20)
@given(cases())
def test_weights_of_a_pruned_model_are_those_of_the_heads_that_stay(case):
    """Exactly, the columns times the gate; nothing else is touched. The original is not touched at all."""
    model = case.model()
    before, args = copy.deepcopy(model.state_dict()), copy.deepcopy(model.args)
    pruned = prune(model, HeadTable(case.mask))
    assert_same_tensors(model.state_dict(), before)
    assert model.args == args
    expected = {name: tensor for name, tensor in before.items() if "gate" not in name}
    for site in head_sites(model):
        stay = [i for i, factor in enumerate(case.factors()[site.kind][site.layer]) if factor > 0]
        rows = positions(stay, site.attention.head_dim)
        for name in ("q_proj", "k_proj", "v_proj"):
            for part in ("weight", "bias"):
                kept = expected.pop(f"{site.name}.{name}.{part}")[rows]
                if stay:
                    expected[f"{site.name}.{name}.{part}"] = kept
        gates = gate_values(model)[site.kind][site.layer]
        columns = torch.tensor([gates[i] for i in stay for _ in range(site.attention.head_dim)])
        expected[f"{site.name}.out_proj.weight"] = expected[f"{site.name}.out_proj.weight"][:, rows] * columns
    actual = pruned.state_dict()
    assert actual.keys() == expected.keys()
    assert_same_tensors({name: actual[name] for name in expected}, expected)


@settings(max_examples=20)
@given(cases())
def test_with_all_heads_alive_nothing_changes(case):
    model, batch = case.model(gates=False), make_batch()
    everything = HeadTable({kind: [[1] * len(row) for row in rows] for kind, rows in case.mask.items()})
    for mask in (None, everything):
        pruned = prune(model, mask)
        assert_same_tensors(pruned.state_dict(), model.state_dict())
        assert torch.equal(logits(pruned, batch), logits(model, batch))


@pytest.mark.parametrize(
    "insert",
    [use_head_attention, prune, lambda model: insert_gates(model, TYPES, init=0.0)],
    ids=["use_head_attention", "prune", "insert_gates"],
)
def test_a_model_at_evaluation_stays_so(insert):
    """On a GPU attention dropout goes by the mode of the attention; gates in training draw noise."""
    model = insert(make_stock(attention_dropout=0.1).eval())
    assert [name for name, module in model.named_modules() if module.training] == []


def test_a_mask_that_leaves_types_out_leaves_them_whole():
    model = make_case(0, values=[OPEN]).model()
    pruned = prune(model, HeadTable({"dec-self": [[0, 0, 1, 0], [1, 1, 0, 1]]}))
    expected = {"enc-self": [[1] * 4] * 2, "dec-self": [[0, 0, 1, 0], [1, 1, 0, 1]], "dec-enc": [[1] * 4] * 2}
    assert kept_mask(pruned).values == expected


@pytest.mark.parametrize("normalize_before", [True, False])
def test_without_any_head_attention_is_its_output_bias(normalize_before):
    norm = {"encoder_normalize_before": normalize_before, "decoder_normalize_before": normalize_before}
    model, batch = stirred(make_gated(**norm)), make_batch()
    nothing = HeadTable({kind: [[0] * 4] * 2 for kind in TYPES})
    pruned = prune(model, nothing)
    for site in head_sites(pruned):
        x = torch.randn(3, 2, 32)
        output, weights = site.attention(x, x, x, need_weights=False)
        assert torch.equal(output, site.attention.out_proj.bias.expand(3, 2, 32)) and weights is None
        assert [name for name, _ in site.attention.named_parameters()] == ["out_proj.weight", "out_proj.bias"]
    assert_logits(logits(pruned, batch), logits(stock_twin(model, nothing.values), batch))
    other = {**batch, "src_tokens": batch["src_tokens"].flip(0)}
    assert torch.equal(logits(pruned, other), logits(pruned, batch))  # nothing of the source reaches the decoder


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_half_precision_is_as_near_to_the_truth_pruned_as_gated(dtype, seed):
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
    stock = TransformerModel.build_model(argparse.Namespace(**exported["cfg"]["model"]), make_task()).eval()
    stock.load_state_dict(exported["model"])
    # rounded after pruning, pruned after rounding, exported
    for smaller in (prune(model, mask).to(dtype), prune(whole, mask), stock.to(dtype)):
        actual = logits(smaller, batch)[real]
        assert actual.dtype == dtype
        assert (actual - truth).abs().max() < 2 * error


def test_weights_in_half_precision_are_folded_with_one_rounding():
    model = make_case(3).model().half()
    for site in head_sites(pruned := prune(model)):
        original = model.get_submodule(site.name)
        gates = gate_values(model)[site.kind][site.layer]
        rows = positions(site.attention.kept, site.attention.head_dim)
        columns = torch.tensor([gates[i] for i in site.attention.kept for _ in range(site.attention.head_dim)])
        exact = original.out_proj.weight[:, rows].double() * columns.double()
        assert torch.equal(site.attention.out_proj.weight, exact.half())
    assert not any(p.dtype != torch.float16 for p in pruned.parameters())


# Gradients and training


def gradients(model, batch, target):
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(**batch)[0].flatten(0, 1), target.flatten()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@settings(max_examples=30)
@given(cases(fractions=(0.4, -1.3)))
def test_gradients_are_those_of_the_masked_model(case):
    """dL/dW' = dL/dW / g for columns W' = g W; all others are the same. In double precision, gates without noise."""
    model, batch, target = case.model().double(), make_batch(), torch.randint(4, VOCABULARY, (3, 5))
    mask = HeadTable(case.mask)
    pruned = prune(model, mask)
    smaller = gradients(pruned, batch, target)
    with masked(model, mask):
        whole = {name: g for name, g in gradients(model, batch, target).items() if "gate" not in name}
    for site in head_sites(model):
        factors = case.factors()[site.kind][site.layer]
        stay = [i for i, factor in enumerate(factors) if factor > 0]
        rows, removed = (
            positions(chosen, site.attention.head_dim)
            for chosen in (stay, [i for i in range(len(factors)) if i not in stay])
        )
        for name in ("q_proj", "k_proj", "v_proj"):
            for part in ("weight", "bias"):
                gradient = whole.pop(f"{site.name}.{name}.{part}")
                assert gradient[removed].abs().sum() == 0
                if stay:
                    whole[f"{site.name}.{name}.{part}"] = gradient[rows]
        gates = gate_values(model)[site.kind][site.layer].double()
        columns = torch.tensor([gates[i] for i in stay for _ in range(site.attention.head_dim)], dtype=torch.double)
        key = f"{site.name}.out_proj.weight"
        assert whole[key][:, removed].abs().sum() == 0
        whole[key] = whole[key][:, rows] / columns
    assert smaller.keys() <= whole.keys()
    for name in whole:  # what nothing depends on any more may have no gradient instead of 0
        actual = smaller.get(name, torch.zeros_like(whole[name]))
        torch.testing.assert_close(actual, whole[name], atol=1e-9, rtol=1e-6, msg=name)


NO_HEADS_SOMEWHERE = {
    "enc-self": [[0, 0, 0, 0], [0, 1, 0, 0]],
    "dec-self": [[1, 0, 0, 1], [0, 0, 0, 0]],
    "dec-enc": [[0, 0, 0, 0], [0, 0, 1, 0]],
}
LAST_LAYER_WITHOUT = {"dec-enc": [[1, 1, 1, 1], [0, 0, 0, 0]]}
NO_HEADS_AT_ALL = {kind: [[0] * 4] * 2 for kind in TYPES}
WITHOUT = {"some layers": NO_HEADS_SOMEWHERE, "the last layer": LAST_LAYER_WITHOUT, "all layers": NO_HEADS_AT_ALL}


@pytest.mark.parametrize("rows", WITHOUT.values(), ids=WITHOUT)
def test_layers_without_heads_train(rows):
    """A few steps of Adam with dropout: the loss falls, everything stays finite."""
    model, batch = remove_heads(make_gated(dropout=0.1, attention_dropout=0.1), HeadTable(rows)), make_batch()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(**batch)[0].flatten(0, 1), batch["prev_output_tokens"].flatten(), ignore_index=PAD
        )
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("normalize_before", [True, False])
@pytest.mark.parametrize("rows", WITHOUT.values(), ids=WITHOUT)
def test_every_parameter_has_a_gradient_as_distributed_training_wants_it(rows, normalize_before):
    norm = {"encoder_normalize_before": normalize_before, "decoder_normalize_before": normalize_before}
    model = remove_heads(make_gated(**norm), HeadTable(rows)).train()
    model(**make_batch())[0].sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("rows", WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_without_heads_generate(rows, dtype, fast):
    model, batch = stirred(remove_heads(make_gated(), HeadTable(rows))).to(dtype), make_batch(target_pad=None)
    if fast:
        model.make_generation_fast_()
    for beam in (1, 4):
        found = generate(model, beam)
        assert all(len(sentence) == beam and all(len(tokens) > 1 for tokens in sentence) for sentence in found)
    previous = batch["prev_output_tokens"]
    with torch.no_grad():
        expected, extra = model(**batch, alignment_layer=1)
        encoder_out, state = model.encoder(batch["src_tokens"], batch["src_lengths"]), {}
        steps = [
            model.decoder(previous[:, : t + 1], encoder_out=encoder_out, incremental_state=state)[0] for t in range(5)
        ]
    assert expected.isfinite().all()
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(torch.cat(steps, 1), expected, atol=tolerance, rtol=0)
    (attention,) = extra["attn"]
    assert attention.shape == (3, 5, 7) and attention.isfinite().all()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("alike", [0, 1])
def test_weights_of_a_layer_without_heads_are_zeros(kind, alike):
    """Shapes as those of a layer with one head; of a layer with heads, those that stay."""
    mask = [[alike] * 4, [0, 1, 0, 1]]
    attention = next(
        s.attention for s in head_sites(remove_heads(make_gated(), HeadTable({kind: mask}))) if s.kind == kind
    )
    query, memory = torch.randn(5, 2, 32), torch.randn(5 if kind != "dec-enc" else 6, 2, 32)
    _, weights = attention(query, memory, memory, need_head_weights=True)
    _, averaged = attention(query, memory, memory, need_weights=True)
    assert weights.shape == (4 if alike else 1, 2, 5, len(memory))
    torch.testing.assert_close(averaged, weights.mean(0))
    torch.testing.assert_close(weights.sum(-1), torch.full(weights.shape[:-1], float(alike)))


# Heads that were never there


@settings(max_examples=20)
@given(cases())
def test_removed_heads_from_scratch_leave_the_others_as_the_same_seed_makes_them(case):
    args = copy.deepcopy(case.model(gates=False).args)
    built = []
    for args.alive_heads, args.remove_heads in ((None, False), (inline(case.mask), True)):
        torch.manual_seed(0)
        built.append(TransformerHeadGatesModel.build_model(args, make_task()))
    whole, smaller = built
    assert kept_mask(smaller).values == case.mask
    assert_same_tensors(smaller.state_dict(), prune(whole, HeadTable(case.mask)).state_dict())


def inline(rows):
    """A mask as --alive-heads takes it."""
    return json.dumps(rows)


def test_gates_on_a_pruned_model_then_pruned_again():
    """The number of a head is that of the model as it was trained."""
    case, batch = make_case(1), make_batch()
    model = case.model()
    log_alpha = random_rows(torch.Generator().manual_seed(8), head_counts(model), [CLOSED, OPEN, 0.2])
    first = prune(model, HeadTable(case.mask))
    smaller = copy.deepcopy(first)
    insert_gates(smaller, TYPES, HardConcrete(), lr_scale=20.0).eval()
    assert_same_tensors({k: v for k, v in smaller.state_dict().items() if "gate" not in k}, first.state_dict())
    assert torch.equal(logits(smaller, batch), logits(first, batch))  # new gates are open
    for site in head_sites(smaller):
        if site.attention.num_heads == 0:
            assert site.attention.gate is None
            continue
        own = [log_alpha[site.kind][site.layer][head] for head in site.attention.kept]
        with torch.no_grad():
            site.attention.gate.theta.copy_(torch.tensor(own) / 20)
    expected = {
        kind: [
            [gate(a) * (f > 0) for a, f in zip(*pair, strict=True)]
            for pair in zip(rows, case.factors()[kind], strict=True)
        ]
        for kind, rows in log_alpha.items()
    }
    for kind, values in gate_values(smaller).items():
        torch.testing.assert_close(values, torch.tensor(expected[kind]), atol=1e-6, rtol=0)
    assert l0_penalty(smaller).item() == pytest.approx(
        sum(p.sum().item() for p in open_probabilities(smaller).values()), rel=1e-5
    )
    again = prune(smaller)
    assert kept_mask(again).values == {k: [[int(v > 0) for v in row] for row in rows] for k, rows in expected.items()}
    assert_logits(logits(again, batch), logits(smaller, batch))
    second = {k: [[gate(a) for a in row] for row in rows] for k, rows in log_alpha.items()}
    both = {
        k: [[a * b for a, b in zip(*pair, strict=True)] for pair in zip(rows, case.factors()[k], strict=True)]
        for k, rows in second.items()
    }
    assert_logits(logits(again, batch), logits(stock_twin(model, both), batch))


def test_gates_and_removed_heads_are_options_of_the_same_model():
    mask = {"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]], "dec-enc": [[0, 0, 0, 0], [0, 0, 0, 0]]}
    options = {"alive_heads": inline(mask), "remove_heads": True}
    model = make_gated(gate_heads="enc-self,dec-enc", gate_init="0.5", **options)
    gates = {site.name: site.attention.gate for site in head_sites(model)}
    assert [name for name, gate_ in gates.items() if gate_ is not None] == ["encoder.layers.0.self_attn"]
    assert model.state_dict()["encoder.layers.0.self_attn.gate.log_alpha"].shape == (3,)
    g = gate(0.5)
    torch.testing.assert_close(gate_values(model)["enc-self"], torch.tensor([[g, 0, g, g], [0, 0, 0, 0]]))
    other = make_gated(seed=1, gate_heads="enc-self,dec-enc", **options)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(other, make_batch()), logits(model, make_batch()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remove_heads": True}, "--remove-heads without --alive-heads"),
        (
            {"remove_heads": True, "alive_heads": '{"enc-self": [[1, 1, 1], [1, 1, 1]]}'},
            "enc-self layer 0 has 3 heads, the model has 4",
        ),
        (
            {"gate_heads": "enc-self", "alive_heads": '{"enc-self": [[1, 1, 0, 1], [1, 1, 1, 1]]}'},
            "with --remove-heads the remaining heads can have gates",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        make_gated(**options)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and message in error and error.count("\n") == 1


@pytest.mark.parametrize("pruned_first", [True, False])
def test_weights_of_other_heads_are_refused_with_the_cure(pruned_first, capsys):
    mask = {"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]]}
    whole, smaller = make_gated(), make_gated(alive_heads=inline(mask), remove_heads=True)
    source, target = (smaller, whole) if pruned_first else (whole, smaller)
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(SystemExit) as exit_:
        target.load_state_dict(source.state_dict())
    error = capsys.readouterr().err
    have, want = (3, 4) if pruned_first else (4, 3)
    assert f"enc-self layer 0 has {have} heads in the checkpoint and {want} in the model" in error
    assert "--remove-heads" in error and "headgates prune" in error
    assert exit_.value.code == 2 and error.count("\n") == 1
    assert_same_tensors(target.state_dict(), before)


# Search, and what inference prepares


def generate(model, beam):
    """The tokens of all hypotheses of every sentence."""
    dictionary = make_task().target_dictionary
    generator = SequenceGenerator([model], dictionary, beam_size=beam, max_len_b=12)
    found = generator.generate([model], {"net_input": make_batch()})
    return [[hypothesis["tokens"].tolist() for hypothesis in sentence] for sentence in found]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("fast", [None, "make_generation_fast_", "prepare_for_inference_"])
def test_search_finds_the_same_in_gated_masked_and_pruned_models(seed, beam, fast):
    case = make_case(seed)
    model, mask = case.model(), HeadTable(case.mask)
    expected = generate(stock_twin(model, case.factors()), beam)
    with masked(model, mask):
        assert generate(model, beam) == expected
    pruned = prune(model, mask)
    assert generate(pruned, beam) == expected
    if fast:
        for one in (model, pruned):
            prepare(one, fast)
        with masked(model, mask):
            assert generate(model, beam) == expected
        assert generate(pruned, beam) == expected
        assert generate(prune(model, mask), beam) == expected  # a model that was prepared can be pruned


def prepare(model, how="make_generation_fast_"):
    """By either of fairseq's two ways, the second of which takes the options of a command."""
    options = [argparse.Namespace(generation=argparse.Namespace())] if how == "prepare_for_inference_" else []
    getattr(model, how)(*options)
    return model


def with_weights_of(other):
    def load(model):
        model.load_state_dict({k: v.clone() for k, v in other().state_dict().items()})
        return model

    return load


def grown(model):
    """In place, but for the gates, which inference takes for constants."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1.0 if "gate" in name else 1.1)
    return model


CASE = make_case(4)
OTHER = make_case(5)
MODELS = {
    "stock": lambda: CASE.model(gates=False),
    "gated": lambda: CASE.model(),
    "fixed": lambda: fix_heads(CASE.model(gates=False), HeadTable(CASE.mask)),
    "pruned": lambda: prune(CASE.model(gates=False), HeadTable(CASE.mask)),
    "gates on pruned": lambda: set_left_gates(CASE.model(gates=False)),
}


def set_left_gates(model, log_alpha=0.3, mask=CASE.mask):
    pruned = insert_gates(prune(model, HeadTable(mask)), TYPES, init=log_alpha).eval()
    pruned.args.gate_heads = ALL_TYPES
    return pruned


OTHERS = {
    "stock": lambda: OTHER.model(seed=1, gates=False),
    "gated": lambda: OTHER.model(seed=1),
    "fixed": lambda: OTHER.model(seed=1, gates=False),
    "pruned": lambda: prune(OTHER.model(seed=1, gates=False), HeadTable(CASE.mask)),
    "gates on pruned": lambda: set_left_gates(OTHER.model(seed=1, gates=False), -0.5),
}
CHANGES = {
    "nothing": lambda model, kind: model,
    "double": lambda model, kind: model.double(),
    "half and back": lambda model, kind: model.half().float(),
    "in place": lambda model, kind: grown(model),
    "other weights": lambda model, kind: with_weights_of(OTHERS[kind])(model),
    "a copy": lambda model, kind: copy.deepcopy(model),
    "a copy, in place": lambda model, kind: grown(copy.deepcopy(model)),
    "a copy, double": lambda model, kind: copy.deepcopy(model).double(),
    "a copy, other weights": lambda model, kind: with_weights_of(OTHERS[kind])(copy.deepcopy(model)),
    "double, other weights": lambda model, kind: with_weights_of(OTHERS[kind])(model.double()),
    "other heads": lambda model, kind: fix_heads(model, HeadTable(OTHER.mask)),
    "pruned": lambda model, kind: prune(model, HeadTable(OTHER.mask)),
    "pruned, other weights": lambda model, kind: with_weights_of(lambda: prune(OTHERS[kind](), HeadTable(OTHER.mask)))(
        prune(model, HeadTable(OTHER.mask))
    ),
}


# Every (kind, change); a pruned model has no gates, and with them goes what the other weights are of.
CHANGED = [
    (kind, change)
    for kind, change in itertools.product(MODELS, CHANGES)
    if change != "pruned, other weights" or kind in ("stock", "pruned")
]


def assert_prepared_follows(kind, change):
    """A model prepared and used before and one prepared never, changed alike, go on computing the same."""
    never, before = MODELS[kind](), prepare(MODELS[kind]())
    torch.testing.assert_close(logits(before, make_batch()), first := logits(never, make_batch()), atol=1e-6, rtol=1e-5)
    outputs = [logits(CHANGES[change](model, kind), make_batch()) for model in (never, before)]
    atol = 1e-3 if change == "half and back" else 1e-6  # what was prepared need not be rounded with the weights
    torch.testing.assert_close(outputs[1], outputs[0], atol=atol, rtol=1e-5)
    if change.endswith(("other weights", "pruned", "other heads", "in place")):
        assert not torch.allclose(outputs[0].float(), first, atol=1e-3)  # there was a change


@pytest.mark.parametrize(("kind", "change"), CHANGED)
def test_what_inference_prepares_follows_every_change(kind, change):
    assert_prepared_follows(kind, change)


@pytest.mark.parametrize(("kind", "change"), CHANGED)
def test_packed_weights_follow_every_change(kind, change, monkeypatch):
    """As in a model that is large enough for it."""
    inference = pytest.importorskip("fairseq_headgates.modules.packed_linear")
    monkeypatch.setattr(inference, "WORTH_PACKING", 1)
    assert_prepared_follows(kind, change)


def test_an_address_that_weights_are_known_by_is_not_given_away():
    """Else other weights in the same memory are taken for those that are packed; it happens once in 200 times."""
    inference = pytest.importorskip("fairseq_headgates.modules.packed_linear")
    layer = torch.nn.Linear(512, 512)
    linear = inference.InferenceLinear([layer])
    with torch.no_grad():
        linear(torch.randn(3, 512))
    if linear._packed is None:
        pytest.skip("this torch has no oneDNN, and nothing is kept beside the weights")
    memory = StorageWeakRef(layer.weight.untyped_storage())
    layer.half()
    assert not memory.expired()


def test_prepared_parameters_keep_their_names_and_values():
    never, before = MODELS["pruned"](), prepare(MODELS["pruned"]())
    logits(before, make_batch())
    assert_same_tensors(before.state_dict(), never.state_dict())
    for site in head_sites(before):
        if site.kind != "dec-enc" and site.attention.num_heads:
            projections = [getattr(site.attention, f"{name}_proj").weight for name in "qkv"]
            (_,) = {p.untyped_storage().data_ptr() for p in projections}  # views: no memory is spent twice


def test_prepared_gates_go_with_the_model():
    """fairseq's hub interface prepares a model first; `.cuda()` comes after."""
    model = prepare(MODELS["gated"]()).to("meta")
    assert {site.attention.head_scale().device.type for site in head_sites(model)} == {"meta"}


# Choosing heads


def open_tables():
    return HeadTable({kind: [[1, 1, 1], [1, 1, 1]] for kind in TYPES}, "alive")


@st.composite
def score_tables(draw):
    """(scores, alive, types, min_per_layer): small enough to try every choice; few values, so that there are ties."""
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True))
    heads = draw(st.integers(1, 3))
    layers = draw(st.integers(1, 2))
    table = st.lists(st.lists(st.integers(-2, 2), min_size=heads, max_size=heads), min_size=layers, max_size=layers)
    bits = st.lists(st.lists(st.integers(0, 1), min_size=heads, max_size=heads), min_size=layers, max_size=layers)
    scores = HeadTable({kind: draw(table) for kind in kinds})
    alive_ = HeadTable({kind: draw(bits) for kind in TYPES})
    types = draw(st.lists(st.sampled_from(kinds), max_size=2, unique=True))
    return scores, alive_, types, draw(st.integers(0, 2))


@settings(max_examples=200)
@given(score_tables(), st.data())
def test_best_heads_are_the_best_of_all_choices(tables, data):
    """Every subset of the right size that spares each layer is tried: none has a higher sum of scores."""
    scores, present, types, minimum = tables
    chosen = types or list(scores.types)
    candidates = [
        (kind, i, j)
        for kind in TYPES
        if kind in chosen
        for i, row in enumerate(present.values[kind])
        for j, there in enumerate(row)
        if there
    ]
    layers = [[head for head in candidates if head[:2] == layer] for layer in {head[:2] for head in candidates}]
    keep = data.draw(st.integers(0, len(candidates)))

    def score(heads):
        return sum(scores.values[kind][i][j] for kind, i, j in heads)

    allowed = [
        set(subset)
        for subset in itertools.combinations(candidates, keep)
        if all(len(set(subset) & set(layer)) >= min(minimum, len(layer)) for layer in layers)
    ]
    if not allowed:
        with pytest.raises(ValueError, match=f"min-per-layer {minimum} keeps .* heads, more than keep, {keep}"):
            best_heads(scores, keep, present, types, minimum)
        return
    mask = best_heads(scores, keep, present, types, minimum)
    assert mask.types == present.types
    kept = {(k, i, j) for k in chosen for i, row in enumerate(mask.values[k]) for j, value in enumerate(row) if value}
    assert kept in allowed
    assert score(kept) == max(map(score, allowed))
    for kind in set(TYPES) - set(chosen):  # other types stay as they are
        assert mask.values[kind] == present.values[kind]


def test_ties_go_to_the_earlier_head():
    scores = HeadTable({kind: [[7, 7, 7], [7, 7, 7]] for kind in TYPES})
    for keep in range(19):
        mask = best_heads(scores, keep, open_tables())
        assert [v for kind in TYPES for v in mask.heads(kind)] == [1] * keep + [0] * (18 - keep)


@pytest.mark.parametrize(
    ("keep", "left"), [(0, 0), (0.0, 0), (18, 18), (1.0, 18), (1, 1), (0.5, 9), (0.3, 5), (0.34, 6), (5, 5)]
)
def test_a_number_of_heads_or_a_share(keep, left):
    scores = HeadTable({kind: [[n + i for n in range(3)] for i in range(2)] for kind in TYPES})
    mask = best_heads(scores, keep, open_tables())
    assert sum(mask.count(kind)[0] for kind in TYPES) == left
    some = best_heads(scores, keep / 18 if keep > 1 else keep * 1.0, open_tables(), ["dec-self"])
    assert some.count("dec-self")[0] == round(6 * (keep / 18 if keep > 1 else keep * 1.0))
    assert some.count("enc-self") == some.count("dec-enc") == (6, 6)


def test_every_layer_keeps_its_best():
    scores = HeadTable({"enc-self": [[9, 8, 7], [1, 3, 2]]})
    present = HeadTable({"enc-self": [[1, 1, 1], [1, 1, 1]]})
    assert best_heads(scores, 3, present).values["enc-self"] == [[1, 1, 1], [0, 0, 0]]
    assert best_heads(scores, 3, present, min_per_layer=1).values["enc-self"] == [[1, 1, 0], [0, 1, 0]]
    assert best_heads(scores, 4, present, min_per_layer=2).values["enc-self"] == [[1, 1, 0], [0, 1, 1]]
    fewer = HeadTable({"enc-self": [[1, 1, 1], [0, 0, 1]]})  # a layer that has fewer keeps those
    assert best_heads(scores, 3, fewer, min_per_layer=2).values["enc-self"] == [[1, 1, 0], [0, 0, 1]]


def test_the_signature_of_the_scores_stays_with_the_mask():
    scores = HeadTable({"enc-self": [[1, 2, 3], [1, 2, 3]]}, "gradient", "gradient|split:valid")
    assert best_heads(scores, 2, open_tables()).signature == "gradient|split:valid"


@pytest.mark.parametrize(
    ("scores", "keep", "types", "minimum", "message"),
    [
        ({"enc-self": [[1, 2, 3]] * 2}, 7, [], 0, "keep is 7: it must be from 0 to 6, the number of heads of enc-self"),
        ({"enc-self": [[1, 2, 3]] * 2}, -1, [], 0, "keep is -1"),
        ({"enc-self": [[1, 2, 3]] * 2}, 1.5, [], 0, "keep is 1.5: a share must be from 0 to 1"),
        ({"enc-self": [[1, 2, 3]] * 2}, math.nan, [], 0, "keep is nan"),
        ({"enc-self": [[1, 2, 3]] * 2}, 2, ["dec-enc"], 0, "no scores of dec-enc: the score file has enc-self"),
        (
            {"enc-self": [[1, 2, 3]]},
            2,
            [],
            0,
            "the score file does not fit the model: enc-self has 1 layers, the model has 2",
        ),
        ({"enc-self": [[1, 2, 3], [1, 2]]}, 2, [], 0, "enc-self layer 1 has 2 heads, the model has 3"),
        ({"enc-self": [[1, 2, 3]] * 2}, 3, [], 2, "min-per-layer 2 keeps 4 heads, more than keep, 3"),
    ],
)
def test_choices_that_cannot_be_made_are_refused(scores, keep, types, minimum, message):
    with pytest.raises(ValueError, match=message) as error:
        best_heads(HeadTable(scores), keep, open_tables(), types, minimum)
    assert "\n" not in str(error.value)


def test_a_negative_number_of_heads_per_layer_is_refused():
    with pytest.raises(ValueError, match="-1"):
        best_heads(HeadTable({"enc-self": [[1, 2, 3]] * 2}), 3, open_tables(), min_per_layer=-1)


def test_heads_that_are_gone_are_no_candidates():
    model = make_case(0, values=[OPEN]).model(gates=False)
    pruned = prune(model, HeadTable({"enc-self": [[0, 1, 1, 0], [0, 0, 1, 1]]}))
    scores = HeadTable({"enc-self": [[9, 1, 2, 9], [9, 9, 4, 3]]})
    mask = best_heads(scores, 2, kept_mask(pruned))
    assert mask.values["enc-self"] == [[0, 0, 0, 0], [0, 0, 1, 1]]
    assert best_heads(scores, 0.75, kept_mask(pruned)).values["enc-self"] == [[0, 0, 1, 0], [0, 0, 1, 1]]
    with pytest.raises(ValueError, match="keep is 5: it must be from 0 to 4"):
        best_heads(scores, 5, kept_mask(pruned))
    assert kept_mask(prune(pruned, mask)).values["enc-self"] == mask.values["enc-self"]


def test_open_heads_by_gate_and_by_probability():
    case = make_case(2)
    model = case.model()
    assert open_mask(model).values == {k: [[int(a != CLOSED) for a in r] for r in v] for k, v in case.log_alpha.items()}

    def opens(log_alpha):  # P(g != 0) = sigmoid(log_alpha - temperature log(-low/high)), by hand
        return 1 / (1 + math.exp(-(log_alpha - 0.33 * math.log(0.1 / 1.1))))

    for threshold in (0.0, 0.1, 0.5, 0.8, 1.0):
        expected = {k: [[int(opens(a) >= threshold) for a in r] for r in v] for k, v in case.log_alpha.items()}
        assert open_mask(model, threshold).values == expected
    low = prune(model, open_mask(model, 0.0))  # a gate that is 0 goes in any case
    assert kept_mask(low).values == open_mask(model).values
    for threshold in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="from 0 to 1"):
            open_mask(model, threshold)
    for threshold in (None, 1.0):  # heads without gates are open in any case
        assert open_mask(make_stock(), threshold).values == {kind: [[1] * 4] * 2 for kind in TYPES}


# The parts


def test_a_cut_by_hand():
    cut = Cut((2, 0), torch.tensor([0.5, 0.25]), head_dim=2)
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


def test_tensors_are_cut_by_the_name_of_their_parameter():
    case = make_case(6)
    model = case.model()
    found = cuts(model, HeadTable(case.mask))
    state = cut_tensors(model.state_dict(), found)
    assert_same_tensors(state, prune(model, HeadTable(case.mask)).state_dict())
    moments = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
    for power in (-1, -2):
        cut = cut_tensors(moments, found, power)
        assert cut.keys() == {name for name, _ in prune(model, HeadTable(case.mask)).named_parameters()}
        for site in head_sites(model):
            factors = case.factors()[site.kind][site.layer]
            stay = [i for i, factor in enumerate(factors) if factor > 0]
            columns = torch.tensor([factors[i] ** power for i in stay for _ in range(8)])
            key = f"{site.name}.out_proj.weight"
            torch.testing.assert_close(cut[key], moments[key][:, positions(stay, 8)] * columns, rtol=1e-3, atol=0)


def test_refolding_takes_the_same_heads_with_other_gates():
    model = make_case(6).model()
    found = cuts(model, open_mask(model))
    other = set_gates(copy.deepcopy(model), {k: [[0.9] * 4] * 2 for k in TYPES})
    for name, cut in with_gates_of(found, other).items():
        assert cut.keep == found[name].keep and cut.head_dim == found[name].head_dim
        torch.testing.assert_close(cut.factor, torch.full((len(cut.keep),), gate(0.9)))


@settings(max_examples=20)
@given(cases())
def test_filled_up_a_pruned_model_is_the_stock_model_with_zeros(case):
    model = case.model()
    pruned = prune(model, HeadTable(case.mask))
    filled = pad_heads(pruned, pruned.state_dict())
    whole = {name: tensor for name, tensor in model.state_dict().items() if "gate" not in name}
    assert {k: v.shape for k, v in filled.items()} == {k: v.shape for k, v in whole.items()}
    for site in head_sites(model):
        factors = case.factors()[site.kind][site.layer]
        for head, factor in enumerate(factors):
            part = slice(head * site.attention.head_dim, (head + 1) * site.attention.head_dim)
            for name in ("q_proj", "k_proj", "v_proj"):
                for kind in ("weight", "bias"):
                    key = f"{site.name}.{name}.{kind}"
                    assert torch.equal(filled[key][part], whole[key][part] * int(factor > 0))
            key = f"{site.name}.out_proj.weight"
            torch.testing.assert_close(filled[key][:, part], whole[key][:, part] * factor, atol=1e-7, rtol=1e-3)


@settings(max_examples=20)
@given(cases())
def test_the_plan_counts_what_pruning_does(case):
    model = case.model()
    mask = HeadTable(case.mask)
    plan = removal_plan(model, prune(model, mask))
    flat = {
        kind: list(
            zip(
                [a for row in case.log_alpha[kind] for a in row],
                [m for row in case.mask[kind] for m in row],
                strict=True,
            )
        )
        for kind in TYPES
    }
    stays = {kind: [bool(m and gate(a)) for a, m in pairs] for kind, pairs in flat.items()}
    every = [pair for kind in TYPES for pair in flat[kind]]
    assert plan["heads"] == {kind: [len(stays[kind]), sum(stays[kind])] for kind in TYPES}
    assert plan["removed_with_open_gate"] == sum(gate(a) > 0 and not m for a, m in every)
    assert plan["folded_gates"] == sum(0 < gate(a) < 1 and bool(m) for a, m in every)
    assert plan["mask"] == alive(case)
    widths = {"enc-self": ("encoder", "encoder"), "dec-self": ("decoder", "decoder"), "dec-enc": ("decoder", "encoder")}
    gone = 0  # a head has a row of weights and a bias for q, k and v, and a column of the output projection
    for kind, (to, of) in widths.items():
        width, memory = (case.options[f"{side}_embed_dim"] for side in (to, of))
        size = width // case.options[f"{to}_attention_heads"]
        gone += stays[kind].count(False) * size * ((width + 1) + 2 * (memory + 1) + width)
        per_head = 2 * size * 4  # key and value, four bytes each
        assert plan["cache_bytes_per_token"][kind] == [len(stays[kind]) * per_head, sum(stays[kind]) * per_head]
    before, after = plan["parameters"]
    assert before == sum(p.numel() for p in model.parameters())
    assert before - after == gone + len(every)  # and its gate


def test_a_stock_model_is_pruned_as_it_is():
    stock, batch = stirred(make_stock()), make_batch()
    mask = HeadTable({"dec-enc": [[0, 0, 0, 0], [1, 0, 0, 1]]})
    pruned = prune(stock, mask)
    factors = {"enc-self": [[1] * 4] * 2, "dec-self": [[1] * 4] * 2, **mask.values}
    assert_logits(logits(pruned, batch), logits(stock_twin(stock, factors), batch))
    assert type(head_sites(stock)[0].attention).__name__ == "MultiheadAttention"  # the original is as it was
    assert pruned.args == stock.args and not hasattr(stock.args, "alive_heads")  # only checkpoints change options


def test_a_pruned_model_is_built_again_from_its_options():
    case = make_case(7)
    pruned = prune(case.model(), HeadTable(case.mask))
    args = copy.copy(pruned.args)
    args.gate_heads, args.alive_heads, args.remove_heads = "", mask_to_json(kept_mask(pruned)), True
    again = TransformerHeadGatesModel.build_model(args, make_task()).eval()
    again.load_state_dict(pruned.state_dict(), strict=True)
    assert torch.equal(logits(again, make_batch()), logits(pruned, make_batch()))


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
    assert kept_mask(model).values == {kind: [[1] * 4] * 2 for kind in TYPES}


@pytest.mark.parametrize("pattern", [None, r"^decoder\.|q_proj"])
def test_what_was_frozen_stays_frozen(pattern):
    model = make_gated(freeze_params=pattern)
    pruned = prune(model, HeadTable(NO_HEADS_SOMEWHERE))
    expected = {name: p.requires_grad for name, p in model.named_parameters()}
    assert {name: p.requires_grad for name, p in pruned.named_parameters()} == {
        name: expected[name] for name, _ in pruned.named_parameters()
    }


def test_options_of_the_model_are_not_shared_with_the_pruned_one():
    args = make_args()
    model = TransformerHeadGatesModel.build_model(args, make_task())
    prune(model, HeadTable(NO_HEADS_SOMEWHERE))
    assert not getattr(args, "remove_heads", False) and not getattr(args, "alive_heads", None)
