"""The words of the artificial corpus, read from data/lexicon/*.tsv (format: README.md there)."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "data" / "lexicon"


@dataclass(frozen=True)
class Pronoun:
    """What a verb agrees with, the English possessive, and the Russian forms; the accusative equals the genitive."""

    person: int
    number: str
    possessive: str
    forms: tuple[str, str, str, str]  # nominative, genitive, dative, instrumental


@dataclass(frozen=True)
class Noun:
    """An English noun, name or pronoun, and what is needed to decline its translation."""

    en: str
    plural: str  # of a pronoun: the object form
    ru: str
    gender: str
    kind: str
    proper: bool = False
    stem: str = ""
    pl: str = ""
    g: str = ""
    pronoun: Pronoun | None = None

    @property
    def animate(self) -> bool:
        return self.kind in "pb"


@dataclass(frozen=True)
class Verb:
    """An English verb and its translation; `present` holds the irregular Russian forms (1sg, 3sg, 3pl) or ""."""

    en: str
    past: str
    infinitive: str
    present: tuple[str, str, str]
    government: str
    kinds: str
    subjects: str


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table of the lexicon, by the names of its columns."""
    with open(FOLDER / f"{name}.tsv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def add_s(word: str) -> str:
    """Return an English noun's plural or a verb's third person singular."""
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|z|ch|sh)$", word) else "s")


def read_noun(row: dict[str, str], proper: bool = False) -> Noun:
    irregular = row["stem"], row["nominative plural"], row["genitive plural"]
    plural = row["plural"] or add_s(row["english"])
    return Noun(row["english"], plural, row["russian"], row["gender"], row["kind"], proper, *irregular)


def read_pronoun(row: dict[str, str]) -> Noun:
    forms = row["nominative"], row["genitive"], row["dative"], row["instrumental"]
    pronoun = Pronoun(int(row["person"]), row["number"], row["possessive"], forms)
    return Noun(row["english"], row["object"], row["nominative"], row["gender"], "p", pronoun=pronoun)


def read_verb(row: dict[str, str]) -> Verb:
    present = row["first singular"], row["third singular"], row["third plural"]
    return Verb(
        row["english"], row["past"], row["russian"], present, row["government"], row["objects"], row["subjects"]
    )


TRANSLITERATION = str.maketrans("adegiklmnorstuvz", "адегиклмнорстувз")
SYLLABLES = [consonant + vowel for consonant in "dgklmnrstvz" for vowel in "aeiou"]


def rare_nouns() -> list[Noun]:
    """Make names and rare nouns, two syllables and an ending each, transliterated letter by letter.

    The spelling determines gender and kind, so that sub-words suffice to translate a word that is not in the training
    data.
    """
    nouns: list[Noun] = []
    size = len(SYLLABLES)
    for row in rows("rare"):
        endings = row["endings"].split()
        for i in range(len(nouns), len(nouns) + int(row["number of words"])):
            en = SYLLABLES[i * 17 % size] + SYLLABLES[(i * 29 + i // size * 7 + 3) % size]
            en += endings[i % len(endings)]
            ru = en.translate(TRANSLITERATION)
            nouns.append(Noun(en, add_s(en), ru, row["gender"], row["kind"], proper=row["proper"] == "yes"))
    return nouns


PRONOMINALS = {forms[0]: forms for forms in (list(row.values()) for row in rows("pronominals"))}
COMMON = [read_noun(row) for row in rows("nouns")]
NAMES = [read_noun(row, proper=True) for row in rows("names")]
RARE = rare_nouns()
NOUNS = {noun.en: noun for noun in (*COMMON, *NAMES, *RARE)}
PRONOUNS = {row["english"]: read_pronoun(row) for row in rows("pronouns")}
VERBS = {row["english"]: read_verb(row) for row in rows("verbs")}
ADJECTIVES = {row["english"]: (row["russian"], row["kinds"]) for row in rows("adjectives")}
DETERMINERS = {"": "", **{row["english"]: row["russian"] for row in rows("determiners")}}
POSSESSIVES = {row["english"] for row in rows("determiners") if row["possessive"]}
PREPOSITIONS = {row["english"]: (row["russian"], row["case"]) for row in rows("prepositions")}
VERB_PHRASES = [(row["preposition"], row["kinds"]) for row in rows("phrases") if row["modifies"] == "verb"]
NOUN_PHRASES = [tuple(row.values()) for row in rows("phrases") if row["modifies"] != "verb"]
MANNER = {row["english"]: row["russian"] for row in rows("adverbs") if row["class"] == "manner"}
FREQUENCY = {row["english"]: row["russian"] for row in rows("adverbs") if row["class"] == "frequency"}
LINKS = {row["english"]: (row["relation"], row["russian"].split()) for row in rows("links")}
TIME = {row["english"]: (row["russian"], row["tense"], row["part of speech"]) for row in rows("times")}
