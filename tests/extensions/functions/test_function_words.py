"""Words of subword tokens, the words of trees in a text, CoNLL-U and Pharaoh files."""

import gzip
import random
from types import SimpleNamespace

import pytest
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from fairseq_headgates.data.symbols import no_words, subwords_of
from fairseq_headgates.extensions.functions.trees import (
    Tree,
    pairs,
    parse_relations,
    read_alignments,
    read_trees,
)
from fairseq_headgates.extensions.functions.words import Piece, match, pieces


def cut(tokens, subwords):
    return [(piece.text, piece.word) for piece in pieces(tokens, subwords)]


def test_pieces_of_each_kind_of_subwords():
    assert cut(["un@@", "seen", "cats"], "subword-nmt") == [("un", 0), ("seen", 0), ("cats", 1)]
    assert cut(["\u2581un", "seen", "\u2581cats"], "sentencepiece") == [("un", 0), ("seen", 0), ("cats", 1)]
    assert cut(["un@@", "seen"], "none") == [("un@@", 0), ("seen", 1)]
    assert cut(["un@@", None, "seen"], "subword-nmt") == [("un", 0), (None, 1), ("seen", 2)]
    assert cut(["un", "\u2581seen"], "sentencepiece") == [("un", 0), ("seen", 1)]  # without the first mark
    assert cut(["un", "##seen", "cats"], "wordpiece") == [("un", 0), ("seen", 0), ("cats", 1)]
    assert cut(["un", "seen</w>", "cats</w>"], "end-of-word") == [("un", 0), ("seen", 0), ("cats", 1)]
    # The bytes of an umlaut, C3 BC, and of a euro sign, E2 82 AC, in two pieces each
    pieces_of_bytes = ["\u0120f\u00c3", "\u00bcr", "\u01205", "\u00e2\u0124", "\u00ac"]
    assert cut(pieces_of_bytes, "byte-level-bpe") == [("f", 0), ("\u00fcr", 0), ("5", 1), ("", 1), ("\u20ac", 1)]


@pytest.mark.parametrize(
    "symbols, kind",
    [
        (["the", "un@@"], "subword-nmt"),
        (["s", "\u2581the"], "sentencepiece"),
        (["\u2581the", "@@"], "sentencepiece"),
        (["the", "cat"], "none"),
        # Most symbols decide; a mark alone is a word.
        (["a@@", "b@@", "c", "\u2581d"], "subword-nmt"),
        (["\u2581a", "\u2581b", "c", "d@@"], "sentencepiece"),
        (["a", "b", "\u2581", "@@", "##", "\u0120"], "none"),
        (["a"] * 200 + ["\u2581b"], "none"),
        (["\u0120the", "s", "\u0120cat"], "byte-level-bpe"),
        (["the", "##s"], "wordpiece"),
        (["the</w>", "c"], "end-of-word"),
    ],
)
def test_the_kind_of_subwords_is_read_off_the_dictionary(symbols, kind):
    assert subwords_of(symbols) == kind


@pytest.mark.parametrize(
    "options, special",
    [
        ({}, "__de__ __zho_Hans__ [en_XX] <2de> <mask> madeupword0001"),
        ({"langs": ["src", "tgt"], "lang_pairs": ["src-fr"]}, "__src__ [tgt] <src> <2fr> __src_dae__"),
        ({"langs": "src,tgt", "lang_pairs": "src-fr"}, "[src] __tgt__ [fr]"),
    ],
)
def test_symbols_that_are_no_words(options, special):
    words = "the [sic] <b> __ 2de [ ] <3 mask".split()
    dictionary = Dictionary()
    for symbol in [*words, *special.split()]:
        dictionary.add_symbol(symbol)
    found = no_words(SimpleNamespace(source_dictionary=dictionary, args=SimpleNamespace(**options)), "source")
    assert [dictionary[i] for i in found] == ["<s>", "<pad>", "</s>", *special.split()]


def matched(tokens, forms, subwords="subword-nmt"):
    return match(pieces(tokens, subwords), forms)


@pytest.mark.parametrize(
    "tokens, forms, expected",
    [
        ("the un@@ seen cat", "The unseen cat", [(0,), (1, 2), (3,)]),
        # one token of the text, two words of the tree, and the other way round
        ("do n&apos;t stop", "do n't stop", [(0,), (1,), (2,)]),
        ("don&apos;t stop", "do n't stop", [(), (), (1,)]),
        ("do@@ n&apos;t stop", "do n't stop", [(0,), (1,), (2,)]),
        ("well @-@ known", "well-known", [(0, 1, 2)]),
        ("3 &#124; 4 &amp; 5", "3 | 4 & 5", [(0,), (1,), (2,), (3,), (4,)]),
        ("a &am@@ p; b", "a & b", [(0,), (1, 2), (3,)]),
        ("&quot; yes &quot; - he", "“ Yes ” – he", [(0,), (1,), (2,), (3,), (4,)]),
        ("stra\u00dfe ...", "Strasse …", [(0,), (1,)]),
        ("\u201c hi ''", "`` hi ''", [(0,), (1,), (2,)]),
        ("caf\u00e9 \uff8a\uff9e\uff7d", "cafe\u0301 \uff8a\uff9e\uff7d", [(0,), (1,)]),  # composed or not
        ("it &apos;s", "it &apos;s", [(0,), (1,)]),  # trees of escaped text
        # what is not in both is not found, and nothing else suffers
        ("the black cat sat", "the cat sat", [(0,), (2,), (3,)]),
        ("the cat sat", "the black cat sat", [(0,), (), (1,), (2,)]),
        ("the cats ran", "the cat ran", [(0,), (), (2,)]),
        ("the cats sat", "the cat sat", [(0,), (), ()]),  # the s could be of either word
    ],
)
def test_words_of_trees_are_found_by_characters(tokens, forms, expected):
    assert matched(tokens.split(), forms.split()).pieces == expected


def test_a_lone_word_boundary_mark_belongs_to_the_word_that_follows():
    tokens = ["\u2581the", "\u2581", "Xyz", "\u2581ran"]
    assert matched(tokens, ["the", "Xyz", "ran"], "sentencepiece").pieces == [(0,), (1, 2), (3,)]


def test_unknown_tokens_are_not_found():
    found = matched(["the", None, "sat"], ["the", "zyx", "sat"])
    assert found.pieces == [(0,), (), (2,)] and found.share == 1


def test_a_tree_of_another_sentence_does_not_match():
    assert matched("a man in a red hat".split(), "two dogs play with sticks".split()).share < 0.5
    assert matched([], ["word"]).share == 1  # an empty sentence: nothing contradicts the tree


@given(st.lists(st.text("abcde", min_size=1, max_size=6), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_any_segmentation_of_the_same_words_is_found(words, chance):
    tokens, expected = [], []
    for word in words:
        cuts = sorted(chance.sample(range(1, len(word)), chance.randint(0, len(word) - 1)))
        parts = [word[a:b] for a, b in zip([0, *cuts], [*cuts, len(word)], strict=True)]
        expected.append(tuple(range(len(tokens), len(tokens) + len(parts))))
        tokens += [part + "@@" for part in parts[:-1]] + [parts[-1]]
    assert matched(tokens, words).pieces == expected


def test_words_are_matched_only_to_pieces_with_all_their_characters():
    """Every word that is found has exactly the characters of its pieces."""
    chance = random.Random(1)
    for _ in range(200):
        words = ["".join(chance.choices("abc", k=chance.randint(1, 5))) for _ in range(6)]
        damaged = [Piece("".join(c for c in word if chance.random() > 0.2), i) for i, word in enumerate(words)]
        for word, own in zip(words, match(damaged, words).pieces, strict=True):
            assert not own or "".join(damaged[i].text for i in own) == word


CONLLU = """# text = Don't see im Haus
1-2	Don't	_	_	_	_	_	_	_	_
1	Do	do	AUX	_	_	3	aux	_	_
2	n't	not	PART	_	_	3	advmod	_	_
3	see	see	VERB	_	_	0	root	_	_
3.1	it	it	PRON	_	_	_	_	_	_
4-5	im	_	_	_	_	_	_	_	_
4	in	in	ADP	_	_	6	case	_	_
5	dem	der	DET	_	_	6	det	_	_
6	Haus	Haus	NOUN	_	_	3	dobj	_	_

"""


def test_trees_with_multiword_tokens_and_empty_nodes(tmp_path):
    path = tmp_path / "trees.conllu.gz"
    path.write_bytes(gzip.compress(CONLLU.encode()))
    (tree,) = read_trees(str(path))
    assert tree.forms == ("Do", "n't", "see", "im", "", "Haus")
    assert tree.heads == (2, 2, -1, 5, 5, 2)
    assert tree.unspelled == {3, 4}
    assert pairs(tree, ("obj", "advmod")) == [(1, 2, 2), (2, 1, 3), (5, 2, 0), (2, 5, 1)]


def test_relations_are_those_of_the_trees():
    tree = Tree(("a", "b"), (1, -1), ("nsubj:pass", "root"))
    assert parse_relations(None, [tree]) == ("nsubj",)
    assert parse_relations("nsubj:pass", [tree]) == ("nsubj:pass",)
    assert parse_relations("dobj", [Tree(("a", "b"), (1, -1), ("obj", "root"))]) == ("obj",)
    with pytest.raises(ValueError, match="no tree has the relation 'iobj': choose from nsubj, nsubj:pass, root"):
        parse_relations("nsubj,iobj", [tree])
    with pytest.raises(ValueError, match="named twice"):
        parse_relations("nsubj, nsubj", [tree])


@pytest.mark.parametrize(
    "text, message",
    [
        ("1\tword\n", "is not CoNLL-U"),
        ("", "has no trees"),
        (CONLLU.replace("\t6\tcase", "\t9\tcase"), "has a wrong HEAD"),
        (CONLLU.replace("6\tHaus\tHaus", "7\tHaus\tHaus"), "have wrong IDs"),
        (CONLLU.replace("4-5\tim", "4-9\tim"), "the multiword token 4-9 has no such words"),
    ],
)
def test_files_that_are_not_trees(text, message, tmp_path):
    path = tmp_path / "trees.conllu"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_trees(str(path))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="cannot read .*missing"):
        read_trees(str(tmp_path / "missing"))
    broken = tmp_path / "broken.gz"
    content = gzip.compress(CONLLU.encode())
    for damaged in (b"not gzip", content[:40], content[:20] + bytes(20) + content[40:]):
        broken.write_bytes(damaged)
        with pytest.raises(ValueError, match="cannot read .*broken.gz"):
            read_trees(str(broken))


def test_alignments(tmp_path):
    path = tmp_path / "links"
    path.write_text("0-0 1-2\n\n2-1\n")
    assert read_alignments(str(path)) == [{(0, 0), (1, 2)}, frozenset(), {(2, 1)}]
    path.write_text("0-0\n0-x\n")
    with pytest.raises(ValueError, match="line 2 has '0-x': it must have pairs like 0-0 1-2"):
        read_alignments(str(path))
