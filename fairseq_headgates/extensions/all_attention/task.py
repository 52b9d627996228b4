"""`language_modeling_segments`: language modelling on consecutive blocks, for models with a memory (Dai et al. 2019).

A subset is cut into streams, and a stream into blocks of --tokens-per-sample tokens. Each row of a batch holds the next
block of a stream, and the next batch the block after it. A row whose stream has ended continues with the next stream of
its part of the text. What a block is, and which blocks come before it, does not depend on the size of the batches.
"""

# Without `from __future__ import annotations`: fairseq reads the types of the options.
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy
import torch
from fairseq import utils
from fairseq.data import BaseWrapperDataset, FairseqDataset, data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.data.monolingual_dataset import collate
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

from fairseq_headgates.messages import PROGRAM, fail

STREAM_BLOCKS = 64
# Options of fairseq's task that this one does not have: they must have fairseq's default.
UNSUPPORTED = (
    "output_dictionary_size add_bos_token shorten_method pad_to_fixed_length pad_to_fixed_bsz self_target past_target"
).split()


@dataclass
class SegmentConfig(LanguageModelingConfig):
    """Options of fairseq's task, and the length of a stream."""

    stream_blocks: int = field(
        default=STREAM_BLOCKS,
        metadata={
            "help": "number of blocks in a stream; the memory of a model is reset at the start of each stream. With "
            "--sample-break-mode complete_doc, a stream also ends at the end of a document (an empty line)"
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
        pad: the token that fills up short blocks
        eos: the token that the input of the first block begins with; that of others begins with the token before
    """

    def __init__(self, lines: Any, sizes: Any, tokens: int, stream: int, documents: bool, pad: int, eos: int):
        self.lines, self.pad, self.eos = lines, pad, eos
        self.line_ends = numpy.cumsum(numpy.asarray(sizes, dtype=numpy.int64))
        self.begins, self.ends, self.first = _blocks(self.line_ends, sizes, tokens, stream, documents)
        streams = numpy.cumsum(self.first) - 1
        self.numbers = numpy.stack([streams, numpy.arange(len(self)) - numpy.flatnonzero(self.first)[streams]], 1)
        self.sizes = self.ends - self.begins

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, index: int) -> dict[str, Any]:
        begin, end = int(self.begins[index]), int(self.ends[index])
        tokens = self._tokens(max(0, begin - 1), end)
        tokens = tokens if begin else torch.cat([tokens.new_tensor([self.eos]), tokens])
        return {"id": index, "source": tokens[:-1], "target": tokens[1:], "number": self.numbers[index]}

    def _tokens(self, begin: int, end: int) -> torch.Tensor:
        """Return the tokens from one place of the text to another."""
        first, last = numpy.searchsorted(self.line_ends, (begin, end - 1), side="right")
        tokens = torch.cat([self.lines[int(line)] for line in range(first, last + 1)]).long()
        offset = int(self.line_ends[first - 1]) if first else 0
        return tokens[begin - offset : end - offset]

    def num_tokens(self, index: int) -> int:
        """Return the length of a block; fairseq calls it."""
        return int(self.sizes[index])

    size = num_tokens

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch, with `blocks` [B, 2] in its net_input: the stream of each block, and its place in it from 0."""
        batch = collate(samples, self.pad, self.eos)
        if batch:
            batch["net_input"]["blocks"] = torch.from_numpy(numpy.stack([sample["number"] for sample in samples]))
        return batch


def _blocks(line_ends: Any, sizes: Any, tokens: int, stream: int, documents: bool) -> tuple[Any, Any, Any]:
    """Return begin and end of every block, in tokens, and whether it is the first of a stream."""
    if not len(line_ends):
        return (numpy.zeros(0, numpy.int64),) * 2 + (numpy.zeros(0, bool),)
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
    """Distribute the streams among rows: return for each row the blocks that it reads, the longest row first.

    Each row reads streams that follow one another, so that a batch has blocks from all parts of the text.

    Args:
        first: for each block, whether it is the first of a stream
        rows: number of rows
    """
    starts = numpy.flatnonzero(first)
    # The row of a stream by where its first block is in the text.
    row_of_stream = starts * rows // max(1, len(first))
    found: list[list[int]] = [[] for _ in range(rows)]
    ends = numpy.append(starts, len(first))[1:]
    for row, begin, end in zip(row_of_stream, starts, ends, strict=True):
        found[row] += range(begin, end)
    return sorted(filter(None, found), key=len, reverse=True)


def batches_in_order(rows: Sequence[Sequence[int]], shards: int) -> Iterator[list[int]]:
    """Yield the batches of all shards in turn: every row belongs to one shard, whose batches are every `shards`-th."""
    for together in zip_longest(*rows):
        for shard in range(shards):
            yield [block for block in together[shard::shards] if block is not None]


class InOrder(EpochBatchIterator):
    """fairseq's iterator over batches, without shuffling: the memory of a model needs the order of the text."""

    def _get_iterator_for_epoch(self, epoch: int, shuffle: bool, *args: Any, **kwargs: Any) -> Any:
        return super()._get_iterator_for_epoch(epoch, False, *args, **kwargs)


@register_task("language_modeling_segments", dataclass=SegmentConfig)
class SegmentTask(LanguageModelingTask):
    """Language modelling on consecutive blocks."""

    consecutive = True  # the blocks of a row, from one batch to the next

    def __init__(self, args: Any, *others: Any, **kwargs: Any):
        super().__init__(args, *others, **kwargs)
        for name in ("tokens_per_sample", "stream_blocks"):
            if getattr(args, name) < 1:
                fail(PROGRAM, f"--{name.replace('_', '-')} is {getattr(args, name)}: it must be at least 1")
        for name in UNSUPPORTED:
            unused = getattr(LanguageModelingConfig, name)
            value = getattr(args, name, unused)
            if str(value) != str(unused):
                fail(PROGRAM, f"--{name.replace('_', '-')} is {value}: leave it out, this task does not support it")
        mode = str(args.sample_break_mode)
        if mode not in ("none", "complete_doc"):
            fail(PROGRAM, f"--sample-break-mode is {mode}: with this task it must be none or complete_doc")

    def build_model(self, args: Any, from_checkpoint: bool = False) -> Any:
        """Build the model; fairseq calls it. End with one line for a model without a memory."""
        model = super().build_model(args, from_checkpoint)
        if not hasattr(model.decoder, "memories"):
            fail(PROGRAM, "--task language_modeling_segments is for models with a memory: use --task language_modeling")
        return model

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> Segments:
        """Load a subset; fairseq calls it."""
        args, paths = self.args, utils.split_paths(self.args.data)
        path = os.path.join(paths[(epoch - 1) % len(paths)], split)
        lines = data_utils.load_indexed_dataset(path, self.dictionary, args.dataset_impl, combine=combine)
        if lines is None:
            raise FileNotFoundError(f"Dataset not found: {split} ({path})")
        documents = args.sample_break_mode == "complete_doc"
        places = (self.dictionary.pad(), self.dictionary.eos())
        self.datasets[split] = Segments(
            lines, lines.sizes, args.tokens_per_sample, args.stream_blocks, documents, *places
        )
        return self.datasets[split]

    def get_batch_iterator(
        self,
        dataset: Any,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        batch_size: int | None = None,
        num_shards: int = 1,
        skip_remainder_batch: bool = False,
        **options: Any,
    ) -> EpochBatchIterator:
        """Return the batches of a worker in the order of the text; fairseq calls it.

        With `skip_remainder_batch` (--skip-remainder-batch, in training) without those in which rows have ended.
        """
        max_sentences = max_sentences or batch_size  # as fairseq-eval-lm calls it
        segments = dataset
        while isinstance(segments, BaseWrapperDataset):
            segments = segments.dataset
        if not isinstance(segments, Segments):  # texts to continue
            return super().get_batch_iterator(dataset, max_tokens, max_sentences, num_shards=num_shards, **options)
        tokens = self.args.tokens_per_sample
        rows = min(filter(None, (max_sentences, max_tokens and max(1, max_tokens // tokens))), default=1)
        blocks = rows_of_batches(segments.first[: len(dataset)], rows * num_shards)
        if skip_remainder_batch:
            blocks = [row[: len(blocks[-1])] for row in blocks]
        return InOrder(
            dataset,
            dataset.collater,
            list(batches_in_order(blocks, num_shards)),
            num_shards=num_shards,
            buffer_size=options.get("data_buffer_size", 0),
            **{name: options[name] for name in ("seed", "shard_id", "num_workers", "epoch") if name in options},
        )

    def eval_lm_dataloader(self, dataset: Any, context_window: int = 0, **options: Any) -> Any:
        """Return the batches for fairseq-eval-lm, which calls it."""
        if context_window:
            fail(PROGRAM, "--context-window cannot be used with this task: use a model with --mem-len")
        return self.get_batch_iterator(dataset, **options).next_epoch_itr()
