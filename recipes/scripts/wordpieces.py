"""Encode text from stdin with a tokenizer.json of Hugging Face, and print its tokens, separated by blanks.

    python3 recipes/scripts/wordpieces.py TOKENIZER_JSON

Needs the package tokenizers. Symbols at the beginning and end of a line, [CLS] and [SEP], are left to fairseq.
"""

import sys

from tokenizers import Tokenizer

if __name__ == "__main__":
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    tokenizer = Tokenizer.from_file(sys.argv[1])
    for line in sys.stdin:
        print(*tokenizer.encode(line, add_special_tokens=False).tokens)
