"""Remove the pairs of parallel text that a translation model should not learn from, and count them.

    python3 recipes/lib text.clean FROM TO SRC TGT [--max-length 200] [--max-ratio 9] [--unique] [--without TEXT ...]

reads FROM.SRC and FROM.TGT (tokenised, one sentence a line) and writes TO.SRC and TO.TGT in the same order. A pair is
removed for the first of these reasons that applies: one side is empty; one side has more than --max-length tokens; one
side has more than --max-ratio times as many tokens as the other; the pair is in a development or test set
(--without TEXT, for TEXT.SRC and TEXT.TGT); the same pair came before (--unique). Prints a table of the counts.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from itertools import zip_longest

from tqdm import tqdm

from commands import ArgumentParser, number, whole
from fairseq_headgates.drawing.tables import text_table
from fairseq_headgates.files import replacing

REASONS = ["empty", "too long", "ratio", "in dev or test", "again"]


class Cleaner:
    """Find the reason to remove a pair, one pair after another."""

    def __init__(self, max_length: int, max_ratio: float, unique: bool, held_out: set[bytes]):
        self.max_length, self.max_ratio, self.unique, self.held_out = max_length, max_ratio, unique, held_out
        self.seen: set[bytes] = set()

    def reason(self, source: str, target: str) -> str | None:
        """Return the reason to remove the pair, or None to keep it."""
        lengths = len(source.split()), len(target.split())
        if not min(lengths):
            return "empty"
        if max(lengths) > self.max_length:
            return "too long"
        if max(lengths) > self.max_ratio * min(lengths):
            return "ratio"
        key = digest(source, target)
        if key in self.held_out:
            return "in dev or test"
        if self.unique:
            if key in self.seen:
                return "again"
            self.seen.add(key)
        return None


def digest(source: str, target: str) -> bytes:
    """Return 16 bytes that identify a pair: six million of them fit in memory."""
    return blake2b(f"{source}\n{target}".encode(), digest_size=16).digest()


def pairs(prefix: str, languages: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of PREFIX.SRC and PREFIX.TGT. Raise ValueError if one side is longer."""
    with ExitStack() as stack:
        names = [f"{prefix}.{language}" for language in languages]
        sides = [stack.enter_context(open(name, encoding="utf-8", newline="\n")) for name in names]
        for number, pair in enumerate(zip_longest(*sides)):
            if None in pair:
                short, long = languages if pair[0] is None else languages[::-1]
                raise ValueError(f"{prefix} has {number:,} lines in {short} and more in {long}: sides must be aligned")
            yield pair[0].rstrip("\n"), pair[1].rstrip("\n")


def clean(read: str, write: str, languages: tuple[str, str], cleaner: Cleaner) -> Counter[str | None]:
    """Write the pairs that are kept; the files appear when they are complete. Return the number of pairs by reason."""
    counts: Counter[str | None] = Counter()
    with ExitStack() as stack:
        names = [stack.enter_context(replacing(f"{write}.{language}", force=True)) for language in languages]
        files = [stack.enter_context(name.open("w", encoding="utf-8", newline="\n")) for name in names]
        for pair in tqdm(pairs(read, languages), desc="cleaning", unit=" pairs", unit_scale=True, disable=None):
            reason = cleaner.reason(*pair)
            counts[reason] += 1
            if reason is None:
                for file, text in zip(files, pair, strict=True):
                    file.write(text + "\n")
    return counts


def table(counts: Counter[str | None]) -> str:
    total = sum(counts.values())
    rows = [("pairs", total), *((reason, -counts[reason]) for reason in REASONS), ("left", counts[None])]
    return text_table(
        ["cleaning", "number", "share"], [[name, f"{n:,}", f"{n / max(total, 1):.2%}"] for name, n in rows]
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that the setting CLEAN may contain."""
    parser.add_argument("--max-length", type=whole(), default=200)
    parser.add_argument("--max-ratio", type=number(1), default=9)
    parser.add_argument("--unique", action="store_true")
    parser.add_argument("--without", nargs="*", action="extend", default=[], metavar="TEXT")


def work(args: argparse.Namespace) -> None:
    languages = args.source, args.target
    held_out = {digest(*pair) for text in args.without for pair in pairs(text, languages)}
    cleaner = Cleaner(args.max_length, args.max_ratio, args.unique, held_out)
    print(table(clean(args.read, args.write, languages, cleaner)))


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("read", metavar="FROM")
    parser.add_argument("write", metavar="TO")
    parser.add_argument("source", metavar="SRC")
    parser.add_argument("target", metavar="TGT")
    add_options(parser)
    work(parser.parse_args(argv))
