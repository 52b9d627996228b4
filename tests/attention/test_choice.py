"""Choosing heads by scores against brute force, and by gates."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import make_stock
from support.pruning import CLOSED, OPEN, make_case

from fairseq_headgates import HeadTable, prune
from fairseq_headgates.attention.choice import best_heads
from fairseq_headgates.attention.cuts import kept_mask, open_mask
from fairseq_headgates.gates import parse_target
from fairseq_headgates.heads import TYPES
from plan import number_of_heads


def open_tables():
    return HeadTable({attention_type: [[1, 1, 1], [1, 1, 1]] for attention_type in TYPES}, "alive")


@st.composite
def score_tables(draw):
    """(scores, alive, types, min_per_layer): small enough to try every choice; few values, so that there are ties."""
    attention_types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True))
    heads = draw(st.integers(1, 3))
    layers = draw(st.integers(1, 2))
    table = st.lists(st.lists(st.integers(-2, 2), min_size=heads, max_size=heads), min_size=layers, max_size=layers)
    bits = st.lists(st.lists(st.integers(0, 1), min_size=heads, max_size=heads), min_size=layers, max_size=layers)
    scores = HeadTable({attention_type: draw(table) for attention_type in attention_types})
    alive_ = HeadTable({attention_type: draw(bits) for attention_type in TYPES})
    types = draw(st.lists(st.sampled_from(attention_types), max_size=2, unique=True))
    return scores, alive_, types, draw(st.integers(0, 2))


@settings(max_examples=200)
@given(score_tables(), st.data())
def test_best_heads_have_the_highest_sum_of_scores(tables, data):
    """Every subset of the right size that spares each layer is tried: none has a higher sum of scores."""
    scores, present, types, minimum = tables
    chosen = types or list(scores.types)
    candidates = [
        (attention_type, i, j)
        for attention_type in TYPES
        if attention_type in chosen
        for i, row in enumerate(present.layers[attention_type])
        for j, there in enumerate(row)
        if there
    ]
    layers = [[head for head in candidates if head[:2] == layer] for layer in {head[:2] for head in candidates}]
    keep = data.draw(st.integers(0, len(candidates)))

    def score(heads):
        return sum(scores.layers[attention_type][i][j] for attention_type, i, j in heads)

    allowed = [
        set(subset)
        for subset in itertools.combinations(candidates, keep)
        if all(len(set(subset) & set(layer)) >= min(minimum, len(layer)) for layer in layers)
    ]
    if not allowed:
        with pytest.raises(ValueError, match=f"min-per-layer is {minimum}, which keeps .* heads, but keep is {keep}"):
            best_heads(scores, keep, present, types, minimum)
        return
    mask = best_heads(scores, keep, present, types, minimum)
    assert mask.types == present.types
    kept = {(k, i, j) for k in chosen for i, row in enumerate(mask.layers[k]) for j, value in enumerate(row) if value}
    assert kept in allowed
    assert score(kept) == max(map(score, allowed))
    for attention_type in set(TYPES) - set(chosen):  # other types stay as they are
        assert mask.layers[attention_type] == present.layers[attention_type]


def test_ties_go_to_the_earlier_head():
    scores = HeadTable({attention_type: [[7, 7, 7], [7, 7, 7]] for attention_type in TYPES})
    for keep in range(19):
        mask = best_heads(scores, keep, open_tables())
        assert [v for attention_type in TYPES for v in mask.heads(attention_type)] == [1] * keep + [0] * (18 - keep)


@pytest.mark.parametrize(
    ("keep", "left"), [(0, 0), (0.0, 0), (18, 18), (1.0, 18), (1, 1), (0.5, 9), (0.3, 5), (0.34, 6), (5, 5)]
)
def test_a_number_of_heads_or_a_share(keep, left):
    scores = HeadTable({attention_type: [[n + i for n in range(3)] for i in range(2)] for attention_type in TYPES})
    mask = best_heads(scores, keep, open_tables())
    assert sum(mask.count(attention_type)[0] for attention_type in TYPES) == left
    some = best_heads(scores, keep / 18 if keep > 1 else keep * 1.0, open_tables(), ["dec-self"])
    assert some.count("dec-self")[0] == round(6 * (keep / 18 if keep > 1 else keep * 1.0))
    assert some.count("enc-self") == some.count("dec-enc") == (6, 6)


@pytest.mark.parametrize("heads", [1, 2, 5, 7, 8, 24, 27, 36, 144])
def test_fractions_of_heads_are_rounded_by_one_rule(heads):
    """Halves up, of the fraction as it is written: 0.145 of 100 is 14.5. In --target-heads, --keep and recipes."""
    scores = HeadTable({"enc-self": [[*range(heads)]]})
    for thousandths in range(0, 1001, 5):
        share = f"{thousandths / 1000:.3f}"
        expected = math.floor(Fraction(thousandths, 1000) * heads + Fraction(1, 2))
        assert parse_target(share).counts({"enc-self": heads}) == {("enc-self",): expected}
        assert best_heads(scores, float(share)).count("enc-self")[0] == expected
        assert number_of_heads(float(share), heads) == expected


def test_the_mask_keeps_the_signature_of_the_scores():
    scores = HeadTable({"enc-self": [[1, 2, 3], [1, 2, 3]]}, "gradient", "gradient|split:valid")
    assert best_heads(scores, 2, open_tables()).signature == "gradient|split:valid"


@pytest.mark.parametrize(
    ("scores", "keep", "types", "minimum", "message"),
    [
        ({"enc-self": [[1, 2, 3]] * 2}, 7, [], 0, "keep is 7: it must be from 0 to 6, the number of heads of enc-self"),
        ({"enc-self": [[1, 2, 3]] * 2}, -1, [], 0, "keep is -1"),
        ({"enc-self": [[1, 2, 3]] * 2}, 1.5, [], 0, "keep is 1.5: it must be from 0 to 6, .* or a fraction of them"),
        ({"enc-self": [[1, 2, 3]] * 2}, 2, ["dec-enc"], 0, "no scores of dec-enc: choose types from enc-self"),
        ({"enc-self": [[1, 2, 3], [1, 2]]}, 2, [], 0, "enc-self layer 1 has 2 heads, the model has 3"),
        ({"enc-self": [[1, 2, 3]] * 2}, 3, [], 2, "min-per-layer is 2, which keeps 4 heads, but keep is 3"),
    ],
)
def test_choices_that_cannot_be_made_are_refused(scores, keep, types, minimum, message):
    with pytest.raises(ValueError, match=message) as error:
        best_heads(HeadTable(scores), keep, open_tables(), types, minimum)
    assert "\n" not in str(error.value)


def test_removed_heads_are_not_candidates():
    model = make_case(0, values=[OPEN]).model(gates=False)
    pruned = prune(model, HeadTable({"enc-self": [[0, 1, 1, 0], [0, 0, 1, 1]]}))
    scores = HeadTable({"enc-self": [[9, 1, 2, 9], [9, 9, 4, 3]]})
    mask = best_heads(scores, 2, kept_mask(pruned))
    assert mask.layers["enc-self"] == [[0, 0, 0, 0], [0, 0, 1, 1]]
    without = HeadTable({"enc-self": [[math.nan, 1, 2, math.nan], [math.nan, math.nan, 4, 3]]})
    assert (
        best_heads(without, 2).layers["enc-self"] == mask.layers["enc-self"]
    )  # a head without a score is a removed one
    assert best_heads(scores, 0.75, kept_mask(pruned)).layers["enc-self"] == [[0, 0, 1, 0], [0, 0, 1, 1]]
    with pytest.raises(ValueError, match="keep is 5: it must be from 0 to 4"):
        best_heads(scores, 5, kept_mask(pruned))
    assert kept_mask(prune(pruned, mask)).layers["enc-self"] == mask.layers["enc-self"]


def test_open_heads_by_gate_and_by_probability():
    case = make_case(2)
    model = case.model()
    assert open_mask(model).layers == {k: [[int(a != CLOSED) for a in r] for r in v] for k, v in case.log_alpha.items()}

    def opens(log_alpha):  # P(g != 0) = sigmoid(log_alpha - temperature log(-low/high)), by hand
        return 1 / (1 + math.exp(-(log_alpha - 0.33 * math.log(0.1 / 1.1))))

    for threshold in (0.0, 0.1, 0.5, 0.8, 1.0):
        expected = {k: [[int(opens(a) >= threshold) for a in r] for r in v] for k, v in case.log_alpha.items()}
        assert open_mask(model, threshold).layers == expected
    low = prune(model, open_mask(model, 0.0))  # a gate that is 0 goes in any case
    assert kept_mask(low).layers == open_mask(model).layers
    for threshold in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="from 0 to 1"):
            open_mask(model, threshold)
    for threshold in (None, 1.0):  # heads without gates are open in any case
        assert open_mask(make_stock(), threshold).layers == {attention_type: [[1] * 4] * 2 for attention_type in TYPES}
