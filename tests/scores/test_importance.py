"""Scores against naive loops in double precision: one sentence, one head, one token at a time, no padding."""

import itertools
import math

import pytest
import torch
from support.sentences import EOS, MASK, ODD, TASK, alone, loss_of, make_gates, make_model, sample, sentences

from fairseq_headgates import HeadTable, masked, observe, open_probabilities, prune
from fairseq_headgates.attention.anatomy import attention_modules
from fairseq_headgates.attention.hooks import hooked
from fairseq_headgates.heads import TYPES
from fairseq_headgates.scores import importance
from fairseq_headgates.scores.importance import score
from fairseq_headgates.scores.options import SCORES, ScoreOptions

DATA_METHODS = ["confidence", "gradient", "relevance", "ablation"]


def scores(model, method, batches=None, **options):
    return score(model, TASK, batches or [sample(sentences())], method, ScoreOptions(**options))


def assert_close(table, expected, tolerance=1e-9):
    assert set(table.types) == set(expected)
    for attention_type, rows in expected.items():
        found, wanted = (torch.tensor(values, dtype=torch.double) for values in (table.layers[attention_type], rows))
        assert torch.allclose(found, wanted, atol=tolerance, equal_nan=True), (attention_type, found, wanted)


def paired(function, a, b):
    """`function` of the values of two tables, head by head."""
    return {
        each: [[function(*pair) for pair in zip(*rows, strict=True)] for rows in zip(a[each], b[each], strict=True)]
        for each in a
    }


def zeros():
    return {attention_type: [[0.0] * 4 for _ in range(2)] for attention_type in TYPES}


def naive_confidence(model):
    found, counts = zeros(), zeros()
    for pair in sentences():
        source, prefix = pair[0], [EOS, *pair[1][:-1]]
        tokens = {"enc-self": (source, source), "dec-self": (prefix, prefix), "dec-enc": (prefix, source)}
        with torch.no_grad(), observe(model) as seen:
            model(**alone(pair)["net_input"])
        for attention_type, layers in seen.items():
            queries, keys = tokens[attention_type]
            for layer, attention in layers.items():
                module = next(
                    s for s in attention_modules(model) if (s.attention_type, s.layer) == (attention_type, layer)
                )
                for i, head in enumerate(module.attention.kept):
                    for t, query in enumerate(queries):
                        if query == EOS:
                            continue
                        looked = [attention.weights[0, i, t, s].item() for s, key in enumerate(keys) if key != EOS]
                        found[attention_type][layer][head] += max(looked, default=0.0)
                        counts[attention_type][layer][head] += 1
    return paired(lambda v, n: v / n if n else math.nan, found, counts)


def naive_gradient(model, per_token, step=1e-5):
    """By finite differences: the loss of a sentence with a head's contexts multiplied by 1 +- step.

    All changes of one layer are made in one batch, whose rows are copies of the sentence.
    """
    found = zeros()
    for module in attention_modules(model):
        tokens = 0
        for pair in sentences():
            length = len(pair[0] if module.attention_type == "enc-self" else pair[1])
            tokens += length
            places = range(length) if per_token else [slice(None)]
            changes = list(itertools.product(enumerate(module.attention.kept), places, (1, -1)))

            def change(seen, _, context, module=module, changes=changes):
                if seen.name != module.name:
                    return None
                factor = torch.ones_like(context)
                for row, ((i, _), t, sign) in enumerate(changes):
                    factor[row, i, t] += sign * step
                return context * factor

            with torch.no_grad(), hooked(model, change):
                losses = losses_of_copies(model, pair, len(changes))
            for row, ((_, head), *_) in enumerate(changes[::2]):
                found[module.attention_type][module.layer][head] += abs(
                    losses[2 * row] - losses[2 * row + 1]
                ).item() / (2 * step)
        for head in module.attention.kept:
            found[module.attention_type][module.layer][head] /= tokens if per_token else len(sentences())
    return found


def losses_of_copies(model, pair, number):
    """-ln p of a sentence in every row of a batch of copies."""
    batch = sample([pair] * number)
    logs = model(**batch["net_input"])[0].log_softmax(-1)
    return -logs.gather(-1, batch["target"][..., None]).sum((1, 2))


def difference_quotients(model, step=1e-6):
    """The gradient score of two sentences by finite differences of the loss, with `head_mask` as the gates."""
    found, pairs = {}, sentences()[:2]
    for module in attention_modules(model):
        row = found.setdefault(module.attention_type, [])
        row.append([0.0] * 4)
        for head in range(4):
            for pair in pairs:
                losses = []
                for sign in (1, -1):
                    module.attention.head_mask = torch.ones(4).double()
                    module.attention.head_mask[head] += sign * step
                    with torch.no_grad():
                        losses.append(log_loss(model, pair))
                module.attention.head_mask = None
                row[-1][head] += abs(losses[0] - losses[1]) / (2 * step) / len(pairs)
    return found


def log_loss(model, pair):
    """-ln p of a sentence; from fairseq's own log-probabilities where the softmax is adaptive."""
    if model.decoder.adaptive_softmax is None:
        return loss_of(model, pair).item()
    one = alone(pair)
    logs = model.get_normalized_probs(model(**one["net_input"]), log_probs=True, sample=one)
    return -logs.gather(-1, one["target"][..., None]).sum().item()


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", ODD)
def test_gradient_of_unusual_architectures_equals_finite_differences(name):
    model = make_model(**ODD[name])
    forwards = [module.forward for module in model.modules() if hasattr(module, "precheckpoint_forward")]
    table = scores(model, "gradient", [sample(sentences()[:2])], normalize="none")
    assert_close(table, difference_quotients(model), 1e-6)
    heads = {attention_type: table.heads(attention_type) for attention_type in table.types}
    assert heads and any(map(any, heads.values())) == (name != "no-decoder-layers")
    assert ("enc-self" not in heads) == (name == "no-encoder-layers")
    if name in ("no-cross-attention", "no-decoder-layers"):  # nothing reads the encoder
        assert not any(heads["enc-self"])
    assert [m.forward for m in model.modules() if hasattr(m, "precheckpoint_forward")] == forwards


def test_confidence_of_a_decoder_whose_self_attention_reads_the_source():
    model = make_model(cross_self_attention=True)
    table = scores(model, "confidence")
    found, counts = [[0.0] * 4 for _ in range(2)], 0
    for pair in sentences():
        prefix = [EOS, *pair[1][:-1]]
        with torch.no_grad(), observe(model) as seen:
            model(**alone(pair)["net_input"])
        keys = [*pair[0], *prefix]
        for t, query in enumerate(prefix):
            counts += query != EOS
            for layer, attention in seen["dec-self"].items() if query != EOS else ():
                for head in range(4):
                    looked = [attention.weights[0, head, t, s].item() for s, key in enumerate(keys) if key != EOS]
                    found[layer][head] += max(looked)
    expected = [[value / counts for value in row] for row in found]
    assert torch.allclose(torch.tensor(table.layers["dec-self"]), torch.tensor(expected), atol=1e-9)


@pytest.mark.parametrize("pruned", [False, True])
def test_confidence(pruned):
    model = prune(make_model(), MASK) if pruned else make_model()
    assert_close(scores(model, "confidence"), naive_confidence(model))


@pytest.mark.parametrize("unit", ["sentence", "token"])
def test_gradient(unit):
    model = make_gates(make_model(gate_heads=",".join(TYPES)))
    expected = naive_gradient(model, unit == "token")
    assert_close(scores(model, "gradient", gradient_unit=unit, normalize="none"), expected, 1e-7)
    for rows in expected.values():
        for i, row in enumerate(rows):
            rows[i] = [value / math.sqrt(sum(v**2 for v in row)) for value in row]
    assert_close(scores(model, "gradient", gradient_unit=unit), expected, 1e-6)


def test_ablation():
    model = make_model()
    tokens = sum(len(target) for _, target in sentences())

    def bits(mask):
        with torch.no_grad(), masked(model, HeadTable(mask)):
            return sum(loss_of(model, pair).item() for pair in sentences()) / tokens / math.log(2)

    def without(attention_type, layer, head):
        return {attention_type: [[int((i, j) != (layer, head)) for j in range(4)] for i in range(2)]}

    expected = {each: [[bits(without(each, i, j)) - bits({}) for j in range(4)] for i in range(2)] for each in TYPES}
    assert_close(scores(model, "ablation"), expected)


def test_magnitude_counts_all_weights_of_a_head_and_its_gate():
    model = make_gates(make_model(gate_heads="dec-enc,enc-self,dec-self"))
    expected = zeros()
    for module in attention_modules(model):
        a = module.attention
        gates = a.head_scale()
        for head in range(4):
            part = range(head * 8, head * 8 + 8)
            total = sum(
                p.weight[i, j].item() ** 2 for p in (a.q_proj, a.k_proj, a.v_proj) for i in part for j in range(32)
            )
            total += sum((gates[head] * a.out_proj.weight[j, i]).item() ** 2 for i in part for j in range(32))
            expected[module.attention_type][module.layer][head] = math.sqrt(total)
    assert_close(scores(model, "magnitude"), expected)


def test_gate_is_the_probability_that_it_is_open():
    model = make_model(gate_heads="dec-enc", gate_init=0.3)
    assert_close(
        scores(model, "gate"),
        {attention_type: rows.tolist() for attention_type, rows in open_probabilities(model).items()},
    )


def test_random_depends_on_the_seed_alone():
    model = make_model()
    first, again, other = (scores(m, "random", seed=s) for m, s in ((model, 1), (model, 1), (model, 2)))
    assert first.layers == again.layers != other.layers
    smaller = scores(prune(model, MASK), "random", seed=1)
    assert_close(smaller, kept(first.layers))  # those that stay keep theirs


def kept(values, gone=math.nan):
    """`values`, with `gone` for what `MASK` removes."""
    return paired(lambda v, alive: v if alive else gone, values, MASK.layers)


def test_relevance_is_the_share_of_a_head_in_its_layer(monkeypatch):
    model = make_model()
    expected = scores(model, "relevance")
    assert all(sum(row) == pytest.approx(1) for rows in expected.layers.values() for row in rows)
    head_relevance = importance.head_relevance

    def three_times(*args):
        return {attention_type: 3 * values for attention_type, values in head_relevance(*args).items()}

    monkeypatch.setattr(importance, "head_relevance", three_times)
    assert_close(scores(model, "relevance"), expected.layers)


@pytest.mark.parametrize("method", DATA_METHODS)
def test_scores_do_not_depend_on_batching_or_padding(method):
    model = make_model()
    pairs = sentences()
    together = scores(model, method)
    apart = scores(model, method, [alone(pair) for pair in pairs])
    right = scores(model, method, [sample(pairs[2:], left_pad=False), sample(pairs[:2], left_pad=False)])
    assert_close(together, apart.layers)
    assert_close(together, right.layers)


@pytest.mark.parametrize("method", [*DATA_METHODS, "magnitude"])
def test_a_pruned_model_has_the_scores_of_the_masked_one(method):
    model = make_model()
    pruned = scores(prune(model, MASK), method)
    with masked(model, MASK):
        expected = scores(model, method)
    assert_close(pruned, kept(expected.layers))
    if method in ("gradient", "relevance", "ablation"):  # a masked head changes nothing
        assert_close(expected, kept(expected.layers, gone=0.0))


@pytest.mark.parametrize("method", SCORES)
def test_a_model_without_heads_has_no_scores(method):
    none = HeadTable({attention_type: [[0] * 4] * 2 for attention_type in TYPES})
    table = scores(prune(make_model(), none), method)
    assert all(math.isnan(value) for each in TYPES for value in table.heads(each)) and table.types == TYPES


def test_scores_that_are_not_finite_are_refused():
    model = make_model()
    with torch.no_grad():
        model.encoder.layers[1].self_attn.v_proj.weight[9, 3] = math.nan
    for method in ("gradient", "magnitude"):
        with pytest.raises(ValueError, match=f"the scores of {method} in .* are not finite"):
            scores(model, method)
    with pytest.raises(ValueError, match="the loss is nan: it must be finite"):
        scores(model, "ablation")
