"""Make a tiny synthetic English -> Russian-like parallel corpus with gold English dependency trees.

Every sentence is drawn as an abstract clause (``Clause`` and ``NP``), and that one clause is spelled out
twice: as an English dependency tree and as a Russian string. The Russian side is a function of the English
sentence: word forms there depend on the subject (verb agreement), on the governor (case) and on the noun
(adjective agreement), so a model must find these words in the source to get the target right.

Usage: python recipes/make_corpus.py OUT_DIR [--train 8000] [--valid 500] [--test 500] [--seed 1] [--force]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

# ------------------------------------------------------------------------------------------- lexicon
# Within each table the order is the frequency rank: the first word of a kind is the most frequent one.

# English[/plural] Russian, gender + kind (p person, b beast, o object, l place); then what the rules cannot
# know: stem= (fleeting vowel), pl= (nominative plural), g= (genitive plural).
NOUN_TABLE = """
teacher учитель mp pl=учителя; girl девочка fp g=девочек; boy мальчик mp; woman/women женщина fp;
student студент mp; doctor врач mp; man/men мужчина mp; grandmother бабушка fp g=бабушек; king король mp;
artist художник mp; queen королева fp; father отец mp stem=отц; writer писатель mp; hunter охотник mp;
neighbour соседка fp g=соседок; poet поэт mp; witch ведьма fp; grandfather дедушка mp g=дедушек;
guest гость mp; singer певица fp; sailor моряк mp; princess принцесса fp; knight рыцарь mp;
merchant купец mp stem=купц; schoolgirl школьница fp; gardener садовник mp; baker пекарь mp;
wizard волшебник mp; cat кошка fb g=кошек; dog собака fb; wolf/wolves волк mb; bird птица fb;
monster чудовище nb g=чудовищ; bear медведь mb; fox лиса fb; mouse/mice мышь fb; cow корова fb;
elephant слон mb; owl сова fb; parrot попугай mb; dragon дракон mb; book книга fo; letter письмо no g=писем;
table стол mo; window окно no g=окон; door дверь fo; key ключ mo; picture картина fo;
apple яблоко no pl=яблоки; car машина fo; gift подарок mo stem=подарк; song песня fo g=песен;
knife/knives нож mo; mirror зеркало no; newspaper газета fo; ring кольцо no g=колец; map карта fo;
pencil карандаш mo; cup чашка fo g=чашек; message сообщение no; train поезд mo pl=поезда;
bag сумка fo g=сумок; story история fo; stone камень mo stem=камн; dress платье no g=платьев;
ship корабль mo; ball мяч mo; towel полотенце no g=полотенец; umbrella зонт mo; house дом ml pl=дома;
city город ml pl=города; school школа fl; room комната fl; village деревня fl g=деревень; building здание nl;
park парк ml; shop магазин ml; museum музей ml; hospital больница fl; kitchen кухня fl g=кухонь;
field поле nl; castle замок ml stem=замк; library библиотека fl; theatre театр ml; tower башня fl g=башен;
cave пещера fl; hotel гостиница fl
"""
NAME_TABLE = """
anna анна fp; ivan иван mp; maria мария fp; boris борис mp; olga ольга fp; viktor виктор mp; elena елена fp;
peter пётр mp stem=петр; vera вера fp; oleg олег mp
"""

# English, Russian (masculine nominative), kinds of noun it goes with.
ADJECTIVE_TABLE = """
new новый ol; old старый pbol; big большой bol; good хороший pbol; small маленький pbol; young молодой pb;
beautiful красивый pbol; strange странный pbol; red красный o; kind добрый pb; last последний pbol;
white белый bol; clever умный pb; dark тёмный ol; blue синий o; strong сильный pb; quiet тихий pbl;
famous известный pbol; poor бедный pb; heavy тяжёлый o; evil злой pb; black чёрный bo; green зелёный o;
cold холодный ol; ancient древний ol; foreign чужой bol; brave храбрый pb
"""

# English, past, Russian infinitive[/1sg[,3sg,3pl]], government, kinds of complement, kinds of subject.
# Government: the case of the object; "give" (accusative + dative); a preposition; "none"; "that" (clause).
# All verbs are imperfective: one stem then serves the present, the past and the future with "будет".
VERB_TABLE = """
see saw видеть/вижу acc pbol; help helped помогать dat pb; give gave давать/даю,даёт,дают give o;
love loved любить/люблю acc pbol; sleep slept спать/сплю,спит,спят none; find found находить/нахожу acc obl;
think thought думать about pbol; draw drew рисовать acc pbol; work worked работать none;
say said говорить that; admire admired восхищаться ins pbol; meet met встречать acc pb;
talk talked разговаривать about pbol; buy bought покупать acc o; show showed показывать give o;
come came приходить/прихожу to pl; fear feared бояться/бою,боит,боят gen pb; believe believed верить dat p;
stand stood стоять/стою,стоит,стоят none - pbol; remember remembered помнить acc pbol;
lose lost терять acc o; know knew знать acc pl; play played играть with pb; send sent посылать give o;
await awaited ждать/жду,ждёт,ждут acc pb; answer answered отвечать dat p;
disappear disappeared исчезать none - pbol; own owned владеть/владею,владеет,владеют ins ol;
dream dreamed мечтать about pbol; build built строить acc l; bring brought приносить/приношу give o;
hope hoped надеяться/надею,надеет,надеют that; seek sought искать/ищу,ищет,ищут acc obp;
return returned возвращаться from l; feed fed кормить/кормлю acc bp;
hear heard слышать/слышу,слышит,слышат acc pb; laugh laughed смеяться/смею,смеёт,смеют none;
hide hid прятать/прячу,прячет,прячут acc o; visit visited посещать acc l;
describe described описывать acc pbol; avoid avoided избегать gen pl;
sell sold продавать/продаю,продаёт,продают give o; catch caught ловить/ловлю acc b; teach taught учить acc p;
manage managed управлять ins l; threaten threatened угрожать dat pb; fall fell падать none - pbo;
understand understood понимать acc p; burn burned гореть/горю,горит,горят none - ol;
break broke ломать acc o; argue argued спорить with p; escape escaped убегать from l
"""

# English preposition, Russian one, the case it governs.
PREPOSITION_TABLE = """
in в pre; near около gen; under под ins; on на pre; behind за ins; through через acc; with с ins;
without без gen; for для gen; from из gen; about о pre; to к dat
"""
# Attachment is decided by the preposition alone, so that the source sentence has one reading: these modify
# the verb, the next ones (preposition, kinds of the modified noun, kinds inside) modify a noun before them.
VERB_PPS = (("in", "l"), ("near", "lop"), ("under", "o"), ("on", "o"), ("behind", "l"), ("through", "l"))
NOUN_PPS = (("with", "pl", "bo"), ("without", "pl", "ob"), ("for", "o", "p"), ("from", "pb", "l"))

MANNER_TABLE = """
slowly медленно; well хорошо; quietly тихо; quickly быстро; carefully осторожно; happily радостно;
calmly спокойно; loudly громко; sadly грустно; badly плохо; bravely смело; politely вежливо
"""
FREQUENCY_TABLE = "often часто; always всегда; never никогда; sometimes иногда; rarely редко"
TIME_TABLE = """
yesterday вчера past NOUN; now сейчас pres ADV; tomorrow завтра fut NOUN; recently недавно past ADV;
today сегодня pres NOUN; soon скоро fut ADV
"""
POSSESSIVES = {"my": "мой", "his": "его", "her": "её", "our": "наш", "their": "их", "your": "ваш"}
DETERMINERS = POSSESSIVES | {"the": "", "a": "", "": "", "this": "этот", "every": "каждый"}
# The articles stand twice, to be more frequent than rank alone would make them.
SINGULAR_DETS = ("the", "a", "the", "a", "my", "this", "his", "her", "every", "our", "their", "your")
PLURAL_DETS = ("the", "", "the", "my", "this", "her", "his", "our", "their", "your")

# Object form, person, number, gender, then nominative, genitive = accusative, dative, instrumental.
# "I" counts as masculine and "you" as plural: the source does not tell, so the corpus fixes it.
PRONOUN_TABLE = """
he him 3 sg m он его ему им; she her 3 sg f она её ей ей; i me 1 sg m я меня мне мной;
they them 3 pl m они их им ими; we us 1 pl m мы нас нам нами; you you 2 pl m вы вас вам вами
"""
# Link to a second clause: the relation of that clause to the first, the Russian words.
LINK_TABLE = "and conj и; but conj но; because advcl потому что; when advcl когда"

# ---------------------------------------------------------------------------------------- inflection
# Lists of forms follow CASES; a sixth form is an accusative of its own (else see ``choose``).
CASES = ("nom", "gen", "dat", "ins", "pre")
OBJECT_CASES = ("acc", "gen", "dat", "ins")
# Hard endings, singular / plural, of masculines, neuters, feminines in -а and in -ь ("-": no ending).
NOUN_ENDINGS = {
    "m": ("- а у ом е", "ы ов ам ами ах"),
    "n": ("о а у ом е о", "а - ам ами ах"),
    "a": ("а ы е ой е у", "ы - ам ами ах"),
    "i": ("ь и и ью и ь", "и ей ям ями ях"),
}
# Masculine, neuter nominative, feminine with its accusative, plural.
ADJECTIVE_ENDINGS = "ый ого ому ым ом ое ая ой ой ой ой ую ые ых ым ыми ых"
PRONOMINAL_TABLE = """
этот этого этому этим этом это эта этой этой этой этой эту эти этих этим этими этих;
мой моего моему моим моём моё моя моей моей моей моей мою мои моих моим моими моих;
наш нашего нашему нашим нашем наше наша нашей нашей нашей нашей нашу наши наших нашим нашими наших;
ваш вашего вашему вашим вашем ваше ваша вашей вашей вашей вашей вашу ваши ваших вашим вашими ваших
"""
SOFT = str.maketrans("аоуы", "яеюи")  # first letter of a hard ending -> of a soft one


@dataclass(frozen=True)
class Noun:
    """An English noun, name or pronoun and what is needed to decline its translation."""

    en: str
    plural: str  # of a pronoun: the object form
    ru: str
    gender: str
    kind: str
    proper: bool = False
    stem: str = ""
    pl: str = ""
    g: str = ""
    pronoun: tuple[str, ...] = ()  # a row of PRONOUN_TABLE

    @property
    def animate(self) -> bool:
        return self.kind in "pb"


@dataclass(frozen=True)
class Verb:
    """An English verb and its translation; ``present`` holds the Russian 1sg, 3sg and 3pl."""

    en: str
    past: str
    infinitive: str
    present: Sequence[str]
    government: str
    kinds: str
    subjects: str


def add_s(word: str) -> str:
    """English noun plural or third person singular."""
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|z|ch|sh)$", word) else "s")


def spell(stem: str, ending: str, soft: bool = False) -> str:
    """Join stem and ending by the spelling rules: no ы after velars and hushers, no я, ю after hushers, ц."""
    first = ending[:1].translate(SOFT) if soft else ending[:1]
    if stem[-1] in "гкхжшчщ" and first == "ы":
        first = "и"
    if stem[-1] in "жшчщц":
        first = {"я": "а", "ю": "у"}.get(first, first)
    return stem + first + ending[1:]


def choose(forms: list[str], case: str, animate: bool) -> str:
    """The form for a case; an accusative not listed equals the genitive of animates, else the nominative."""
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
    """Russian form of a noun."""
    return choose(noun_forms(noun)[number], case, noun.animate)


@cache
def adjective_forms(word: str) -> dict[str, list[str]]:
    """Forms of an adjective or pronominal determiner by gender, and "pl"."""
    forms = PRONOMINALS.get(word, [])
    if not forms:
        stem = word[:-2]
        husher = word.endswith("ий") and stem[-1] in "жшчщ"  # хороший, but stressed чужой
        endings = ["е" + e[1:] if husher and e[0] == "о" else e for e in ADJECTIVE_ENDINGS.split()]
        forms = [word, *(spell(stem, ending, soft=word.endswith("ний")) for ending in endings[1:])]
    return {"m": forms[:5], "n": [forms[5], *forms[1:6]], "f": forms[6:12], "p": forms[12:]}


def agree(word: str, case: str, gender: str, number: str = "sg", animate: bool = False) -> str:
    """Adjective or determiner in the gender, number and case of its noun; его, её, их never change."""
    if word in ("его", "её", "их"):
        return word
    return choose(adjective_forms(word)["p" if number == "pl" else gender], case, animate)


def by_person(forms: Sequence[str], person: int, number: str) -> str:
    """Pick from (1sg, 3sg, 3pl); the first and second plural are built on the third singular."""
    first, third, plural = forms
    if number == "sg":
        return first if person == 1 else third
    return {1: third[:-1] + "м", 2: third + "е", 3: plural}[person]


def conjugate(verb: Verb, tense: str, person: int, number: str, gender: str) -> str:
    """Russian finite verb: past agrees in gender and number, present and future in person and number."""
    if tense == "fut":
        return by_person(("буду", "будет", "будут"), person, number) + " " + verb.infinitive
    if tense == "past":
        ending = "и" if number == "pl" else {"m": "", "f": "а", "n": "о"}[gender]
        form = verb.infinitive.removesuffix("ся")[:-2] + "л" + ending
    else:
        form = by_person(verb.present, person, number)
    if verb.infinitive.endswith("ся"):
        form += "сь" if form[-1] in "аеиоуюя" else "ся"
    return form


def present_forms(infinitive: str, given: Sequence[str]) -> Sequence[str]:
    """First singular, third singular, third plural; ``given`` holds none, the first or all of them."""
    if len(given) == 3:
        return given
    if infinitive.endswith(("ать", "ять")):
        stem = re.sub("[ое]ва$", "у", infinitive[:-2])
        return stem + "ю", stem + "ет", stem + "ют"
    stem = infinitive[:-3]
    return given[0] if given else spell(stem, "ю"), stem + "ит", spell(stem, "ят")


def euphonic(preposition: str, following: str) -> str:
    """The prepositions с and о change before some initial sounds."""
    form, initial = {"с": ("со", "[сзшж][^аеёиоуыэюя]|щ"), "о": ("об", "[аоуэи]")}.get(preposition, ("", "$"))
    return form if re.match(initial, following) else preposition


# ------------------------------------------------------------------------------- reading the lexicon
def rows(table: str) -> list[list[str]]:
    return [row.split() for row in table.split(";")]


def read_noun(row: list[str], proper: bool = False) -> Noun:
    en, ru, tags, *exceptions = row
    singular, _, plural = en.partition("/")
    extra: dict[str, Any] = dict(item.split("=") for item in exceptions)
    return Noun(singular, plural or add_s(singular), ru, tags[0], tags[1], proper, **extra)


def read_pronoun(row: list[str]) -> Noun:
    return Noun(row[0], row[1], row[5], row[4], "p", pronoun=tuple(row))


def read_verb(row: list[str]) -> Verb:
    en, past, ru, government, kinds, subjects = row + ["-", "pb"][len(row) - 4 :]
    infinitive, _, given = ru.partition("/")
    forms = present_forms(infinitive.removesuffix("ся"), given.split(",") if given else [])
    return Verb(en, past, infinitive, forms, government, kinds, subjects)


TRANSLITERATION = str.maketrans("adegiklmnorstuvz", "адегиклмнорстувз")
SYLLABLES = [consonant + vowel for consonant in "dgklmnrstvz" for vowel in "aeiou"]
# A rare word is two syllables and an ending. Gender + kind, name or noun, how many, the endings.
TAIL_TABLE = """
mp name 120 l n r d k v; fp name 120 na ra la ka da va; mp noun 60 rist; mo noun 60 lon; fo noun 60 mina;
ml name 60 grad
"""


def rare_nouns() -> list[Noun]:
    """Names and rare nouns from a fixed walk over syllable pairs, transliterated letter by letter.

    Spelling carries gender and kind, so that sub-words suffice to translate a word never seen in training.
    """
    nouns: list[Noun] = []
    size = len(SYLLABLES)
    for tags, status, count, *endings in rows(TAIL_TABLE):
        for i in range(len(nouns), len(nouns) + int(count)):
            en = SYLLABLES[i * 17 % size] + SYLLABLES[(i * 29 + i // size * 7 + 3) % size]
            en += endings[i % len(endings)]
            nouns.append(read_noun([en, en.translate(TRANSLITERATION), tags], proper=status == "name"))
    return nouns


PRONOMINALS = {row[0]: row for row in rows(PRONOMINAL_TABLE)}
COMMON = [read_noun(row) for row in rows(NOUN_TABLE)]
NAMES = [read_noun(row, proper=True) for row in rows(NAME_TABLE)]
RARE = rare_nouns()
NOUNS = {noun.en: noun for noun in (*COMMON, *NAMES, *RARE)}
PRONOUNS = {row[0]: read_pronoun(row) for row in rows(PRONOUN_TABLE)}
VERBS = {row[0]: read_verb(row) for row in rows(VERB_TABLE)}
ADJECTIVES = {en: (ru, kinds) for en, ru, kinds in rows(ADJECTIVE_TABLE)}
PREPOSITIONS = {en: (ru, case) for en, ru, case in rows(PREPOSITION_TABLE)}
MANNER = dict(rows(MANNER_TABLE))
FREQUENCY = dict(rows(FREQUENCY_TABLE))
LINKS = {en: (rel, russian) for en, rel, *russian in rows(LINK_TABLE)}
TIME = {en: (ru, tense, upos) for en, ru, tense, upos in rows(TIME_TABLE)}


# ------------------------------------------------------------------------------------------- grammar
@dataclass
class NP:
    """A pronoun, or a noun with at most one of ``owner`` (then no ``det``), ``pp``, ``rel`` or ``conj``."""

    noun: Noun
    number: str = "sg"
    det: str = ""
    adjectives: tuple[str, ...] = ()
    owner: NP | None = None
    pp: tuple[str, NP] | None = None
    rel: Clause | None = None
    conj: NP | None = None

    def features(self) -> tuple[int, str, str]:
        """Person, number and gender that a verb agrees with."""
        if self.noun.pronoun:
            return int(self.noun.pronoun[2]), self.noun.pronoun[3], self.noun.gender
        return 3, "pl" if self.conj else self.number, self.noun.gender


@dataclass
class Clause:
    """A verb and its dependents; without ``subj`` it relativises its subject or shares another one.

    A relative clause with a subject relativises its object. ``shift`` puts the recipient ``to`` before the
    object in English; in Russian it always stands there. ``link`` is a word of LINKS and a second clause.
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
        """The words of this subtree in sentence order."""
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
        forms = dict(zip(("nom", "gen", "dat", "ins"), noun.pronoun[5:], strict=True))
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


def build_verb(clause: Clause, rel: str, subject: NP) -> Built:
    """The verb with its auxiliary, "not" and adverb of frequency; the Russian verb with its "не"."""
    verb, tense = clause.verb, clause.tense
    person, number, gender = subject.features()
    third = tense == "pres" and (person, number) == (3, "sg")
    node = Node(verb.past if tense == "past" else add_s(verb.en) if third else verb.en, "VERB", rel, verb.en)
    auxiliary = {"fut": "will", "past": "did", "pres": "does" if third else "do"}[tense]
    if tense == "fut" or clause.negated:
        node.form = verb.en
        node.left.append(Node(auxiliary, "AUX", "aux", "will" if tense == "fut" else "do"))
    if clause.negated:
        node.left.append(Node("not", "PART", "advmod"))
    if clause.frequency:
        node.left.append(Node(clause.frequency, "ADV", "advmod"))
    negation = ["не"] if clause.negated or clause.frequency == "never" else []
    return node, [*negation, *conjugate(verb, tense, person, number, gender).split()]


def build_clause(clause: Clause, rel: str, head: NP | None = None, shared: NP | None = None) -> Built:
    """A clause; ``head`` is the noun phrase it relativises, ``shared`` the subject it borrows.

    Russian order: relative pronoun, time, subject, adverbs, object pronouns, verb, recipient, object, rest.
    """
    subject = clause.subj or head or shared
    assert subject is not None
    verb, finite = build_verb(clause, rel, subject)
    words = [TIME[clause.time][0]] if clause.time else []
    if clause.subj:
        node, subject_words = build_np(clause.subj, "nsubj", "nom")
        verb.left.insert(0, node)
        words += subject_words
    if head:
        node, which = relative_pronoun(clause, head)
        verb.left.insert(0, node)
        words.insert(0, which)
    words += [FREQUENCY[clause.frequency]] if clause.frequency else []
    clitics, after = build_objects(clause, verb)
    words += [*clitics, *([MANNER[clause.manner]] if clause.manner else []), *finite, *after]
    for node, node_words in final_dependents(clause):
        verb.right.append(node)
        words += node_words
    return verb, words


def relative_pronoun(clause: Clause, head: NP) -> tuple[Node, str]:
    noun, case = head.noun, clause.verb.government if clause.subj else "nom"
    node = Node("who" if noun.kind == "p" else "that", "PRON", "obj" if clause.subj else "nsubj")
    return node, agree("который", case, noun.gender, head.number, noun.animate)


def build_objects(clause: Clause, verb: Node) -> tuple[list[str], list[str]]:
    """Hang object and recipient on the verb; return Russian pronouns (they precede the verb), other words."""
    case = clause.verb.government if clause.verb.government in OBJECT_CASES else "acc"
    english: list[Node] = []
    russian: tuple[list[str], list[str]] = ([], [])
    for np, rel, np_case in ((clause.to, "iobj", "dat"), (clause.obj, "obj", case)):
        if np:
            node, words = build_np(np, rel, np_case)
            english.append(build_pp("to", np)[0] if rel == "iobj" and not clause.shift else node)
            russian[0 if np.noun.pronoun else 1].extend(words)
    verb.right += english if clause.shift else english[::-1]
    return russian


def final_dependents(clause: Clause) -> Iterator[Built]:
    """What follows the objects: prepositional phrases, adverbs, further clauses."""
    yield from (build_pp(*pp) for pp in clause.pps)
    if clause.manner:
        yield Node(clause.manner, "ADV", "advmod"), []
    if clause.time:
        upos = TIME[clause.time][2]
        yield Node(clause.time, upos, "obl:tmod" if upos == "NOUN" else "advmod"), []
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
    """The English tree and the Russian sentence of a main clause."""
    tree, words = build_clause(clause, "root")
    tree.right.append(Node(".", "PUNCT", "punct"))
    # A comma that closes a relative clause merges with the mark after it.
    return tree, re.sub(r"(, )+(?=[,.])", "", " ".join([*words, "."]))


# ------------------------------------------------------------------------------------------ sampling
RARE_WORD = 0.06  # chance that a noun is drawn from the tail
LENGTHS = range(4, 17)  # English tokens, the full stop included


@cache
def zipf_weights(size: int) -> list[float]:
    return list(accumulate(1 / (rank + 2) for rank in range(size)))


class Sampler:
    """Draws clauses with Zipf-like words; leaves out what would give an English sentence two readings."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.common = {kind: [noun for noun in COMMON if noun.kind == kind] for kind in "pbol"}
        self.common["p"][6:6] = NAMES
        mixed = sorted(RARE, key=lambda noun: noun.en[1:])  # else all names of one ending would rank first
        self.rare = {kind: [noun for noun in mixed if noun.kind == kind] for kind in "pbol"}
        self.verbs = list(VERBS.values())

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def zipf(self, items: Iterable[Any]) -> Any:
        pool = list(items)
        return self.rng.choices(pool, cum_weights=zipf_weights(len(pool)))[0]

    def noun(self, kinds: str) -> Noun:
        kind = self.zipf(kinds)
        return self.zipf(self.rare[kind] if self.rare[kind] and self.chance(RARE_WORD) else self.common[kind])

    def np(self, kinds: str, rich: bool = False, rel: bool = False, pronoun: float = 0.0) -> NP:
        """A noun phrase; ``rich`` lets it hold another one, ``rel`` a relative clause."""
        if "p" in kinds and self.chance(pronoun):
            return NP(self.zipf(PRONOUNS.values()))
        np = NP(self.noun(kinds))
        if not np.noun.proper:
            np.number = "pl" if self.chance(0.35) else "sg"
            np.det = self.zipf(PLURAL_DETS if np.number == "pl" else SINGULAR_DETS)
            fitting = [word for word, (_, allowed) in ADJECTIVES.items() if np.noun.kind in allowed]
            np.adjectives = (self.zipf(fitting),) if self.chance(0.3) else ()
        if rich:
            self.enrich(np, rel)
        return np

    def enrich(self, np: NP, rel: bool) -> None:
        """Add at most one dependent phrase, so that the scope of none is in doubt."""
        choice, kind = self.rng.random(), np.noun.kind
        if choice < 0.07:
            np.conj = self.np(kind)
        elif np.noun.proper:
            return
        elif choice < 0.15:
            np.det, np.owner = "", self.np("p")
        elif choice < 0.23:
            preposition, _, inside = self.zipf(row for row in NOUN_PPS if kind in row[1])
            np.pp = (preposition, self.np(inside))
        elif rel and choice < 0.35:
            np.rel = self.relative(kind)

    def relative(self, kind: str) -> Clause:
        """A clause that relativises its object or its subject, a noun of this kind."""
        verbs = [verb for verb in self.verbs if verb.government in (*OBJECT_CASES, "none")]
        tense = self.zipf(("past", "pres", "fut"))
        if self.chance(0.4):
            verb = self.zipf(verb for verb in verbs if kind in verb.kinds)
            clause = Clause(verb, self.np("pb", pronoun=0.3), tense)
        else:
            clause = Clause(self.zipf(verb for verb in verbs if kind in verb.subjects), None, tense)
            if clause.verb.government != "none":
                clause.obj = self.np(clause.verb.kinds, pronoun=0.15)
        clause.manner = self.zipf(MANNER) if self.chance(0.15) else ""
        return clause

    def clause(self, subj: NP | None = None, tense: str = "", rich: bool = True, end: bool = True) -> Clause:
        """A clause, about ``subj`` if given; ``rich`` as in ``np``.

        Its object takes a relative clause only at the ``end`` of the sentence: more words would join that.
        """
        kind = subj.noun.kind if subj else ""
        verb = self.zipf(v for v in self.verbs if kind in v.subjects and (rich or v.government != "that"))
        clause = Clause(verb, subj, tense or self.zipf(("past", "pres", "fut")))
        clause.subj = subj or self.np(verb.subjects, rich, rel=True, pronoun=0.25)
        clause.negated = self.chance(0.12)
        if not clause.negated and self.chance(0.12):
            clause.frequency = self.zipf(FREQUENCY)
        self.complements(clause, rich, rel=end)
        phrases = [clause.obj, *(np for _, np in clause.pps)]
        if not clause.that and not any(np and np.rel for np in phrases):
            self.adjuncts(clause, timed=not subj)
        return clause

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
            clause.obj = self.np(kinds, rich, rel=rel, pronoun=0.2)
        for np in (clause.obj, clause.to):
            if np and clause.subj and np.noun.pronoun and np.noun == clause.subj.noun:
                np.noun = NAMES[0]  # no "i saw me", which would ask for a reflexive

    def adjuncts(self, clause: Clause, timed: bool) -> None:
        if not clause.pps and self.chance(0.22):
            preposition, kinds = self.zipf(VERB_PPS)
            clause.pps = ((preposition, self.np(kinds)),)
        if self.chance(0.2):
            clause.manner = self.zipf(MANNER)
        elif timed and self.chance(0.25):
            clause.time = self.zipf(word for word, row in TIME.items() if row[1] == clause.tense)

    def sentence(self) -> Clause:
        """A clause, alone or with a second one: sharing the subject, coordinate or subordinate."""
        choice = self.rng.random()
        if choice < 0.74:
            return self.clause()
        first = self.clause(end=False)
        if first.that:
            return first  # a second clause could belong to either verb
        if choice < 0.87:
            second = self.clause(first.subj, first.tense, rich=False)
            second.subj = None
            first.link = ("and", second)
        else:
            first.link = (self.zipf(LINKS), self.clause(rich=False))
        return first


# ------------------------------------------------------------------------------------------- writing
DEFAULT_SIZES = {"train": 8000, "valid": 500, "test": 500}
FILE_NAMES = [f"{split}.{suffix}" for split in DEFAULT_SIZES for suffix in ("en", "ru", "en.conllu")]


def to_conllu(tree: Node, sent_id: str) -> str:
    """A CoNLL-U block, 10 columns, closed by an empty line."""
    order = list(tree.walk())
    position = {id(node): i for i, node in enumerate(order, start=1)}
    heads = {id(child): position[id(node)] for node in order for child in node.left + node.right}
    lines = [f"# sent_id = {sent_id}", "# text = " + " ".join(node.form for node in order)]
    for i, node in enumerate(order, start=1):
        lemma, head = node.lemma or node.form, heads.get(id(node), 0)
        lines.append(f"{i}\t{node.form}\t{lemma}\t{node.upos}\t_\t_\t{head}\t{node.rel}\t_\t_")
    return "\n".join(lines) + "\n\n"


def make_corpus(sizes: dict[str, int], seed: int) -> dict[str, str]:
    """File names and contents. The train split is drawn last, so its size does not change the other two."""
    sampler = Sampler(random.Random(seed))
    seen: set[str] = set()
    files = {}
    for split in ("test", "valid", "train"):
        english: list[str] = []
        russian: list[str] = []
        trees: list[str] = []
        while len(english) < sizes[split]:
            tree, translation = render(sampler.sentence())
            tokens = [node.form for node in tree.walk()]
            text = " ".join(tokens)
            if len(tokens) in LENGTHS and text not in seen:
                seen.add(text)
                english.append(text + "\n")
                russian.append(translation + "\n")
                trees.append(to_conllu(tree, f"{split}-{len(english)}"))
        for suffix, lines in (("en", english), ("ru", russian), ("en.conllu", trees)):
            files[f"{split}.{suffix}"] = "".join(lines)
    return files


def write_files(directory: Path, files: dict[str, str]) -> None:
    """Write all files under temporary names, then rename them: a failed run leaves nothing behind."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = {name: directory / f".{name}.{os.getpid()}.tmp" for name in files}
    try:
        for name, text in files.items():
            temporary[name].write_text(text, encoding="utf-8", newline="\n")
        for name, path in temporary.items():
            path.replace(directory / name)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, without the usage that argparse prints first."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def parse_arguments(argv: Sequence[str] | None) -> tuple[Path, dict[str, int], int]:
    """Output directory, sizes and seed; ends the program on what cannot be served."""
    parser = Parser(prog="make_corpus.py", description="Make a synthetic English -> Russian-like corpus.")
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path, help="directory to write, made if missing")
    for split, size in DEFAULT_SIZES.items():
        note = f"sentence pairs in {split} (default {size})"
        parser.add_argument(f"--{split}", type=int, default=size, metavar="N", help=note)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="random seed (default 1)")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    args = parser.parse_args(argv)
    for name, minimum in {**dict.fromkeys(DEFAULT_SIZES, 1), "seed": 0}.items():
        value = getattr(args, name)
        if value < minimum:
            parser.error(f"--{name} is {value} but must be at least {minimum}; give a larger number")
    if args.out_dir.exists() and not args.out_dir.is_dir():
        parser.error(f"OUT_DIR {args.out_dir} is a file but must be a directory; name another path")
    present = [name for name in FILE_NAMES if (args.out_dir / name).exists()]
    if present and not args.force:
        rule = "existing files are kept; add --force or name another directory"
        parser.error(f"OUT_DIR {args.out_dir} already holds {', '.join(present)} but {rule}")
    return args.out_dir, {split: getattr(args, split) for split in DEFAULT_SIZES}, args.seed


def main(argv: Sequence[str] | None = None) -> int:
    out_dir, sizes, seed = parse_arguments(argv)
    try:
        write_files(out_dir, make_corpus(sizes, seed))
    except OSError as problem:
        cure = "name a directory that can be written"
        print(f"make_corpus.py: error: cannot write OUT_DIR {out_dir} ({problem}); {cure}", file=sys.stderr)
        return 2
    print(f"wrote {out_dir}: " + ", ".join(f"{size} {split}" for split, size in sizes.items()) + " pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
