"""Text in tables and figures: characters that cannot be seen, widths, and fonts that have the characters."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Settings of matplotlib: in SVG text remains text, in one font; a name with $ is no formula.
FONT = "DejaVu Sans"
TEXT_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "font.sans-serif": [FONT], "text.parse_math": False}
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")  # categories of Unicode: control, format, surrogates, separators
JOINERS = "\u200c\u200d"  # zero-width, but a part of words (Persian, Hindi) and of emoji
CIRCLE = "\u25cc"  # carries a combining character that has no other to combine with
LONGEST = 40  # characters of a token that is drawn
END = 10  # of them after the ellipsis
# Scripts that are written from right to left, or whose characters change by their neighbours: only matplotlib with
# libraqm (3.11) draws them.
SHAPED = [range(0x0590, 0x0E00), range(0x1000, 0x10A0), range(0x1780, 0x1800), range(0xFB1D, 0xFE00)]
SHAPED += [range(0xFE70, 0xFEFF)]


def escaped(token: str) -> str:
    r"""Return a token with escapes such as \u200b for characters that cannot be seen."""
    last = len(token) - 1
    text = "".join(c if 0 < i < last and c in JOINERS else _escaped(c) for i, c in enumerate(token))
    return CIRCLE + text if unicodedata.category(text[:1] or " ").startswith("M") else text


def visible(token: str) -> str:
    """Return `escaped`, shortened in its middle if it is very long."""
    text = escaped(token)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - END - 1]}…{text[-END:]}"


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in UNSEEN or character == " ":
        return character
    return character.encode("unicode_escape").decode()


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for a wide character (CJK), none for a combining one."""
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


@contextmanager
def text_style(more: Mapping[Any, Any] | None = None) -> Iterator[None]:
    """Within the context, matplotlib draws with `TEXT_STYLE`, and no warnings of characters that a font lacks."""
    from matplotlib import rc_context

    with rc_context({**TEXT_STYLE, **(more or {})}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def choose_fonts(figure: Figure) -> str:
    """Give the texts of a figure fallback fonts of this system. Say which scripts it does not show all the same."""
    from matplotlib import ft2font
    from matplotlib.text import Text

    texts = {each: set(each.get_text()) - {"\n"} for each in figure.findobj(Text)}
    every = set().union(*texts.values())
    lacking = {c for c in every if ord(c) not in _characters(FONT)}
    fonts, found = [FONT], set[str]()
    for name in _other_fonts() if lacking else ():
        if new := {c for c in lacking if ord(c) in _characters(name)}:
            fonts.append(name)
            found |= new
            lacking -= new
    for text, characters in texts.items():
        if characters & found:
            text.set_fontfamily(fonts)
    shaped = {c for c in every - lacking if any(ord(c) in block for block in SHAPED)}
    if lacking:
        return f"does not show {_scripts(lacking)}, for which this system has no font"
    if shaped and not hasattr(ft2font, "__libraqm_version__"):
        return f"draws {_scripts(shaped)} without shaping (this needs matplotlib 3.11)"
    return ""


@cache
def _characters(name: str) -> frozenset[int]:
    """Return the characters of a font."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    try:
        return frozenset(get_font(findfont(FontProperties(family=name), fallback_to_default=False)).get_charmap())
    except (OSError, RuntimeError, ValueError):  # a broken file
        return frozenset()


def _other_fonts() -> Iterable[str]:
    """Return the names of the fonts of this system, without those that matplotlib brings for formulas."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    folder = matplotlib.get_data_path()
    return sorted({font.name for font in fontManager.ttflist if not font.fname.startswith(folder)} - {FONT})


def _scripts(characters: Iterable[str]) -> str:
    """Return the scripts of characters, by the first words of their names in Unicode."""
    found = set()
    for character in characters:
        first = unicodedata.name(character, "").partition(" ")[0].partition("-")[0]
        is_letter = first and unicodedata.category(character)[0] in "LMN"
        found.add((first if first == "CJK" else first.capitalize()) if is_letter else "symbols or emoji")
    return ", ".join(sorted(found))
