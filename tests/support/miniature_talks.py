"""Miniature mirror of IWSLT14 German-English: talks, and five small sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from xml.sax.saxutils import escape

from support.miniature import OTHER_ENGLISH, Members, Pair, checked, dealt, in_chunks, lines, save, sides, tgz

IWSLT14 = "dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
IWSLT_SETS = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]  # as fairseq joins them
LANGUAGES = {"de": "german", "en": "english"}
TITLE = {"de": "Sprecher {0}: Vortrag {0}", "en": "Speaker {0}: Talk {0}"}
DESCRIPTION = {"de": "Ein Vortrag über die Zahl {0}.", "en": "A talk about the number {0}."}


def make_iwslt_mirror(
    folder: Path,
    train: Sequence[Pair],
    test: Sequence[Pair],
) -> dict[str, list[Pair]]:
    """Make the archive of German-English IWSLT14. Return the pairs of `train` and of the five small sets, by name.

        dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz
            de-en/train.tags.de-en.{de,en}              plain lines; the fields of a talk on lines of their own before
            de-en/IWSLT14.{TED,TEDX}.*.de-en.{de,en}.xml     <seg> lines, and the same fields, in well-formed XML

    fairseq's test set is all five sets, and its validation set every 23rd training pair: `test` is split over the five.

    The pairs of `train` contain the titles and descriptions of the talks too, as after fairseq's preparation. The
    German description of every third talk is empty.
    """
    sets = dict(zip(IWSLT_SETS, dealt(checked(test), [1] * 5), strict=True))
    talks = list(in_chunks(checked(train), cycle((12, 20, 7))))
    save(folder, {IWSLT14: tgz(iwslt_members(talks, sets))})
    return {
        "train": [pair for number, talk in enumerate(talks, 1) for pair in [*head(number), *talk]],
        **{name: list(pairs) for name, pairs in sets.items()},
    }


def iwslt_members(talks: list[list[Pair]], sets: Mapping[str, Sequence[Pair]]) -> Members:
    members = {"README": "Not the real corpus.\n", "train.en": lines(OTHER_ENGLISH)}
    for index, language in enumerate(LANGUAGES):
        tagged = ([*fields(n, index, False), *(pair[index] for pair in talk)] for n, talk in enumerate(talks, 1))
        members[f"train.tags.de-en.{language}"] = lines(line for talk in tagged for line in talk)
        for name, pairs in sets.items():
            members[f"IWSLT14.{name}.de-en.{language}.xml"] = mteval(name, index, sides(pairs)[index])
    return {f"de-en/{name}": members[name] for name in sorted(members)}


def head(number: int) -> list[Pair]:
    """Return title and description of a talk, in both languages."""
    german = "" if number % 3 == 0 else DESCRIPTION["de"].format(number)
    return [(TITLE["de"].format(number), TITLE["en"].format(number)), (german, DESCRIPTION["en"].format(number))]


def fields(number: int, index: int, speaker: bool) -> list[str]:
    """Return the fields of a talk, each on a line."""
    title, description = (pair[index] for pair in head(number))
    return [
        f"<url>http://www.ted.com/talks/talk_{number}.html</url>",
        "<keywords>talks, example</keywords>",
        *([f"<speaker>Speaker {number}</speaker>"] if speaker else []),
        f"<talkid>{number}</talkid>",
        f"<title>{title}</title>",
        f"<description>{description}</description>",
    ]


def mteval(name: str, index: int, texts: Sequence[str]) -> str:
    """Return one side of a small set in the XML format of the campaign's scoring tool."""
    setid = f"iwslt2014-{name.rpartition('.')[2]}"
    kind = ("srcset", "refset")[index]
    more = ("", ' trglang="english" refid="ref"')[index]
    result = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", f'<{kind} setid="{setid}" srclang="german"{more}>']
    for number, segments in enumerate(in_chunks(texts, cycle((5, 9, 3))), 1001):
        result += [f'<doc docid="{number}" genre="lectures">', *fields(number, index, speaker=True)]
        result += [f'<seg id="{i}"> {escape(text)} </seg>' for i, text in enumerate(segments, 1)]
        result.append("</doc>")
    return lines([*result, f"</{kind}>", "</mteval>"])
