"""Copy text from stdin to stdout, in UTF-8 in any locale, with a line feed after each line.

    python3 recipes/lib text.lines lowercase
    python3 recipes/lib text.lines words

`words` puts one blank between words: fairseq and subword-nmt do not agree on the characters that end a word or a line,
and then read the same words.
"""

from __future__ import annotations

import io
import sys

FORMS = {"lowercase": str.lower, "words": lambda line: " ".join(line.split()) + "\n"}


def main(argv: list[str]) -> None:
    (form,) = argv
    for stream in (sys.stdin, sys.stdout):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", newline="\n")
    sys.stdout.writelines(map(FORMS[form], sys.stdin))
