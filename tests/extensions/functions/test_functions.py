"""Functions of heads against naive loops: one sentence, one head, one token at a time, no padding."""

import math
from collections import Counter, defaultdict

import pytest
import torch
from support.functions import UNKNOWN, Task, annotated, found, links_of, sentences, tree_of, words_of
from support.models import VOCABULARY
from support.sentences import EOS, MASK, alone, make_model, sample

from fairseq_headgates import observe, prune
from fairseq_headgates.attention.anatomy import attention_modules
from fairseq_headgates.data.symbols import subwords_of
from fairseq_headgates.extensions.functions.layout import FREQUENT, STATISTICS
from fairseq_headgates.heads import TYPES


def naive(model, task, pairs):
    """{(attention type, layer, head, what): Counter or [sum, number]}, from the attention of one sentence at a time."""
    offsets, sums = defaultdict(Counter), defaultdict(lambda: [0.0, 0])
    for pair in pairs:
        source, target = pair
        prefix = [EOS, *target[:-1]]
        with torch.no_grad(), observe(model) as seen:
            model(**alone(pair)["net_input"])
        for attention_type, layers in seen.items():
            keys = prefix if attention_type == "dec-self" else source
            queries = {"enc-self": source, "dec-self": prefix, "dec-enc": target}[attention_type]
            entering = source if attention_type == "enc-self" else prefix
            for layer, observed in layers.items():
                module = next(
                    s for s in attention_modules(model) if (s.attention_type, s.layer) == (attention_type, layer)
                )
                for i, head in enumerate(module.attention.kept):
                    w = observed.weights[0, i].tolist()
                    one_head(task, offsets, sums, (attention_type, layer, head), w, keys, queries, entering)
                    one_tree(task, sums, (attention_type, layer, head), w, pair)
    return offsets, sums


def one_head(task, offsets, sums, where, w, keys, queries, entering):
    def add(what, value):
        sums[(*where, what)][0] += value
        sums[(*where, what)][1] += 1

    def first(tokens):
        return next((i for i, token in enumerate(tokens) if token not in task.no_words), 0)

    rare = sorted({key for key in keys if key not in task.no_words}, key=rank)
    shift = first(queries) - first(keys)  # positions are counted from the first word
    before = None
    for t, query in enumerate(queries):
        places = [s for s, key in enumerate(keys) if key not in task.no_words]
        word = max(places, key=lambda s: w[t][s]) if places else None
        if entering[t] not in task.no_words:
            add("confidence", w[t][word] if places else 0)
        if query in task.no_words:
            before = None
            continue
        best = max(range(len(keys)), key=lambda s: w[t][s])
        offsets[where][best - t + shift] += 1
        there = range(t + 1 if where[0] == "dec-self" else len(keys))
        offsets[(*where, "exists")].update(s - t + shift for s in there)
        add("entropy", -sum(x * math.log2(x) for x in w[t] if x > 0))
        add("eos", sum(x for x, key in zip(w[t], keys, strict=True) if key in task.no_words))
        add("first", w[t][min(places)] if places else 0)
        if where[0] != "dec-enc":
            add("itself", w[t][t])
            same = [s for s in range(t) if keys[s] == query]
            if same and query != UNKNOWN:
                add("same form", w[t][same[-1]])
        else:
            if before is not None:
                add("monotonic", float(word >= before))
            before = word
        if where[0] != "dec-self" and rank(rare[-1]) >= FREQUENT:
            add("rare", float(keys[word] == rare[-1]))
            add("two", float(keys[word] in rare[-2:]))


def rank(token):
    """By the counts of `Task`; an unknown token is the rarest."""
    return VOCABULARY + 4 if token == UNKNOWN else token - 4


def one_tree(task, sums, where, w, pair):
    attention_type = where[0]
    keys, queries = (words_of(task, pair[side]) for side in ((0, 0), (1, 1), (0, 1))[TYPES.index(attention_type)])
    if attention_type == "dec-self":  # the input of the decoder begins with EOS
        keys = queries = [[i + 1 for i in word] for word in keys]

    def best(query):
        sums_ = [sum(sum(w[t][s] for s in key) for t in queries[query]) / len(queries[query]) for key in keys]
        return sums_.index(max(sums_))

    if attention_type == "dec-enc":
        if subwords_of(task.source_dictionary.symbols) != "none" and UNKNOWN in [*pair[0], *pair[1]]:
            return
        links = links_of(task, pair)
        for query in {b for _, b in links}:
            sums[(*where, "alignment")][0] += (best(query), query) in links
            sums[(*where, "alignment")][1] += 1
        return
    tokens = pair[0] if attention_type == "enc-self" else pair[1]
    unknown = {i for i, word in enumerate(words_of(task, tokens)) if UNKNOWN in (tokens[p] for p in word)}
    tree = tree_of(task, tokens)
    for word, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True)):
        if head < 0 or relation == "dep" or {word, head} & unknown:
            continue
        for query, key, end in ((word, head, "governor"), (head, word, "dependent")):
            if attention_type == "dec-self" and key >= query:
                continue
            name = f"{relation.partition(':')[0]} to {end}"
            sums[(*where, name)][0] += best(query) == key
            sums[(*where, name)][1] += 1


@pytest.mark.cases(5)
@pytest.mark.parametrize("subwords", [True, False])
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize(("left_pad", "languages"), [(True, False), (True, True), (False, True)])
def test_all_numbers_equal_naive_counts(subwords, pruned, left_pad, languages, monkeypatch):
    monkeypatch.setattr("fairseq_headgates.extensions.functions.layout.FREQUENT", 30)
    monkeypatch.setitem(globals(), "FREQUENT", 30)
    task, pairs = Task(subwords, languages), sentences(languages)
    model = make_model()
    model = prune(model, MASK).double().eval() if pruned else model
    offsets, sums = naive(model, task, pairs)
    batches = [sample(pairs[:3], left_pad), {**sample(pairs[3:], left_pad), "id": torch.tensor([3, 4])}]
    result = found(model, task, batches, annotated(task, pairs))
    compared = Counter()
    for attention_type in TYPES:
        for layer, row in enumerate(result["heads"][attention_type]):
            for head, entry in enumerate(row):
                where = (attention_type, layer, head)
                if entry is None:
                    assert pruned and MASK.layers[attention_type][layer][head] == 0 and where not in offsets
                    continue
                count, best = sum(offsets[where].values()), entry["positional"]["offset"]
                rates = {str(offset): n / count for offset, n in offsets[where].items()}
                assert entry["positional"]["offsets"] == pytest.approx(rates)
                assert rates[str(best)] == max(rates.values())
                exists = offsets[(*where, "exists")][best]
                assert entry["positional"]["count"] == exists
                assert entry["positional"]["rate"] == offsets[where][best] / exists
                own = dict(entry["statistics"])
                if attention_type != "dec-self":
                    own |= {"two": entry["rare"]["rate"], "rare": entry["rare"]["rarest"]}
                    assert entry["rare"]["count"] == sums[(*where, "rare")][1] > 0
                own |= {name: value["rate"] for name, value in entry["words"].items()}
                wanted = {what: s / n for (*place, what), (s, n) in sums.items() if tuple(place) == where}
                assert own == pytest.approx(wanted, abs=1e-6)
                for name, value in entry["words"].items():
                    assert value["count"] == sums[(*where, name)][1]
                    assert value["low"] <= value["rate"] <= value["high"]
                compared.update(own)
    assert set(compared) >= {*STATISTICS[:-2], "alignment", "rare", "nsubj to governor", "obj to dependent"}


def test_the_baseline_is_the_most_frequent_offset():
    task, pairs = Task(), sentences()
    result = found(make_model(), task, [sample(pairs)], annotated(task, pairs))
    for attention_type, side in (("enc-self", 0), ("dec-self", 1)):
        offsets = defaultdict(Counter)
        for pair in pairs:
            tree = tree_of(task, pair[side])
            unknown = {i for i, w in enumerate(words_of(task, pair[side])) if UNKNOWN in (pair[side][p] for p in w)}
            for word, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True)):
                if head < 0 or relation == "dep" or {word, head} & unknown:
                    continue
                for offset, end in ((head - word, "governor"), (word - head, "dependent")):
                    if attention_type == "enc-self" or offset < 0:
                        offsets[f"{relation.partition(':')[0]} to {end}"][offset] += 1
        assert set(result["relations"][attention_type]) == set(offsets)
        for name, counter in offsets.items():
            stated = result["relations"][attention_type][name]
            assert stated["count"] == sum(counter.values())
            assert stated["baseline"] == max(counter.values()) / stated["count"]
            assert counter[stated["offset"]] == max(counter.values())
