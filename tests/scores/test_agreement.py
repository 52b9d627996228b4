"""Correlations against their formulas."""

import math
import random

import pytest

from fairseq_headgates.heads import HeadTable
from fairseq_headgates.scores.agreement import agreement


def table(values, attention_type="enc-self", name="a"):
    return HeadTable({attention_type: [values[:3], values[3:]]}, name)


def pearson(x, y):
    mx, my = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return covariance / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


def ranks(x):
    """From 1; equal values share the mean of their ranks."""
    return [sum(b < a for b in x) + (1 + sum(b == a for b in x)) / 2 for a in x]


X, Y = [0.3, 2.0, -1.0, 5.0, 0.5, 0.5], [1.0, 1.5, -2.0, 9.0, 0.0, 3.0]


def test_correlations_and_overlap_equal_naive_formulas():
    found = agreement(table(X), table(Y), top=2)
    assert (found.heads, found.top) == (6, 2)
    assert found.pearson == pytest.approx(pearson(X, Y))
    assert found.spearman == pytest.approx(pearson(ranks(X), ranks(Y)))
    assert found.shared == 0.5  # 3 and 1; 3 and 5
    same = agreement(table(X), table(X))
    assert (same.pearson, same.spearman, same.shared, same.top) == (pytest.approx(1), pytest.approx(1), 1.0, 1)


def test_a_tie_leaves_open_which_heads_are_the_best():
    """The third and the fourth of X are equal."""
    shared = [agreement(table(X), table(Y), top=top).shared for top in (2, 3, 4)]
    assert math.isnan(shared[1]) and not math.isnan(shared[0]) and not math.isnan(shared[2])


def test_p_value_equals_that_of_a_permutation_test():
    generator = random.Random(0)
    shuffled, count, draws = list(Y), 0, 4000
    r = pearson(X, Y)
    for _ in range(draws):
        generator.shuffle(shuffled)
        count += abs(pearson(X, shuffled)) >= abs(r) - 1e-12
    assert agreement(table(X), table(Y)).pearson_p == pytest.approx(count / draws, abs=0.03)


def test_types_can_be_chosen():
    a = HeadTable({"enc-self": [X], "dec-self": [Y]}, "a")
    b = HeadTable({"enc-self": [Y], "dec-self": [Y], "dec-enc": [Y]}, "b")
    assert agreement(a, b).heads == 12
    assert agreement(a, b, ["enc-self"]).pearson == pytest.approx(pearson(X, Y))
    assert agreement(a, b, ["dec-self"]).pearson == pytest.approx(1)


def test_constant_scores_have_no_correlation():
    found = agreement(table([1.0] * 6), table(Y))
    assert math.isnan(found.pearson) and math.isnan(found.spearman) and math.isnan(found.spearman_p)
    assert math.isnan(found.shared)  # which heads would be the best?


@pytest.mark.parametrize("scale", [1e308, 1e-320])
def test_huge_and_tiny_scores_have_a_correlation(scale):
    x = [value / 5 * scale for value in X]
    found = agreement(table(x), table(Y))
    assert found.pearson == pytest.approx(pearson(X, Y), abs=1e-3)  # 1e-320 has few digits
    assert found.spearman == pytest.approx(pearson(ranks(X), ranks(Y)))


def test_heads_removed_from_one_model_are_ignored():
    gone = [0.3, math.nan, -1.0, 5.0, 0.5, 0.7]
    found = agreement(table(gone), table(Y), top=2)
    rest = [(x, y) for x, y in zip(gone, Y, strict=True) if not math.isnan(x)]
    assert found.heads == 5 and found.pearson == pytest.approx(pearson(*zip(*rest, strict=True)))


@pytest.mark.parametrize(
    ("other", "options", "words"),
    [
        (HeadTable({"enc-self": [[1, 2], [3, 4]]}, "b"), {}, "different heads: .3, 3. and .2, 2. in the layers of"),
        (table(Y, "dec-enc", "b"), {}, "a is of enc-self, b of dec-enc: they have no attention type in common"),
        (table(Y, name="b"), {"top": 7}, "top is 7: it must be from 1 to 6"),
    ],
)  # fmt: skip
def test_incomparable_score_tables_are_refused(other, options, words):
    with pytest.raises(ValueError, match=words):
        agreement(table(X), other, **options)
