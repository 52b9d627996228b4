"""Grammar of the artificial corpus: random clauses, their English dependency trees and Russian translations.

A clause has a subject, a verb, perhaps an object, and adverbs. Frequencies of words are as in Zipf's law. The words are
those of lexicon/ (format: README.md there).
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "lexicon"
CASES = ("nom", "gen", "dat", "acc", "ins")
PERSONS = ((1, "sg"), (3, "sg"), (1, "pl"), (2, "pl"), (3, "pl"))
GENDERS = {"m": "masculine", "n": "neuter", "f": "feminine", "pl": "plural"}
FUTURE = ("буду", "будет", "будем", "будете", "будут")  # of PERSONS
# The articles occur twice, to be more frequent than by rank alone.
SINGULAR_DETERMINERS = ("the", "a", "the", "a", "my", "this", "his", "her", "every", "our", "their", "your")
PLURAL_DETERMINERS = ("the", "", "the", "my", "this", "her", "his", "our", "their", "your")
TENSES = ("past", "pres", "fut")  # from the most frequent one
NO_ADJECTIVE = 0.6  # probability that a noun has none

Row = dict[str, str]


def table(name: str) -> dict[str, Row]:
    """Return the rows of a table of the lexicon, by their English words."""
    with open(FOLDER / f"{name}.tsv", encoding="utf-8", newline="") as file:
        return {row["english"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


NOUNS, VERBS, ADJECTIVES, DETERMINERS, PRONOUNS, ADVERBS = map(
    table, ("nouns", "verbs", "adjectives", "determiners", "pronouns", "adverbs")
)


@dataclass
class NounPhrase:
    """A pronoun, a name, or a noun with a determiner and perhaps an adjective."""

    noun: Row
    number: str = "sg"
    determiner: str = ""
    adjective: str = ""

    @property
    def pronoun(self) -> bool:
        return "person" in self.noun

    @property
    def proper(self) -> bool:
        return not self.pronoun and not self.noun["plural"]


@dataclass
class Clause:
    """A subject, a verb and their dependents; `frequency` and `manner` are adverbs."""

    subject: NounPhrase
    verb: Row
    tense: str = "past"
    object: NounPhrase | None = None
    negated: bool = False
    frequency: str = ""
    manner: str = ""


class Word:
    """An English word of a dependency tree; without `head` it is the root."""

    def __init__(self, form: str, upos: str, relation: str, head: Word | None = None, lemma: str = ""):
        self.form, self.upos, self.relation, self.head, self.lemma = form, upos, relation, head, lemma or form


# --- English ----------------------------------------------------------------------------------------------------------


def english(clause: Clause) -> list[Word]:
    """Return the words of a clause as a tree, in order."""
    verb, tense = clause.verb, clause.tense
    third = tense == "pres" and agreement(clause.subject)[:2] == (3, "sg")
    root = Word(verb["english"], "VERB", "root")
    words = _phrase(clause.subject, "nsubj", root)
    if tense == "fut" or clause.negated:
        form = {"fut": "will", "past": "did", "pres": "does" if third else "do"}[tense]
        words.append(Word(form, "AUX", "aux", root, "will" if tense == "fut" else "do"))
    else:
        root.form = verb["past"] if tense == "past" else verb["english"] + "s" * third
    if clause.negated:
        words.append(Word("not", "PART", "advmod", root))
    if clause.frequency:
        words.append(Word(clause.frequency, "ADV", "advmod", root))
    words.append(root)
    if clause.object:
        words += _phrase(clause.object, "obj", root)
    if clause.manner:
        words.append(Word(clause.manner, "ADV", "advmod", root))
    return [*words, Word(".", "PUNCT", "punct", root)]


def _phrase(phrase: NounPhrase, relation: str, verb: Word) -> list[Word]:
    noun = phrase.noun
    upos = "PRON" if phrase.pronoun else "PROPN" if phrase.proper else "NOUN"
    form = noun["plural"] if phrase.number == "pl" else noun["english"]
    words = [Word(form, upos, relation, verb, noun["english"])]
    if phrase.adjective:
        words.insert(0, Word(phrase.adjective, "ADJ", "amod", words[-1]))
    if lemma := phrase.determiner:
        form = "these" if lemma == "this" and phrase.number == "pl" else lemma
        form = "an" if form == "a" and words[0].form[0] in "aeiou" else form
        upos, relation = ("PRON", "nmod:poss") if DETERMINERS[lemma]["possessive"] else ("DET", "det")
        words.insert(0, Word(form, upos, relation, words[-1], lemma))
    return words


# --- Russian ----------------------------------------------------------------------------------------------------------


def russian(clause: Clause) -> str:
    """Return the translation: subject, adverbs, verb, object."""
    adverbs = [ADVERBS[adverb]["russian"] for adverb in (clause.frequency, clause.manner) if adverb]
    negation = ["не"] if clause.negated or clause.frequency == "never" else []
    finite = conjugate(clause.verb, clause.tense, *agreement(clause.subject))
    words = [*decline(clause.subject, "nom"), *adverbs, *negation, finite]
    if clause.object:
        words += decline(clause.object, clause.verb["case of the object"])
    return " ".join([*words, "."])


def agreement(phrase: NounPhrase) -> tuple[int, str, str]:
    """Return the person, number and gender that a verb agrees with."""
    noun = phrase.noun
    return (
        (int(noun["person"]), noun["number"], noun["gender"]) if phrase.pronoun else (3, phrase.number, noun["gender"])
    )


def decline(phrase: NounPhrase, case: str) -> list[str]:
    """Return the words of a phrase in a case; pronouns are subjects."""
    noun, plural = phrase.noun, phrase.number == "pl"
    if phrase.pronoun:
        return [noun["russian"]]
    # The accusative of masculine and plural adjectives equals the genitive for persons and animals.
    agreeing = "pl" if plural else noun["gender"]
    animate = noun["kind"] in "pb" and agreeing in ("m", "pl")
    own = CASES.index("gen" if case == "acc" and animate else case)
    modifiers = DETERMINERS.get(phrase.determiner), ADJECTIVES.get(phrase.adjective)
    forms = [row[GENDERS[agreeing]].split()[own] for row in modifiers if row and row["plural"]]
    return [*forms, noun["plural forms" if plural else "singular forms"].split()[CASES.index(case)]]


def conjugate(verb: Row, tense: str, person: int, number: str, gender: str) -> str:
    """Return the verb: its past agrees in gender and number, its present and future in person and number."""
    if tense == "past":
        return verb["russian past"].split()[list(GENDERS).index("pl" if number == "pl" else gender)]
    place = PERSONS.index((person, number))
    return f"{FUTURE[place]} {verb['infinitive']}" if tense == "fut" else verb["russian present"].split()[place]


# --- random clauses ---------------------------------------------------------------------------------------------------


@cache
def zipf_weights(size: int) -> list[float]:
    return list(accumulate(1 / (rank + 2) for rank in range(size)))


class Sampler:
    """Draw clauses."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def zipf(self, items: Iterable[Any]) -> Any:
        pool = list(items)
        return self.rng.choices(pool, cum_weights=zipf_weights(len(pool)))[0]

    def phrase(self, kinds: str, pronoun: float) -> NounPhrase:
        """Draw a noun phrase; `pronoun` is the probability of a pronoun instead of a person."""
        if "p" in kinds and self.chance(pronoun):
            return NounPhrase(self.zipf(PRONOUNS.values()))
        kind = self.zipf(kinds)
        phrase = NounPhrase(self.zipf(noun for noun in NOUNS.values() if noun["kind"] == kind))
        if not phrase.proper:
            phrase.number = "pl" if self.chance(0.35) else "sg"
            phrase.determiner = self.zipf(PLURAL_DETERMINERS if phrase.number == "pl" else SINGULAR_DETERMINERS)
            if not self.chance(NO_ADJECTIVE):
                phrase.adjective = self.zipf(word for word, row in ADJECTIVES.items() if kind in row["kinds"])
        return phrase

    def clause(self) -> Clause:
        verb, tense = self.zipf(VERBS.values()), self.zipf(TENSES)
        clause = Clause(self.phrase(verb["subjects"], pronoun=0.15), verb, tense, negated=self.chance(0.12))
        if not clause.negated and self.chance(0.25):
            clause.frequency = self.zipf(adverbs("frequency"))
        if verb["case of the object"] != "none":
            clause.object = self.phrase(verb["objects"], pronoun=0)
            avoid_reflexives(clause.object, clause.subject)
        if not clause.negated and clause.frequency != "never" and self.chance(0.2):
            clause.manner = self.zipf(adverbs("manner"))
        return clause


def adverbs(kind: str) -> list[str]:
    return [word for word, row in ADVERBS.items() if row["class"] == kind]


def avoid_reflexives(phrase: NounPhrase, subject: NounPhrase) -> None:
    """Change objects like those of "anna saw anna" and "i saw my cat", where Russian would have a reflexive pronoun."""
    if phrase.proper and phrase.noun == subject.noun:
        phrase.noun = next(noun for noun in NOUNS.values() if not noun["plural"] and noun != subject.noun)
    if subject.pronoun and phrase.determiner == subject.noun["possessive"]:
        phrase.determiner = "the"
