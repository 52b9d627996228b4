"""Grammar of the artificial corpus: from an abstract clause to an English dependency tree and a Russian sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from artificial.inflection import agree, conjugate, decline, euphonic
from artificial.lexicon import (
    ADJECTIVES,
    DETERMINERS,
    FREQUENCY,
    LINKS,
    MANNER,
    POSSESSIVES,
    PREPOSITIONS,
    TIME,
    Noun,
    Verb,
    add_s,
)

OBJECT_CASES = ("acc", "gen", "dat", "ins", "nom")


@dataclass
class NP:
    """A pronoun, or a noun with at most one of `owner` (then no `det`), `pp`, `rel` or `conj`."""

    noun: Noun
    number: str = "sg"
    det: str = ""
    adjectives: tuple[str, ...] = ()
    owner: NP | None = None
    pp: tuple[str, NP] | None = None
    rel: Clause | None = None
    conj: NP | None = None

    def features(self) -> tuple[int, str, str]:
        """Return the person, number and gender that a verb agrees with."""
        if self.noun.pronoun:
            return self.noun.pronoun.person, self.noun.pronoun.number, self.noun.gender
        return 3, "pl" if self.conj else self.number, self.noun.gender


@dataclass
class Clause:
    """A verb and its dependents. Without `subj` it relativises its subject or shares the subject of another clause.

    A relative clause with a subject relativises its object. `shift` puts the recipient `to` before the object in
    English; in Russian it is always there. `time` comes first. `link` is a word of LINKS and a second clause. A
    `question` asks for its object if that has the determiner "which", else it asks for yes or no; its only dependents
    are subject, object, recipient and prepositional phrases.
    """

    verb: Verb
    subj: NP | None = None
    tense: str = "past"
    obj: NP | None = None
    to: NP | None = None
    shift: bool = False
    pps: tuple[tuple[str, NP], ...] = ()
    negated: bool = False
    frequency: str = ""
    manner: str = ""
    time: str = ""
    that: Clause | None = None
    link: tuple[str, Clause] | None = None
    question: bool = False

    def fronted(self) -> bool:
        """Return whether the object is at the beginning."""
        return self.question and self.obj is not None and self.obj.det == "which"


@dataclass
class Node:
    """A word of a projective dependency tree with its dependents on either side, in order."""

    form: str
    upos: str
    rel: str
    lemma: str = ""
    left: list[Node] = field(default_factory=list)
    right: list[Node] = field(default_factory=list)

    def walk(self) -> list[Node]:
        """Return the words of this subtree in sentence order."""
        left, right = ([word for node in side for word in node.walk()] for side in (self.left, self.right))
        return [*left, self, *right]


Built = tuple[Node, list[str]]  # an English subtree and the Russian words that translate it


def determiner(np: NP, following: str) -> list[Node]:
    if not np.det:
        return []
    form = "these" if np.det == "this" and np.number == "pl" else np.det
    form = "an" if form == "a" and following[0] in "aeiou" else form
    mine = np.det in POSSESSIVES
    return [Node(form, "PRON" if mine else "DET", "nmod:poss" if mine else "det", np.det)]


def build_np(np: NP, rel: str, case: str) -> Built:
    noun = np.noun
    if noun.pronoun:
        forms = dict(zip(("nom", "gen", "dat", "ins"), noun.pronoun.forms, strict=True))
        form = noun.en if rel == "nsubj" else noun.plural
        return Node(form, "PRON", rel, noun.en), [forms["gen" if case == "acc" else case]]
    form = noun.plural if np.number == "pl" else noun.en
    head = Node(form, "PROPN" if noun.proper else "NOUN", rel, noun.en)
    head.left = [Node(word, "ADJ", "amod") for word in np.adjectives]
    head.left[:0] = determiner(np, (head.left or [head])[0].form)
    lemmas = [DETERMINERS[np.det], *(ADJECTIVES[word][0] for word in np.adjectives)]
    words = [agree(lemma, case, noun.gender, np.number, noun.animate) for lemma in lemmas if lemma]
    words.append(decline(noun, case, np.number))
    if np.owner:
        owner, owner_words = build_np(np.owner, "nmod:poss", "gen")
        mark = "'" if np.owner.number == "pl" and owner.form.endswith("s") else "'s"
        owner.right.append(Node(mark, "PART", "case", "'s"))
        head.left.insert(0, owner)
        words += owner_words
    for node, node_words in postmodifiers(np, case):
        head.right.append(node)
        words += node_words
    return head, words


def postmodifiers(np: NP, case: str) -> Iterator[Built]:
    if np.pp:
        yield build_pp(*np.pp, "nmod")
    if np.rel:
        node, words = build_clause(np.rel, "acl:relcl", head=np)
        yield node, [",", *words, ","]
    if np.conj:
        node, words = build_np(np.conj, "conj", case)
        node.left.insert(0, Node("and", "CCONJ", "cc"))
        yield node, ["и", *words]


def build_pp(preposition: str, np: NP, rel: str = "obl") -> Built:
    russian, case = PREPOSITIONS[preposition]
    node, words = build_np(np, rel, case)
    node.left.insert(0, Node(preposition, "ADP", "case"))
    return node, [euphonic(russian, words[0]), *words]


def build_verb(clause: Clause, rel: str, subject: NP, agreeing: NP) -> Built:
    """Build the verb with its auxiliary, "not" and adverb of frequency, and the Russian verb with "не".

    The English verb agrees with `subject`, the Russian one with `agreeing`.
    """
    verb, tense = clause.verb, clause.tense
    third = tense == "pres" and subject.features()[:2] == (3, "sg")
    node = Node(verb.past if tense == "past" else add_s(verb.en) if third else verb.en, "VERB", rel, verb.en)
    auxiliary = {"fut": "will", "past": "did", "pres": "does" if third else "do"}[tense]
    if tense == "fut" or clause.negated or clause.question:
        node.form = verb.en
        node.left.append(Node(auxiliary, "AUX", "aux", "will" if tense == "fut" else "do"))
    if clause.negated:
        node.left.append(Node("not", "PART", "advmod"))
    if clause.frequency:
        node.left.append(Node(clause.frequency, "ADV", "advmod"))
    negation = ["не"] if clause.negated or clause.frequency == "never" else []
    return node, [*negation, *conjugate(verb, tense, *agreeing.features()).split()]


def build_clause(clause: Clause, rel: str, head: NP | None = None, shared: NP | None = None) -> Built:
    """Build a clause. `head` is the noun phrase it relativises, `shared` the subject of the clause it belongs to."""
    subject = clause.subj or head or shared
    assert subject is not None
    assert not (head and clause.time)
    if clause.question:
        assert not (clause.negated or clause.frequency or clause.manner or clause.time or clause.that or clause.link)
    nominative = subject if subject_case(clause.verb) == "nom" else clause.obj or head
    assert nominative is not None
    verb, finite = build_verb(clause, rel, subject, nominative)
    parts = {"verb": finite, "first": finite[:1], "ли": ["ли"], "others": finite[1:]}
    parts["frequency"] = [FREQUENCY[clause.frequency]] if clause.frequency else []
    parts["manner"] = [MANNER[clause.manner]] if clause.manner else []
    if clause.subj:
        node, parts["subject"] = build_np(clause.subj, "nsubj", subject_case(clause.verb))
        verb.left.insert(int(clause.question), node)  # after the auxiliary of a question
    if head:
        node, which = relative_pronoun(clause, head)
        verb.left.insert(0, node)
        parts["который"] = [which]
    if clause.time:
        russian, _, upos = TIME[clause.time]
        verb.left.insert(0, Node(clause.time, upos, "obl:tmod" if upos == "NOUN" else "advmod"))
        parts["time"] = [russian]
    parts |= build_objects(clause, verb)
    words = [word for part in russian_order(clause, subject).split() for word in parts.get(part, [])]
    for node, node_words in final_dependents(clause):
        verb.right.append(node)
        words += node_words
    return verb, words


def russian_order(clause: Clause, subject: NP) -> str:
    """Return the order of the parts of a Russian clause.

    The verb precedes a subject that is a noun in questions, and after an adverb of time without an object that is a
    noun. The parts: the relative pronoun (`который`), time, subject, frequency, manner; of the verb all (`verb`), or
    its `first` word and the `others`; of the objects that with "which" (`asked`), a pronoun in the nominative
    (`nominative`), other pronouns (`clitics`), others (`objects`).
    """
    pronoun = bool(subject.noun.pronoun)
    if clause.fronted():
        return "asked subject clitics verb objects" if pronoun else "asked verb clitics subject objects"
    if clause.question and subject_case(clause.verb) == "dat" and not pronoun:
        return "first ли nominative clitics others subject objects"
    if clause.question:
        before_subject = clause.tense != "fut" and not pronoun
        return f"first ли nominative {'clitics subject' if before_subject else 'subject clitics'} others objects"
    if clause.time and not pronoun and not any(np and not np.noun.pronoun for np in (clause.obj, clause.to)):
        return "time nominative frequency clitics manner verb subject objects"
    return "который time subject nominative frequency clitics manner verb objects"


def relative_pronoun(clause: Clause, head: NP) -> tuple[Node, str]:
    noun, case = head.noun, object_case(clause.verb) if clause.subj else subject_case(clause.verb)
    node = Node("who" if noun.kind == "p" else "that", "PRON", "obj" if clause.subj else "nsubj")
    return node, agree("который", case, noun.gender, head.number, noun.animate)


def subject_case(verb: Verb) -> str:
    """Return the Russian case of the English subject: the dative, if the English object is the Russian subject."""
    return "dat" if verb.government == "nom" else "nom"


def object_case(verb: Verb) -> str:
    return verb.government if verb.government in OBJECT_CASES else "acc"


def build_objects(clause: Clause, verb: Node) -> dict[str, list[str]]:
    """Attach recipient and object to the verb. Return the Russian words by part; see `russian_order`."""
    english: list[Node] = []
    parts: dict[str, list[str]] = {"asked": [], "nominative": [], "clitics": [], "objects": []}
    for np, rel, case in ((clause.to, "iobj", "dat"), (clause.obj, "obj", object_case(clause.verb))):
        if not np:
            continue
        node, words = build_np(np, rel, case)
        part = "objects" if not np.noun.pronoun else "nominative" if case == "nom" else "clitics"
        if rel == "obj" and clause.fronted():
            part = "asked"
            verb.left.insert(0, node)
        else:
            english.append(build_pp("to", np)[0] if rel == "iobj" and not clause.shift else node)
        parts[part] += words
    verb.right += english if clause.shift else english[::-1]
    return parts


def final_dependents(clause: Clause) -> Iterator[Built]:
    """Yield what follows the objects: prepositional phrases, adverbs, further clauses."""
    yield from (build_pp(*pp) for pp in clause.pps)
    if clause.manner:
        yield Node(clause.manner, "ADV", "advmod"), []
    if clause.that:
        node, words = build_clause(clause.that, "ccomp")
        node.left.insert(0, Node("that", "SCONJ", "mark"))
        yield node, [",", "что", *words]
    if clause.link:
        yield build_link(*clause.link, clause.subj)


def build_link(word: str, clause: Clause, shared: NP | None) -> Built:
    rel, russian = LINKS[word]
    node, words = build_clause(clause, rel, shared=shared)
    node.left.insert(0, Node(word, "CCONJ", "cc") if rel == "conj" else Node(word, "SCONJ", "mark"))
    if rel == "conj" and clause.subj:
        node.left.insert(0, Node(",", "PUNCT", "punct"))
    return node, [*([","] if clause.subj else []), *russian, *words]


def render(clause: Clause) -> tuple[Node, str]:
    """Return the English tree and the Russian sentence of a main clause."""
    tree, words = build_clause(clause, "root")
    mark = "?" if clause.question else "."
    tree.right.append(Node(mark, "PUNCT", "punct"))
    # A comma that closes a relative clause merges with the mark after it.
    return tree, re.sub(r"(, )+(?=[,.?])", "", " ".join([*words, mark]))
