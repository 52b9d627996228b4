"""Copy text from stdin to stdout, in UTF-8, with one blank between words and a line feed after each line.

fairseq and subword-nmt do not agree on the characters that end a word or a line; after this both read the same words.
"""

import sys

sys.stdin.reconfigure(encoding="utf-8", newline="\n")
sys.stdout.reconfigure(encoding="utf-8", newline="\n")
for line in sys.stdin:
    sys.stdout.write(" ".join(line.split()) + "\n")
