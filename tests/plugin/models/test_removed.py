"""Models that are built with removed heads: from scratch, with gates on the others, from a pruned checkpoint."""

import argparse
import copy
import json

import pytest
import torch
from hypothesis import given, settings
from support.checkpoints import assert_same_tensors
from support.models import logits, make_args, make_batch, make_gated, make_task
from support.pruning import (
    CLOSED,
    OPEN,
    assert_logits,
    cases,
    gate,
    make_case,
    random_rows,
    stirred,
    stock_twin,
)

from fairseq_headgates import (
    HardConcrete,
    HeadTable,
    attention_modules,
    gate_values,
    insert_gates,
    l0_penalty,
    open_probabilities,
    prune,
)
from fairseq_headgates.attention.cuts import kept_mask
from fairseq_headgates.attention.modules import head_counts
from fairseq_headgates.heads import TYPES
from fairseq_headgates.plugin.models.building import build_model
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel


@settings(max_examples=20)
@given(cases())
def test_removed_heads_leave_the_initialisation_of_other_weights_unchanged(case):
    args = copy.deepcopy(case.model(gates=False).args)
    built = []
    for args.alive_heads, args.remove_heads in ((None, False), (inline(case.mask), True)):
        torch.manual_seed(0)
        built.append(TransformerHeadGatesModel.build_model(args, make_task()))
    whole, smaller = built
    assert kept_mask(smaller).layers == case.mask
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
    for module in attention_modules(smaller):
        if module.attention.num_heads == 0:
            assert module.attention.gate is None
            continue
        own = [log_alpha[module.attention_type][module.layer][head] for head in module.attention.kept]
        with torch.no_grad():
            module.attention.gate.theta.copy_(torch.tensor(own) / 20)
    expected = {
        attention_type: [
            [gate(a) * (f > 0) for a, f in zip(*pair, strict=True)]
            for pair in zip(rows, case.factors()[attention_type], strict=True)
        ]
        for attention_type, rows in log_alpha.items()
    }
    for attention_type, values in gate_values(smaller).items():
        torch.testing.assert_close(values, torch.tensor(expected[attention_type]), atol=1e-6, rtol=0)
    assert l0_penalty(smaller).item() == pytest.approx(
        sum(p.sum().item() for p in open_probabilities(smaller).values()), rel=1e-5
    )
    again = prune(smaller)
    assert kept_mask(again).layers == {k: [[int(v > 0) for v in row] for row in rows] for k, rows in expected.items()}
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
    gates = {module.name: module.attention.gate for module in attention_modules(model)}
    assert [name for name, gate_ in gates.items() if gate_ is not None] == ["encoder.layers.0.self_attn"]
    assert model.state_dict()["encoder.layers.0.self_attn.gate.log_alpha"].shape == (3,)
    g = gate(0.5)
    torch.testing.assert_close(gate_values(model)["enc-self"], torch.tensor([[g, 0, g, g], [0, 0, 0, 0]]))
    other = make_gated(seed=1, gate_heads="enc-self,dec-enc", **options)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits(other, make_batch()), logits(model, make_batch()))


@pytest.mark.parametrize("pruned_first", [True, False])
def test_weights_of_another_number_of_heads_are_refused(pruned_first, capsys):
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


# --- LayerDrop at inference: some layers of a checkpoint --------------------------------------------------------------

KEPT = {"encoder_layers_to_keep": "1", "decoder_layers_to_keep": "0"}


def test_a_gated_checkpoint_can_be_loaded_with_some_of_its_layers():
    """fairseq renumbers the layers, and their gates."""
    whole = stirred(make_gated(arch="transformer_head_gates", gate_heads="enc-self,dec-enc"))
    state = {"args": argparse.Namespace(**{**vars(whole.args), **KEPT}), "cfg": None, "model": whole.state_dict()}
    found = build_model(state)
    for side, layer in (("encoder", 1), ("decoder", 0)):
        stack = getattr(whole, side)
        stack.layers, stack.num_layers = torch.nn.ModuleList([stack.layers[layer]]), 1
    torch.testing.assert_close(logits(found, make_batch()), logits(whole, make_batch()))


def test_what_is_counted_by_layer_cannot_be_combined_with_layers_to_keep(capsys):
    for option in ({"alive_heads": inline({"enc-self": [[1, 0, 1, 1]] * 2})}, {"ffn_dims": '{"encoder": [3, 3]}'}):
        args = make_args(**option, **KEPT)
        with pytest.raises(SystemExit):
            TransformerHeadGatesModel.build_model(args, make_task())
        assert "LayerDrop" in capsys.readouterr().err
