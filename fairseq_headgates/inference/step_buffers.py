"""The tensors that a decoder step reads and writes, in exact sizes or in those of a bucket.

Shapes: B sentences, K hypotheses of each (the beam), H heads, N entries of each sentence, S source positions, D head
size. Rows are the B K hypotheses, those of a sentence one after another.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from fairseq_headgates.inference.graphs import can_capture
from fairseq_headgates.inference.packed_linear import parameter_state
from fairseq_headgates.inference.shapes import mask_value

FIRST_POSITIONS = 16  # for whose entries there is room at first; in buckets also of the source
FEWEST_SENTENCES = 8  # of a bucket that a search moves to: a smaller one saves nothing


class Bucket(NamedTuple):
    """Sizes of the buffers of a search: sentences, hypotheses of each, positions of the target and of the source."""

    sentences: int
    beam: int
    positions: int
    source: int


class StepBuffers:
    """Buffers of a decoder for one search at a time.

    Buffers of a bucket keep their addresses as long as their memory suffices. Sizes of a bucket are powers of two.

    Args:
        decoder: fairseq's decoder with `HeadAttention`
        exact: whether buffers have the sizes that a search needs, not those of a bucket

    Attributes:
        bucket: the sizes of the buffers
        buffers: the buffers, [B, ...] each; "scores", "ignored" and "ended" are for `DeviceSearch`
        rows: the numbers of all rows [B, K]
        own: the part of the table for the entries that K hypotheses write: each descends from its own [K, K]
        position: position of the last tokens [1]
    """

    bucket: Bucket

    def __init__(self, decoder: nn.Module, exact: bool):
        self.decoder: Any = weakref.proxy(decoder)
        self.exact = exact
        self.buffers: dict[str, Tensor] = {}
        self._memory: dict[str, Tensor] = {}
        self._moves = 0  # of buffers to other addresses

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the decoder makes its own

    @property
    def tokens(self) -> Tensor:
        """The last token of every hypothesis [B, K]."""
        return self.buffers["tokens"]

    @property
    def key(self) -> tuple:
        """What a captured graph depends on: the addresses of buffers and parameters, and all shapes."""
        return self.bucket, self._moves, self._parameters, position_table(self.decoder).data_ptr()

    def empty(self, sentences: int, beam: int, source: int) -> None:
        """Make empty buffers for a number of sentences, of hypotheses of each, and of source positions."""
        self._like = self.decoder.layers[0].final_layer_norm.weight.new_empty(0)
        self.position = self._buffer("position", (1,), torch.long).zero_()
        # Masks of heads are buffers of the decoder: those that are not None are part of what a graph depends on.
        captured = not self.exact and can_capture(self._like.device)
        tensors = [*self.decoder.parameters(), *self.decoder.buffers()] if captured else []
        self._parameters = hash(tuple(parameter_state(tensors)))
        source = self._rounded(source, FIRST_POSITIONS) if source else 0
        self.use(Bucket(self._rounded(sentences, 1), beam, FIRST_POSITIONS, source))

    def use(self, bucket: Bucket, content: Mapping[str, Tensor] | None = None) -> None:
        """Make buffers of other sizes, which begin with `content` or are empty.

        A content of the size of its buffer becomes it where addresses do not matter; others must not share its memory.
        """
        self.bucket, self.buffers = bucket, {}
        for name, (shape, dtype, empty) in self._sizes().items():
            values = None if content is None else content[name]
            if self.exact and values is not None and values.shape == shape:
                self.buffers[name] = values
                continue
            self.buffers[name] = self._buffer(name, shape, dtype).fill_(empty)
            if values is not None:
                self.buffers[name][tuple(map(slice, values.shape))] = values
        self._use_constants()

    def has_smaller_bucket(self, sentences: int) -> bool:
        """Return whether there is a smaller bucket for this number of sentences."""
        return self._rounded(sentences, FEWEST_SENTENCES) < self.bucket.sentences

    def select(self, kept: Tensor) -> None:
        """Move the sentences `kept` [B'] to the first rows of a bucket for their number."""
        number = self._rounded(len(kept), FEWEST_SENTENCES)
        kept = kept.to(self.rows.device)
        values = {name: buffer.index_select(0, kept) for name, buffer in self.buffers.items()}
        self.use(self.bucket._replace(sentences=number), values)

    def of_target(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the names of the buffers of keys and of values, and the module, of every self-attention with heads."""
        for i, layer in enumerate(self.decoder.layers.children()):
            if layer.self_attn.num_heads:
                yield f"{i}.keys", f"{i}.values", layer.self_attn

    def of_source(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the same for every attention to the encoder."""
        for i, layer in enumerate(self.decoder.layers.children()):
            if self.bucket.source and layer.encoder_attn is not None and layer.encoder_attn.num_heads:
                yield f"{i}.source_keys", f"{i}.source_values", layer.encoder_attn

    def _rounded(self, number: int, least: int) -> int:
        return number if self.exact else 1 << (max(number, least) - 1).bit_length()

    def _use_constants(self) -> None:
        """Make what a step reads and does not write."""
        sentences, beam, positions, _ = self.bucket
        rows = torch.arange(sentences * beam).view(sentences, beam)
        self.rows = self._buffer("rows", (sentences, beam), torch.long).copy_(rows)
        others = ~torch.eye(beam, dtype=torch.bool, device=self._like.device)
        own = self._buffer("own", (beam, beam), self._like.dtype)
        self.own = own.zero_().masked_fill_(others, mask_value(own.dtype))
        embed = self.decoder.embed_positions
        if isinstance(embed, SinusoidalPositionalEmbedding) and not self.exact:
            embed(self.rows.new_zeros(1, positions), incremental_state={})  # makes its table, if that is too small

    def _sizes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype, float]]:
        """Return shape, data type and content when empty of every buffer."""
        sentences, beam, positions, source = self.bucket
        dtype, entries = self._like.dtype, beam * positions
        found: dict[str, tuple[tuple[int, ...], torch.dtype, float]] = {
            "tokens": ((sentences, beam), torch.long, 0),
            "scores": ((sentences, beam), torch.float32, -math.inf),
            "ignored": ((sentences, beam), torch.bool, False),
            "ended": ((sentences,), torch.long, beam),
            "mask": ((sentences, beam, entries), dtype, mask_value(dtype)),
            "source_mask": ((sentences, 1, 1, source), dtype, mask_value(dtype)),
        }
        for length, attentions in ((entries, self.of_target()), (source, self.of_source())):
            for keys, values, attention in attentions:
                shape = (sentences, attention.num_heads, length, attention.head_dim)
                found[keys] = found[values] = (shape, dtype, 0)
        return found

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor; in a bucket, in memory that is replaced only if it is too small."""
        if self.exact:
            return self._like.new_empty(shape, dtype=dtype)
        memory, number = self._memory.get(name), math.prod(shape)
        if memory is None or memory.numel() < number or (memory.dtype, memory.device) != (dtype, self._like.device):
            memory = self._memory[name] = self._like.new_empty(number, dtype=dtype)
            self._moves += 1
        return memory[:number].view(shape)


def position_table(decoder: Any) -> Tensor:
    """Return the embeddings of positions [positions, E], without any those of tokens.

    That of position 0 is in row `padding_idx + 1`.
    """
    positions = decoder.embed_positions
    if positions is None:
        return decoder.embed_tokens.weight
    return positions.weights if isinstance(positions, SinusoidalPositionalEmbedding) else positions.weight
