"""Russian inflection: declension of nouns and adjectives, conjugation of verbs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from artificial.lexicon import PRONOMINALS, Noun, Verb

# Lists of forms follow CASES; a sixth form is an accusative of its own (else see `choose`).
CASES = ("nom", "gen", "dat", "ins", "pre")
# Hard endings, singular and plural, of masculines, neuters, feminines in -а and in -ь ("-": no ending).
NOUN_ENDINGS = {
    "m": ("- а у ом е", "ы ов ам ами ах"),
    "n": ("о а у ом е о", "а - ам ами ах"),
    "a": ("а ы е ой е у", "ы - ам ами ах"),
    "i": ("ь и и ью и ь", "и ей ям ями ях"),
}
# Masculine, neuter nominative, feminine with its accusative, plural.
ADJECTIVE_ENDINGS = "ый ого ому ым ом ое ая ой ой ой ой ую ые ых ым ыми ых"
SOFT = str.maketrans("аоуы", "яеюи")  # first letter of a hard ending -> of a soft one


def spell(stem: str, ending: str, soft: bool = False) -> str:
    """Join stem and ending by the spelling rules: no ы after velars and hushers, no я or ю after hushers and ц."""
    first = ending[:1].translate(SOFT) if soft else ending[:1]
    if stem[-1] in "гкхжшчщ" and first == "ы":
        first = "и"
    if stem[-1] in "жшчщц":
        first = {"я": "а", "ю": "у"}.get(first, first)
    return stem + first + ending[1:]


def choose(forms: list[str], case: str, animate: bool) -> str:
    """Return the form for a case. An accusative not listed equals the genitive of animates, else the nominative."""
    if case == "acc":
        return forms[5] if len(forms) == 6 else forms[1 if animate else 0]
    return forms[CASES.index(case)]


@cache
def noun_forms(noun: Noun) -> dict[str, list[str]]:
    last = noun.ru[-1]
    kind = "a" if last in "ая" else "n" if last in "ое" else "i" if noun.gender == "f" else "m"
    stem = noun.stem or (noun.ru[:-1] if last in "аяоеьй" else noun.ru)
    soft = last in "яеьй" and kind != "i"
    singular, plural = (
        [spell(stem, ending.strip("-"), soft) for ending in endings.split()] for endings in NOUN_ENDINGS[kind]
    )
    singular[0] = noun.ru
    if kind == "a" and stem[-1] in "жшчщц":  # all such feminines of the lexicon have an unstressed ending
        singular[3] = stem + "ей"
    if stem.endswith("и"):  # история, здание
        singular[4] = stem + "и"
        singular[2] = singular[2] if kind == "n" else stem + "и"
        plural[1] = stem + "й"
    elif kind in "mn" and last in "ьежшчщ":
        plural[1] = stem + "ей"
    return {"sg": singular, "pl": [noun.pl or plural[0], noun.g or plural[1], *plural[2:]]}


def decline(noun: Noun, case: str, number: str = "sg") -> str:
    """Return the Russian form of a noun."""
    return choose(noun_forms(noun)[number], case, noun.animate)


@cache
def adjective_forms(word: str) -> dict[str, list[str]]:
    """Return the forms of an adjective or pronominal determiner: m, n, f, and p for the plural."""
    forms = PRONOMINALS.get(word, [])
    if not forms:
        stem = word[:-2]
        husher = word.endswith("ий") and stem[-1] in "жшчщ"  # хороший, but stressed чужой
        endings = ["е" + e[1:] if husher and e[0] == "о" else e for e in ADJECTIVE_ENDINGS.split()]
        forms = [word, *(spell(stem, ending, soft=word.endswith("ний")) for ending in endings[1:])]
    return {"m": forms[:5], "n": [forms[5], *forms[1:6]], "f": forms[6:12], "p": forms[12:]}


def agree(word: str, case: str, gender: str, number: str = "sg", animate: bool = False) -> str:
    """Return an adjective or determiner in the gender, number and case of its noun; его, её, их never change."""
    if word in ("его", "её", "их"):
        return word
    return choose(adjective_forms(word)["p" if number == "pl" else gender], case, animate)


def by_person(forms: Sequence[str], person: int, number: str) -> str:
    """Choose from (1sg, 3sg, 3pl). The first and second plural are derived from the third singular."""
    first, third, plural = forms
    if number == "sg":
        return first if person == 1 else third
    return {1: third[:-1] + "м", 2: third + "е", 3: plural}[person]


def conjugate(verb: Verb, tense: str, person: int, number: str, gender: str) -> str:
    """Return the finite verb. The past agrees in gender and number, present and future in person and number."""
    if tense == "fut":
        return by_person(("буду", "будет", "будут"), person, number) + " " + verb.infinitive
    if tense == "past":
        ending = "и" if number == "pl" else {"m": "", "f": "а", "n": "о"}[gender]
        form = verb.infinitive.removesuffix("ся")[:-2] + "л" + ending
    else:
        form = by_person(present_forms(verb.infinitive.removesuffix("ся"), verb.present), person, number)
    if verb.infinitive.endswith("ся"):
        form += "сь" if form[-1] in "аеиоуюя" else "ся"
    return form


def present_forms(infinitive: str, given: Sequence[str]) -> Sequence[str]:
    """Return first singular, third singular and third plural. `given` has none, the first or all of them."""
    if all(given):
        return given
    if infinitive.endswith(("ать", "ять")):
        stem = re.sub("[ое]ва$", "у", infinitive[:-2])
        return stem + "ю", stem + "ет", stem + "ют"
    stem = infinitive[:-3]
    return given[0] or spell(stem, "ю"), stem + "ит", spell(stem, "ят")


def euphonic(preposition: str, following: str) -> str:
    """Return a preposition before a word: с and о change before some initial sounds."""
    form, initial = {"с": ("со", "[сзшж][^аеёиоуыэюя]|щ"), "о": ("об", "[аоуэи]")}.get(preposition, ("", "$"))
    return form if re.match(initial, following) else preposition
