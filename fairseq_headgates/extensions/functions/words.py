"""Words of subword tokens, and which of them are words of a dependency tree, by characters."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_headgates.data.symbols import MARKS

BYTES = {character: bytes([byte]) for byte, character in bytes_to_unicode().items()}
ESCAPED = {"&apos;": "'", "&quot;": '"', "&lt;": "<", "&gt;": ">", "&#124;": "|", "&#91;": "[", "&#93;": "]"}
ESCAPED |= {"&amp;": "&", "@-@": "-"}  # Moses: special characters, and hyphens within words
ESCAPED |= {"``": '"', "''": '"'}  # quotes of the Penn Treebank
# Typographic characters that tokenisers replace.
PLAIN = str.maketrans({**dict.fromkeys("“”„«»", '"'), **dict.fromkeys("‘’‚`´", "'"), **dict.fromkeys("‐‑‒–—", "-")})


class Piece(NamedTuple):
    """A token of the model: its text without the mark of subwords, None if unknown, and the number of its word."""

    text: str | None
    word: int


def pieces(tokens: Sequence[str | None], subwords: str) -> list[Piece]:
    """Return the pieces of a sentence, without EOS. None is an unknown token, taken for a word of its own."""
    result: list[Piece] = []
    mark, word, ended = MARKS.get(subwords), -1, True
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")  # a character may be of two pieces
    for token in tokens:
        text, begins, ends = token, True, True
        if mark and token is not None:
            text = token.removeprefix(mark.text) if mark.first else token.removesuffix(mark.text)
            boundary = (text != token) != mark.joins  # of two words, at the end of the token that can have the mark
            begins, ends = (boundary or ended, False) if mark.first else (ended, boundary)
            if subwords == "byte-level-bpe":
                if begins:
                    decoder.reset()
                text = decoder.decode(b"".join(BYTES.get(each, each.encode()) for each in text))
        word += begins
        ended = ends
        result.append(Piece(text, word))
    return result


class Match(NamedTuple):
    """The pieces of each word of a tree, none if it is not found in the text; and the share of matched characters."""

    pieces: list[tuple[int, ...]]
    share: float


def match(sentence: Sequence[Piece], forms: Sequence[str]) -> Match:
    """Find the words of a tree in the pieces of the same sentence.

    Both are compared as characters without spaces; case, typographic quotes and dashes, and Moses' escapes make no
    difference. A word is found if it consists of whole, consecutive pieces.
    """
    text, owners = _characters(sentence)
    other, words = _characters([Piece(form, i) for i, form in enumerate(forms)])
    place = _matched(text, other)
    words_of: dict[int, set[int | None]] = {}  # words of the tree that each piece has characters of
    for a, owning in enumerate(owners):
        for piece in owning:
            words_of.setdefault(piece, set()).update(words[place[a]] if a in place else [None])
    back = {b: a for a, b in place.items()}
    where: list[list[int | None]] = [[] for _ in forms]  # places in the text of each character of a word
    for b, owning in enumerate(words):
        for word in owning:
            where[word].append(back.get(b))
    result = []
    for word, places in enumerate(where):
        first = places[0] if places else None
        whole = first is not None and places == [*range(first, first + len(places))]
        of_word = {piece for a in places if whole and a is not None for piece in owners[a]}
        alone = all(words_of[piece] == {word} for piece in of_word)
        result.append(tuple(sorted(of_word | _marks(sentence, of_word))) if alone else ())
    known = sum(character != "\0" for character in text)
    return Match(result, len(place) / known if known else 1.0)


def _marks(sentence: Sequence[Piece], of_word: set[int]) -> set[int]:
    """Return the pieces without characters, SentencePiece's mark alone, before the pieces `of_word` of a word."""
    return {
        i
        for i, piece in enumerate(sentence[:-1])
        if piece.text == "" and i + 1 in of_word and sentence[i + 1].word == piece.word
    }


def _matched(text: str, other: str) -> dict[int, int]:
    """Return {position in `text`: position in `other`} of their common characters, in order."""
    if text == other:
        return {i: i for i in range(len(text))}
    blocks = SequenceMatcher(None, text, other, autojunk=False).get_matching_blocks()
    return {a + i: b + i for a, b, size in blocks for i in range(size)}


def _characters(sentence: Sequence[Piece]) -> tuple[str, list[tuple[int, ...]]]:
    """Return the characters of a sentence, and the pieces that each is of; an unknown token is the character 0."""
    raw = [(c, i) for i, piece in enumerate(sentence) for c in ("\0" if piece.text is None else piece.text)]
    text, owners = "", []
    raw_text = "".join(c for c, _ in raw)
    pattern = re.compile("|".join(map(re.escape, ESCAPED)) + "|.", re.DOTALL)
    for part in pattern.finditer(raw_text):
        owning = tuple(dict.fromkeys(i for _, i in raw[part.start() : part.end()]))
        plain = ESCAPED.get(part.group(), part.group()).translate(PLAIN)
        characters = "".join(unicodedata.normalize("NFKD", plain).casefold().split())
        text += characters
        owners += [owning] * len(characters)
    return text, owners
