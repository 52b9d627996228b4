"""Copy text from stdin to stdout, in UTF-8 in any locale, with a line feed after each line.

    python3 recipes/scripts/lines.py lowercase
    python3 recipes/scripts/lines.py words

`words` puts one blank between words: fairseq and subword-nmt do not agree on the characters that end a word or a line,
and then read the same words.
"""

import sys

FORMS = {"lowercase": str.lower, "words": lambda line: " ".join(line.split()) + "\n"}

if __name__ == "__main__":
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    sys.stdout.writelines(map(FORMS[sys.argv[1]], sys.stdin))
