"""Beam search, and what inference prepares: packed weights follow every change of the model."""

import argparse
import copy
from dataclasses import replace

import pytest
import torch
from support.all_attention import make_model as make_all_attention
from support.checkpoints import assert_same_tensors
from support.language_models import make_text
from support.models import logits, make_batch, make_gated
from support.pruning import ALL_TYPES, generate, make_case, stock_twin
from torch.multiprocessing.reductions import StorageWeakRef

from fairseq_headgates import HeadTable, attention_modules, fix_heads, insert_gates, masked, prune
from fairseq_headgates.heads import TYPES
from fairseq_headgates.inference.packed_linear import InferenceLinear


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("seed", "beam", "fast"),
    [(0, 4, "make_generation_fast_"), (1, 1, "prepare_for_inference_"), (2, 4, "prepare_for_inference_"), (0, 1, None)],
)
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


def one_layer(seed):
    """A case with one layer on either side."""
    case = make_case(seed, encoder_layers=1, decoder_layers=1)
    first = [{each: rows[:1] for each, rows in table.items()} for table in (case.log_alpha, case.mask)]
    return replace(case, log_alpha=first[0], mask=first[1])


CASE = one_layer(4)
OTHER = one_layer(5)
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
    "a copy, in place": lambda model, kind: grown(copy.deepcopy(model)),
    "double, other weights": lambda model, kind: with_weights_of(OTHERS[kind])(model.double()),
    "other heads": lambda model, kind: fix_heads(model, HeadTable(OTHER.mask)),
    "pruned": lambda model, kind: prune(model, HeadTable(OTHER.mask)),
}


@pytest.mark.cases(14)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", MODELS)
def test_prepared_tensors_follow_every_change_of_the_weights(kind, change, monkeypatch):
    """A model prepared and used before and one prepared never, changed alike, go on computing the same."""
    if kind not in ("stock", "gated"):  # as in a model that is large enough to be packed
        monkeypatch.setattr("fairseq_headgates.inference.packed_linear.WORTH_PACKING", 1)
    never, before = MODELS[kind](), prepare(MODELS[kind]())
    torch.testing.assert_close(logits(before, make_batch()), first := logits(never, make_batch()), atol=1e-6, rtol=1e-5)
    outputs = [logits(CHANGES[change](model, kind), make_batch()) for model in (never, before)]
    atol = 1e-3 if change == "half and back" else 1e-6  # what was prepared need not be rounded with the weights
    torch.testing.assert_close(outputs[1], outputs[0], atol=atol, rtol=1e-5)
    if change.endswith(("other weights", "pruned", "other heads", "in place")):
        assert not torch.allclose(outputs[0].float(), first, atol=1e-3)  # there was a change


def test_memory_of_packed_weights_is_kept_while_they_are_cached():
    """Else other weights in the same memory are taken for those that are packed; it happens once in 200 times."""
    layer = torch.nn.Linear(512, 512)
    linear = InferenceLinear([layer])
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
    for module in attention_modules(before):
        if module.attention_type != "dec-enc" and module.attention.num_heads:
            projections = [getattr(module.attention, f"{name}_proj").weight for name in "qkv"]
            (_,) = {p.untyped_storage().data_ptr() for p in projections}  # views: no memory is spent twice


def test_prepared_gates_move_to_the_device_of_the_model():
    """fairseq's hub interface prepares a model first; `.cuda()` comes after."""
    model = prepare(MODELS["gated"]()).to("meta")
    assert {module.attention.head_scale().device.type for module in attention_modules(model)} == {"meta"}


# --- inference mode, and changes that torch does not count ------------------------------------------------------------


@pytest.fixture
def packed(request, monkeypatch):
    """Whether the weights are packed, as in a model that is large enough for it."""
    if request.param:
        monkeypatch.setattr("fairseq_headgates.inference.packed_linear.WORTH_PACKING", 1)


def loaded(kind):
    """A model of `MODELS` that was built and loaded in inference mode, as torch.hub may do it."""
    weights = MODELS[kind]().state_dict()
    with torch.inference_mode():
        model = MODELS[kind]()
        model.load_state_dict({name: weight.clone() for name, weight in weights.items()})
    return model


def with_gradients(model):
    """The gradients of a loss, by the names of the parameters."""
    model.zero_grad()
    model(**make_batch())[0].square().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


MODES = {"inference": torch.inference_mode, "no grad": torch.no_grad, "usual": torch.enable_grad}


@pytest.mark.cases(5)
@pytest.mark.parametrize(
    ("kind", "first", "packed"),  # every pair of two of them
    [(kind, first, (i + j) % 2 == 0) for i, kind in enumerate(MODELS) for j, first in enumerate(MODES)],
    indirect=["packed"],
)
@pytest.mark.usefixtures("packed")
def test_a_model_prepared_in_one_mode_is_used_in_another(kind, first):
    never = MODELS[kind]()
    expected, gradients = logits(never, make_batch()), with_gradients(never)
    with MODES[first]():
        before = prepare(MODELS[kind]())
        before(**make_batch())
    for mode in ("inference", "usual", "no grad", "inference"):
        with MODES[mode]():
            torch.testing.assert_close(before(**make_batch())[0].clone(), expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(with_gradients(before), gradients, atol=1e-6, rtol=1e-4)
    with torch.inference_mode(), torch.no_grad():
        grown(never), grown(before)
    torch.testing.assert_close(logits(before, make_batch()), logits(never, make_batch()), atol=1e-6, rtol=1e-5)


KINDS = (
    ("stock", True),
    ("gated", False),
    ("fixed", False),
    ("pruned", True),
    ("pruned", False),
    ("gates on pruned", True),
)
packed_or_not = pytest.mark.parametrize(("kind", "packed"), KINDS, indirect=["packed"])


@pytest.mark.cases(2)
@packed_or_not
@pytest.mark.usefixtures("packed")
def test_a_model_loaded_in_inference_mode(kind):
    expected, found = logits(MODELS[kind](), make_batch()), generate(MODELS[kind](), 3)
    with torch.inference_mode():
        model = prepare(loaded(kind))
        torch.testing.assert_close(logits(model, make_batch()), expected, atol=1e-6, rtol=1e-5)
        assert generate(model, 3) == found
    torch.testing.assert_close(logits(model, make_batch()), expected, atol=1e-6, rtol=1e-5)
    assert generate(model, 3) == found
    again = prepare(loaded(kind))  # outside
    torch.testing.assert_close(logits(again, make_batch()), expected, atol=1e-6, rtol=1e-5)
    assert generate(again, 3) == found
    assert_same_tensors(again.state_dict(), MODELS[kind]().state_dict())


@packed_or_not
@pytest.mark.usefixtures("packed")
def test_prepared_tensors_follow_changes_of_parameter_data(kind):
    """torch counts changes in place of a parameter, but not those of its `data`."""
    never, before = MODELS[kind](), prepare(MODELS[kind]())
    logits(before, make_batch())

    def change(parameters, factor, gates):
        for name, parameter in parameters:
            if gates or "gate" not in name:
                parameter.data.mul_(factor)

    for factor in (1.1, 0.9):  # the second time without weights that were released before
        for model in (never, before):
            change(model.named_parameters(), factor, gates=False)
        torch.testing.assert_close(logits(before, make_batch()), logits(never, make_batch()), atol=1e-6, rtol=1e-5)
    held = list(before.named_parameters())
    logits(before, make_batch())
    change(held, 0.7, gates=True)
    change(never.named_parameters(), 0.7, gates=True)
    expected = logits(never, make_batch())
    for _ in range(2):  # parameters that someone holds, and gates: after the same call again
        prepare(before)
        torch.testing.assert_close(logits(before, make_batch()), expected, atol=1e-6, rtol=1e-5)
    assert_same_tensors(before.state_dict(), never.state_dict())


@pytest.mark.parametrize("make", [lambda: (make_gated(gate_heads="dec-enc"), make_batch()),
                                  lambda: (make_all_attention(gate_heads="dec-self"), make_text())])  # fmt: skip
def test_a_model_that_was_evaluated_in_inference_mode_is_trained(make):
    (never, batch), (model, _) = make(), make()
    with torch.inference_mode():
        model(**batch)
    found = []
    for one in (never, model):
        one(**batch)[0].square().mean().backward()
        found.append({name: p.grad for name, p in one.named_parameters()})
    torch.testing.assert_close(found[1], found[0])
