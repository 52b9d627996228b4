"""The synthetic corpus: determinism, distinct pairs, well-formed trees, right Russian, clear refusals."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "recipes" / "make_corpus.py"
SIZES = {"train": 1000, "valid": 60, "test": 60}


def load():
    spec = importlib.util.spec_from_file_location("make_corpus", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


mc = load()


def noun(word, det="the", *adjectives, number="sg", **dependents):
    return mc.NP(mc.NOUNS[word], number, "" if mc.NOUNS[word].proper else det, adjectives, **dependents)


def nouns(word, det="the", *adjectives, **dependents):
    return noun(word, det, *adjectives, number="pl", **dependents)


def pronoun(word):
    return mc.NP(mc.PRONOUNS[word])


def clause(subj, verb, obj=None, **rest):
    return mc.Clause(mc.VERBS[verb], subj, obj=obj, **rest)


def spell_out(sentence):
    tree, russian = mc.render(sentence)
    return " ".join(node.form for node in tree.walk()), russian


@pytest.fixture(scope="module")
def corpus():
    return mc.make_corpus(SIZES, seed=1)


@pytest.fixture(scope="module")
def trees(corpus):
    conllu = pytest.importorskip("conllu")
    return {split: conllu.parse(corpus[f"{split}.en.conllu"]) for split in SIZES}


def lines(corpus, name):
    return corpus[name].splitlines()


# ---------------------------------------------------------------------------------------- the corpus
def test_same_seed_same_corpus(corpus):
    assert mc.make_corpus(SIZES, seed=1) == corpus
    assert mc.make_corpus(SIZES, seed=2) != corpus


def test_size_of_train_leaves_the_other_splits_alone(corpus):
    smaller = mc.make_corpus({**SIZES, "train": 10}, seed=1)
    assert smaller["test.en"] == corpus["test.en"]
    assert smaller["valid.ru"] == corpus["valid.ru"]


def test_aligned_and_of_the_asked_size(corpus):
    for split, size in SIZES.items():
        english, russian = lines(corpus, f"{split}.en"), lines(corpus, f"{split}.ru")
        assert len(english) == len(russian) == size
        assert all(line == line.strip().lower() and "  " not in line for line in english + russian)
        assert all(line.isascii() for line in english)


def test_distinct_and_no_leak(corpus):
    english = [line for split in SIZES for line in lines(corpus, f"{split}.en")]
    assert len(set(english)) == len(english)


def test_lengths(corpus):
    lengths = [len(line.split()) for line in lines(corpus, "train.en")]
    assert min(lengths) >= 4 and max(lengths) <= 16
    assert 8.5 < sum(lengths) / len(lengths) < 10.5


def test_zipf_tail(corpus):
    english = lines(corpus, "train.en")
    counts = Counter(word for line in english for word in line.split())
    assert sum(count == 1 for count in counts.values()) > 50
    assert counts["the"] > 0.4 * len(english)
    ranked = (
        [counts[word] for word in ("see", "sees", "saw")],
        [counts[w] for w in ("argue", "argues", "argued")],
    )
    assert sum(ranked[0]) > 5 * sum(ranked[1])
    rare = {form for word in mc.RARE for form in (word.en, word.plural)}
    share = sum(any(word in rare for word in line.split()) for line in english) / len(english)
    assert 0.06 < share < 0.15


def test_lexicon():
    tables = (mc.COMMON, mc.NAMES, mc.VERBS, mc.ADJECTIVES, mc.PREPOSITIONS, mc.MANNER, mc.FREQUENCY, mc.TIME)
    assert 150 <= sum(map(len, tables)) <= 250
    assert len(mc.RARE) >= 400
    words = [*mc.COMMON, *mc.NAMES, *mc.RARE]
    assert len(mc.NOUNS) == len(words)  # no English word has two translations ...
    forms = {form for word in words for form in (word.en, word.plural)}
    verbs = {form for verb in mc.VERBS.values() for form in (verb.en, verb.past, mc.add_s(verb.en))}
    assert not forms & verbs  # ... nor is both a noun and a verb
    rare_translations = [word.ru for word in mc.RARE]
    assert len(set(rare_translations)) == len(rare_translations)


def test_one_source_has_one_tree_and_one_translation(monkeypatch):
    # With very few words the same English sentence comes up often; a second reading would show.
    for table, words in (("ADJECTIVES", ["old"]), ("MANNER", ["slowly"]), ("FREQUENCY", ["often", "never"])):
        monkeypatch.setattr(mc, table, {word: getattr(mc, table)[word] for word in words})
    monkeypatch.setattr(mc, "SINGULAR_DETS", ("the", "her"))
    monkeypatch.setattr(mc, "PLURAL_DETS", ("", "her"))
    sampler = mc.Sampler(random.Random(3))
    sampler.rare = dict.fromkeys("pbol", [])
    few = {"p": ("girl", "teacher"), "b": ("cat",), "o": ("book", "letter"), "l": ("house",)}
    sampler.common = {kind: [mc.NOUNS[word] for word in words] for kind, words in few.items()}
    kept = ("see", "help", "give", "sleep", "talk", "say", "play", "return", "stand")
    sampler.verbs = [mc.VERBS[word] for word in kept]
    readings = {}
    repeated = 0
    for _ in range(3000):
        tree, russian = mc.render(sampler.sentence())
        english = " ".join(node.form for node in tree.walk())
        reading = russian, mc.to_conllu(tree, "0")
        repeated += english in readings
        assert readings.setdefault(english, reading) == reading
    assert repeated > 30


# --------------------------------------------------------------------------------------------- trees
def test_trees_are_trees(trees):
    for sentence in (s for split in trees.values() for s in split):
        heads = {token["id"]: token["head"] for token in sentence}
        assert list(heads) == list(range(1, len(heads) + 1))
        assert [token["deprel"] for token in sentence if token["head"] == 0] == ["root"]
        for start in heads:
            seen, here = set(), start
            while here:
                assert here in heads and here not in seen
                seen.add(here)
                here = heads[here]


def test_trees_are_projective(trees):
    for sentence in trees["test"]:
        arcs = [sorted((token["id"], token["head"])) for token in sentence if token["head"]]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs)


def test_trees_match_the_text(corpus, trees):
    for split, sentences in trees.items():
        english = lines(corpus, f"{split}.en")
        assert len(sentences) == len(english)
        for sentence, text in zip(sentences, english, strict=True):
            assert [token["form"] for token in sentence] == text.split()
            assert sentence.metadata["text"] == text
        assert len({sentence.metadata["sent_id"] for sentence in sentences}) == len(sentences)


def test_ten_columns(corpus):
    rows = [line.split("\t") for line in lines(corpus, "test.en.conllu") if line and not line.startswith("#")]
    assert {len(row) for row in rows} == {10}
    assert all(all(row) for row in rows)
    tags = "NOUN PROPN PRON DET ADJ VERB AUX ADV ADP CCONJ SCONJ PART PUNCT"
    assert {row[3] for row in rows} <= set(tags.split())


def test_expected_relations_occur(trees):
    found = Counter(token["deprel"] for sentence in trees["train"] for token in sentence)
    rare = "nmod nmod:poss iobj obl obl:tmod case acl:relcl cc conj mark advcl ccomp aux punct"
    assert set(found) == {"root", "nsubj", "obj", "amod", "advmod", "det", *rare.split()}
    for relation in ("nsubj", "obj", "amod", "advmod", "det"):
        assert found[relation] > 0.3 * SIZES["train"]


def test_relations_of_one_sentence():
    sentence = clause(
        noun("boy", "a", "old", rel=clause(None, "sleep")),
        "give",
        noun("book", "", owner=noun("teacher")),
        to=pronoun("she"),
        shift=True,
        negated=True,
    )
    tree, _ = mc.render(sentence)
    rows = [line.split("\t") for line in mc.to_conllu(tree, "1").splitlines()[2:] if line]
    assert [(row[1], row[6], row[7]) for row in rows] == [
        ("an", "3", "det"),
        ("old", "3", "amod"),
        ("boy", "8", "nsubj"),
        ("who", "5", "nsubj"),
        ("slept", "3", "acl:relcl"),
        ("did", "8", "aux"),
        ("not", "8", "advmod"),
        ("give", "0", "root"),
        ("her", "8", "iobj"),
        ("the", "11", "det"),
        ("teacher", "13", "nmod:poss"),
        ("'s", "11", "case"),
        ("book", "8", "obj"),
        (".", "8", "punct"),
    ]


# ------------------------------------------------------------------------------------------- Russian
GOLD = [
    # past agrees in gender and number, also across an attractor
    (clause(noun("girl"), "sleep"), "the girl slept .", "девочка спала ."),
    (clause(nouns("boy"), "sleep"), "the boys slept .", "мальчики спали ."),
    (
        clause(noun("letter", "a", "new"), "burn", time="yesterday"),
        "a new letter burned yesterday .",
        "вчера новое письмо горело .",
    ),
    (
        clause(noun("woman", pp=("with", nouns("cat", ""))), "laugh"),
        "the woman with cats laughed .",
        "женщина с кошками смеялась .",
    ),
    # present agrees in person and number
    (clause(pronoun("i"), "love", pronoun("you"), tense="pres"), "i love you .", "я вас люблю ."),
    (clause(pronoun("we"), "help", noun("anna"), tense="pres"), "we help anna .", "мы помогаем анне ."),
    (
        clause(pronoun("you"), "own", nouns("key"), tense="pres"),
        "you own the keys .",
        "вы владеете ключами .",
    ),
    (
        clause(noun("man"), "see", noun("man", "a", "old"), tense="pres"),
        "the man sees an old man .",
        "мужчина видит старого мужчину .",
    ),
    # future: the auxiliary agrees
    (
        clause(nouns("student", "our"), "build", noun("house", "this"), tense="fut", time="tomorrow"),
        "our students will build this house tomorrow .",
        "завтра наши студенты будут строить этот дом .",
    ),
    # government: accusative, animate or not; genitive; dative; instrumental
    (
        clause(noun("king"), "find", noun("book", "a", "blue")),
        "the king found a blue book .",
        "король находил синюю книгу .",
    ),
    (
        clause(noun("king"), "find", noun("wolf", "a", "big")),
        "the king found a big wolf .",
        "король находил большого волка .",
    ),
    (
        clause(noun("king"), "find", noun("table", "a", "big")),
        "the king found a big table .",
        "король находил большой стол .",
    ),
    (
        clause(pronoun("they"), "see", nouns("girl", "this", "good")),
        "they saw these good girls .",
        "они видели этих хороших девочек .",
    ),
    (
        clause(noun("mouse"), "fear", noun("cat", "every"), tense="pres"),
        "the mouse fears every cat .",
        "мышь боится каждой кошки .",
    ),
    (
        clause(noun("queen"), "admire", noun("artist", "her"), tense="pres"),
        "the queen admires her artist .",
        "королева восхищается её художником .",
    ),
    (
        clause(noun("doctor"), "answer", noun("father", "my")),
        "the doctor answered my father .",
        "врач отвечал моему отцу .",
    ),
    # prepositions and their case
    (
        clause(pronoun("he"), "think", pps=(("about", noun("window", "this")),), tense="pres"),
        "he thinks about this window .",
        "он думает об этом окне .",
    ),
    (
        clause(pronoun("she"), "play", pps=(("with", noun("student", "the", "strange")),)),
        "she played with the strange student .",
        "она играла со странным студентом .",
    ),
    (
        clause(noun("ivan"), "come", pps=(("to", noun("library")),)),
        "ivan came to the library .",
        "иван приходил к библиотеке .",
    ),
    (
        clause(noun("olga"), "work", pps=(("in", noun("building", "a", "ancient")),), tense="pres"),
        "olga works in an ancient building .",
        "ольга работает в древнем здании .",
    ),
    (
        clause(noun("house", pp=("without", nouns("window", ""))), "stand", pps=(("near", noun("museum")),)),
        "the house without windows stood near the museum .",
        "дом без окон стоял около музея .",
    ),
    # order: possessor, adverbs, object pronouns, recipients
    (
        clause(noun("girl"), "see", noun("book", "", "new", owner=noun("teacher"))),
        "the girl saw the teacher 's new book .",
        "девочка видела новую книгу учителя .",
    ),
    (
        clause(noun("dog", "", owner=nouns("neighbour")), "sleep", tense="pres", frequency="often"),
        "the neighbours ' dog often sleeps .",
        "собака соседок часто спит .",
    ),
    (
        clause(noun("boy"), "hear", pronoun("they"), manner="well", negated=True, tense="pres"),
        "the boy does not hear them well .",
        "мальчик их хорошо не слышит .",
    ),
    (
        clause(noun("poet"), "give", nouns("letter", ""), to=noun("princess", "the", "young")),
        "the poet gave letters to the young princess .",
        "поэт давал молодой принцессе письма .",
    ),
    (
        clause(noun("poet"), "give", nouns("letter", ""), to=noun("princess", "the", "young"), shift=True),
        "the poet gave the young princess letters .",
        "поэт давал молодой принцессе письма .",
    ),
    (
        clause(pronoun("we"), "show", noun("map", "a"), to=pronoun("he"), tense="fut"),
        "we will show a map to him .",
        "мы ему будем показывать карту .",
    ),
    (
        clause(noun("witch"), "help", pronoun("i"), frequency="never"),
        "the witch never helped me .",
        "ведьма никогда мне не помогала .",
    ),
    # coordination
    (
        clause(noun("cat", conj=noun("dog")), "see", noun("vera", conj=noun("oleg")), tense="pres"),
        "the cat and the dog see vera and oleg .",
        "кошка и собака видят веру и олега .",
    ),
    (
        clause(noun("knight"), "see", noun("dragon", "a"), link=("and", clause(None, "help", pronoun("we")))),
        "the knight saw a dragon and helped us .",
        "рыцарь видел дракона и нам помогал .",
    ),
    (
        clause(noun("cow"), "sleep", link=("but", clause(pronoun("she"), "work"))),
        "the cow slept , but she worked .",
        "корова спала , но она работала .",
    ),
    (
        clause(noun("cow"), "sleep", link=("because", clause(pronoun("i"), "work"))),
        "the cow slept because i worked .",
        "корова спала , потому что я работал .",
    ),
    # clauses inside: the relative pronoun takes gender and number from its noun, case from its own verb
    (
        clause(noun("teacher", rel=clause(None, "see", noun("girl"))), "sleep", tense="pres"),
        "the teacher who saw the girl sleeps .",
        "учитель , который видел девочку , спит .",
    ),
    (
        clause(pronoun("i"), "buy", noun("book", rel=clause(pronoun("she"), "lose"))),
        "i bought the book that she lost .",
        "я покупал книгу , которую она теряла .",
    ),
    (
        clause(nouns("boy", rel=clause(noun("anna"), "help", tense="pres")), "fear", noun("monster")),
        "the boys who anna helps feared the monster .",
        "мальчики , которым анна помогает , боялись чудовища .",
    ),
    (
        clause(noun("singer"), "say", that=clause(noun("castle"), "disappear"), tense="pres"),
        "the singer says that the castle disappeared .",
        "певица говорит , что замок исчезал .",
    ),
]


@pytest.mark.parametrize(("sentence", "english", "russian"), GOLD, ids=[english for _, english, _ in GOLD])
def test_gold_pairs(sentence, english, russian):
    assert spell_out(sentence) == (english, russian)


def test_declension_of_nouns():
    cases = ("nom", "gen", "dat", "acc", "ins", "pre")
    table = {
        ("king", "sg"): "король короля королю короля королем короле",
        ("father", "pl"): "отцы отцов отцам отцов отцами отцах",
        ("door", "sg"): "дверь двери двери дверь дверью двери",
        ("mouse", "pl"): "мыши мышей мышам мышей мышами мышах",
        ("story", "sg"): "история истории истории историю историей истории",
        ("building", "pl"): "здания зданий зданиям здания зданиями зданиях",
        ("bird", "sg"): "птица птицы птице птицу птицей птице",
        ("village", "pl"): "деревни деревень деревням деревни деревнями деревнях",
        ("knife", "pl"): "ножи ножей ножам ножи ножами ножах",
        ("towel", "sg"): "полотенце полотенца полотенцу полотенце полотенцем полотенце",
        ("teacher", "pl"): "учителя учителей учителям учителей учителями учителях",
        ("peter", "sg"): "пётр петра петру петра петром петре",
    }
    for (word, number), forms in table.items():
        assert [mc.decline(mc.NOUNS[word], case, number) for case in cases] == forms.split()


def test_rare_words_are_transliterated_and_declined():
    name = next(word for word in mc.RARE if word.en.endswith("ka"))
    assert name.gender == "f" and name.proper
    assert mc.decline(name, "gen") == name.ru[:-1] + "и"
    place = next(word for word in mc.RARE if word.en.endswith("grad"))
    assert place.ru.endswith("град")
    assert mc.decline(place, "pre") == place.ru + "е"
    assert all(word.ru.translate({ord(c): None for c in "адегиклмнорстувз"}) == "" for word in mc.RARE)


# -------------------------------------------------------------------------------------- command line
def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


def refused(result):
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


SMALL = ("--train", 20, "--valid", 5, "--test", 5)


def test_writes_refuses_and_overwrites(tmp_path):
    out = tmp_path / "new" / "corpus"
    assert run(out, *SMALL).returncode == 0
    names = {f"{split}.{suffix}" for split in SIZES for suffix in ("en", "ru", "en.conllu")}
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(first) == names  # and no temporary file
    expected = mc.make_corpus({"train": 20, "valid": 5, "test": 5}, seed=1)
    assert first == {name: text.encode("utf-8") for name, text in expected.items()}
    message = refused(run(out, *SMALL, "--seed", 2))
    assert "train.en" in message and "--force" in message
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first
    assert run(out, *SMALL, "--seed", 2, "--force").returncode == 0
    assert (out / "train.en").read_bytes() != first["train.en"]


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
def test_bad_arguments(tmp_path, arguments, expected):
    message = refused(run(tmp_path / "out", *arguments))
    assert all(part in message for part in expected)
    assert not (tmp_path / "out").exists()


def test_output_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("kept")
    assert "is a file" in refused(run(tmp_path / "file", *SMALL))
    assert "cannot write" in refused(run(tmp_path / "file" / "below", *SMALL))
    assert (tmp_path / "file").read_text() == "kept"


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def broken(self, target):
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match="no space"):
        mc.write_files(tmp_path, {"train.en": "a\n", "train.ru": "b\n"})
    assert list(tmp_path.iterdir()) == []
