"""Encode text from stdin with a tokenizer.json of Hugging Face, and print its tokens, separated by blanks.

    python3 recipes/lib text.wordpieces TOKENIZER_JSON

Needs the package tokenizers. Symbols at the beginning and end of a line, [CLS] and [SEP], are left to fairseq.
"""

from __future__ import annotations

import io
import sys

from commands import ArgumentParser, Refused


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("tokenizer", metavar="TOKENIZER_JSON")
    file = parser.parse_args(argv).tokenizer
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise Refused("the package tokenizers is missing: pip install tokenizers") from None
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # the package raises no other type
        raise Refused(f"{file} is no tokenizer.json of Hugging Face ({error}): convert the model again") from None
    for stream in (sys.stdin, sys.stdout):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", newline="\n")
    for line in sys.stdin:
        print(*tokenizer.encode(line, add_special_tokens=False).tokens)
