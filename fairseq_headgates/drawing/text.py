"""Text in tables and figures: characters that cannot be seen, widths, fonts."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Settings of matplotlib: in SVG text remains text; a name with $ is no formula.
TEXT_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "text.parse_math": False}
# Fonts for the characters that DejaVu Sans lacks; the first installed one that has a character draws it.
FALLBACK = ("Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Symbola", "Unifont")
UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")  # categories of Unicode: control, format, surrogates, separators
JOINERS = "\u200c\u200d"  # zero-width, but a part of words (Persian, Hindi) and of emoji
CIRCLE = "\u25cc"  # carries a combining character that has no other to combine with
LONGEST = 40  # characters of a token that is drawn
END = 10  # of them after the ellipsis


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
    """Within the context, matplotlib draws with `TEXT_STYLE`, and no warnings of characters that no font has."""
    from matplotlib import rc_context
    from matplotlib.font_manager import fontManager

    families = ["sans-serif", *(name for name in FALLBACK if name in fontManager.get_font_names())]
    with rc_context({**TEXT_STYLE, "font.family": families, **(more or {})}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield
