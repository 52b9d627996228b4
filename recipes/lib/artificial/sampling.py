"""Random clauses for the artificial corpus, with word frequencies as in Zipf's law."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from typing import Any

from artificial.grammar import NP, OBJECT_CASES, Clause
from artificial.lexicon import (
    ADJECTIVES,
    COMMON,
    FREQUENCY,
    LINKS,
    MANNER,
    NAMES,
    NOUN_PHRASES,
    PREPOSITIONS,
    PRONOUNS,
    RARE,
    TIME,
    VERB_PHRASES,
    VERBS,
    Noun,
)

# The articles occur twice, to be more frequent than by rank alone.
SINGULAR_DETS = ("the", "a", "the", "a", "my", "this", "his", "her", "every", "our", "their", "your")
PLURAL_DETS = ("the", "", "the", "my", "this", "her", "his", "our", "their", "your")
TENSES = ("past", "pres", "fut")  # from the most frequent one
RARE_WORD = 0.06  # probability that a noun is a rare one
QUESTION = 0.15  # probability that a sentence is a question
PLAIN_WORDS = 8  # nouns of a kind, and adjectives, in plain sentences; they have twice as many verbs,
PLAIN_VERBS = ("acc", "gen", "dat", "ins", "none")  # which govern an object in these cases, or nothing
TIMED = 0.2  # probability that a clause that may have a time begins with one
ADJECTIVE_NUMBERS = (0.6, 0.2, 0.12, 0.08)  # probabilities that a noun has none, one, two, three


@cache
def zipf_weights(size: int) -> list[float]:
    return list(accumulate(1 / (rank + 2) for rank in range(size)))


class Sampler:
    """Draw clauses, without constructions that would give an English sentence two readings.

    `plain`: single clauses of frequent words.
    """

    def __init__(self, rng: random.Random, plain: bool = False) -> None:
        self.rng = rng
        self.plain = plain
        self.common = {kind: [noun for noun in COMMON if noun.kind == kind] for kind in "pbol"}
        self.common["p"][6:6] = NAMES
        mixed = sorted(
            RARE, key=lambda noun: noun.en[1:]
        )  # otherwise names with the same ending would be the most frequent ones
        self.rare = {kind: [noun for noun in mixed if noun.kind == kind] for kind in "pbol"}
        self.verbs = list(VERBS.values())
        if plain:
            self.common = {kind: nouns[:PLAIN_WORDS] for kind, nouns in self.common.items()}
            self.rare = dict.fromkeys("pbol", [])
            self.verbs = [verb for verb in self.verbs if verb.government in PLAIN_VERBS][: 2 * PLAIN_WORDS]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def zipf(self, items: Iterable[Any]) -> Any:
        pool = list(items)
        return self.rng.choices(pool, cum_weights=zipf_weights(len(pool)))[0]

    def noun(self, kinds: str) -> Noun:
        kind = self.zipf(kinds)
        return self.zipf(self.rare[kind] if self.rare[kind] and self.chance(RARE_WORD) else self.common[kind])

    def np(self, kinds: str, rich: bool = False, rel: bool = False, pronoun: float = 0.0) -> NP:
        """Draw a noun phrase. `rich` allows another one inside, `rel` a relative clause."""
        if "p" in kinds and self.chance(pronoun):
            return NP(self.zipf(PRONOUNS.values()))
        np = NP(self.noun(kinds))
        if not np.noun.proper:
            np.number = "pl" if self.chance(0.35) else "sg"
            np.det = self.zipf(PLURAL_DETS if np.number == "pl" else SINGULAR_DETS)
            fitting = [word for word, (_, allowed) in ADJECTIVES.items() if np.noun.kind in allowed]
            np.adjectives = self.adjectives(fitting[:PLAIN_WORDS] if self.plain else fitting)
        if rich:
            self.enrich(np, rel)
        return np

    def adjectives(self, fitting: list[str]) -> tuple[str, ...]:
        """Draw different adjectives."""
        number = self.rng.choices(range(len(ADJECTIVE_NUMBERS)), ADJECTIVE_NUMBERS)[0]
        number = min(number, 1) if self.plain else number
        chosen: list[str] = []
        while len(chosen) < min(number, len(fitting)):
            chosen.append(self.zipf(word for word in fitting if word not in chosen))
        return tuple(chosen)

    def enrich(self, np: NP, rel: bool) -> None:
        """Add at most one dependent phrase, so that its attachment is unambiguous."""
        choice, kind = self.rng.random(), np.noun.kind
        if choice < 0.07:
            np.conj = self.other(np)
        elif np.noun.proper:
            return
        elif choice < 0.15:
            np.det, np.owner = "", self.np("p")
        elif choice < 0.4:
            preposition, _, inside = self.zipf(row for row in NOUN_PHRASES if kind in row[1])
            np.pp = (preposition, self.np(inside))
        elif rel and choice < 0.52:
            np.rel = self.relative(kind)

    def other(self, np: NP) -> NP | None:
        """Draw a phrase to coordinate, with a determiner so that it cannot share that of `np`; not of the same noun."""
        conj = self.np(np.noun.kind)
        if not conj.noun.proper:
            conj.det = conj.det or "the"
        return None if conj.noun == np.noun else conj

    def relative(self, kind: str) -> Clause:
        """Draw a clause that relativises its object or its subject, a noun of this kind."""
        verbs = [verb for verb in self.verbs if verb.government in (*OBJECT_CASES, "none")]
        tense = self.zipf(TENSES)
        if self.chance(0.4):
            verb = self.zipf(verb for verb in verbs if kind in verb.kinds)
            clause = Clause(verb, self.np("pb", pronoun=0.3), tense)
        else:
            clause = Clause(self.zipf(verb for verb in verbs if kind in verb.subjects), None, tense)
            if clause.verb.government != "none":
                clause.obj = self.np(clause.verb.kinds, pronoun=0.15)
        clause.manner = self.zipf(MANNER) if self.chance(0.15) else ""
        return clause

    def clause(
        self, subj: NP | None = None, tense: str = "", rich: bool = True, end: bool = True, timed: bool = True
    ) -> Clause:
        """Draw a clause, with the subject `subj` if given; `rich` as in `np`, `timed`: with a time in some of them.

        Its object takes a relative clause only at the `end` of the sentence: words after it would join that clause.
        """
        kind = subj.noun.kind if subj else ""
        excluded = {"" if rich else "that", "nom" if subj else ""}  # a shared subject has one case
        verb = self.zipf(v for v in self.verbs if kind in v.subjects and v.government not in excluded)
        clause = Clause(verb, subj, tense or self.zipf(TENSES))
        clause.subj = subj or self.np(verb.subjects, rich, rel=True, pronoun=0.15)
        clause.negated = self.chance(0.12)
        if not clause.negated and self.chance(0.25):
            clause.frequency = self.zipf(FREQUENCY)
        self.complements(clause, rich, rel=end)
        phrases = [clause.obj, *(np for _, np in clause.pps)]
        if not clause.that and not any(np and np.rel for np in phrases):
            self.adjuncts(clause, timed=timed and not subj)
        avoid_reflexives(clause)
        return clause

    def question(self) -> Clause:
        """Draw a yes-no question, or one that asks for the object."""
        verb = self.zipf(verb for verb in self.verbs if verb.government != "that")
        subject = self.np(verb.subjects, True, rel=True, pronoun=0.15)
        clause = Clause(verb, subject, self.zipf(TENSES), question=True)
        self.complements(clause, rich=True, rel=True)
        asked = clause.obj
        if asked and not asked.noun.proper and not asked.noun.pronoun and self.chance(0.5):
            clause.obj = NP(asked.noun, asked.number, "which", asked.adjectives)
        if not (clause.obj and clause.obj.rel):
            self.add_phrase(clause)
        avoid_reflexives(clause)
        return clause

    def add_phrase(self, clause: Clause) -> None:
        """Add a prepositional phrase to some clauses without one."""
        if not clause.pps and not self.plain and self.chance(0.22):
            preposition, kinds = self.zipf(VERB_PHRASES)
            clause.pps = ((preposition, self.np(kinds)),)

    def complements(self, clause: Clause, rich: bool, rel: bool) -> None:
        government, kinds = clause.verb.government, clause.verb.kinds
        if government == "that":
            clause.that = self.clause(rich=False)
        elif government == "give":
            clause.obj, clause.to = self.np(kinds), self.np("pb", pronoun=0.2)
            clause.shift = self.chance(0.5)
        elif government in PREPOSITIONS:
            clause.pps = ((government, self.np(kinds, rich, rel=rel)),)
        elif government != "none":
            clause.obj = self.np(kinds, rich, rel=rel, pronoun=0.0 if self.plain else 0.2)

    def adjuncts(self, clause: Clause, timed: bool) -> None:
        self.add_phrase(clause)
        if timed and self.chance(TIMED):
            clause.time = self.zipf(word for word, row in TIME.items() if row[1] == clause.tense)
        elif not clause.negated and clause.frequency != "never" and self.chance(0.2):
            clause.manner = self.zipf(MANNER)

    def sentence(self) -> Clause:
        """Draw a question, or a clause, alone or with another: with the same subject, coordinate or subordinate."""
        if self.plain:
            return self.clause(rich=False, timed=False)
        if self.chance(QUESTION):
            return self.question()
        choice = self.rng.random()
        if choice < 0.74:
            return self.clause()
        first = self.clause(end=False)
        if first.that:
            return first  # a second clause could belong to either verb
        if choice < 0.87 and first.verb.government != "nom":
            second = self.clause(first.subj, first.tense, rich=False)
            second.subj = None
            first.link = ("and", second)
        else:
            words = [word for word in LINKS if word != "when" or first.tense != "fut"]  # not "when he will sleep"
            word = self.zipf(words)
            tense = first.tense if word == "when" else ""
            first.link = (word, self.clause(tense=tense, rich=False, timed=word != "when"))
        return first


def avoid_reflexives(clause: Clause) -> None:
    """Replace objects like those of "i saw me" and "i saw my cat", where Russian would have a reflexive pronoun."""
    assert clause.subj is not None
    subject = clause.subj.noun
    phrases = [np for np in (clause.obj, clause.to, *(np for _, np in clause.pps)) if np]
    for np in phrases:
        if np.noun == subject and (subject.proper or subject.pronoun) or same_person(np.noun, subject):
            np.noun = NAMES[1] if subject == NAMES[0] else NAMES[0]
    if subject.pronoun and clause.verb.government != "nom":  # the Russian subject of these is the object
        for np in phrases:
            remove_possessive(np, subject.pronoun.possessive)


def same_person(noun: Noun, subject: Noun) -> bool:
    """Return whether both are pronouns of the same first or second person: "i" and "us"."""
    if not noun.pronoun or not subject.pronoun:
        return False
    return noun.pronoun.person == subject.pronoun.person != 3


def remove_possessive(np: NP, possessive: str) -> None:
    """Replace a possessive by "the", also in the phrases inside."""
    if np.det == possessive:
        np.det = "the"
    for inside in (np.owner, np.conj, np.pp and np.pp[1]):
        if inside:
            remove_possessive(inside, possessive)
