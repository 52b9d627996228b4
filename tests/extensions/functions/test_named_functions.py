"""Which heads have a function: thresholds, planted and random attention, input that cannot be counted."""

import itertools
import math
import random
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from support.functions import RELATIONS, Task, annotated, found, sentences, tree_of
from support.models import VOCABULARY, make_args
from support.sentences import EOS, make_model, sample

import make_corpus
from fairseq_headgates import gate_values
from fairseq_headgates.attention.anatomy import attention_modules
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.drawing.tables import text_of
from fairseq_headgates.extensions.functions.counting import Annotations, FunctionCounts, count_functions
from fairseq_headgates.extensions.functions.drawing import function_tables, group_counts
from fairseq_headgates.extensions.functions.layout import frequency_ranks
from fairseq_headgates.extensions.functions.result import results
from fairseq_headgates.extensions.functions.results import functions_of, kept_functions, scored_functions
from fairseq_headgates.extensions.functions.trees import Tree, parse_relations, read_trees
from fairseq_headgates.heads import TYPES, HeadTable
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel
from fairseq_headgates.scores.options import FunctionOptions

THRESHOLDS = {"positional": 90, "margin": 10, "rare": 50}


def test_functions_are_named_by_their_thresholds(monkeypatch):
    monkeypatch.setattr("fairseq_headgates.extensions.functions.layout.FREQUENT", 30)
    task, pairs = Task(), sentences()
    model, annotations = make_model(), annotated(task, pairs)
    everything = found(model, task, [sample(pairs)], annotations, positional=0, rare=0)
    nothing = found(model, task, [sample(pairs)], annotations, positional=100, margin=100, rare=100)
    for attention_type, layer, head in [
        (attention_type, layer, head) for attention_type in TYPES for layer in range(2) for head in range(4)
    ]:
        entry = everything["heads"][attention_type][layer][head]
        assert entry["functions"][0] == f"positional {entry['positional']['offset']:+d}"
        assert ("rare" in entry["functions"]) == (attention_type != "dec-self")
        named = {"positional +0": entry["positional"]["rate"], "rare": entry.get("rare", {}).get("rate")}
        assert all(named.get(name) == 1 for name in nothing["heads"][attention_type][layer][head]["functions"])


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


def test_where_no_head_has_a_function_the_nearest_ones_are_shown():
    """Head 0 lacks 0.4 to `rare`, 1 0.1 to `nsubj` (0.55 and the margin), 2 0.2 to `positional`, 3 0.5, 4 is closed."""
    heads = [
        {
            "gate": float(gate),
            "functions": [],
            "positional": {"offset": -1, "rate": positional, "count": 9},
            "rare": {"rate": rare, "low": 0, "high": 1, "count": 8},
            "words": {"nsubj to governor": {"rate": nsubj, "low": 0, "high": 1, "count": 7}},
        }
        for positional, rare, nsubj, gate in (
            (0.3, 0.1, 0.1, 1),
            (0.6, 0.0, 0.55, 1),
            (0.7, 0.0, 0.4, 1),
            (0.4, 0, 0, 1),
            (0.8, 0, 0, 0),
        )
    ]
    relations = {"enc-self": {"nsubj to governor": {"count": 7, "offset": 1, "baseline": 0.55}}}
    result = {"heads": {"enc-self": [heads]}, "relations": relations, "options": THRESHOLDS, "trees": {}}
    title, _, _, *lines = text_of(*function_tables(result)).splitlines()
    assert title == "enc-self (encoder self-attention): 0 of 4 open heads have a function; the nearest:"
    assert [line.split() for line in lines] == [
        ["layer", "0", "head", "1", "nsubj", "to", "governor", "55.0%", "0.0%..100.0%", "55.0%", "7"],
        ["layer", "0", "head", "2", "positional", "-1", "70.0%", "9"],
        ["layer", "0", "head", "0", "rare", "10.0%", "0.0%..100.0%", "8"],
    ]
    heads[3]["functions"] = ["positional -1"]
    title, _, _, *lines = text_of(*function_tables(result)).splitlines()
    assert title.endswith(": 1 of 4 open heads have a function") and len(lines) == 1


def head_with(*functions, gate=1.0):
    return {"gate": gate, "functions": list(functions)}


def test_heads_are_counted_by_the_first_group_of_their_functions():
    heads = [
        [head_with("nsubj to governor", "positional -1"), head_with("rare", "amod to dependent"), head_with("rare")],
        [head_with("positional +1", gate=0.0), head_with(), None],
    ]
    result = {"heads": {"enc-self": heads, "dec-enc": [[head_with("alignment", "rare")]]}}
    counts = {"positional": 1, "syntactic": 1, "rare": 1, "alignment": 0, "none": 1}
    assert group_counts(result, "enc-self") == counts
    assert group_counts(result, "dec-enc") == dict.fromkeys(counts, 0) | {"rare": 1}


def test_functions_of_several_checkpoints_are_one_chart(tmp_path):
    """A column of open heads for each checkpoint, by function."""
    pytest.importorskip("matplotlib")
    heads = [[head_with("rare"), head_with(), head_with()]]
    whole = {"signature": "ckpt:whole.pt", "heads": {"enc-self": heads}, "trees": {}, "options": THRESHOLDS}
    for head in (head for head in heads[0] if head):
        head |= {"rare": {"rate": 1.0, "low": 1, "high": 1, "count": 1}}
    less = {**whole, "signature": "ckpt:less.pt", "heads": {"enc-self": [[*heads[0][:2], None]]}}
    chart, *tables = results([whole, less])
    [axes] = chart.figures[0].draw().axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["whole", "less"]
    assert [[bar.get_height() for bar in of_group] for of_group in axes.containers] == [[1, 1], [2, 1]]
    assert [each.title for each in tables] == ["whole", "less"] and len([*results([whole])]) == 1


def test_a_head_on_the_previous_token_is_positional_in_short_sentences():
    """The first token has no previous one: with it the rate would be 3 of 4, below the threshold."""
    counts = fake_counts(4, 0)
    (head,) = counts.heads.values()
    longest = head.offsets.size(1) // 2
    counts.type_counts["enc-self"].exists[longest - 3 : longest + 5] = torch.tensor([1, 2, 3, 4, 4, 3, 2, 1])
    for on_previous, functions in ((3, ["positional -1"]), (2, [])):
        head.offsets[:] = 0
        head.offsets[0, longest - 1] = on_previous
        head.offsets[0, longest] = 1
        result = functions_of(counts, FunctionOptions(), {"enc-self": torch.ones(1, 1)})
        assert result["heads"]["enc-self"][0][0]["functions"] == functions


def fake_counts(number, hits):
    task, pairs = Task(False), [([4, 5, 6, 7, EOS], [4, EOS])]
    model = make_model(encoder_layers=1)
    trees = {"source": [tree_of(task, pairs[0][0])]}
    counts = count_functions(model, Corpus(task, [sample(pairs)]), Annotations(trees, ["nsubj"], rare=False))
    ((module, head),) = ((module, head) for module, head in counts.heads.items() if module.attention_type == "enc-self")
    counts.heads = {module: head}
    counts.type_counts = {"enc-self": counts.type_counts["enc-self"]}
    head.pairs[:] = 0
    head.pairs[0] = hits
    counts.type_counts["enc-self"].exists += 100
    pairs, offsets = counts.type_counts["enc-self"].pairs, counts.type_counts["enc-self"].offsets
    pairs[:] = offsets[:] = 0
    pairs[0], offsets[0, :2] = number, number / 2
    head.offsets = head.offsets[:1] * 0 + 1
    module.attention.heads, module.attention.kept = 1, (0,)
    return counts


def test_sentences_with_unknown_tokens_have_no_alignment():
    """With subwords: where an unknown token begins and ends is not known."""
    for subwords in (True, False):
        task, pairs = Task(subwords), sentences()
        result = found(make_model(), task, [sample(pairs)], annotated(task, pairs))
        assert result["alignments"] == {"sentences": 5, "left_out": int(subwords)}


def test_a_batch_without_words():
    task, pairs = Task(), [([EOS], [5, EOS]), ([EOS], [6, EOS])]
    empty = Tree((), (), ())
    annotations = Annotations({"source": [empty] * 2}, RELATIONS, [frozenset()] * 2)
    result = found(make_model(), task, [sample(pairs)], annotations)
    assert result["trees"]["source"]["words"] == 0 and not result["relations"]


def test_positions_are_counted_from_the_first_word():
    """Here most of the source, tokens of languages, is before it."""
    pairs = [([4] * 5 + [6, EOS], [*range(7, 15), EOS])]
    result = found(make_model(), Task(False, languages=True), [sample(pairs)], Annotations(rare=False))
    offsets = {int(each) for row in result["heads"]["dec-enc"] for e in row for each in e["positional"]["offsets"]}
    assert -12 <= min(offsets) < -9 and max(offsets) <= 1


def test_a_model_without_cross_attention_has_no_alignment():
    task, pairs = Task(), sentences()
    model = make_model(no_cross_attention=True)
    with pytest.raises(ValueError, match="no cross-attention"):
        found(model, task, [sample(pairs)], annotated(task, pairs))
    assert "dec-enc" not in found(model, task, [sample(pairs)], Annotations(rare=False))["heads"]


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


def test_scores_of_heads_with_a_function():
    """Against pairs of heads, and all ways to choose which heads have a function."""
    drawn = random.Random(3)
    scores = [[drawn.random() for _ in range(5)] for _ in range(2)]
    named = [[False, True, False, True, False], [True, False, False, False, False]]
    heads = [[{"gate": 1.0, "functions": ["rare"] * own} for own in row] for row in named]
    heads[1][4]["gate"] = 0.0  # a closed head does not count
    result = {"heads": {"enc-self": heads, "dec-self": [[{"gate": 1.0, "functions": []}] * 2]}}
    table = HeadTable({"enc-self": scores, "dec-self": [[0.5, 0.6]]}, "confidence")
    mine, dec = scored_functions(result, [table])

    def correlation(with_function):
        a, b = ([flat[i] for i in range(9) if (i in with_function) == own] for own in (True, False))
        return sum((x > y) - (x < y) for x in a for y in b) / (len(a) * len(b))

    flat = [*scores[0], *scores[1][:4]]
    assert mine["r"] == pytest.approx(correlation({1, 3, 5}))
    all_ways = [correlation(set(chosen)) for chosen in itertools.combinations(range(9), 3)]
    as_extreme = [r for r in all_ways if abs(r) >= abs(mine["r"]) - 1e-9]
    assert mine["p"] == pytest.approx(len(as_extreme) / len(all_ways))
    assert (mine["with"], mine["without"]) == (3, 6)
    assert dec == {"method": "confidence", "type": "dec-self", "with": 0, "without": 2, "r": None, "p": None}


# Random and planted attention


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


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(20))
def test_a_random_model_has_no_syntactic_heads(seed, grammar):
    task, batches, trees = grammar
    torch.manual_seed(seed)
    model = TransformerHeadGatesModel.build_model(make_args(), task).eval()
    result = found(model, task, batches, Annotations({"source": trees}, parse_relations(None, trees)))
    assert len(result["relations"]["enc-self"]) == 10
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
    (module,) = (module for module in attention_modules(model) if module.attention_type == "enc-self")
    counts = FunctionCounts(model, Corpus(task, [batch]), Annotations({"source": trees}, ("nsubj", "obj"), rare=False))
    counts.begin(batch)
    counts.see(module, planted, planted)
    entries = functions_of(counts, FunctionOptions(), gate_values(model))["heads"]["enc-self"][0]
    assert [entry["functions"] for entry in entries[:2]] == [
        ["nsubj to governor", "obj to governor"],
        ["nsubj to dependent"],
    ]
    assert entries[0]["words"]["nsubj to governor"]["rate"] == entries[1]["words"]["nsubj to dependent"]["rate"] == 1
