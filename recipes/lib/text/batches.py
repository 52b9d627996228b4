"""Find --max-tokens and --update-freq for a given number of source tokens for each update.

    python3 recipes/lib text.batches DATA_BIN SRC TGT --tokens 16000 --workers GPUS --max-tokens M

prints `MAX_TOKENS UPDATE_FREQ` with MAX_TOKENS at most M, and on stderr the number of source tokens. fairseq's
--max-tokens limits the number of sentences in a batch times the length of the longest sentence on either side, so it
counts padding and longer targets too. This program forms the batches of the training data as fairseq does and counts
their source tokens, end of sentence included.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary, data_utils

from commands import ArgumentParser, whole


class Batches:
    """The lengths of the training data, from which batches of any size can be formed."""

    def __init__(self, data: Path, source: str, target: str):
        def sizes(language: str) -> np.ndarray:
            dictionary = Dictionary.load(str(data / f"dict.{language}.txt"))
            prefix = str(data / f"train.{source}-{target}.{language}")
            dataset = data_utils.load_indexed_dataset(prefix, dictionary)
            if dataset is None:
                raise ValueError(f"{prefix}.bin is missing: give a folder that fairseq-preprocess made")
            return dataset.sizes.astype(np.int64)  # the type that fairseq's compiled code takes

        self.source, target_sizes = sizes(source), sizes(target)
        self.longest = np.maximum(self.source, target_sizes)
        # fairseq sorts by source length, and by target length within the same source length.
        order = np.argsort(target_sizes, kind="mergesort")
        self.order = order[np.argsort(self.source[order], kind="mergesort")]

    def source_tokens(self, max_tokens: int) -> float:
        """Return the mean number of source tokens in a batch."""
        fitting = self.order[self.longest[self.order] <= max_tokens]
        if not len(fitting):
            raise ValueError(
                f"no sentence pair of the training data fits into --max-tokens {max_tokens}: the shortest has "
                f"{self.longest.min() if len(self.longest) else 0} tokens"
            )
        batches = data_utils.batch_by_size(
            fitting, None, self.longest[fitting], max_tokens, required_batch_size_multiple=1
        )
        return float(sum(self.source[batch].sum() for batch in batches) / len(batches))


def plan(batches: Batches, tokens: int, workers: int, limit: int) -> tuple[int, int, float]:
    """Return max tokens, update frequency and the source tokens for each update, as close as possible to `tokens`.

    The update frequency is the smallest one with which a batch stays within the limit.
    """
    update_freq = max(1, math.ceil(tokens / (workers * batches.source_tokens(limit))))
    wanted = tokens / (workers * update_freq)
    max_tokens = limit
    for _ in range(4):  # source tokens grow nearly in proportion to max tokens
        reached = batches.source_tokens(max_tokens)
        max_tokens = min(limit, max(int(batches.longest.max()), round(max_tokens * wanted / reached)))
    return max_tokens, update_freq, workers * update_freq * batches.source_tokens(max_tokens)


def work(args: argparse.Namespace) -> None:
    batches = Batches(args.data, args.source, args.target)
    max_tokens, update_freq, reached = plan(batches, args.tokens, args.workers, args.max_tokens)
    print(max_tokens, update_freq)
    print(
        f"{reached:,.0f} source tokens for each update: --max-tokens {max_tokens} --update-freq {update_freq}, "
        f"{args.workers} workers",
        file=sys.stderr,
    )


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("data", type=Path, metavar="DATA_BIN")
    parser.add_argument("source", metavar="SRC")
    parser.add_argument("target", metavar="TGT")
    parser.add_argument("--tokens", type=whole(), default=16_000, help="source tokens for each update")
    parser.add_argument("--workers", type=whole(), default=1, help="number of training processes")
    parser.add_argument("--max-tokens", type=whole(), required=True, help="limit of memory")
    logging.disable(logging.WARNING)
    work(parser.parse_args(argv))
