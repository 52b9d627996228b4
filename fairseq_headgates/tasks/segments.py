"""`language_modeling_segments`: language modelling on consecutive blocks, for models with a memory (Dai et al. 2019).

A text is cut into streams, and a stream into blocks of --tokens-per-sample tokens. Each row of a batch holds the next
block of a stream, and the next batch the block after it. A row whose stream has ended continues with another one.
What a block is, and which blocks come before it, does not depend on the size of the batches.
"""

# Without `from __future__ import annotations`: fairseq reads the types of the options.
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Optional

import numpy
import torch
from fairseq.data import FairseqDataset, MonolingualDataset, data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

STREAM_BLOCKS = 64


@dataclass
class SegmentConfig(LanguageModelingConfig):
    """Options of fairseq's task, and the length of a stream."""

    stream_blocks: int = field(
        default=STREAM_BLOCKS,
        metadata={
            "help": "blocks of a stream: the memory of a model is reset at its start. Texts, and with "
            "--sample-break-mode complete_doc documents, which end at an empty line, are cut into such streams"
        },
    )


class Segments(FairseqDataset):
    """The blocks of a text, as pairs of input and target.

    Args:
        lines: the tokens of each line, with EOS
        sizes: number of tokens of each line
        tokens: number of tokens of a block; the last one of a stream may be shorter
        stream: number of blocks of a stream
        documents: end a stream at an empty line
        eos: the token that the first block of a stream begins with
    """

    def __init__(self, lines: Any, sizes: Any, tokens: int, stream: int, documents: bool, eos: int):
        self.lines, self.eos = lines, eos
        self.line_ends = numpy.cumsum(numpy.asarray(sizes, dtype=numpy.int64))
        self.begins, self.ends, self.first = _blocks(self.line_ends, sizes, tokens, stream, documents)
        # A step of two from one stream to the next, so that only the blocks of a stream have consecutive numbers.
        self.numbers = numpy.arange(len(self.begins)) + numpy.cumsum(self.first)
        self.sizes = self.ends - self.begins

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, index: int) -> dict[str, Any]:
        begin, end = int(self.begins[index]), int(self.ends[index])
        before = self.eos if self.first[index] else int(self._tokens(begin - 1, begin)[0])
        target = self._tokens(begin, end)
        source = torch.cat([target.new_tensor([before]), target[:-1]])
        return {"id": index, "source": source, "target": target, "number": int(self.numbers[index])}

    def _tokens(self, begin: int, end: int) -> torch.Tensor:
        """Return the tokens from one place of the text to another."""
        first, last = numpy.searchsorted(self.line_ends, (begin, end - 1), side="right")
        joined = torch.cat([self.lines[int(line)] for line in range(first, last + 1)]).long()
        offset = int(self.line_ends[first - 1]) if first else 0
        return joined[begin - offset : end - offset]

    def num_tokens(self, index: int) -> int:
        """Return the length of a block; fairseq calls it."""
        return int(self.sizes[index])

    def size(self, index: int) -> int:
        """Return the length of a block; fairseq calls it."""
        return int(self.sizes[index])

    def ordered_indices(self) -> Any:
        """Return the numbers of all blocks in the order of the text."""
        return numpy.arange(len(self))

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch, with `blocks` [B] in its net_input: numbers that are consecutive for consecutive blocks."""
        raise NotImplementedError


def _blocks(line_ends: Any, sizes: Any, tokens: int, stream: int, documents: bool) -> tuple[Any, Any, Any]:
    """Return begin and end of every block, in tokens, and whether it is the first of a stream."""
    ends = line_ends[numpy.asarray(sizes) == 1] if documents else line_ends[-1:]
    ends = numpy.union1d(ends, line_ends[-1:])
    begins, ends_of_blocks, first = [], [], []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        starts = numpy.arange(begin, end, tokens)
        begins.append(starts)
        ends_of_blocks.append(numpy.append(starts[1:], end))
        first.append(numpy.arange(len(starts)) % stream == 0)
    return numpy.concatenate(begins), numpy.concatenate(ends_of_blocks), numpy.concatenate(first)


def rows_of_batches(first: Sequence[bool], rows: int) -> list[list[int]]:
    """Distribute the streams among rows: return for each row the blocks that it goes through, the longest row first.

    Args:
        first: for each block, whether it is the first of a stream
        rows: number of rows
    """
    starts = [*numpy.flatnonzero(first), len(first)]
    heap: list[tuple[int, int]] = [(0, row) for row in range(rows)]
    found: list[list[int]] = [[] for _ in range(rows)]
    for begin, end in zip(starts, starts[1:], strict=False):
        length, row = heapq.heappop(heap)  # the row that ends first
        found[row] += range(begin, end)
        heapq.heappush(heap, (length + end - begin, row))
    return sorted(filter(None, found), key=len, reverse=True)


def batches_in_order(rows: Sequence[Sequence[int]], shards: int) -> Iterator[list[int]]:
    """Yield the batches of all shards in turn: every row belongs to one shard, whose batches are every `shards`-th."""
    for together in zip_longest(*rows):
        for shard in range(shards):
            yield [block for block in together[shard::shards] if block is not None]


class InOrder(EpochBatchIterator):
    """fairseq's iterator over batches, without shuffling: the memory of a model needs the order of the text."""

    def next_epoch_itr(self, shuffle: bool = True, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of the next epoch in their order; fairseq calls it."""
        return super().next_epoch_itr(False, *args, **kwargs)


@register_task("language_modeling_segments", dataclass=SegmentConfig)
class SegmentTask(LanguageModelingTask):
    """Language modelling on consecutive blocks."""
