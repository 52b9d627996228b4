"""What the symbols of a dictionary are: subwords, by the mark that most of them have, and symbols that are no words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from fairseq_headgates.messages import first_line

SHARE = 0.01  # share of symbols, or of sentences, from which on a mark is that of subwords


class Mark(NamedTuple):
    """The mark of a kind of subwords.

    Attributes:
        text: the mark
        first: whether symbols have it at their beginning, or at their end
        joins: whether a symbol with the mark, or one without it, continues a word there
        post_process: values of fairseq's --post-process that join these subwords
        hint: the options of fairseq that join them, "" if there are none
    """

    text: str
    first: bool
    joins: bool
    post_process: tuple[str, ...] = ()
    hint: str = ""

    def on(self, symbol: str) -> bool:
        """Return whether a symbol has the mark, and is not the mark alone."""
        return len(symbol) > len(self.text) and (symbol.startswith if self.first else symbol.endswith)(self.text)


MARKS = {
    "sentencepiece": Mark("\u2581", True, False, ("sentencepiece",), "--post-process sentencepiece"),
    "subword-nmt": Mark("@@", False, True, ("@@ ", "subword_nmt"), "--remove-bpe"),
    "byte-level-bpe": Mark("\u0120", True, False),  # GPT-2, as Hugging Face's tokenizers write it
    "wordpiece": Mark("##", True, True, (), "--bpe bert"),
    "end-of-word": Mark("</w>", False, False),
    "_EOW": Mark("_EOW", False, False, ("_EOW",), "--post-process _EOW"),
}
SUBWORDS = (*MARKS, "none")

NO_WORDS = re.compile(
    r"<s>|</s>|<pad>|<mask>|madeupword.*"
    # Tokens of languages: __en__ (multilingual translation, M2M-100), [en_XX] (mBART), <2en>, <lang:en> (speech)
    r"|__{0}__|\[[a-z]{{2,3}}_[A-Z]{{2}}\]|<2{0}>|<lang:{0}>".format(r"[a-z]{2,3}(?:[_-]\w+)*")
)
# The same of a language with any name; the last is that of multilingual language models.
LANGUAGE = ("__{}__", "__{}_dae__", "__{}_mined__", "[{}]", "<2{}>", "<{}>")


def subwords_of(symbols: Sequence[str]) -> str:
    """Return the kind of subwords whose mark most of the marked symbols have: an element of `SUBWORDS`."""
    numbers = {kind: sum(map(mark.on, symbols)) for kind, mark in MARKS.items()}
    kind = max(numbers, key=lambda kind: numbers[kind])
    return kind if numbers[kind] > SHARE * len(symbols) else "none"


def no_words(task: Any, side: str) -> list[int]:
    """Return the symbols of the "source" or "target" dictionary that are no words.

    These are the special symbols except <unk>, <mask>, language tags, and fillers (madeupword0000).
    """
    dictionary = getattr(task, f"{side}_dictionary")
    special = {*dictionary.symbols[: dictionary.nspecial]} - {dictionary.unk_word}
    special |= {style.format(language) for language in _languages(task) for style in LANGUAGE}
    return [i for i, each in enumerate(dictionary.symbols) if each in special or NO_WORDS.fullmatch(each)]


def spell_numbers(task: Any, options: Any) -> None:
    """Name tokens by their text, such as \u0120man, where dictionaries of GPT-2's BPE (BART, RoBERTa) have numbers.

    Sentences are still read as numbers.

    Args:
        task: fairseq's task, whose dictionaries are changed
        options: those of fairseq's BPE

    Raises:
        ValueError: if the files of the BPE cannot be read
    """
    try:
        spelled = task.build_bpe(options).bpe.decoder
    except Exception as error:  # of the network, of anyone's files
        hint = "give its files with --gpt2-encoder-json and --gpt2-vocab-bpe"
        raise ValueError(f"--bpe gpt2 cannot be used ({first_line(error)}): {hint}") from None
    for dictionary in {id(each): each for each in (task.source_dictionary, task.target_dictionary) if each}.values():
        first = dictionary.nspecial
        dictionary.symbols[first:] = [
            spelled.get(int(each), each) if each.isdecimal() else each for each in dictionary.symbols[first:]
        ]


def _languages(task: Any) -> list[str]:
    """Return the languages of a multilingual task."""
    if hasattr(task, "_get_langs"):  # of multilingual language models: by default the folders of the data
        return task._get_langs(task.args)[0]
    options = getattr(task, "args", None)
    found = (getattr(options, name, None) or [] for name in ("langs", "lang_pairs"))
    listed = [each for names in found for each in (names.split(",") if isinstance(names, str) else names)]
    return [language for each in listed for language in (each, *each.split("-"))]
