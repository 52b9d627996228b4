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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path

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
merchant купец mp stem=купц; schoolgirl школьница fp; gardener садовник mp; baker пекарь mp; actress актриса fp;
uncle дядя mp g=дядей; engineer инженер mp; aunt тётя fp g=тётей; wizard волшебник mp;
cat кошка fb g=кошек; dog собака fb; wolf/wolves волк mb; bird птица fb; monster чудовище nb g=чудовищ;
bear медведь mb; fox лиса fb; mouse/mice мышь fb; cow корова fb; elephant слон mb; owl сова fb; parrot попугай mb;
eagle орёл mb stem=орл; squirrel белка fb g=белок; dragon дракон mb; frog лягушка fb g=лягушек;
book книга fo; letter письмо no g=писем; table стол mo; window окно no g=окон; door дверь fo; key ключ mo;
picture картина fo; apple яблоко no pl=яблоки; car машина fo; gift подарок mo stem=подарк; song песня fo g=песен;
knife/knives нож mo; mirror зеркало no; newspaper газета fo; ring кольцо no g=колец; map карта fo;
pencil карандаш mo; cup чашка fo g=чашек; message сообщение no; train поезд mo pl=поезда; bag сумка fo g=сумок;
story история fo; notebook тетрадь fo; stone камень mo stem=камн; dress платье no g=платьев; lamp лампа fo;
ship корабль mo; violin скрипка fo g=скрипок; ball мяч mo; towel полотенце no g=полотенец; coin монета fo;
shield щит mo; photograph фотография fo; umbrella зонт mo;
house дом ml pl=дома; city город ml pl=города; school школа fl; room комната fl; village деревня fl g=деревень;
building здание nl; park парк ml; shop магазин ml; museum музей ml; hospital больница fl; kitchen кухня fl g=кухонь;
field поле nl; castle замок ml stem=замк; library библиотека fl; theatre театр ml; tower башня fl g=башен;
academy академия fl; cave пещера fl; cellar подвал ml; hotel гостиница fl
"""
NAME_TABLE = """
anna анна fp; ivan иван mp; maria мария fp; boris борис mp; olga ольга fp; viktor виктор mp; elena елена fp;
peter пётр mp stem=петр; vera вера fp; oleg олег mp
"""

# English, Russian (masculine nominative), kinds of noun it goes with.
ADJECTIVE_TABLE = """
new новый ol; old старый pbol; big большой bol; good хороший pbol; small маленький pbol; young молодой pb;
beautiful красивый pbol; strange странный pbol; red красный o; kind добрый pb; last последний pbol; white белый bol;
clever умный pb; dark тёмный ol; blue синий o; strong сильный pb; quiet тихий pbl; famous известный pbol;
rich богатый pl; poor бедный pb; heavy тяжёлый o; expensive дорогой o; evil злой pb; black чёрный bo; green зелёный o;
cold холодный ol; lazy ленивый pb; ancient древний ol; foreign чужой bol; former бывший p; brave храбрый pb;
broken сломанный o
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
stand stood стоять/стою,стоит,стоят none - pbol; remember remembered помнить acc pbol; lose lost терять acc o;
use used пользоваться ins o; know knew знать acc pl; play played играть with pb; send sent посылать give o;
await awaited ждать/жду,ждёт,ждут acc pb; answer answered отвечать dat p; disappear disappeared исчезать none - pbol;
own owned владеть/владею,владеет,владеют ins ol; dream dreamed мечтать about pbol; build built строить acc l;
bring brought приносить/приношу give o; hope hoped надеяться/надею,надеет,надеют that; seek sought искать/ищу,ищет,ищут acc obp;
disturb disturbed мешать dat pb; return returned возвращаться from l; feed fed кормить/кормлю acc bp;
hear heard слышать/слышу,слышит,слышат acc pb; laugh laughed смеяться/смею,смеёт,смеют none; hide hid прятать/прячу,прячет,прячут acc o;
command commanded командовать ins p; visit visited посещать acc l; describe described описывать acc pbol;
avoid avoided избегать gen pl; sell sold продавать/продаю,продаёт,продают give o; cry cried плакать/плачу,плачет,плачут none;
envy envied завидовать dat p; choose chose выбирать acc o; catch caught ловить/ловлю acc b; teach taught учить acc p;
dance danced танцевать with p; manage managed управлять ins l; threaten threatened угрожать dat pb;
fall fell падать none - pbo; understand understood понимать acc p; burn burned гореть/горю,горит,горят none - ol;
promise promised обещать give o; serve served служить dat p; break broke ломать acc o; argue argued спорить with p;
enjoy enjoyed наслаждаться ins o; escape escaped убегать from l; keep kept хранить acc o; claim claimed утверждать that
"""

# English: Russian and the case it governs.
PREPOSITIONS = {
    "in": ("в", "pre"),
    "near": ("около", "gen"),
    "under": ("под", "ins"),
    "on": ("на", "pre"),
    "behind": ("за", "ins"),
    "through": ("через", "acc"),
    "with": ("с", "ins"),
    "without": ("без", "gen"),
    "for": ("для", "gen"),
    "from": ("из", "gen"),
    "about": ("о", "pre"),
    "to": ("к", "dat"),
}
# Attachment is decided by the preposition alone, so that the source sentence has one reading: these modify
# the verb, the next ones (preposition, kinds of the modified noun, kinds inside) modify a noun before them.
VERB_PPS = (("in", "l"), ("near", "lop"), ("under", "o"), ("on", "o"), ("behind", "l"), ("through", "l"))
NOUN_PPS = (("with", "pl", "bo"), ("without", "pl", "ob"), ("for", "o", "p"), ("from", "pb", "l"))

MANNER = dict(
    row.split()
    for row in """
slowly медленно; well хорошо; quietly тихо; quickly быстро; carefully осторожно; happily радостно;
calmly спокойно; loudly громко; sadly грустно; badly плохо; bravely смело; politely вежливо
""".split(";")
)
FREQUENCY = {"often": "часто", "always": "всегда", "never": "никогда", "sometimes": "иногда", "rarely": "редко"}
TIME = {
    "yesterday": ("вчера", "past", "NOUN"),
    "now": ("сейчас", "pres", "ADV"),
    "tomorrow": ("завтра", "fut", "NOUN"),
    "recently": ("недавно", "past", "ADV"),
    "today": ("сегодня", "pres", "NOUN"),
    "soon": ("скоро", "fut", "ADV"),
}
ARTICLES = {"the": "", "a": "", "": ""}
POSSESSIVES = {"my": "мой", "his": "его", "her": "её", "our": "наш", "their": "их", "your": "ваш"}
DETERMINERS = ARTICLES | POSSESSIVES | {"this": "этот", "every": "каждый"}
SINGULAR_DETS = ("the", "a", "my", "this", "his", "her", "every", "our", "their", "your")
PLURAL_DETS = ("the", "", "my", "this", "her", "his", "our", "their", "your")

# Object form, person, number, gender, then nominative, genitive = accusative, dative, instrumental.
# "I" counts as masculine and "you" as plural: the source does not tell, so the corpus fixes it.
PRONOUNS = {
    row.split()[0]: tuple(row.split()[1:])
    for row in """he him 3 sg m он его ему им; she her 3 sg f она её ей ей; i me 1 sg m я меня мне мной;
they them 3 pl m они их им ими; we us 1 pl m мы нас нам нами; you you 2 pl m вы вас вам вами""".split(";")
}
# Link between clauses: Russian words and the relation of the second clause to the first.
LINKS = {
    "and": ("и", "conj"),
    "but": ("но", "conj"),
    "because": ("потому что", "advcl"),
    "when": ("когда", "advcl"),
}

# ---------------------------------------------------------------------------------------- inflection
CASES = ("nom", "gen", "dat", "ins", "pre")  # the accusative is derived from these
# Hard endings, singular then plural; soft stems change the first letter ("-" is the empty ending).
NOUN_ENDINGS = {
    "m": "- а у ом е ы ов ам ами ах".split(),
    "n": "о а у ом е а - ам ами ах".split(),
    "a": "а ы е ой е ы - ам ами ах".split(),
    "i": "ь и и ью и и ей ям ями ях".split(),
}
ADJECTIVE_ENDINGS = {
    "m": "ый ого ому ым ом".split(),
    "n": "ое ого ому ым ом".split(),
    "f": "ая ой ой ой ой".split(),
    "pl": "ые ых ым ыми ых".split(),
}
# masculine / neuter nominative / feminine and its accusative / plural
PRONOMINALS = {
    "этот": "этот этого этому этим этом / это / эта этой этой этой этой эту / эти этих этим этими этих",
    "мой": "мой моего моему моим моём / моё / моя моей моей моей моей мою / мои моих моим моими моих",
    "наш": "наш нашего нашему нашим нашем / наше / наша нашей нашей нашей нашей нашу / наши наших нашим нашими наших",
}
PRONOMINALS["ваш"] = PRONOMINALS["наш"].replace("наш", "ваш")
SOFT = str.maketrans("аоуы", "яеюи")


@dataclass(frozen=True)
class Noun:
    """An English noun or name and what is needed to decline its translation."""

    en: str
    plural: str
    ru: str
    gender: str
    kind: str
    proper: bool = False
    stem: str = ""
    pl: str = ""
    g: str = ""

    @property
    def animate(self) -> bool:
        return self.kind in "pb"


@dataclass(frozen=True)
class Verb:
    """An English verb and its translation; ``present`` holds the Russian 1sg, 3sg and 3pl."""

    en: str
    past: str
    infinitive: str
    present: tuple[str, str, str]
    government: str
    kinds: str
    subjects: str


def add_s(word: str) -> str:
    """English noun plural or third person singular."""
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|z|ch|sh)$", word) else "s")


def spell(stem: str, ending: str) -> str:
    """Join stem and ending by the Russian spelling rules (no ы after velars and hushers, and so on)."""
    if stem[-1] in "гкхжшчщ" and ending.startswith("ы"):
        ending = "и" + ending[1:]
    if stem[-1] in "жшчщц" and ending[:1] in ("я", "ю"):
        ending = {"я": "а", "ю": "у"}[ending[0]] + ending[1:]
    return stem + ending


def decline(noun: Noun, case: str, number: str = "sg") -> str:
    """Russian form of a noun; the accusative equals the genitive for animates, else the nominative."""
    last, plural = noun.ru[-1], number == "pl"
    kind = "a" if last in "ая" else "n" if last in "ое" else "i" if noun.gender == "f" else "m"
    stem = noun.stem or (noun.ru[:-1] if last in "аяоеьй" else noun.ru)
    if case == "acc":
        if kind == "a" and not plural:
            return spell(stem, "ю" if last == "я" else "у")
        case = "gen" if noun.animate and (plural or kind == "m") else "nom"
    if case == "nom" and not (plural and not noun.pl):
        return noun.pl if plural else noun.ru
    if case == "gen" and plural and (noun.g or kind != "i"):
        return noun.g or genitive_plural(stem, last, kind)
    if noun.ru.endswith(("ия", "ие")) and not plural and case in (("pre",) if kind == "n" else ("dat", "pre")):
        return stem + "и"
    ending = NOUN_ENDINGS[kind][CASES.index(case) + 5 * plural]
    if last in "яеьй" and kind != "i":
        ending = ending[0].translate(SOFT) + ending[1:]
    if kind == "a" and stem[-1] in "жшчщц":  # all such feminines of the lexicon have an unstressed ending
        ending = ending.replace("ой", "ей")
    return spell(stem, ending)


def genitive_plural(stem: str, last: str, kind: str) -> str:
    """Regular genitive plural; nouns with a fleeting vowel carry their own form in the lexicon."""
    if kind == "m":
        return stem + ("ей" if last == "ь" or last in "жшчщ" else "ев" if last == "й" else "ов")
    if stem.endswith("и"):
        return stem + "й"
    return stem + ("ей" if last == "е" else "")


@cache
def paradigm(word: str) -> dict[str, list[str]]:
    """Forms of an adjective or pronominal determiner by gender ("pl" for plural), in the order of CASES."""
    if word in PRONOMINALS:
        masculine, neuter, feminine, plural = (part.split() for part in PRONOMINALS[word].split("/"))
        return {"m": masculine, "n": neuter + masculine[1:], "f": feminine, "pl": plural}
    stem = word[:-2]
    soft = word.endswith("ний")
    husher = word.endswith("ий") and stem[-1] in "жшчщ"
    change = SOFT if soft else str.maketrans("о", "е") if husher else {}
    table = {
        gender: [spell(stem, ending[0].translate(change) + ending[1:]) for ending in endings]
        for gender, endings in ADJECTIVE_ENDINGS.items()
    }
    table["m"][0] = word
    table["f"].append(stem + ("юю" if soft else "ую"))
    return table


def agree(word: str, case: str, gender: str, number: str = "sg", animate: bool = False) -> str:
    """Adjective or determiner in the gender, number and case of its noun; его, её, их never change."""
    if word in ("его", "её", "их"):
        return word
    forms = paradigm(word)["pl" if number == "pl" else gender]
    if case == "acc":
        if number == "sg" and gender == "f":
            return forms[5]
        case = "gen" if animate and (number == "pl" or gender == "m") else "nom"
    return forms[CASES.index(case)]


def conjugate(verb: Verb, tense: str, person: int, number: str, gender: str) -> str:
    """Russian finite verb: past agrees in gender and number, present and future in person and number."""
    reflexive = verb.infinitive.endswith("ся")
    infinitive = verb.infinitive.removesuffix("ся")
    if tense == "fut":
        auxiliary = ("буду", "будет", "будут")
        return f"{by_person(auxiliary, person, number)} {verb.infinitive}"
    if tense == "past":
        ending = "и" if number == "pl" else {"m": "", "f": "а", "n": "о"}[gender]
        form = infinitive[:-2] + "л" + ending
    else:
        form = by_person(verb.present, person, number)
    return form + (("сь" if form[-1] in "аеиоуюя" else "ся") if reflexive else "")


def by_person(forms: tuple[str, str, str], person: int, number: str) -> str:
    """Pick from (1sg, 3sg, 3pl); the first and second plural are built on the third singular."""
    if number == "sg":
        return forms[0] if person == 1 else forms[1]
    return {1: forms[1][:-1] + "м", 2: forms[1] + "е", 3: forms[2]}[person]


def present_forms(infinitive: str, given: Sequence[str]) -> tuple[str, str, str]:
    """First singular, third singular, third plural; ``given`` holds none, the first or all of them."""
    if len(given) == 3:
        return given[0], given[1], given[2]
    if infinitive.endswith(("ать", "ять")):
        stem = re.sub("[ое]ва$", "у", infinitive[:-2])
        return stem + "ю", stem + "ет", stem + "ют"
    stem = infinitive[:-3]
    return given[0] if given else spell(stem, "ю"), stem + "ит", spell(stem, "ят")


def euphonic(preposition: str, following: str) -> str:
    """"с", "в", "о" take a vowel or consonant before some initial clusters."""
    if preposition == "о" and following[0] in "аоуэи":
        return "об"
    cluster = {"с": "^([сзшж][^аеёиоуыэюя]|щ)", "в": "^[вф][^аеёиоуыэюя]"}.get(preposition)
    return preposition + "о" if cluster and re.match(cluster, following) else preposition


def read_noun(row: str, proper: bool = False) -> Noun:
    en, ru, tags, *exceptions = row.split()
    singular, _, plural = en.partition("/")
    extra = dict(item.split("=") for item in exceptions)
    return Noun(singular, plural or add_s(singular), ru, tags[0], tags[1], proper, **extra)


def read_verb(row: str) -> Verb:
    fields = row.split()
    en, past, ru, government, kinds, subjects = fields + ["-", "pb"][len(fields) - 4 :]
    infinitive, _, given = ru.partition("/")
    forms = present_forms(infinitive.removesuffix("ся"), given.split(",") if given else [])
    return Verb(en, past, infinitive, forms, government, kinds, subjects)


TRANSLITERATION = str.maketrans("abdegiklmnoprstuvz", "абдегиклмнопрстувз")
SYLLABLES = [consonant + vowel for consonant in "bdgklmnprstvz" for vowel in "aeiou"]
# Ending, gender + kind, proper, how many: a rare word is two syllables and one of these endings.
TAIL_ENDINGS = (
    *((coda, "mp", True, 20) for coda in ("l", "n", "r", "d", "k", "v")),
    *((coda, "fp", True, 20) for coda in ("na", "ra", "la", "ka", "da", "va")),
    *(("ist", "mp", False, 60), ("on", "mo", False, 60), ("ina", "fo", False, 60), ("grad", "ml", True, 60)),
)


def rare_nouns() -> list[Noun]:
    """Names and rare nouns from a fixed walk over syllable pairs, transliterated letter by letter.

    Spelling carries the gender and the kind, so that sub-words suffice to translate a word never seen.
    """
    found: dict[str, Noun] = {}
    size = len(SYLLABLES)
    for offset, (ending, tags, proper, count) in enumerate(TAIL_ENDINGS):
        for i in range(count):
            first, second = (i * 17 + offset * 5) % size, (i * 29 + offset * 11 + 3) % size
            en = SYLLABLES[first] + SYLLABLES[second] + ending
            noun = read_noun(f"{en} {en.translate(TRANSLITERATION)} {tags}", proper)
            found.setdefault(en, noun)
    return list(found.values())


COMMON = [read_noun(row) for row in NOUN_TABLE.split(";")]
NAMES = [read_noun(row, proper=True) for row in NAME_TABLE.split(";")]
RARE = rare_nouns()
NOUNS = {noun.en: noun for noun in (*COMMON, *NAMES, *RARE)}
VERBS = {verb.en: verb for verb in map(read_verb, VERB_TABLE.split(";"))}
ADJECTIVES = {en: (ru, kinds) for en, ru, kinds in map(str.split, ADJECTIVE_TABLE.split(";"))}


# ------------------------------------------------------------------------------------------- grammar
@dataclass
class NP:
    """A noun phrase: a pronoun, or a noun with at most one of ``owner``, ``pp``, ``rel`` and ``conj``."""

    noun: Noun | None = None
    number: str = "sg"
    det: str = ""
    adjectives: tuple[str, ...] = ()
    owner: NP | None = None
    pp: tuple[str, NP] | None = None
    rel: Clause | None = None
    conj: NP | None = None
    pronoun: str = ""


@dataclass
class Clause:
    """A verb and its dependents; without ``subj`` it shares that of the first clause or relativises it.

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

    def walk(self) -> Iterator[Node]:
        """The words of this subtree in sentence order."""
        for node in self.left:
            yield from node.walk()
        yield self
        for node in self.right:
            yield from node.walk()


def features(np: NP) -> tuple[int, str, str]:
    """Person, number and gender that a verb agrees with."""
    if np.pronoun:
        _, person, number, gender, *_ = PRONOUNS[np.pronoun]
        return int(person), number, gender
    assert np.noun is not None
    return 3, "pl" if np.conj else np.number, np.noun.gender


def english_np(np: NP, rel: str) -> Node:
    if np.pronoun:
        form = np.pronoun if rel == "nsubj" else PRONOUNS[np.pronoun][0]
        return Node(form, "PRON", rel, np.pronoun)
    noun = np.noun
    assert noun is not None
    plural = np.number == "pl"
    head = Node(noun.plural if plural else noun.en, "PROPN" if noun.proper else "NOUN", rel, noun.en)
    head.left = [Node(word, "ADJ", "amod") for word in np.adjectives]
    if np.owner:
        owner = english_np(np.owner, "nmod:poss")
        owner.right.append(Node("'" if owner.form.endswith("s") else "'s", "PART", "case", "'s"))
        head.left.insert(0, owner)
    elif np.det in POSSESSIVES:
        head.left.insert(0, Node(np.det, "PRON", "nmod:poss"))
    elif np.det:
        following = (head.left or [head])[0].form
        form = "an" if np.det == "a" and following[0] in "aeiou" else np.det
        form = "these" if np.det == "this" and plural else form
        head.left.insert(0, Node(form, "DET", "det", np.det))
    if np.pp:
        head.right.append(english_pp(*np.pp, "nmod"))
    if np.rel:
        head.right.append(english_clause(np.rel, "acl:relcl", head=np))
    if np.conj:
        second = english_np(np.conj, "conj")
        second.left.insert(0, Node("and", "CCONJ", "cc"))
        head.right.append(second)
    return head


def english_pp(preposition: str, np: NP, rel: str = "obl") -> Node:
    head = english_np(np, rel)
    head.left.insert(0, Node(preposition, "ADP", "case"))
    return head


def english_clause(clause: Clause, rel: str, head: NP | None = None, shared: NP | None = None) -> Node:
    """Tree of a clause; ``head`` is the noun phrase it relativises, ``shared`` the subject it borrows."""
    verb = english_verb(clause, rel, clause.subj or head or shared)
    if clause.subj:
        verb.left.insert(0, english_np(clause.subj, "nsubj"))
    if head:
        assert head.noun is not None
        pronoun = "who" if head.noun.kind == "p" else "that"
        verb.left.insert(0, Node(pronoun, "PRON", "obj" if clause.subj else "nsubj"))
    if clause.to and clause.shift:
        verb.right.append(english_np(clause.to, "iobj"))
    if clause.obj:
        verb.right.append(english_np(clause.obj, "obj"))
    if clause.to and not clause.shift:
        verb.right.append(english_pp("to", clause.to))
    verb.right += [english_pp(*pp) for pp in clause.pps]
    if clause.manner:
        verb.right.append(Node(clause.manner, "ADV", "advmod"))
    if clause.time:
        upos = TIME[clause.time][2]
        verb.right.append(Node(clause.time, upos, "obl:tmod" if upos == "NOUN" else "advmod"))
    if clause.that:
        that = english_clause(clause.that, "ccomp")
        that.left.insert(0, Node("that", "SCONJ", "mark"))
        verb.right.append(that)
    if clause.link:
        verb.right.append(english_link(*clause.link, clause.subj))
    return verb


def english_verb(clause: Clause, rel: str, subject: NP | None) -> Node:
    """The verb form with its auxiliary, "not" and adverb of frequency."""
    assert subject is not None
    verb, tense = clause.verb, clause.tense
    third = tense == "pres" and features(subject)[:2] == (3, "sg")
    form = verb.past if tense == "past" else add_s(verb.en) if third else verb.en
    node = Node(form, "VERB", rel, verb.en)
    if tense == "fut":
        node.left.append(Node("will", "AUX", "aux"))
    elif clause.negated:
        node.left.append(Node("did" if tense == "past" else "does" if third else "do", "AUX", "aux", "do"))
    if tense == "fut" or clause.negated:
        node.form = verb.en
    if clause.negated:
        node.left.append(Node("not", "PART", "advmod"))
    if clause.frequency:
        node.left.append(Node(clause.frequency, "ADV", "advmod"))
    return node


def english_link(word: str, clause: Clause, shared: NP | None) -> Node:
    rel = LINKS[word][1]
    node = english_clause(clause, rel, shared=shared)
    node.left.insert(0, Node(word, "CCONJ", "cc") if rel == "conj" else Node(word, "SCONJ", "mark"))
    if rel == "conj" and clause.subj:
        node.left.insert(0, Node(",", "PUNCT", "punct"))
    return node


def russian_np(np: NP, case: str) -> list[str]:
    if np.pronoun:
        return [PRONOUNS[np.pronoun][{"nom": 4, "gen": 5, "acc": 5, "dat": 6, "ins": 7}[case]]]
    noun = np.noun
    assert noun is not None
    modifiers = [DETERMINERS[np.det]] if DETERMINERS[np.det] else []
    modifiers += [ADJECTIVES[word][0] for word in np.adjectives]
    words = [agree(word, case, noun.gender, np.number, noun.animate) for word in modifiers]
    words.append(decline(noun, case, np.number))
    if np.owner:
        words += russian_np(np.owner, "gen")
    if np.pp:
        words += russian_pp(*np.pp)
    if np.rel:
        words += [",", *russian_clause(np.rel, head=np), ","]
    if np.conj:
        words += ["и", *russian_np(np.conj, case)]
    return words


def russian_pp(preposition: str, np: NP) -> list[str]:
    russian, case = PREPOSITIONS[preposition]
    words = russian_np(np, case)
    return [euphonic(russian, words[0]), *words]


def russian_clause(clause: Clause, head: NP | None = None, shared: NP | None = None) -> list[str]:
    """Words of a clause: time first, then subject, adverbs and object pronouns, verb, recipient, object."""
    subject = clause.subj or head or shared
    assert subject is not None
    case = {"give": "acc"}.get(clause.verb.government, clause.verb.government)
    words = []
    if head:
        assert head.noun is not None
        role = case if clause.subj else "nom"
        words.append(agree("который", role, head.noun.gender, head.number, head.noun.animate))
    words += [TIME[clause.time][0]] if clause.time else []
    words += russian_np(clause.subj, "nom") if clause.subj else []
    words += [FREQUENCY[clause.frequency]] if clause.frequency else []
    complements = [(np, c) for np, c in ((clause.to, "dat"), (clause.obj, case)) if np]
    for np, np_case in complements:
        words += russian_np(np, np_case) if np.pronoun else []
    words += [MANNER[clause.manner]] if clause.manner else []
    words += ["не"] if clause.negated or clause.frequency == "never" else []
    words += conjugate(clause.verb, clause.tense, *features(subject)).split()
    for np, np_case in complements:
        words += russian_np(np, np_case) if not np.pronoun else []
    for pp in clause.pps:
        words += russian_pp(*pp)
    if clause.that:
        words += [",", "что", *russian_clause(clause.that)]
    if clause.link:
        words += russian_link(*clause.link, clause.subj)
    return words


def russian_link(word: str, clause: Clause, shared: NP | None) -> list[str]:
    comma = [","] if clause.subj else []
    return [*comma, *LINKS[word][0].split(), *russian_clause(clause, shared=shared)]


def render(clause: Clause) -> tuple[Node, str]:
    """The English tree and the Russian sentence of a main clause."""
    tree = english_clause(clause, "root")
    tree.right.append(Node(".", "PUNCT", "punct"))
    russian = " ".join([*russian_clause(clause), "."])
    return tree, re.sub(r"(, )+(?=[,.])", "", russian)  # a comma that closes a clause merges with what follows


# ------------------------------------------------------------------------------------------ sampling
RARE_WORD = 0.05  # chance that a noun is drawn from the tail
LENGTHS = range(4, 17)  # English tokens


@cache
def zipf_weights(size: int) -> list[float]:
    return list(accumulate(1 / (rank + 2) for rank in range(size)))


class Sampler:
    """Draws clauses; what would give the English sentence a second reading is left out (see comments)."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.common = {kind: [noun for noun in COMMON if noun.kind == kind] for kind in "pbol"}
        self.common["p"] = self.common["p"][:6] + NAMES
