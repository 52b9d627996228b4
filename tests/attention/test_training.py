"""Gradients of pruned models are those of masked ones; layers without heads train and generate."""

import pytest
import torch
from hypothesis import given, settings
from support.models import VOCABULARY, make_batch, make_gated
from support.pruning import NO_HEADS_SOMEWHERE, cases, generate, positions, stirred

from fairseq_headgates import HeadTable, attention_modules, gate_values, masked, prune, remove_heads
from fairseq_headgates.heads import TYPES


def gradients(model, batch, target):
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(**batch)[0].flatten(0, 1), target.flatten()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@settings(max_examples=12)
@given(cases(fractions=(0.4, -1.3)))
def test_gradients_are_those_of_the_masked_model(case):
    """dL/dW' = dL/dW / g for columns W' = g W; all others are the same. In double precision, gates without noise."""
    model, batch, target = case.model().double(), make_batch(), torch.randint(4, VOCABULARY, (3, 5))
    mask = HeadTable(case.mask)
    pruned = prune(model, mask)
    smaller = gradients(pruned, batch, target)
    with masked(model, mask):
        whole = {name: g for name, g in gradients(model, batch, target).items() if "gate" not in name}
    for module in attention_modules(model):
        factors = case.factors()[module.attention_type][module.layer]
        stay = [i for i, factor in enumerate(factors) if factor > 0]
        rows, removed = (
            positions(chosen, module.attention.head_dim)
            for chosen in (stay, [i for i in range(len(factors)) if i not in stay])
        )
        for name in ("q_proj", "k_proj", "v_proj"):
            for part in ("weight", "bias"):
                gradient = whole.pop(f"{module.name}.{name}.{part}")
                assert gradient[removed].abs().sum() == 0
                if stay:
                    whole[f"{module.name}.{name}.{part}"] = gradient[rows]
        gates = gate_values(model)[module.attention_type][module.layer].double()
        columns = torch.tensor([gates[i] for i in stay for _ in range(module.attention.head_dim)], dtype=torch.double)
        key = f"{module.name}.out_proj.weight"
        assert whole[key][:, removed].abs().sum() == 0
        whole[key] = whole[key][:, rows] / columns
    assert smaller.keys() <= whole.keys()
    for name in whole:  # what nothing depends on any more may have no gradient instead of 0
        actual = smaller.get(name, torch.zeros_like(whole[name]))
        torch.testing.assert_close(actual, whole[name], atol=1e-9, rtol=1e-6, msg=name)


LAST_LAYER_WITHOUT = {"dec-enc": [[1, 1, 1, 1], [0, 0, 0, 0]]}
NO_HEADS_AT_ALL = {attention_type: [[0] * 4] * 2 for attention_type in TYPES}
WITHOUT = {"some layers": NO_HEADS_SOMEWHERE, "the last layer": LAST_LAYER_WITHOUT, "all layers": NO_HEADS_AT_ALL}


@pytest.mark.parametrize("normalize_before", [True, False])
@pytest.mark.parametrize("rows", WITHOUT.values(), ids=WITHOUT)
def test_every_parameter_has_a_gradient_for_distributed_training(rows, normalize_before):
    norm = {"encoder_normalize_before": normalize_before, "decoder_normalize_before": normalize_before}
    model = remove_heads(make_gated(**norm), HeadTable(rows)).train()
    model(**make_batch())[0].sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("rows", WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize(("dtype", "fast"), [(torch.float32, False), (torch.bfloat16, True)])
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


@pytest.mark.parametrize("attention_type", TYPES)
@pytest.mark.parametrize("alike", [0, 1])
def test_weights_of_a_layer_without_heads_are_zeros(attention_type, alike):
    """Shapes as those of a layer with one head; of a layer with heads, those that stay."""
    mask = [[alike] * 4, [0, 1, 0, 1]]
    attention = next(
        s.attention
        for s in attention_modules(remove_heads(make_gated(), HeadTable({attention_type: mask})))
        if s.attention_type == attention_type
    )
    query, memory = torch.randn(5, 2, 32), torch.randn(5 if attention_type != "dec-enc" else 6, 2, 32)
    _, weights = attention(query, memory, memory, need_head_weights=True)
    _, averaged = attention(query, memory, memory, need_weights=True)
    assert weights.shape == (4 if alike else 1, 2, 5, len(memory))
    torch.testing.assert_close(averaged, weights.mean(0))
    torch.testing.assert_close(weights.sum(-1), torch.full(weights.shape[:-1], float(alike)))
