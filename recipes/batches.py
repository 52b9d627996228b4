#!/usr/bin/env python3
"""Finds --max-tokens and --update-freq that give a wanted number of source tokens for each update.

    batches.py DATA_BIN SRC TGT --tokens 16000 --workers GPUS --max-tokens M

prints two numbers, `MAX_TOKENS UPDATE_FREQ` with MAX_TOKENS at most M, and on stderr what they give. fairseq's
--max-tokens bounds the number of sentences in a batch times the longest sentence of either side, so padding and the
longer target take their part of it. Here the batches of the training data are formed as fairseq forms them, and their
source tokens, end of sentence included, are counted.

    batches.py --fit BYTES --dim D --ffn F --layers L --vocabulary V [--full-precision]

prints the M that is estimated to fit into the memory of a GPU.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary, data_utils
from rules import number, option, whole

from fairseq_headgates.cli.parser import ArgumentParser

# Weights and gradients in half, a copy and Adam's two moments in single precision.
BYTES_OF_A_PARAMETER = 2 + 2 + 4 + 4 + 4
# What is left for everything else: the context of the driver, temporary buffers, fragments.
USABLE = 0.75


class Batches:
    """The training data, from which batches of any size can be formed."""

    def __init__(self, data: Path, source: str, target: str):
        def sizes(language: str) -> np.ndarray:
            dictionary = Dictionary.load(str(data / f"dict.{language}.txt"))
            prefix = str(data / f"train.{source}-{target}.{language}")
            dataset = data_utils.load_indexed_dataset(prefix, dictionary)
            if dataset is None:
                raise ValueError(f"{prefix}.bin is missing: give a folder that fairseq-preprocess made")
            return dataset.sizes.astype(np.int64)  # what fairseq's compiled code takes

        self.source, target_sizes = sizes(source), sizes(target)
        self.longest = np.maximum(self.source, target_sizes)
        # As fairseq orders them: by the source within sentences of the same target.
        order = np.argsort(target_sizes, kind="mergesort")
        self.order = order[np.argsort(self.source[order], kind="mergesort")]

    def source_tokens(self, max_tokens: int) -> float:
        """The mean number of source tokens in a batch."""
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
    """Max tokens, update frequency and source tokens for each update, as near as possible to `tokens`.

    The update frequency is the smallest with which a batch stays within the limit.
    """
    update_freq = max(1, math.ceil(tokens / (workers * batches.source_tokens(limit))))
    wanted = tokens / (workers * update_freq)
    max_tokens = limit
    for _ in range(4):  # tokens grow nearly in proportion
        reached = batches.source_tokens(max_tokens)
        max_tokens = min(limit, max(int(batches.longest.max()), round(max_tokens * wanted / reached)))
    return max_tokens, update_freq, workers * update_freq * batches.source_tokens(max_tokens)


def fitting_tokens(memory: float, dim: int, ffn: int, layers: int, vocabulary: int, value: int) -> int:
    """An estimate of the --max-tokens that fits into `memory` bytes, for values of `value` bytes in the layers.

    For a target token the logits are kept as they come, in single precision after the softmax, and their gradient; a
    layer of encoder and decoder together keeps about 40 vectors of width D and 4 of the feed-forward width.
    """
    parameters = 2 * vocabulary * dim + layers * (12 * dim**2 + 4 * dim * ffn)
    one_token = vocabulary * (2 * value + 4) + layers * value * (40 * dim + 4 * ffn)
    room = USABLE * memory - BYTES_OF_A_PARAMETER * parameters
    if room < 500 * one_token:
        raise ValueError(f"{memory / 1e9:.1f} GB of GPU memory are too little for this model: take a smaller one")
    return int(room / one_token)


def main(argv: list[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", metavar="DATA_BIN SRC TGT")
    parser.add_argument("--tokens", type=option(whole()), default=16_000)
    parser.add_argument("--workers", type=option(whole()), default=1)
    parser.add_argument("--max-tokens", type=option(whole()))
    parser.add_argument("--fit", type=option(number(above=0)), metavar="BYTES")
    for name, default in (("dim", 512), ("ffn", 2048), ("layers", 6), ("vocabulary", 32_000)):
        parser.add_argument(f"--{name}", type=option(whole()), default=default)
    parser.add_argument("--full-precision", action="store_true")
    args = parser.parse_args(argv)
    if (args.fit is None) == (len(args.data) != 3 or args.max_tokens is None):
        parser.error("give either DATA_BIN SRC TGT and --max-tokens, or --fit")
    try:
        if args.fit is not None:
            value = 4 if args.full_precision else 2
            print(fitting_tokens(args.fit, args.dim, args.ffn, args.layers, args.vocabulary, value))
            return 0
        folder, source, target = args.data
        max_tokens, update_freq, reached = plan(
            Batches(Path(folder), source, target), args.tokens, args.workers, args.max_tokens
        )
    except (ValueError, OSError) as error:
        print(f"batches.py: {error}", file=sys.stderr)
        return 2
    print(max_tokens, update_freq)
    print(
        f"{reached:,.0f} source tokens for each update: --max-tokens {max_tokens} --update-freq {update_freq}, "
        f"{args.workers} workers",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main())
