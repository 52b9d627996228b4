"""The synthetic corpus: determinism, distinct pairs, well-formed trees, right Russian, clear refusals."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path

import pytest
from support.clauses import clause, noun, pronoun

import make_corpus
from artificial import grammar, lexicon, sampling

SIZES = {"train": 1000, "valid": 60, "test": 60}


@pytest.fixture(scope="module")
def corpus():
    return make_corpus.make_corpus(SIZES, seed=1)


@pytest.fixture(scope="module")
def trees(corpus):
    conllu = pytest.importorskip("conllu")
    return {split: conllu.parse(corpus[f"{split}.en.conllu"]) for split in SIZES}


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        pytest.param(
            [], "e9eea669751db48c3590c04f1dab46b60f166a0fa84bfae2961195818ec3ae76", marks=pytest.mark.rehearsal
        ),
        (
            ["--train", 300, "--valid", 8, "--test", 9],
            "3a74ba250e0f1807a3bf51963d941bfc0de9253a79bbd1fabfb38ee97ec6d2eb",
        ),
        (["--train", 2000, "--seed", 7], "e3f72ea9b784ad3f4014d8e622f722ab771796314c82842d108a89541e631692"),
    ],
)
def test_the_corpus_is_the_same_byte_for_byte(arguments, digest, tmp_path):
    """SHA-256 of all files together, in the order of their names, recorded on 2026-11-23."""
    assert make_corpus.main([str(tmp_path), *map(str, arguments)]) == 0
    files = sorted(tmp_path.iterdir())
    assert hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest() == digest


def test_splits_are_aligned_lower_case_and_distinct_and_their_lengths_have_bounds(corpus):
    english = {split: corpus[f"{split}.en"].splitlines() for split in SIZES}
    russian = {split: corpus[f"{split}.ru"].splitlines() for split in SIZES}
    assert SIZES == {split: len(english[split]) for split in SIZES} == {split: len(russian[split]) for split in SIZES}
    every = sum(english.values(), [])
    assert all(line == line.strip().lower() and "  " not in line for line in every + sum(russian.values(), []))
    assert all(line.isascii() for line in every) and len(set(every)) == len(every)
    lengths = [len(line.split()) for line in every]
    assert min(lengths) >= 4 and max(lengths) <= 16 and 8.5 < sum(lengths) / len(lengths) < 10.5
    smaller = make_corpus.make_corpus({**SIZES, "train": 10}, seed=1)
    assert all(smaller[name] == text for name, text in corpus.items() if not name.startswith("train"))


def test_word_frequencies_have_a_long_tail(corpus):
    english = corpus["train.en"].splitlines()
    counts = Counter(word for line in english for word in line.split())
    assert sum(count == 1 for count in counts.values()) > 50 and counts["the"] > 0.4 * len(english)
    assert sum(counts[form] for form in ("see", "sees", "saw")) > 5 * sum(counts[form] for form in ("argue", "argued"))
    rare = {form for word in lexicon.RARE for form in (word.en, word.plural)}
    assert 0.06 < sum(not rare.isdisjoint(line.split()) for line in english) / len(english) < 0.15


def test_no_english_form_has_two_meanings():
    tables = "COMMON NAMES VERBS ADJECTIVES PREPOSITIONS MANNER FREQUENCY TIME".split()
    assert 150 <= sum(len(getattr(lexicon, name)) for name in tables) <= 250 and len(lexicon.RARE) >= 400
    words = [*lexicon.COMMON, *lexicon.NAMES, *lexicon.RARE]
    assert len(lexicon.NOUNS) == len(words)
    forms = {form for word in words for form in (word.en, word.plural)}
    verbs = {form for verb in lexicon.VERBS.values() for form in (verb.en, verb.past, lexicon.add_s(verb.en))}
    assert not forms & verbs
    assert len({word.ru for word in lexicon.RARE}) == len(lexicon.RARE)


def test_one_source_has_one_tree_and_one_translation(monkeypatch):
    # With very few words the same English sentence comes up often; a second reading would show.
    for table, words in (("ADJECTIVES", ["old"]), ("MANNER", ["slowly"]), ("FREQUENCY", ["often", "never"])):
        monkeypatch.setattr(sampling, table, {word: getattr(lexicon, table)[word] for word in words})
    monkeypatch.setattr(sampling, "SINGULAR_DETS", ("the", "her"))
    monkeypatch.setattr(sampling, "PLURAL_DETS", ("", "her"))
    sampler = sampling.Sampler(random.Random(3))
    sampler.rare = dict.fromkeys("pbol", [])
    few = {"p": ("girl", "teacher"), "b": ("cat",), "o": ("book", "letter"), "l": ("house",)}
    sampler.common = {kind: [lexicon.NOUNS[word] for word in words] for kind, words in few.items()}
    kept = ("see", "like", "help", "give", "sleep", "talk", "say", "play", "return", "stand")
    sampler.verbs = [lexicon.VERBS[word] for word in kept]
    readings = {}
    repeated = 0
    for _ in range(8000):
        tree, russian = grammar.render(sampler.sentence())
        english = " ".join(node.form for node in tree.walk())
        reading = russian, make_corpus.to_conllu(tree, "0")
        repeated += english in readings
        assert readings.setdefault(english, reading) == reading
    assert repeated > 30


def test_plain_sentences_are_single_clauses_of_frequent_words():
    conllu = pytest.importorskip("conllu")
    plain = make_corpus.make_corpus({"train": 300, "valid": 5, "test": 5}, 1, plain=True)
    tokens = [token for tree in conllu.parse(plain["train.en.conllu"]) for token in tree]
    assert {token["deprel"] for token in tokens} <= set("nsubj root punct det obj amod advmod nmod:poss aux".split())
    lemmas = Counter((token["upos"], token["lemma"]) for token in tokens)
    common = [noun.en for noun in lexicon.COMMON]
    assert all(lemma in common for upos, lemma in lemmas if upos == "NOUN")
    number = Counter(upos for upos, _ in lemmas)
    assert number["ADJ"] < len(lexicon.ADJECTIVES) and number["VERB"] <= 2 * sampling.PLAIN_WORDS < len(lexicon.VERBS)


def test_trees_match_the_text_have_one_root_and_no_cycle_and_are_projective(corpus, trees):
    for split, sentences in trees.items():
        for sentence, text in zip(sentences, corpus[f"{split}.en"].splitlines(), strict=True):
            assert [token["form"] for token in sentence] == text.split() and sentence.metadata["text"] == text
            heads = {token["id"]: token["head"] for token in sentence}
            assert list(heads) == list(range(1, len(heads) + 1))
            assert [token["deprel"] for token in sentence if token["head"] == 0] == ["root"]
            for here in heads:
                for _ in heads:
                    here = heads.get(here, 0)
                assert here == 0  # without a cycle every path ends at the root
            arcs = [sorted(arc) for arc in heads.items() if arc[1]]
            assert not any(a < c < b < d for a, b in arcs for c, d in arcs)
        assert len({sentence.metadata["sent_id"] for sentence in sentences}) == len(sentences)


def test_relations_and_tags_are_those_of_universal_dependencies(corpus, trees):
    rows = [line.split("\t") for line in corpus["test.en.conllu"].splitlines() if line and line[0] != "#"]
    assert all(len(row) == 10 and all(row) for row in rows)
    tags = "NOUN PROPN PRON DET ADJ VERB AUX ADV ADP CCONJ SCONJ PART PUNCT"
    assert {row[3] for row in rows} <= set(tags.split())
    found = Counter(token["deprel"] for sentence in trees["train"] for token in sentence)
    rare = "root nmod nmod:poss iobj obl obl:tmod case acl:relcl cc conj mark advcl ccomp aux punct".split()
    common = "nsubj obj amod advmod det".split()
    assert set(found) == {*common, *rare} and all(found[relation] > 0.3 * SIZES["train"] for relation in common)


def relations_of(sentence):
    tree, _ = grammar.render(sentence)
    rows = [line.split("\t") for line in make_corpus.to_conllu(tree, "1").splitlines()[2:] if line]
    return [(row[1], row[6], row[7]) for row in rows]


def test_relations_of_a_question_and_of_a_sentence():
    question = clause(noun("king"), "see", noun("book", "which", "old"), question=True)
    assert relations_of(question) == [
        *[("which", "3", "det"), ("old", "3", "amod"), ("book", "7", "obj"), ("did", "7", "aux"), ("the", "6", "det")],
        *[("king", "7", "nsubj"), ("see", "0", "root"), ("?", "7", "punct")],
    ]
    boy, book = noun("boy", "a", "old", rel=clause(None, "sleep")), noun("book", "", owner=noun("teacher"))
    assert relations_of(clause(boy, "give", book, to=pronoun("she"), shift=True, negated=True)) == [
        *[("an", "3", "det"), ("old", "3", "amod"), ("boy", "8", "nsubj"), ("who", "5", "nsubj")],
        *[("slept", "3", "acl:relcl"), ("did", "8", "aux"), ("not", "8", "advmod"), ("give", "0", "root")],
        *[("her", "8", "iobj"), ("the", "11", "det"), ("teacher", "13", "nmod:poss"), ("'s", "11", "case")],
        *[("book", "8", "obj"), (".", "8", "punct")],
    ]


def run(capsys, *arguments):
    """The exit code and the lines of errors."""
    try:
        code = make_corpus.main([*map(str, arguments)])
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().err.splitlines()


SMALL = ("--train", 20, "--valid", 5, "--test", 5)


@pytest.mark.parametrize("kind", ["", "--plain"])
def test_existing_files_are_overwritten_only_with_force(kind, tmp_path, capsys):
    out, arguments = tmp_path / "new" / "corpus", [*SMALL, *kind.split()]
    assert run(capsys, out, *arguments) == (0, [])
    first = {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()}
    assert first == make_corpus.make_corpus({"train": 20, "valid": 5, "test": 5}, seed=1, plain=bool(kind))
    code, [message] = run(capsys, out, *arguments, "--seed", 2)
    assert code == 2 and "train.en" in message and "--force" in message
    assert {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()} == first
    assert run(capsys, out, *arguments, "--seed", 2, "--force") == (0, [])
    assert (out / "train.en").read_text(encoding="utf-8") != first["train.en"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--train", "0"), ("--train", "0", "at least 1")),
        (("--valid", "-3"), ("--valid", "-3", "at least 1")),
        (("--test", "many"), ("--test", "'many'")),
        (("--seed", "-1"), ("--seed", "-1", "at least 0")),
        (("--rows", "3"), ("--rows",)),
    ],
)
def test_bad_arguments_are_refused(tmp_path, arguments, expected, capsys):
    code, [message] = run(capsys, tmp_path / "out", *arguments)
    assert code == 2 and message.startswith("make_corpus.py: error: ") and all(part in message for part in expected)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("path", "words"), [("file", "is a file"), ("file/below", "cannot write")])
def test_a_folder_that_cannot_be_written_is_refused(path, words, tmp_path, capsys):
    (tmp_path / "file").write_text("kept")
    code, [message] = run(capsys, tmp_path / path, *SMALL)
    assert code == 2 and words in message and (tmp_path / "file").read_text() == "kept"


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def broken(self, target):
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match="no space"):
        make_corpus.write_files(tmp_path, {"train.en": "a\n", "train.ru": "b\n"})
    assert list(tmp_path.iterdir()) == []
