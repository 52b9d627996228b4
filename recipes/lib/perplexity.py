#!/usr/bin/env python3
"""Print the result of fairseq-eval-lm as JSON, from its log and the text that it evaluated.

    perplexity.py EVAL.log --text WORDS --encoded TOKENS --dictionary dict.txt

WORDS is the text with one blank between words, TOKENS the same text as fairseq-preprocess read it. The perplexity per
token depends on the segmentation. The perplexity per word does not: the loss of all tokens is divided by the number of
words, and the end of a line counts as a word, as it counts as a token.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import headgates_start  # noqa: F401  (before fairseq_headgates, which then does not import fairseq and torch)
from commands import ArgumentParser, exit_code
from fairseq_headgates import evaluation

LOSS = re.compile(r"Loss \(base 2\): (\S+), Perplexity: ")
TOKENS = re.compile(r"Evaluated ([\d,]+) tokens in ")
UNKNOWN = "<unk>"


def evaluated(log: Path) -> tuple[float, int]:
    """Return the loss in bits per token, and the number of tokens, of the last evaluation in a log."""
    text = log.read_text(encoding="utf-8", errors="replace")
    losses, tokens = LOSS.findall(text), TOKENS.findall(text)
    if not losses or not tokens:
        raise ValueError(f"{log} has no loss: give the output of fairseq-eval-lm")
    try:
        loss = float(losses[-1])
    except ValueError:
        loss = math.nan
    if not math.isfinite(loss):
        raise ValueError(f"the loss is {losses[-1]} bits per token (log: {log})")
    return loss, int(tokens[-1].replace(",", ""))


def split_lines(path: Path) -> Iterator[list[str]]:
    """Yield the words of each line."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.split()


def symbols(dictionary: Path) -> set[str]:
    """Return the symbols of a dictionary of fairseq."""
    with dictionary.open(encoding="utf-8", newline="\n") as file:
        return {line.rpartition(" ")[0] for line in file}


def perplexity(log: Path, text: Path, encoded: Path, dictionary: Path) -> dict[str, float]:
    """Return loss, perplexity per token and per word, and the numbers of tokens, unknown tokens, and words."""
    loss, number = evaluated(log)
    known = symbols(dictionary) - {UNKNOWN}
    words = sum(len(line) + 1 for line in split_lines(text))
    tokens = unknown = 0
    for line in split_lines(encoded):
        tokens += len(line) + 1
        unknown += sum(token not in known for token in line)
    if number != tokens:
        raise ValueError(f"fairseq-eval-lm evaluated {number:,} of the {tokens:,} tokens of {encoded} (log: {log})")
    return {
        "loss": loss,
        "perplexity": evaluation.perplexity(loss),
        "perplexity_per_word": evaluation.perplexity(loss * tokens / words),
        "tokens": tokens,
        "unknown": unknown,
        "words": words,
    }


def work(args: argparse.Namespace) -> None:
    print(json.dumps(perplexity(args.log, args.text, args.encoded, args.dictionary)))


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(__doc__)
    parser.add_argument("log", type=Path, metavar="EVAL.log")
    for name, metavar in (("text", "WORDS"), ("encoded", "TOKENS"), ("dictionary", "dict.txt")):
        parser.add_argument(f"--{name}", type=Path, metavar=metavar, required=True)
    return exit_code("perplexity.py", work, parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
