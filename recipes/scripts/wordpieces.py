"""Encode text from stdin with a tokenizer.json of Hugging Face, and print its tokens, separated by blanks.

    python3 recipes/scripts/wordpieces.py TOKENIZER_JSON

Needs the package tokenizers. Symbols at the beginning and end of a line, [CLS] and [SEP], are left to fairseq.
"""

import argparse
import sys
from pathlib import Path

from tokenizers import Tokenizer

from script_errors import errors_in_one_line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, metavar="TOKENIZER_JSON")
    tokenizer = Tokenizer.from_str(parser.parse_args().tokenizer.read_text(encoding="utf-8"))
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    for line in sys.stdin:
        print(*tokenizer.encode(line, add_special_tokens=False).tokens)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
