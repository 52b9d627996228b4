"""The overlap of masks equals that of all masks, counted one by one."""

import math
from itertools import combinations, product

import pytest

from fairseq_headgates.heads import HeadTable
from fairseq_headgates.scores.agreement import Overlap, overlap

A = HeadTable({"enc-self": [[1, 1, 0], [0, 0, 1]], "dec-enc": [[1, 0, 0, 1]]}, "a")
B = HeadTable({"enc-self": [[1, 0, 0], [0, 1, 1]], "dec-enc": [[0, 0, 0, 1]]}, "b")


def kept(mask, attention_type):
    return {i for i, value in enumerate(mask.heads(attention_type)) if value}


@pytest.mark.parametrize("types", [("enc-self",), ("dec-enc",), ("enc-self", "dec-enc")])
def test_chance_is_that_of_all_masks_with_as_many_heads_of_each_type(types):
    found, common = (
        overlap(A, B, types),
        sum(len(kept(A, attention_type) & kept(B, attention_type)) for attention_type in types),
    )
    masks = [list(combinations(range(len(A.heads(each))), len(kept(B, each)))) for each in types]
    counts = [sum(len(kept(A, k) & {*m}) for k, m in zip(types, mask, strict=True)) for mask in product(*masks)]
    assert found.common == common and found.heads == sum(len(A.heads(attention_type)) for attention_type in types)
    assert found.p == pytest.approx(sum(count >= common for count in counts) / len(counts))
    assert found.expected == pytest.approx(sum(counts) / len(counts))
    either = sum(len(kept(A, attention_type) | kept(B, attention_type)) for attention_type in types)
    assert found.jaccard == common / either


def test_masks_that_keep_nothing_or_all():
    none, every = A.map(lambda value: 0.0), A.map(lambda value: 1.0)
    empty = overlap(none, none)
    assert (empty.common, empty.p) == (0, 1) and math.isnan(empty.jaccard)
    assert overlap(every, every) == Overlap(10, (10, 10), 10, 10.0, 1.0, 1.0)
    assert overlap(A, every).p == pytest.approx(1) and overlap(A, every).jaccard == 0.5
