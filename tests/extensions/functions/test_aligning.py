"""Word alignments from attention weights and contributions, against loops over words."""

import pytest
import torch
from support.functions import UNKNOWN, Task, sentences, words_of
from support.models import make_gated
from support.sentences import sample

from fairseq_headgates import observe, relevance
from fairseq_headgates.extensions.functions.aligning import align, attention_of, contributions_by
from fairseq_headgates.heads import HeadId
from fairseq_headgates.heads.functions import best_head

HEADS = [HeadId("dec-enc", 0, 2), HeadId("dec-enc", 1, 0), HeadId("dec-enc", 1, 3)]


def weights_of(model, batch, method):
    """The mean weights [T, S] of some heads, or the relevance of the source, for one sentence pair."""
    if method:
        found = relevance.explain(model, batch["net_input"], method, batch["target"])
        return found.source[0] / (found.source[0].abs().sum(-1) + found.target[0].abs().sum(-1))[:, None]
    with observe(model) as seen, torch.no_grad():
        model(**batch["net_input"])
    return sum(seen["dec-enc"][head.layer].weights[0, head.head] for head in HEADS) / len(HEADS)


@pytest.mark.parametrize("method", ["", "alti", "attnlrp"])
@pytest.mark.parametrize(("subwords", "languages"), [(True, False), (False, False), (False, True)])
def test_each_target_word_is_aligned_with_the_largest_weight(method, subwords, languages):
    task, pairs, model = Task(subwords, languages), sentences(languages), make_gated().eval()
    batches = [sample(pairs[:3]), {**sample(pairs[3:]), "id": torch.tensor([3, 4])}]
    weights = contributions_by(model, method) if method else attention_of(model, HEADS)
    found = align(model, task, batches, weights)
    for number, pair in enumerate(pairs):
        w = weights_of(model, sample([pair]), method).tolist()
        sources, targets = (words_of(task, side) for side in pair)
        expected = []
        for b, query in enumerate(targets):
            sums = [sum(w[t][s] for t in query for s in key) / len(query) for key in sources]
            expected.append((sums.index(max(sums)), b))
        unknown = subwords and UNKNOWN in [*pair[0], *pair[1]]
        assert found.of[number] == (None if unknown else sorted(expected))
    lines = found.lines().splitlines()
    assert len(lines) == len(pairs) and (lines[2] == "") == subwords
    assert lines[0].split() == [f"{a}-{b}" for a, b in found.of[0]]


def test_the_best_head_is_open():
    entries = [
        {"gate": gate, "words": {"alignment": {"rate": rate}}} for gate, rate in ((1, 0.2), (0, 0.9), (0.5, 0.4))
    ]
    assert best_head({"heads": {"dec-enc": [[None, *entries]]}}) == HeadId("dec-enc", 0, 3)
    with pytest.raises(ValueError, match="give word alignments that have some"):
        best_head({"heads": {"dec-enc": [[{"gate": 1}]]}})
