"""Remove the pairs of parallel text that a translation model should not learn from, and count them.

    python3 recipes/scripts/clean.py FROM TO SRC TGT [--max-length 200] [--max-ratio 9] [--max-repeats 2] [--unique]
        [--held-out TEXT ...]

reads FROM.SRC and FROM.TGT (tokenised, one sentence per line) and writes TO.SRC and TO.TGT in the same order. A pair is
removed for the first of these reasons that applies:

- empty, too long: with --max-length, one side has no token or more than so many
- ratio: with --max-ratio, one side has more than so many times as many tokens as the other
- repeats: with --max-repeats, TGT has the same one to four tokens more than so many times in a row
- held out, again: with --unique, the pair is in TEXT.SRC and TEXT.TGT, or came before

Prints a table of the counts. Both sides of all texts must have the same number of lines.
"""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from itertools import zip_longest

from tqdm import tqdm

import headgates_start  # noqa: F401  (with it fairseq_headgates imports fairseq and torch only where they are needed)
from fairseq_headgates.drawing.tables import text_table
from fairseq_headgates.files.writing import replacing
from script_errors import errors_in_one_line

REASONS = ["empty", "too long", "ratio", "repeats", "held out", "again"]


def pairs(prefix: str, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of PREFIX.SRC and PREFIX.TGT."""
    with ExitStack() as stack:
        names = [f"{prefix}.{language}" for language in languages]
        sides = [stack.enter_context(open(name, encoding="utf-8", newline="\n")) for name in names]
        for number, pair in enumerate(zip_longest(*sides)):
            if None in pair:
                short, long = languages if pair[0] is None else languages[::-1]
                raise ValueError(
                    f"{prefix} has {number:,} lines in {short} and more in {long}: the sides must be aligned"
                )
            yield pair[0].rstrip("\n"), pair[1].rstrip("\n")


def digest(pair: tuple[str, str]) -> bytes:
    """Return 16 bytes that identify a pair: six million of them fit in memory."""
    return blake2b("\n".join(pair).encode(), digest_size=16).digest()


def repeats(sentence: str, times: float) -> bool:
    """Return whether one to four tokens stand more than so many times in a row."""
    tokens = sentence.split()
    for size in range(1, 5):
        equal = 0  # consecutive tokens that are equal to the one `size` tokens before
        for before, token in zip(tokens, tokens[size:], strict=False):
            equal = equal + 1 if token == before else 0
            if equal >= size * times:
                return True
    return False


def reason(pair: tuple[str, str], args: argparse.Namespace, held_out: set[bytes], seen: set[bytes]) -> str | None:
    """Return the reason to remove a pair, or None to keep it."""
    short, long = sorted(len(side.split()) for side in pair)
    if not short and args.max_length + args.max_ratio < math.inf:
        return "empty"
    if long > args.max_length:
        return "too long"
    if long > args.max_ratio * short:
        return "ratio"
    if args.max_repeats < math.inf and repeats(pair[1], args.max_repeats):
        return "repeats"
    if args.unique:
        key = digest(pair)
        if key in held_out:
            return "held out"
        if key in seen:
            return "again"
        seen.add(key)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("read", metavar="FROM")
    parser.add_argument("write", metavar="TO")
    parser.add_argument("languages", nargs=2, metavar=("SRC", "TGT"))
    parser.add_argument("--max-length", type=float, default=math.inf, metavar="TOKENS")
    parser.add_argument("--max-ratio", type=float, default=math.inf, metavar="R")
    parser.add_argument("--max-repeats", type=float, default=math.inf, metavar="N")
    parser.add_argument("--unique", action="store_true")
    parser.add_argument("--held-out", nargs="+", default=[], metavar="TEXT")
    args = parser.parse_args()
    held_out = {digest(pair) for text in args.held_out for pair in pairs(text, args.languages)}
    counts: Counter[str | None] = Counter()
    seen: set[bytes] = set()
    for language in args.languages:
        os.stat(f"{args.read}.{language}")  # `replacing` would say of a missing file that it cannot be written
    with ExitStack() as stack:
        names = [f"{args.write}.{language}" for language in args.languages]
        parts = [stack.enter_context(replacing(name, force=True)) for name in names]
        files = [stack.enter_context(open(part, "w", encoding="utf-8", newline="\n")) for part in parts]
        for pair in tqdm(pairs(args.read, args.languages), desc="cleaning", unit=" pairs", disable=None):
            found = reason(pair, args, held_out, seen)
            counts[found] += 1
            if found is None:
                for file, text in zip(files, pair, strict=True):
                    file.write(text + "\n")
        rows = {"pairs": counts.total(), **{each: -counts[each] for each in REASONS}, "left": counts[None]}
        cells = [[name, f"{n:,}", f"{n / max(rows['pairs'], 1):.2%}"] for name, n in rows.items()]
        print(text_table(["cleaning", "number", "share"], cells))
        if not counts[None]:
            raise ValueError("no pair is left for training")


if __name__ == "__main__":
    with errors_in_one_line():
        main()
