"""Functions of heads against naive loops: one sentence, one head, one token at a time, no padding."""

import math
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from support.models import VOCABULARY, make_args, make_stock
from support.sentences import EOS, MASK, alone, make_model, sample

import make_corpus
from fairseq_headgates import gate_values, observe, prune
from fairseq_headgates.analysis.functions import Annotations, count_functions, functions_of, kept_functions
from fairseq_headgates.analysis.functions.counting import STATISTICS, _Pass
from fairseq_headgates.analysis.functions.layout import FREQUENT, frequency_ranks
from fairseq_headgates.analysis.functions.trees import Tree, parse_relations, read_trees
from fairseq_headgates.analysis.functions.words import subwords_of
from fairseq_headgates.analysis.options import FunctionOptions
from fairseq_headgates.evaluation import Corpus
from fairseq_headgates.heads import TYPES
from fairseq_headgates.models import TransformerHeadGatesModel
from fairseq_headgates.surgery import head_sites

RELATIONS = ("nsubj", "obj")
UNKNOWN = 3


class Task:
    """A joint dictionary in which the symbols with an even number continue a word."""

    def __init__(self, subwords=True):
        dictionary = Dictionary()
        for i in range(VOCABULARY):
            # The counts of pairs of symbols are the same; one is rarer than FREQUENT others if these are 30.
            dictionary.add_symbol(f"w{i}" + ("@@" if subwords and i % 2 == 0 else ""), n=1000 - i // 2)
        self.source_dictionary = self.target_dictionary = dictionary


def sentences():
    generator = torch.Generator().manual_seed(5)
    pairs = []
    for source, target in ((9, 8), (4, 11), (12, 3), (6, 6), (1, 2)):
        words = torch.randint(4, VOCABULARY + 4, (source + target,), generator=generator).tolist()
        pairs.append((words[:source] + [EOS], words[source:] + [EOS]))
    pairs[0][0][2] = pairs[0][0][5] = pairs[0][0][6]  # a token that occurs three times
    pairs[1][1][3] = pairs[1][1][4] = pairs[1][1][0]
    pairs[2][0][3] = UNKNOWN
    return pairs


def symbol(task, token):
    return "<unk>" if token == UNKNOWN else task.source_dictionary.symbols[token]


def words_of(task, tokens):
    """[[positions of the tokens of a word], ...], EOS left out."""
    words, inside = [], False
    for i, token in enumerate(tokens):
        if token == EOS:
            continue
        if not inside or token == UNKNOWN:
            words.append([])
        words[-1].append(i)
        inside = symbol(task, token).endswith("@@") and token != UNKNOWN
    return words


def tree_of(task, tokens):
    """A chain of words: each is the subject or the object of the next but one, or of the word before."""
    words = words_of(task, tokens)
    forms = ["".join(symbol(task, tokens[i]).removesuffix("@@") for i in word) for word in words]
    heads = [i + 2 if i + 2 < len(words) else i - 1 for i in range(len(words))]
    return Tree(tuple(forms), tuple(heads), tuple(("nsubj:pass", "obj", "dep")[i % 3] for i in range(len(words))))


def links_of(task, pair):
    source, target = (len(words_of(task, side)) for side in pair)
    return frozenset((a, b) for a in range(source) for b in range(target) if (a + 2 * b) % 3 == 0)


def naive(model, task, pairs):
    """{(kind, layer, head, what): Counter or [sum, number]}, from the attention of one sentence after the other."""
    offsets, sums = defaultdict(Counter), defaultdict(lambda: [0.0, 0])
    for pair in pairs:
        source, target = pair
        prefix = [EOS, *target[:-1]]
        with torch.no_grad(), observe(model) as seen:
            model(**alone(pair)["net_input"])
        for kind, layers in seen.items():
            keys = prefix if kind == "dec-self" else source
            queries = {"enc-self": source, "dec-self": prefix, "dec-enc": target}[kind]
            entering = source if kind == "enc-self" else prefix
            for layer, observed in layers.items():
                site = next(s for s in head_sites(model) if (s.kind, s.layer) == (kind, layer))
                for i, head in enumerate(site.attention.kept):
                    w = observed.weights[0, i].tolist()
                    one_head(offsets, sums, (kind, layer, head), w, keys, queries, entering)
                    one_tree(task, sums, (kind, layer, head), w, pair)
    return offsets, sums


def one_head(offsets, sums, where, w, keys, queries, entering):
    def add(what, value):
        sums[(*where, what)][0] += value
        sums[(*where, what)][1] += 1

    rare = sorted({key for key in keys if key != EOS}, key=rank)
    before = None
    for t, query in enumerate(queries):
        places = [s for s, key in enumerate(keys) if key != EOS]
        word = max(places, key=lambda s: w[t][s]) if places else None
        if entering[t] != EOS:
            add("confidence", w[t][word] if places else 0)
        if query == EOS:
            before = None
            continue
        best = max(range(len(keys)), key=lambda s: w[t][s])
        offsets[where][best - t] += 1
        add("entropy", -sum(x * math.log2(x) for x in w[t] if x > 0))
        add("eos", sum(x for x, key in zip(w[t], keys, strict=True) if key == EOS))
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
    kind = where[0]
    keys, queries = (words_of(task, pair[side]) for side in ((0, 0), (1, 1), (0, 1))[TYPES.index(kind)])
    if kind == "dec-self":  # the input of the decoder begins with EOS
        keys = queries = [[i + 1 for i in word] for word in keys]

    def best(query):
        sums_ = [sum(sum(w[t][s] for s in key) for t in queries[query]) / len(queries[query]) for key in keys]
        return sums_.index(max(sums_))

    if kind == "dec-enc":
        if subwords_of(task.source_dictionary.symbols) != "none" and UNKNOWN in [*pair[0], *pair[1]]:
            return
        links = links_of(task, pair)
        for query in {b for _, b in links}:
            sums[(*where, "alignment")][0] += (best(query), query) in links
            sums[(*where, "alignment")][1] += 1
        return
    tokens = pair[0] if kind == "enc-self" else pair[1]
    unknown = {i for i, word in enumerate(words_of(task, tokens)) if UNKNOWN in (tokens[p] for p in word)}
    tree = tree_of(task, tokens)
    for word, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True)):
        if head < 0 or relation == "dep" or {word, head} & unknown:
            continue
        for query, key, end in ((word, head, "governor"), (head, word, "dependent")):
            if kind == "dec-self" and key >= query:
                continue
            name = f"{relation.partition(':')[0]} to {end}"
            sums[(*where, name)][0] += best(query) == key
            sums[(*where, name)][1] += 1


def annotated(task, pairs):
    trees = {"source": [tree_of(task, s) for s, _ in pairs], "target": [tree_of(task, t) for _, t in pairs]}
    return Annotations(trees, RELATIONS, [links_of(task, pair) for pair in pairs])


def found(model, task, batches, annotations, **options):
    counts = count_functions(model, Corpus(task, batches), annotations)
    return functions_of(counts, FunctionOptions(**options), gate_values(model))


@pytest.mark.parametrize("subwords", [True, False])
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("left_pad", [True, False])
def test_all_numbers_equal_naive_counts(subwords, pruned, left_pad, monkeypatch):
    monkeypatch.setattr("fairseq_headgates.analysis.functions.layout.FREQUENT", 30)
    monkeypatch.setattr("fairseq_headgates.analysis.functions.counting.FREQUENT", 30)
    monkeypatch.setitem(globals(), "FREQUENT", 30)
    task, pairs = Task(subwords), sentences()
    model = make_model()
    model = prune(model, MASK).double().eval() if pruned else model
    offsets, sums = naive(model, task, pairs)
    batches = [sample(pairs[:3], left_pad), {**sample(pairs[3:], left_pad), "id": torch.tensor([3, 4])}]
    result = found(model, task, batches, annotated(task, pairs))
    compared = Counter()
    for kind in TYPES:
        for layer, row in enumerate(result["heads"][kind]):
            for head, entry in enumerate(row):
                where = (kind, layer, head)
                if entry is None:
                    assert pruned and MASK.values[kind][layer][head] == 0 and where not in offsets
                    continue
                count = sum(offsets[where].values())
                assert entry["positional"]["count"] == count
                rates = {str(offset): n / count for offset, n in offsets[where].items()}
                assert entry["positional"]["offsets"] == pytest.approx(rates)
                assert entry["positional"]["rate"] == max(rates.values())
                own = dict(entry["statistics"])
                if kind != "dec-self":
                    own |= {"two": entry["rare"]["rate"], "rare": entry["rare"]["rarest"]}
                    assert entry["rare"]["count"] == sums[(*where, "rare")][1] > 0
                own |= {name: value["rate"] for name, value in entry["words"].items()}
                wanted = {what: s / n for (*place, what), (s, n) in sums.items() if tuple(place) == where}
                assert own == pytest.approx(wanted, abs=1e-6)
                for name, value in entry["words"].items():
                    assert value["count"] == sums[(*where, name)][1]
                    assert value["low"] <= value["rate"] <= value["high"]
                compared.update(own)
    assert set(compared) >= {*STATISTICS, "monotonic", "alignment", "rare", "nsubj to governor", "obj to dependent"}


def test_the_baseline_is_the_most_frequent_offset():
    task, pairs = Task(), sentences()
    result = found(make_model(), task, [sample(pairs)], annotated(task, pairs))
    for kind, side in (("enc-self", 0), ("dec-self", 1)):
        offsets = defaultdict(Counter)
        for pair in pairs:
            tree = tree_of(task, pair[side])
            unknown = {i for i, w in enumerate(words_of(task, pair[side])) if UNKNOWN in (pair[side][p] for p in w)}
            for word, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True)):
                if head < 0 or relation == "dep" or {word, head} & unknown:
                    continue
                for offset, end in ((head - word, "governor"), (word - head, "dependent")):
                    if kind == "enc-self" or offset < 0:
                        offsets[f"{relation.partition(':')[0]} to {end}"][offset] += 1
        assert set(result["relations"][kind]) == set(offsets)
        for name, counter in offsets.items():
            stated = result["relations"][kind][name]
            assert stated["count"] == sum(counter.values())
            assert stated["baseline"] == max(counter.values()) / stated["count"]
            assert counter[stated["offset"]] == max(counter.values())


def test_functions_are_named_by_their_thresholds(monkeypatch):
    monkeypatch.setattr("fairseq_headgates.analysis.functions.counting.FREQUENT", 30)
    task, pairs = Task(), sentences()
    model, annotations = make_model(), annotated(task, pairs)
    everything = found(model, task, [sample(pairs)], annotations, positional=0, rare=0)
    nothing = found(model, task, [sample(pairs)], annotations, positional=100, margin=100, rare=100)
    for kind, layer, head in [(kind, layer, head) for kind in TYPES for layer in range(2) for head in range(4)]:
        entry = everything["heads"][kind][layer][head]
        assert entry["functions"][0] == f"positional {entry['positional']['offset']:+d}"
        assert ("rare" in entry["functions"]) == (kind != "dec-self")
        named = {"positional +0": entry["positional"]["rate"], "rare": entry.get("rare", {}).get("rate")}
        assert all(named.get(name) == 1 for name in nothing["heads"][kind][layer][head]["functions"])


def test_a_relation_needs_the_margin_and_the_interval():
    """Beside a baseline of 1 in 2: of few pairs all are not enough, of many 58 in 100 are too few, 61 in 100 enough."""
    for number, hits, expected in (
        (3, 3, []),
        (40, 40, ["nsubj to governor"]),
        (4000, 2320, []),
        (4000, 2440, ["nsubj to governor"]),
    ):
        counts = fake_counts(number, hits)
        result = functions_of(counts, FunctionOptions(margin=10), {"enc-self": torch.ones(1, 1)})
        assert result["heads"]["enc-self"][0][0]["functions"] == expected


def fake_counts(number, hits):
    task, pairs = Task(False), [([4, 5, 6, 7, EOS], [4, EOS])]
    model = make_model(encoder_layers=1)
    trees = {"source": [tree_of(task, pairs[0][0])]}
    counts = count_functions(model, Corpus(task, [sample(pairs)]), Annotations(trees, ["nsubj"], rare=False))
    counts.heads = [head for head in counts.heads if head.site.kind == "enc-self"]
    counts.kinds = {"enc-self": counts.kinds["enc-self"]}
    counts.heads[0].pairs[:] = 0
    counts.heads[0].pairs[0] = hits
    offsets = counts.kinds["enc-self"].offsets
    offsets[:] = 0
    offsets[0, :2] = number / 2
    counts.heads[0].offsets = counts.heads[0].offsets[:1] * 0 + 1
    counts.heads[0].site.attention.heads, counts.heads[0].site.attention.kept = 1, (0,)
    return counts


def test_sentences_with_unknown_tokens_have_no_alignment():
    """With subwords: where an unknown token begins and ends is not known."""
    for subwords in (True, False):
        task, pairs = Task(subwords), sentences()
        result = found(make_model(), task, [sample(pairs)], annotated(task, pairs))
        assert result["alignments"] == {"sentences": 5, "left_out": int(subwords)}


def test_a_batch_without_words(monkeypatch):
    task, pairs = Task(), [([EOS], [5, EOS]), ([EOS], [6, EOS])]
    empty = Tree((), (), ())
    annotations = Annotations({"source": [empty] * 2}, RELATIONS, [frozenset()] * 2)
    result = found(make_model(), task, [sample(pairs)], annotations)
    assert result["trees"]["source"]["words"] == 0 and not result["relations"]


def test_a_model_without_cross_attention_has_no_alignment():
    task, pairs = Task(), sentences()
    model = make_model(no_cross_attention=True)
    with pytest.raises(ValueError, match="no decoder-encoder attention"):
        found(model, task, [sample(pairs)], annotated(task, pairs))
    assert "dec-enc" not in found(model, task, [sample(pairs)], Annotations(rare=False))["heads"]


def test_a_stock_model_is_counted_too():
    task, pairs = Task(), sentences()
    stock = make_stock()
    assert found(stock, task, [sample(pairs)], Annotations())["heads"]["enc-self"][0][0]["gate"] == 1


def test_weights_that_are_not_finite():
    task, pairs = Task(), sentences()
    model = make_model()
    model.encoder.layers[1].self_attn.q_proj.weight.data[0] = math.nan
    with pytest.raises(ValueError, match="attention weights in enc-self layer 1 are not finite"):
        found(model, task, [sample(pairs)], Annotations())


def test_dictionaries_without_counts():
    task = Task()
    task.source_dictionary.count[4:] = [100] * VOCABULARY
    for _ in range(2):
        with pytest.raises(ValueError, match="the dictionary of the source has no counts"):
            frequency_ranks(task.source_dictionary, "source")
        task.source_dictionary.pad_to_multiple_(64)  # adds made-up words


def test_retained_heads_are_compared_with_removed_ones():
    entry = {"gate": 1.0, "functions": []}
    with_function = {"gate": 1.0, "functions": ["rare"]}
    closed = {"gate": 0.0, "functions": ["rare"]}
    before = {
        "heads": {"enc-self": [[with_function, with_function, with_function, entry], [entry, entry, entry, closed]]}
    }
    after = {"heads": {"enc-self": [[entry, entry, with_function, None], [None, closed, closed, closed]]}}
    test = kept_functions(before, after)
    expected = {"kept_with": 3, "with": 3, "kept_without": 0, "without": 4, "p": pytest.approx(1 / 35)}
    assert test == {"enc-self": expected, "all": expected}
    assert kept_functions(before, before)["all"]["p"] == 1


# Functions that are not there


@pytest.fixture(scope="module")
def grammar(tmp_path_factory):
    """300 sentences of the demo's corpus: a task with their dictionary, batches, and their trees."""
    files = make_corpus.make_corpus({"train": 0, "valid": 0, "test": 300}, 1)
    path = tmp_path_factory.mktemp("grammar") / "test.conllu"
    path.write_text(files["test.en.conllu"], encoding="utf-8")
    lines = [line.split() for line in files["test.en"].splitlines()]
    dictionary = Dictionary()
    for line in lines:
        for word in line:
            dictionary.add_symbol(word)
    dictionary.finalize()
    pairs = [([dictionary.index(word) for word in line] + [EOS], [5, 6, EOS]) for line in lines]
    batches = [{**sample(pairs[i : i + 100]), "id": torch.arange(i, i + 100)} for i in (0, 100, 200)]
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary), batches, read_trees(str(path))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(i, marks=pytest.mark.rehearsal) for i in range(3, 20))])
def test_a_random_model_has_no_syntactic_heads(seed, grammar):
    task, batches, trees = grammar
    torch.manual_seed(seed)
    model = TransformerHeadGatesModel.build_model(make_args(), task).eval()
    result = found(model, task, batches, Annotations({"source": trees}, parse_relations(None, trees)))
    assert len(result["relations"]["enc-self"]) == 14
    assert [entry["functions"] for row in result["heads"]["enc-self"] for entry in row] == [[]] * 8


def test_a_head_that_looks_at_the_right_word_is_found(grammar):
    """Attention weights from the trees: head 0 looks at the head of every word, head 1 at its subject."""
    task, batches, trees = grammar
    model = make_model(encoder_layers=1)
    model.encoder.embed_tokens = torch.nn.Embedding(len(task.source_dictionary), 32, 1).double()
    model.decoder.embed_tokens = model.encoder.embed_tokens
    batch = batches[0]
    length = batch["net_input"]["src_tokens"].size(1)
    planted = torch.full((100, 4, length, length), 1e-3).double()
    for row, tree in enumerate(trees[:100]):
        first = length - 1 - len(tree.forms)  # padding is on the left
        for word, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True)):
            if head >= 0:
                planted[row, 0, first + word, first + head] = 1
            if relation == "nsubj":
                planted[row, 1, first + head, first + word] = 1
    (site,) = (site for site in head_sites(model) if site.kind == "enc-self")
    counting = _Pass(model, Corpus(task, [batch]), Annotations({"source": trees}, ("nsubj", "obj"), rare=False))
    counting.begin(batch)
    counting.see(site, planted, planted)
    counts = counting.result()
    entries = functions_of(counts, FunctionOptions(), gate_values(model))["heads"]["enc-self"][0]
    assert [entry["functions"] for entry in entries[:2]] == [
        ["nsubj to governor", "obj to governor"],
        ["nsubj to dependent"],
    ]
    assert entries[0]["words"]["nsubj to governor"]["rate"] == entries[1]["words"]["nsubj to dependent"]["rate"] == 1
