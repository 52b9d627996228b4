"""Attention layers are found, swapped, masked, read and observed."""

import copy
import json
import math
from contextlib import ExitStack

import pytest
import torch
from support.all_attention import make_model
from support.classifiers import make_roberta
from support.language_models import make_lm
from support.models import logits, make_batch, make_gated, make_stock
from support.pruning import stirred
from torch import nn

from fairseq_headgates import (
    HardConcrete,
    HeadAttention,
    HeadTable,
    attention_modules,
    fix_heads,
    gate_values,
    insert_gates,
    l0_penalty,
    masked,
    observe,
    open_probabilities,
    prune,
    remove_heads,
    use_head_attention,
)
from fairseq_headgates.attention.anatomy import blocks_of, layers_of, number_of_layers, stack_names, stacks_of
from fairseq_headgates.attention.hooks import hooked, recorded
from fairseq_headgates.heads import TYPES


def test_modules_are_named_by_type_and_layer():
    for model in (make_stock(), make_gated()):
        assert [(module.attention_type, module.layer) for module in attention_modules(model)] == [
            (attention_type, i) for attention_type in TYPES for i in (0, 1)
        ]
    swapped = use_head_attention(make_stock())
    assert all(isinstance(module.attention, HeadAttention) for module in attention_modules(swapped))
    first = [module.attention for module in attention_modules(swapped)]
    assert [
        module.attention for module in attention_modules(use_head_attention(swapped))
    ] == first  # a second time changes nothing


def test_layers_and_blocks_are_named():
    """See also test_any_model.py."""
    model = make_stock(encoder_layers=3, encoder_normalize_before=False, decoder_normalize_before=True)
    assert layers_of(model) == [*model.encoder.layers, *model.decoder.layers]
    assert number_of_layers(model.state_dict(), "encoder") == 3
    last = [module for module in attention_modules(model) if module.attention_type == "enc-self"][-1]
    assert last.layer_names == ["encoder.layers.2", "encoder.layers.1", "encoder.layers.0"]
    blocks = {block.name: block for block in blocks_of(model)}
    for side, names in (("encoder", ["self_attn", "fc2"]), ("decoder", ["self_attn", "encoder_attn", "fc2"])):
        for number, layer in enumerate(stacks_of(model)[side].layers):
            for name in names:
                block = blocks.pop(f"{side}.layers.{number}.{name}")
                assert (block.side, block.number, block.pre_norm) == (side, number, side == "decoder")
                norm = layer.final_layer_norm if name == "fc2" else getattr(layer, f"{name}_layer_norm")
                assert model.get_submodule(block.norm) is norm and model.get_submodule(block.layer) is layer
    assert not blocks


@pytest.mark.parametrize("build", [make_stock, make_gated, make_lm, make_roberta, make_model])
def test_stacks_have_the_names_of_their_modules(build):
    model = build()
    stacks = {side: model.get_submodule(stack) for side, stack in stack_names(type(model)).items()}
    assert stacks_of(model) == stacks and all(len(stack.layers) for stack in stacks.values())


def test_inputs_and_outputs_of_modules_are_recorded():
    model, batch = make_stock().eval(), make_batch()
    fc2, attention = model.decoder.layers[1].fc2, model.encoder.layers[0].self_attn
    with recorded({"in": fc2}, {"out": fc2, attention: attention}) as seen:
        logits(model, batch)
        first = seen.inputs["in"]
        logits(model, {**batch, "prev_output_tokens": batch["prev_output_tokens"].flip(0)})
    assert torch.equal(seen.outputs["out"], fc2(seen.inputs["in"])) and not torch.equal(seen.inputs["in"], first)
    assert isinstance(seen.outputs[attention], tuple)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in (fc2, attention))


def test_unsupported_attention_is_refused():
    stock = make_stock()
    stock.decoder.layers[1].encoder_attn.bias_k = torch.nn.Parameter(torch.zeros(1, 1, 32))
    with pytest.raises(ValueError, match="an extra key and value"):
        use_head_attention(stock)
    assert not any(isinstance(module.attention, HeadAttention) for module in attention_modules(stock))


def test_attention_has_no_quantisation_noise_in_training():
    """As in stock fairseq, whose attention does not call the hooks of its projections. They would change weights."""
    stock = make_stock(quant_noise_pq=0.5, quant_noise_pq_block_size=8).train()
    x, weights = torch.randn(5, 2, 32), copy.deepcopy(stock.state_dict())
    expected = stock.encoder.layers[0].self_attn(x, x, x)[0]
    ours = use_head_attention(stock)
    torch.testing.assert_close(ours.encoder.layers[0].self_attn(x, x, x)[0], expected, rtol=0, atol=1e-6)
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, weights[name]), name


def test_penalty_is_the_sum_over_gated_heads():
    model = make_gated()
    with pytest.raises(ValueError, match="--gate-heads"):
        l0_penalty(model)
    insert_gates(model, ["enc-self", "dec-enc"], HardConcrete(), init="glorot", lr_scale=3.0)
    naive_sum = 0.0
    for attention_type, rows in open_probabilities(model).items():
        if attention_type != "dec-self":
            naive_sum += sum(p for row in rows.tolist() for p in row)
    assert l0_penalty(model).item() == pytest.approx(naive_sum, rel=1e-6)
    assert l0_penalty(model, "layer-mean").item() == pytest.approx(naive_sum / 4, rel=1e-6)
    assert open_probabilities(model)["dec-self"].min() == 1
    with pytest.raises(ValueError, match="have HardConcrete.* and lr_scale 3: give the same for all types"):
        insert_gates(model, ["dec-self"], HardConcrete(0.5), init=0.0, lr_scale=3.0)
    insert_gates(model, ["dec-self"], HardConcrete(), init=0.0, lr_scale=3.0)
    naive_sum += 8 / (1 + math.exp(0.33 * math.log(0.1 / 1.1)))
    assert l0_penalty(model).item() == pytest.approx(naive_sum, rel=1e-6)


DICT = {"enc-self": [[1, 0, 1, 1], [1, 1, 1, 1]], "dec-enc": [[1, 1, 1, 0], [0, 0, 0, 0]]}


def test_masks_are_taken_in_any_form():
    """See also heads/test_heads.py."""
    expected = {"dec-self": [[1] * 4] * 2, **DICT}
    with masked(make_gated(), json.dumps(DICT)) as model:
        found = [gate_values(model)]
    found += [gate_values(change(make_gated(), DICT)) for change in (fix_heads, prune, remove_heads)]
    assert all({each: rows.tolist() for each, rows in values.items()} == expected for values in found)


@pytest.mark.parametrize("change", [prune, remove_heads, fix_heads, masked])
def test_invalid_masks_are_refused_before_the_model_is_changed(change):
    model = make_stock()
    for mask, error in ((7, TypeError), ([[1]], TypeError), ({"enc": [[1]]}, ValueError)):
        with pytest.raises(error), ExitStack() as stack:
            changed = change(model, mask)
            if change is masked:
                stack.enter_context(changed)
    assert not any(isinstance(module.attention, HeadAttention) for module in attention_modules(model))


@pytest.mark.cases(4)
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gates_are_read_in_any_precision(dtype, default):
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(default)
        model = make_gated(
            gate_heads="enc-self,dec-enc", gate_init="-3", alive_heads='{"dec-self": [[1,0,1,1],[1,1,1,1]]}'
        )
        models = [
            model.to(dtype),
            prune(model, {"dec-enc": [[1, 1, 1, 1]] * 2}),
            use_head_attention(make_stock().to(dtype)),
        ]
        for read in (gate_values, open_probabilities):
            found = [read(some) for some in (*models, make_stock().to(dtype))]
            assert {values.dtype for table in found for values in table.values()} == {torch.float32}
        assert gate_values(model)["enc-self"].max() == 0 and gate_values(model)["dec-self"].sum() == 7
        torch.testing.assert_close(
            open_probabilities(model)["dec-enc"],
            torch.full((2, 4), 1 / (1 + math.exp(3) * 11**-0.33)).float(),
            atol=2e-2,
            rtol=0,
        )
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("keep", [4, 2])
def test_observe_returns_the_weights_and_contexts_of_heads(keep):
    """Contexts are weights times values, and the output is made of them."""
    model = make_gated()
    fix = {attention_type: [[1] * keep + [0] * (4 - keep)] * 2 for attention_type in TYPES}
    model = prune(model, HeadTable(fix)).eval()
    batch = make_batch()
    before = logits(model, batch)
    values, outputs = {}, {}
    handles = []
    for module in attention_modules(model):
        keep_value = lambda _, __, out, name=module.name: values.update({name: out})  # noqa: E731
        keep_output = lambda _, inputs, __, name=module.name: outputs.update({name: inputs[0]})  # noqa: E731
        handles += [module.attention.v_proj.register_forward_hook(keep_value)]
        handles += [module.attention.out_proj.register_forward_hook(keep_output)]
    with observe(model) as seen:
        assert torch.allclose(logits(model, batch), before, atol=1e-5)
    for handle in handles:
        handle.remove()
    assert {each: list(layers) for each, layers in seen.items()} == {attention_type: [0, 1] for attention_type in TYPES}
    for module in attention_modules(model):
        found = seen[module.attention_type][module.layer]
        assert torch.allclose(found.weights.sum(-1), torch.ones(()), atol=1e-5)
        for head in range(keep):
            value = values[module.name][..., head * 8 : head * 8 + 8].transpose(0, 1)  # [B, S, D]
            context = found.weights[:, head] @ value
            assert torch.allclose(found.contexts[:, head], context, atol=1e-6)
            into = outputs[module.name][..., head * 8 : head * 8 + 8].transpose(0, 1)
            assert torch.allclose(into, context, atol=1e-6)
    assert all(module.attention.hook is None for module in attention_modules(model))


def test_a_hook_changes_contexts_and_is_removed_afterwards():
    model = make_gated().eval()
    batch = make_batch()
    before = logits(model, batch)
    mask = HeadTable({"dec-enc": [[1, 0, 1, 1], [1, 1, 1, 1]]})
    row = torch.tensor([1.0, 0, 1, 1]).view(1, 4, 1, 1)
    with masked(model, mask):
        expected = logits(model, batch)
    with hooked(model, lambda module, _, context: context * row if module.layer == 0 else None, types=["dec-enc"]):
        assert torch.allclose(logits(model, batch), expected, atol=1e-6)
    assert not torch.allclose(before, expected)
    with pytest.raises(KeyError), hooked(model, lambda *_: {}["nothing"]):
        logits(model, batch)
    assert torch.equal(logits(model, batch), before)


# --- projections that are not plain linear layers ---------------------------------------------------------------------

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
NORMS = {
    "weight norm": nn.utils.weight_norm,
    "spectral norm": nn.utils.spectral_norm,
    "parametrised weight norm": nn.utils.parametrizations.weight_norm,
    "parametrised spectral norm": nn.utils.parametrizations.spectral_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
}
CLOSED = {"enc-self": [[1, 0, 1, 1], [1, 1, 1, 0]], "dec-enc": [[0, 1, 0, 0], [1, 0, 1, 1]]}
INSERTED = {
    "open": lambda model: model,
    "gated": lambda model: insert_gates(model, ["dec-self"], init=0.3).eval(),
    "fixed": lambda model: fix_heads(model, CLOSED),
}


def with_norms(norm):
    """A stock model and one with the same weights, which a norm computes."""
    plain, normed = stirred(make_stock()), stirred(make_stock())
    for module in attention_modules(normed):
        for name in PROJECTIONS:
            norm(getattr(module.attention, name))
    return copy_weights(normed, plain), normed.eval()


def copy_weights(normed, plain):
    logits(normed, make_batch())  # computes them
    for there, here in zip(attention_modules(normed), attention_modules(plain), strict=True):
        for name in PROJECTIONS:
            projection = getattr(there.attention, name)
            for hook in projection._forward_pre_hooks.values():
                hook(projection, None)
            getattr(here.attention, name).weight.data.copy_(projection.weight)
    return plain


@pytest.mark.cases(5)
@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize(
    ("norm", "form"),
    [(norm, form) for i, norm in enumerate(NORMS) for j, form in enumerate(INSERTED) if (i + j) % 3],
)
def test_weight_and_spectral_norm_are_supported(norm, form):
    plain, normed = map(INSERTED[form], with_norms(NORMS[norm]))
    torch.testing.assert_close(logits(normed, make_batch()), logits(plain, make_batch()), atol=1e-5, rtol=1e-5)
    assert set(gate_values(normed)) == set(TYPES)
    normed.train()
    normed(**make_batch())[0].sum().backward()
    trained = [p for module in attention_modules(normed) for p in module.attention.out_proj.parameters() if p.dim() > 1]
    assert trained and all(p.grad.abs().max() > 0 for p in trained)
    with torch.no_grad():
        for parameter in normed.parameters():
            parameter.sub_(parameter.grad) if parameter.grad is not None and parameter.dim() > 1 else None
    normed.eval()
    for name, parameter in plain.named_parameters():
        if "attn" not in name or name.endswith("bias"):
            parameter.data.copy_(normed.get_parameter(name))
    copy_weights(normed, plain)
    expected = logits(plain, make_batch())
    torch.testing.assert_close(logits(normed, make_batch()), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(
        ValueError, match=r"^heads cannot be removed from q_proj \(\w+\), k_proj .*: remove weight norm"
    ) as error:
        prune(normed, CLOSED)
    assert "\n" not in str(error.value)
    normed.make_generation_fast_()  # fairseq removes weight norm here, but not parametrisations
    torch.testing.assert_close(logits(normed, make_batch()), expected, atol=1e-5, rtol=1e-5)


def test_hooks_and_wrappers_of_users_are_kept():
    plain, model = make_stock(), make_stock()
    called = []
    for module in attention_modules(model):
        module.attention.register_forward_hook(lambda *_: called.append("attention"))
        for name in PROJECTIONS:
            getattr(module.attention, name).register_forward_hook(lambda *_: called.append("projection"))
    fix_heads(plain, CLOSED)
    fix_heads(model, CLOSED)
    torch.testing.assert_close(logits(model, make_batch()), logits(plain, make_batch()))
    assert called.count("attention") == 6 and called.count("projection") == 24
    called.clear()
    model.make_generation_fast_()
    torch.testing.assert_close(logits(model, make_batch()), logits(plain, make_batch()))
    assert called.count("projection") == 24
    wrapped = make_stock()
    wrapped.encoder.layers[0].self_attn.forward = lambda *_, **__: None
    with pytest.raises(ValueError, match="a forward pass of its own"):
        use_head_attention(wrapped)


@pytest.mark.parametrize("form", [*INSERTED, "pruned"])
def test_quantised_layers(form):
    """fairseq's own attention cannot be quantised in this way."""
    model = stirred(make_stock())
    mask = {**CLOSED, "dec-self": [[0, 0, 0, 0], [1, 1, 0, 1]]}
    model = prune(model, mask) if form == "pruned" else INSERTED[form](use_head_attention(model))
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    expected, found = logits(model, make_batch()), logits(quantised, make_batch())
    assert (found - expected).abs().max() < 0.1 * expected.abs().max() and not torch.equal(found, expected)
    for attention_type, values in gate_values(model).items():
        assert torch.equal(gate_values(quantised)[attention_type], values)
    with masked(quantised, {"dec-self": [[0, 1, 1, 1]] * 2}), pytest.raises(ValueError, match="before you quantise"):
        prune(quantised, {"dec-self": [[0, 1, 1, 1]] * 2})


@pytest.mark.release
def test_compilation_works():
    model = insert_gates(stirred(make_stock()), ["dec-enc"], init=0.3).eval()
    attention, x = attention_modules(model)[-1].attention, torch.randn(5, 3, 32)
    with torch.no_grad():
        expected = attention(x, x, x)[0]
        torch.testing.assert_close(torch.compile(attention, backend="eager")(x, x, x)[0], expected)
