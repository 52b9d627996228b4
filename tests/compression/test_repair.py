"""Refitted layers against least squares on explicit matrices, of streams that are read where the next module does."""

import math
import re

import pytest
import torch
from support.all_attention import make_blocks
from support.all_attention import make_model as make_all_attention
from support.sentences import PAIRS, TASK, make_gates, make_model, many_sentences, sample, sentences

from fairseq_headgates import HeadTable, compress, prune, refit
from fairseq_headgates.attention.anatomy import attention_modules
from fairseq_headgates.compression import refit as refitting
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import mean_loss
from fairseq_headgates.messages import warn_once

MASK = HeadTable(
    {"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]], "dec-self": [[1, 1, 1, 1], [0, 1, 0, 1]], "dec-enc": [[0, 0, 0, 1]] * 2}
)
# The linear layers in the order of the computation; in a pre-norm layer the next module reads the stream after each.
ENCODER = {"self_attn.out_proj": "final_layer_norm", "fc2": ""}
DECODER = {"self_attn.out_proj": "encoder_attn_layer_norm", "encoder_attn.out_proj": "final_layer_norm", "fc2": ""}
ORDER = [
    f"{side}.layers.{layer}.{linear}"
    for side, linears in (("encoder", ENCODER), ("decoder", DECODER))
    for layer in range(2)
    for linear in linears
]


def columns(heads, size=8):
    return [head * size + i for head in heads for i in range(size)]


def watch(model, batches, places):
    """Inputs or outputs of modules, a row for each token of the batches, which have no padding.

    `places` is {key: (module, "inputs" or "outputs")}.
    """
    found = {key: [] for key in places}

    def see(key, part, inputs, output):
        value = inputs if part == "inputs" else output
        found[key].append((value[0] if isinstance(value, tuple) else value).flatten(0, 1))

    hooks = [
        model.get_submodule(module).register_forward_hook(lambda _, x, y, k=key, p=part: see(k, p, x, y))
        for key, (module, part) in places.items()
    ]
    with torch.no_grad():
        for batch in batches:
            model(**batch["net_input"])
    for hook in hooks:
        hook.remove()
    return {key: torch.cat(rows) for key, rows in found.items()}


def rows_of(model):
    """Inputs and outputs of each linear layer, and the stream after it: {(linear, what): rows}."""
    places = {}
    for linear in ORDER:
        layer, own = re.match(r"(\w+\.layers\.\d)\.(.*)", linear).groups()
        if model.encoder.layers[0].normalize_before:
            norm = (ENCODER if linear.startswith("encoder") else DECODER)[own]
        else:
            norm = "final_layer_norm" if own == "fc2" else own.replace(".out_proj", "_layer_norm")
        places |= {(linear, part): (linear, part) for part in ("inputs", "outputs")}
        places[linear, "stream"] = (f"{layer}.{norm}", "inputs") if norm else (layer, "outputs")
    return watch(model, [sample([pair]) for pair in PAIRS], places)


def ridge_regression(inputs, targets, before, ridge, bias=True):
    """Minimise |X w + b - t|^2 + penalty |w - before|^2, by least squares on stacked rows: w^T, b."""
    size = inputs.size(1)
    penalty = math.sqrt(len(inputs) * ridge * inputs.square().mean()) if size else 0.0
    ones = torch.ones(len(inputs), int(bias)).double()
    below = torch.cat([penalty * torch.eye(size).double(), torch.zeros(size, int(bias)).double()], 1)
    design = torch.cat([torch.cat([inputs, ones], 1), below])
    solution = torch.linalg.lstsq(design, torch.cat([targets, penalty * before.T])).solution
    return solution[:size].T, solution[size:].flatten()


def weight_before(whole, linear, rows):
    """W': where heads are lost, what predicts the output of the whole layer best from the contexts of the others."""
    attention_type = {"enc": "enc-self", "dec": "dec-enc" if "encoder_attn" in linear else "dec-self"}[linear[:3]]
    weight = whole.get_submodule(linear).weight
    if linear.endswith("fc2"):
        return weight
    kept = whole.get_submodule(linear.rpartition(".")[0]).kept
    row = MASK.layers[attention_type][int(linear.split(".")[2])]
    left = columns([i for i, head in enumerate(kept) if row[head]])
    if len(left) == weight.size(1):
        return weight
    inputs, outputs = rows[linear, "inputs"], rows[linear, "outputs"]
    return ridge_regression(inputs[:, left], outputs, weight[:, left], refitting.SMALL_RIDGE)[0]


def with_gates():
    return make_gates(make_model(gate_heads="enc-self,dec-self,dec-enc"))


def post_norm():
    return make_model(encoder_normalize_before=False, decoder_normalize_before=False)


def scaled():
    """The decoder changes outputs before it adds them to the stream."""
    return make_model(scale_resids=True, scale_attn=True)


@pytest.mark.cases(2)
@pytest.mark.parametrize("make", [make_model, post_norm, with_gates, scaled])
def test_each_linear_layer_is_least_squares(make):
    model = make()
    found = refit(model, MASK, TASK, [sample(PAIRS[:15]), sample(PAIRS[15:])])
    whole = prune(model)
    before, after = rows_of(whole), rows_of(found)
    for linear in ORDER:
        target = before[linear, "outputs"]
        if make is not scaled or linear.startswith("encoder"):  # which has no such layers
            target = before[linear, "stream"] - (after[linear, "stream"] - after[linear, "outputs"])
        start = weight_before(whole, linear, before)
        weight, bias = ridge_regression(after[linear, "inputs"], target, start, refitting.RIDGE)
        layer = found.get_submodule(linear)
        torch.testing.assert_close(layer.weight, weight, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(layer.bias, bias, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mem_len", [0, 3])
def test_all_attention_has_no_bias_and_a_memory(mem_len):
    """The first layer loses a head: least squares through the origin; the stream before it does not change."""
    model = make_all_attention(mem_len=mem_len).double()
    inputs = [{"src_tokens": tokens, "blocks": blocks} for tokens, blocks in make_blocks()]
    batches = [{"net_input": each, "target": each["src_tokens"], "id": torch.arange(2)} for each in inputs]
    found = refit(model, {"dec-self": [[1, 0], [0, 0]]}, TASK, batches)
    place = {"inputs": ("decoder.layers.0.self_attn.out_proj", "inputs")}
    whole, left = (watch(each, batches, place)["inputs"] for each in (model, found))
    weight = model.decoder.layers[0].self_attn.out_proj.weight
    targets = whole @ weight.T
    start, _ = ridge_regression(left, targets, weight[:, :4], refitting.SMALL_RIDGE, bias=False)
    expected, _ = ridge_regression(left, targets, start, refitting.RIDGE, bias=False)
    first, second = (module.attention.out_proj for module in attention_modules(found))
    torch.testing.assert_close(first.weight, expected, atol=1e-6, rtol=1e-6)
    assert first.bias is None and second.weight.shape == (8, 0)


def test_only_what_follows_the_first_loss_changes():
    model = make_model()
    mask = HeadTable({"dec-enc": [[1, 1, 1, 1], [1, 0, 1, 1]]})
    found, zeroed = refit(model, mask, TASK, [sample(PAIRS)]), prune(model, mask)
    pairs = zip(found.named_parameters(), zeroed.parameters(), strict=True)
    changed = {name for (name, value), other in pairs if not torch.equal(value, other)}
    own = "decoder.layers.1"
    assert changed == {f"{own}.{x}.{y}" for x in ("encoder_attn.out_proj", "fc2") for y in ("weight", "bias")}


def test_a_mask_of_all_heads_changes_nothing():
    model, batch = make_model(), sample(sentences())
    found = refit(model, HeadTable({}), TASK, [sample(PAIRS)])
    expected, logits = (each(**batch["net_input"])[0] for each in (prune(model, HeadTable({})), found))
    assert torch.equal(logits, expected)


def test_copies_of_heads_are_repaired():
    """Heads 1 and 3 of each layer are heads 0 and 2 with other output weights: removing them loses nothing."""
    model = make_model()
    with torch.no_grad():
        for module in attention_modules(model):
            for name in ("q_proj", "k_proj", "v_proj"):
                for parameter in getattr(module.attention, name).parameters():
                    parameter[columns([1, 3])] = parameter[columns([0, 2])]
    mask = HeadTable({attention_type: [[1, 0, 1, 0]] * 2 for attention_type in MASK.types})
    corpus = Corpus(TASK, [sample(many_sentences(seed=8))])
    whole, zeroed = mean_loss(model, corpus), mean_loss(prune(model, mask), corpus)
    repaired = mean_loss(refit(model, mask, TASK, [sample(PAIRS)]), corpus)
    assert abs(zeroed - whole) > 0.02 and abs(repaired - whole) < 1e-4


def test_a_column_of_zeros_in_a_head_that_is_kept_is_fitted():
    model = make_model()
    weight = model.encoder.layers[0].self_attn.out_proj.weight
    with torch.no_grad():
        weight[:, 3] = 0.0
    found = refit(model, MASK, TASK, [sample(PAIRS)])
    assert found.encoder.layers[0].self_attn.out_proj.weight[:, 3].any()


def test_layers_are_not_computed_again_for_each_layer_after_them():
    model, passes = make_model(), []
    model.encoder.layers[0].fc1.register_forward_hook(lambda *_: passes.append(1))  # copied with the model
    refit(model, MASK, TASK, [sample(PAIRS)])
    assert len(passes) == 3  # whole model; pruned model, to refit fc2 and to go on


def test_the_batches_do_not_matter():
    model = make_model()
    several = [sample(PAIRS[i : i + 9], left_pad=i % 2 == 0) for i in range(0, len(PAIRS), 9)]
    one, other = (refit(model, MASK, TASK, batches).state_dict() for batches in ([sample(PAIRS)], several))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-10, rtol=1e-8)


def test_too_few_tokens_are_refused():
    rule = "encoder.layers.0.self_attn.out_proj has 25 unknowns for each output, and the data have 21 tokens: refit on"
    with pytest.raises(ValueError, match=rule):
        refit(make_model(), MASK, TASK, [sample(sentences())])


@pytest.mark.release
@pytest.mark.parametrize(("number", "lines"), [(1000, 0), (40, 1)])
def test_few_tokens_are_reported_once(number, lines, caplog):
    """The widest layer has 65 unknowns."""
    warn_once.cache_clear()
    for _ in range(2):
        refit(make_model(), MASK, TASK, [sample(many_sentences(number))])
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "a refit has fewer than 10 tokens for each unknown"
    ] * lines


def test_weights_that_are_not_finite_are_refused():
    model = make_model()
    with torch.no_grad():
        attention_modules(model)[0].attention.v_proj.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="activations at encoder.layers.0.self_attn.out_proj are not finite: check"):
        refit(model, MASK, TASK, [sample(PAIRS)])


def test_layers_that_share_weights_are_not_changed_apart():
    """The weights of one layer would become several, or the refit of one layer that of another."""
    model = make_model()
    model.decoder.layers[1].fc2.weight = model.decoder.layers[0].fc2.weight
    changes = (
        lambda: refit(model, {"enc-self": MASK.layers["enc-self"]}, TASK, [sample(PAIRS)]),
        lambda: compress(model, TASK, [sample(PAIRS)], 0.9),
    )
    for change in changes:
        with pytest.raises(ValueError, match="share the weights of decoder.layers.0.fc2 .* cannot be refitted"):
            change()
