"""The artificial corpus: its bytes, its trees, its agreement, clear refusals."""

from __future__ import annotations

import hashlib
import random

import pytest

import grammar
import make_corpus

DEMO = ["--train", 12000, "--valid", 300, "--test", 300]
SMALL = ["--train", 20, "--valid", 5, "--test", 5]


def test_the_corpus_of_the_demo_is_the_same_byte_for_byte(tmp_path):
    """SHA-256 of all files together, in the order of their names, recorded on 2026-11-23."""
    make_corpus.main([str(tmp_path), *map(str, DEMO)])
    files = sorted(tmp_path.iterdir())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    assert digest == "e5113a3ce32ba990cf9c27555aa5dd154bc710d39c58c92d0b7cf005c00b3ca8"
    english = [line for path in files if path.suffix == ".en" for line in path.read_text().splitlines()]
    assert len(english) == len(set(english)) == 12600


def test_every_row_of_the_lexicon_has_its_forms():
    cases, persons = len(grammar.CASES), len(grammar.PERSONS)
    for noun in grammar.NOUNS.values():
        numbers = ("singular forms", "plural forms") if noun["plural"] else ("singular forms",)
        assert [len(noun[number].split()) for number in numbers] == [cases] * len(numbers)
        assert noun["kind"] in "pbol" and noun["gender"] in "mnf"
    for word, row in (grammar.ADJECTIVES | grammar.DETERMINERS).items():
        forms = [len(row[gender].split()) for gender in grammar.GENDERS.values()]
        assert forms == ([0] * 4 if word in ("a", "the") else [cases] * 4)
    for verb in grammar.VERBS.values():
        assert len(verb["russian present"].split()) == persons
        assert len(verb["russian past"].split()) == len(grammar.GENDERS)


def test_trees_have_one_root_and_agree_with_the_translation():
    """Every word form is looked up again, from the columns of the tree alone."""
    conllu = pytest.importorskip("conllu")
    sampler = grammar.Sampler(random.Random(3))
    for _ in range(500):
        clause = sampler.clause()
        words, russian = grammar.english(clause), grammar.russian(clause).split()
        [tree] = conllu.parse(make_corpus.to_conllu(words, "1"))
        assert [token["form"] for token in tree] == tree.metadata["text"].split()
        [root] = [token for token in tree if token["head"] == 0]
        by_relation = {token["deprel"]: token for token in tree if token["head"] == root["id"]}
        verb, subject = grammar.VERBS[root["lemma"]], by_relation["nsubj"]
        assert ("obj" in by_relation) == (verb["case of the object"] != "none")
        if subject["upos"] == "NOUN" and by_relation.get("aux", {}).get("form") not in ("will", "do", "does"):
            noun = grammar.NOUNS[subject["lemma"]]
            plural = subject["form"] == noun["plural"]
            past, present = verb["russian past"].split(), verb["russian present"].split()
            in_past = root["form"] == verb["past"] or "aux" in by_relation
            form = past[3 if plural else "mnf".index(noun["gender"])] if in_past else present[4 if plural else 1]
            assert form in russian and noun["plural forms" if plural else "singular forms"].split()[0] in russian


def refused(capsys, *arguments):
    """The last line of the errors."""
    with pytest.raises(SystemExit, match="2"):
        make_corpus.main([*map(str, arguments)])
    return capsys.readouterr().err.splitlines()[-1]


def test_existing_files_are_overwritten_only_with_force(tmp_path, capsys):
    out = tmp_path / "new" / "corpus"
    make_corpus.main([*map(str, (out, *SMALL))])
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    message = refused(capsys, out, *SMALL, "--seed", 2)
    assert "train.en" in message and "--force" in message
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first
    make_corpus.main([*map(str, (out, *SMALL)), "--seed", "2", "--force"])
    assert (out / "train.en").read_bytes() != first["train.en"]


@pytest.mark.parametrize(
    ("out", "arguments", "expected"),
    [("out", ["--train", 0], ("--train", "1 or more")), ("file/below", SMALL, ("cannot write",))],
)
def test_bad_arguments_are_refused(out, arguments, expected, tmp_path, capsys):
    (tmp_path / "file").write_text("kept")
    message = refused(capsys, tmp_path / out, *arguments)
    assert message.startswith("make_corpus.py: error: ") and all(part in message for part in expected)
