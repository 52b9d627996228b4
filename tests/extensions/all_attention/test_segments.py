"""The task `language_modeling_segments`: blocks, streams, rows of batches, workers."""

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_headgates.extensions.all_attention.task import Segments, batches_in_order, rows_of_batches

PAD, EOS = 1, 2


def make_segments(lines, tokens=4, stream=3, documents=False):
    """Blocks of lines of tokens, to which EOS is added."""
    tensors = [torch.tensor([*line, EOS]) for line in lines]
    return Segments(tensors, numpy.array([len(t) for t in tensors]), tokens, stream, documents, PAD, EOS)


lines = st.lists(st.lists(st.integers(4, 50), max_size=9), min_size=1, max_size=12)


@given(lines, st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_every_token_is_predicted_once_from_the_one_before(text, tokens, stream, documents):
    segments = make_segments(text, tokens, stream, documents)
    every = [token for line in text for token in (*line, EOS)]
    targets = [item["target"].tolist() for item in segments]
    assert [token for target in targets for token in target] == every
    at = 0
    for item, target in zip(segments, targets, strict=True):
        before = every[at - 1] if at else EOS
        assert item["source"].tolist() == [before, *target[:-1]] and 1 <= len(target) <= tokens
        at += len(target)


def test_streams_and_blocks_end_at_documents():
    """Documents end at the empty line; a stream has at most two blocks."""
    text = [[4, 5, 6], [7, 8, 9, 10, 11], [], [12], [13, 14]]
    segments = make_segments(text, tokens=3, stream=2, documents=True)
    found = [(item["source"].tolist(), *item["number"]) for item in segments]
    assert found == [
        ([EOS, 4, 5], 0, 0), ([6, EOS, 7], 0, 1), ([8, 9, 10], 1, 0), ([11, EOS], 1, 1),
        ([EOS, 12, EOS], 2, 0), ([13, 14], 2, 1),
    ]  # fmt: skip
    assert make_segments(text, tokens=3, stream=100).numbers.tolist() == [[0, place] for place in range(6)]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.integers(1, 5), st.integers(1, 3))
def test_rows_go_through_streams_in_order(streams, rows, shards):
    """Each block is in one batch; in a row of a worker, a block follows the one before in its stream."""
    first = [i == 0 for size in streams for i in range(size)]
    batches = list(batches_in_order(rows_of_batches(first, rows * shards), shards))
    assert sorted(block for batch in batches for block in batch) == list(range(len(first)))
    assert len(batches) % shards == 0 and all(len(batch) <= rows for batch in batches)
    for shard in range(shards):
        before: list[int] = []
        for batch in batches[shard::shards]:
            assert len(batch) <= len(before) or not before  # rows only end
            for row, block in enumerate(batch):
                assert first[block] or before[row] == block - 1
            before = batch


def test_an_empty_text_has_no_blocks():
    assert len(Segments([], numpy.zeros(0, int), 4, 2, False, PAD, EOS)) == 0
    assert rows_of_batches([], 3) == []


def test_rows_read_parts_of_the_text():
    """A batch has blocks from all parts of the text, so that it is like the whole."""
    first = [i % 2 == 0 for i in range(16)]
    assert rows_of_batches(first, 4) == [list(range(begin, begin + 4)) for begin in (0, 4, 8, 12)]


def test_a_batch():
    segments = make_segments([[4, 5, 6, 7, 8]], tokens=4)
    batch = segments.collater([segments[0], segments[1]])
    assert batch["net_input"]["src_tokens"].tolist() == [[EOS, 4, 5, 6], [7, 8, PAD, PAD]]
    assert batch["net_input"]["blocks"].tolist() == [[0, 0], [0, 1]] and batch["ntokens"] == 6
    assert batch["target"].tolist() == [[4, 5, 6, 7], [8, EOS, PAD, PAD]]
    assert segments.collater([]) == {}


@pytest.mark.parametrize("number", [0, 3])
def test_lines_before_a_block_are_not_read(number):
    """Only the lines of the block and of the token before it."""
    read = []

    class Lines(list):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    tensors = Lines(torch.tensor([10 * i + 4, 10 * i + 5, EOS]) for i in range(6))
    segments = Segments(tensors, numpy.array([3] * 6), 4, 100, False, PAD, EOS)
    segments[number]
    assert set(read) == ({0, 1} if number == 0 else {3, 4, 5})  # block 3 begins with the first token of line 4
