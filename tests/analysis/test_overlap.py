"""The overlap of masks equals that of all masks, counted one by one."""

import math
from itertools import combinations, product

import pytest

from fairseq_headgates.analysis.overlap import Overlap, overlap
from fairseq_headgates.heads import HeadTable

A = HeadTable({"enc-self": [[1, 1, 0], [0, 0, 1]], "dec-enc": [[1, 0, 0, 1]]}, "a")
B = HeadTable({"enc-self": [[1, 0, 0], [0, 1, 1]], "dec-enc": [[0, 0, 0, 1]]}, "b")


def kept(mask, kind):
    return {i for i, value in enumerate(mask.heads(kind)) if value}


@pytest.mark.parametrize("types", [("enc-self",), ("dec-enc",), ("enc-self", "dec-enc")])
def test_chance_is_that_of_all_masks_with_as_many_heads_of_each_type(types):
    found, common = overlap(A, B, types), sum(len(kept(A, kind) & kept(B, kind)) for kind in types)
    masks = [list(combinations(range(len(A.heads(kind))), len(kept(B, kind)))) for kind in types]
    counts = [sum(len(kept(A, k) & {*m}) for k, m in zip(types, mask, strict=True)) for mask in product(*masks)]
    assert found.common == common and found.heads == sum(len(A.heads(kind)) for kind in types)
    assert found.p == pytest.approx(sum(count >= common for count in counts) / len(counts))
    assert found.expected == pytest.approx(sum(counts) / len(counts))
    either = sum(len(kept(A, kind) | kept(B, kind)) for kind in types)
    assert found.jaccard == common / either


def test_masks_that_keep_nothing_or_all():
    none, every = A.map(lambda value: 0.0), A.map(lambda value: 1.0)
    empty = overlap(none, none)
    assert (empty.common, empty.p) == (0, 1) and math.isnan(empty.jaccard)
    assert overlap(every, every) == Overlap(10, (10, 10), 10, 10.0, 1.0, 1.0)
    assert overlap(A, every).p == pytest.approx(1) and overlap(A, every).jaccard == 0.5
