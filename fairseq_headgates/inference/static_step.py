"""A decoder step of beam search in tensors of fixed shapes and addresses, which a CUDA graph can replay.

Where a step consists of small operators, as on a GPU, launching them from Python takes longer than they compute. Here
no shape depends on the step and no branch on a tensor's value: all that a step reads and writes is in buffers for a
`Bucket`, sizes that are rounded up. A new position is written at an index that is itself in a buffer. Padding, and
sentences that have ended, are masked. A search moves to a bucket with twice the positions when its own is full, and to
one with fewer sentences when half of them have ended. As in `beam_cache`, keys and values are never reordered.

Shapes: B sentences, K hypotheses of each, H heads, N = K positions entries of each sentence, S source positions, D head
size, E model size, V symbols. Rows are the B K hypotheses, those of a sentence one after another.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from fairseq.modules.transformer_layer import TransformerDecoderLayer, TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_headgates.inference.attention_cache import split_heads
from fairseq_headgates.inference.beam_cache import (
    Beams,
    EncoderCache,
    StepCache,
    mask_value,
    own_entries,
    padding_mask,
    repeated,
)
from fairseq_headgates.inference.graphs import Graphs, can_capture
from fairseq_headgates.inference.packed_linear import parameter_state

MODES = ("eager", "static", "graph")
FEWEST_SENTENCES = 8  # below, a smaller bucket saves nothing
FIRST_POSITIONS = 32  # of the target and of the source


class Bucket(NamedTuple):
    """Sizes of the buffers of a search."""

    sentences: int
    beam: int
    positions: int  # of the target
    source: int  # positions of the source, 0 without an encoder

    @classmethod
    def holding(cls, sentences: int, beam: int, source: int) -> Bucket:
        """Return the bucket in which a search begins."""
        return cls(rounded(sentences, 1), beam, FIRST_POSITIONS, rounded(source, FIRST_POSITIONS) if source else 0)


class StaticStep:
    """The step of one decoder, and its buffers; one search at a time can use it.

    Args:
        decoder: fairseq's decoder, whose attention modules are `HeadAttention`; see `static_obstacle`

    Attributes:
        bucket: sizes of the buffers
        buffers: the buffers, [B, ...] each; those of the search are used by `DeviceSearch` alone
        position: position of `tokens` [1]
        rows: the numbers of all rows [B, K]
        entries: the entries that the current step writes [K]
        search: the search that uses the buffers
    """

    bucket: Bucket

    def __init__(self, decoder: nn.Module):
        self.decoder: Any = weakref.proxy(decoder)
        self.search: weakref.ref | None = None
        self.graphs = Graphs()
        self._memory: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self._moves = 0  # of buffers to other addresses
        self._state: dict[str, Any] = {}  # fairseq's incremental state: the caches of the layers

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the decoder makes its own

    @property
    def tokens(self) -> Tensor:
        """The last token of every hypothesis [B, K]."""
        return self.buffers["tokens"]

    @property
    def mask(self) -> Tensor:
        """The table of descent [B, K, N], added to the scores; see `Beams`."""
        return self.buffers["mask"]

    def is_free(self) -> bool:
        """Return whether no search uses the buffers."""
        return self.search is None or self.search() is None

    def begin(self, search: Any, sentences: int, beam: int, encoder_out: Any) -> None:
        """Begin a search: compute keys and values of the encoder states, and empty the buffers of the target."""
        states, padding = encoder_parts(encoder_out)
        self.search = weakref.ref(search)
        source = 0 if states is None else states.size(0)
        like = self.decoder.embed_tokens.weight if states is None else states
        self._prepare(like)
        self._use(Bucket.holding(sentences, beam, source))
        if states is None:
            return
        states = states[:, :: states.size(1) // sentences]
        for keys, values, attention in self._of_source():
            for name, project in ((keys, attention.k_proj), (values, attention.v_proj)):
                of_heads = split_heads(project(states), attention.num_heads)
                self.buffers[name][:sentences, :, :source] = of_heads
        mask = self.buffers["source_mask"][:sentences, :, :, :source]
        if padding is None:
            mask.zero_()
        else:
            mask.copy_(padding_mask(padding[:: padding.size(0) // sentences].bool(), mask.dtype))

    def logits(self, with_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Compute the step of `position` on `tokens`: the logits [B K, 1, V] of the next token.

        Args:
            with_weights: whether to return the weights of the last layer's attention to the encoder, too: their mean
                over heads [B K, 1, S]
        """
        decoder, last, weights = self.decoder, len(self.decoder.layers) - 1, None
        self._extend()
        x = self._embedded()
        source = x.new_empty(self.bucket.source, 0, 0)  # layers read the size alone: `_state` has keys and values
        for i, layer in enumerate(decoder.layers):
            wanted = with_weights and i == last
            x, weights, _ = layer(
                x,
                source if self.bucket.source else None,
                incremental_state=self._state,
                need_attn=wanted,
                need_head_weights=wanted,
            )
        x = x if decoder.layer_norm is None else decoder.layer_norm(x)
        x = x.transpose(0, 1)
        x = x if decoder.project_out_dim is None else decoder.project_out_dim(x)
        weights = weights.float().to(x).mean(dim=0) if with_weights and weights is not None else None
        return decoder.output_layer(x), weights

    def run(self, with_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Return what `logits` returns, from a graph if the mode of the decoder is "graph"; the next run overwrites it."""
        work = partial(self.logits, with_weights)
        if self.decoder.inference_mode != "graph":
            return work()
        return self.graphs.run((self.key, with_weights), work, self.position.device)

    @property
    def key(self) -> tuple:
        """What a captured graph depends on: the addresses of buffers and parameters, and all shapes."""
        return self.bucket, self._moves, self._parameters

    def reorder(self, rows: Tensor, sources: Tensor) -> None:
        """Let hypotheses `rows` continue hypotheses `sources` of the same sentences."""
        mask = self.mask.flatten(0, 1)
        mask.index_copy_(0, rows, mask.index_select(0, sources))

    def lengthen(self) -> None:
        """Move to a bucket with twice the positions."""
        self._use(self.bucket._replace(positions=2 * self.bucket.positions), torch.arange(self.bucket.sentences))

    def has_smaller_bucket(self, sentences: int) -> bool:
        """Return whether there is a smaller bucket for this number of sentences."""
        return rounded(sentences, FEWEST_SENTENCES) < self.bucket.sentences

    def shorten(self, kept: Tensor) -> None:
        """Move the sentences `kept` to a smaller bucket."""
        self._use(self.bucket._replace(sentences=rounded(len(kept), FEWEST_SENTENCES)), kept)

    def hand_over(self, state: dict[str, Any], kept: Tensor, length: int, source: int) -> None:
        """Write the caches of the sentences `kept` to `state`, as eager steps have them.

        Args:
            state: fairseq's incremental state
            kept: rows of the sentences in the buffers [B']
            length: number of positions of the target
            source: number of positions of the source
        """
        kept, beam = kept.to(self.mask.device), self.bucket.beam
        beams = Beams(len(kept) * beam, beam, self.mask.dtype, self.mask.device)
        beams.length, beams.room = length, beam * self.bucket.positions
        beams.mask = self.mask.index_select(0, kept)[:, :, : length * beam]
        state["beams"] = beams
        for *names, attention in self._of_target():
            cache = StepCache.filled(beams, *(self.buffers[name].index_select(0, kept) for name in names))
            attention.set_incremental_state(state, "beam_cache", cache)
        for *names, attention in self._of_source():
            keys, values, mask = (self.buffers[name].index_select(0, kept) for name in (*names, "source_mask"))
            cache = EncoderCache(beams, keys[:, :, :source], values[:, :, :source], mask[..., :source])
            attention.set_incremental_state(state, "beam_cache", cache)

    def _prepare(self, like: Tensor) -> None:
        """Make what does not depend on the bucket, for the data type and device of `like`."""
        self.position = self._memory.setdefault("position", torch.zeros(1, dtype=torch.long))
        if self.position.device != like.device:
            self.position = self._memory["position"] = self.position.to(like.device)
            self._moves += 1
        self._like = like.new_empty(0)
        # Masks of heads are buffers: those that are not None are part of what a graph depends on.
        tensors = [*self.decoder.parameters(), *self.decoder.buffers()] if can_capture(like.device) else []
        self._parameters = hash(tuple(parameter_state(tensors)))
        positions = self.decoder.embed_positions
        if isinstance(positions, SinusoidalPositionalEmbedding):  # lets it make its table, and move it to the device
            positions(torch.zeros(1, self.decoder.max_positions(), dtype=torch.long, device=like.device), {})

    def _use(self, bucket: Bucket, kept: Tensor | None = None) -> None:
        """Move the sentences `kept` [B'] to the first rows of buffers of another size; without them, all are empty."""
        self.bucket, before = bucket, self.buffers
        device, self.buffers = self._like.device, {}
        for name, (shape, dtype, empty) in self._sizes().items():
            values = None if kept is None else before[name].index_select(0, kept.to(device))
            buffer = self._buffer(name, shape, dtype).fill_(empty)
            if values is not None:  # a copy: both buffers are in the same memory
                buffer[tuple(map(slice, values.shape))] = values
            self.buffers[name] = buffer
        self.rows = torch.arange(bucket.sentences * bucket.beam, device=device).view(-1, bucket.beam)
        self._own = own_entries(bucket.beam, self._like.dtype, device)
        self._state = {}
        for keys, values, attention in self._of_target():
            steps = StaticSteps(self, self.buffers[keys], self.buffers[values])
            attention.set_incremental_state(self._state, "beam_cache", steps)
        for keys, values, attention in self._of_source():
            source = StaticSource(self.buffers[keys], self.buffers[values], self.buffers["source_mask"])
            attention.set_incremental_state(self._state, "beam_cache", source)

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
        for length, attentions in ((entries, self._of_target()), (source, self._of_source())):
            for keys, values, attention in attentions:
                shape = (sentences, attention.num_heads, length, attention.head_dim)
                found[keys] = found[values] = (shape, dtype, 0)
        return found

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor in the memory of a buffer, which is replaced if it is too small."""
        memory, number = self._memory.get(name), math.prod(shape)
        if memory is None or memory.numel() < number or (memory.dtype, memory.device) != (dtype, self._like.device):
            memory = self._memory[name] = self._like.new_empty(number, dtype=dtype)
            self._moves += 1
        return memory[:number].view(shape)

    def _of_target(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the names of the buffers of keys and of values, and the module, of every self-attention with heads."""
        for i, layer in enumerate(self.decoder.layers):
            if layer.self_attn.num_heads:
                yield f"{i}.keys", f"{i}.values", layer.self_attn

    def _of_source(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the same for every attention to the encoder."""
        for i, layer in enumerate(self.decoder.layers):
            if self.bucket.source and layer.encoder_attn is not None and layer.encoder_attn.num_heads:
                yield f"{i}.source_keys", f"{i}.source_values", layer.encoder_attn

    def _extend(self) -> None:
        """Add a position to the table: every hypothesis descends from the entry that it writes, except for padding."""
        self.entries = torch.add(self.rows[0], self.position, alpha=self.bucket.beam)
        padding = self.tokens.eq(self.decoder.padding_idx)[:, :, None]
        own = self._own.expand(self.bucket.sentences, -1, -1).masked_fill(padding, mask_value(self._own.dtype))
        self.mask.index_copy_(2, self.entries, own)

    def _embedded(self) -> Tensor:
        """Return the input of the first layer [1, B K, E]."""
        decoder = self.decoder
        x = decoder.embed_scale * decoder.embed_tokens(self.tokens.view(-1, 1))
        x = x if decoder.project_in_dim is None else decoder.project_in_dim(x)
        if decoder.embed_positions is not None:
            x += position_table(decoder).index_select(0, self.position + decoder.embed_positions.padding_idx + 1)
        x = x if decoder.layernorm_embedding is None else decoder.layernorm_embedding(x)
        return x.transpose(0, 1)


class StaticSteps(StepCache):
    """Cache of self-attention in the buffers of a `StaticStep`: keys and values [B, H, N, D]."""

    def __init__(self, step: StaticStep, keys: Tensor, values: Tensor):
        self.step, self._keys, self._values = weakref.proxy(step), keys, values

    def append(self, k: Tensor, v: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Write `k` and `v` [B, H, K, D]. Return all keys and values and the mask [B, 1, K, N]."""
        self._keys.index_copy_(2, self.step.entries, k)
        self._values.index_copy_(2, self.step.entries, v)
        return self._keys, self._values, self.step.mask[:, None]


class StaticSource(EncoderCache):
    """Cache of attention to the encoder in the buffers of a `StaticStep`."""

    def __init__(self, keys: Tensor, values: Tensor, mask: Tensor):
        self.keys, self.values, self.mask = keys, values, mask


class StaticSearch:
    """A beam search of fairseq's that takes its steps from a `StaticStep`.

    fairseq removes the rows of sentences that have ended; in the buffers they stay until the bucket changes.

    Args:
        step: the step, whose buffers are free
        sentences: number of sentences
        beam: number of hypotheses of each
        encoder_out: the output of fairseq's encoder, None without one
    """

    def __init__(self, step: StaticStep, sentences: int, beam: int, encoder_out: Any):
        self.step, self.beam, self.length = step, beam, 0
        states, _ = encoder_parts(encoder_out)
        self.source = 0 if states is None else states.size(0)
        step.begin(self, sentences, beam, encoder_out)
        self._place(torch.arange(sentences))

    def _place(self, live: Tensor) -> None:
        self.live = live  # the sentence in the buffers of each sentence of the batch, on the CPU
        rows = (live[:, None] * self.beam + torch.arange(self.beam)).view(-1)
        self.rows = rows.to(self.step.mask.device)

    def decode(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits [rows, 1, V] after `tokens` [rows, T], and the weights of attention to the encoder."""
        step = self.step
        if self.length == step.bucket.positions:
            step.lengthen()
        step.tokens.view(-1).index_copy_(0, self.rows, tokens[:, -1])
        step.position.fill_(self.length)
        self.length += 1
        logits, weights = step.run(with_weights=bool(self.source))
        weights = None if weights is None else weights.index_select(0, self.rows)[:, :, : self.source]
        return logits.index_select(0, self.rows), weights

    def reorder(self, new_order: Tensor) -> bool:
        """Let row i of the batch continue row `new_order[i]`. Return False if hypotheses of a sentence are separated."""
        order = new_order.cpu()
        sentences = order[:: self.beam] // self.beam
        together = len(order) == self.beam * len(sentences) and len(sentences.unique()) == len(sentences)
        if not together or not torch.equal(order // self.beam, sentences.repeat_interleave(self.beam)):
            return False
        sources = self.rows.index_select(0, new_order)
        if not torch.equal(sentences, torch.arange(len(self.live))):
            self._place(self.live[sentences])
        self.step.reorder(self.rows, sources)
        if self.step.has_smaller_bucket(len(self.live)):
            self.step.shorten(self.live)
            self._place(torch.arange(len(self.live)))
        return True

    def hand_over(self, state: dict[str, Any]) -> None:
        """Continue with eager steps, whose caches are written to `state`."""
        self.step.hand_over(state, self.live, self.length, self.source)


def start_search(decoder: Any, tokens: Tensor, encoder_out: Any, state: dict[str, Any]) -> StaticSearch | None:
    """Return a search by the static step that begins with `tokens` [rows, 1]; None if it must be eager."""
    if decoder.inference_mode == "eager" or state or tokens.size(1) != 1 or static_obstacle(decoder):
        return None
    step = static_step(decoder)
    if not step.is_free():
        return None
    return StaticSearch(step, *_groups(decoder, len(tokens), encoder_parts(encoder_out)[0]), encoder_out)


def static_step(decoder: Any) -> StaticStep:
    """Return the static step of a decoder, which keeps it."""
    if decoder.static is None:
        decoder.static = StaticStep(decoder)
    return decoder.static


def static_obstacle(decoder: Any) -> str | None:
    """Return why a decoder has no static step, None if it has one."""
    if decoder.training or torch.is_grad_enabled():
        return "the model is trained"
    if type(decoder.embed_tokens) is not nn.Embedding or decoder.quant_noise is not None:
        return "embeddings of several sizes, of characters or with quantisation noise"
    known = (type(None), LearnedPositionalEmbedding, SinusoidalPositionalEmbedding)
    if not isinstance(decoder.embed_positions, known):
        return "positional embeddings of a class of their own"
    if decoder.adaptive_softmax is not None or decoder.cross_self_attention:
        return "an adaptive softmax, or self-attention over encoder states"
    for layer in decoder.layers:
        if type(layer) not in (TransformerDecoderLayer, TransformerDecoderLayerBase):
            return f"a layer of class {type(layer).__name__}"
        if "forward" in vars(layer):
            return "activation checkpoints"
        attentions = [layer.self_attn] + ([] if layer.encoder_attn is None else [layer.encoder_attn])
        if any(getattr(attention, "hook", attention) is not None for attention in attentions):
            return "hooks on heads"
    return None


def encoder_parts(encoder_out: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return the encoder states [S, B or B K, E] and their padding [B or B K, S], None for what is not there."""
    found = encoder_out or {}
    states, padding = (found.get(name) or [None] for name in ("encoder_out", "encoder_padding_mask"))
    return states[0], padding[0]


def position_table(decoder: Any) -> Tensor:
    """Return the embeddings of positions [positions, E]; that of position 0 is in row `padding_idx + 1`."""
    positions = decoder.embed_positions
    return positions.weights if isinstance(positions, SinusoidalPositionalEmbedding) else positions.weight


def rounded(number: int, least: int) -> int:
    """Return the smallest power of two that is at least `number` and `least`."""
    return 1 << (max(number, least) - 1).bit_length()


def _groups(decoder: Any, rows: int, states: Tensor | None) -> tuple[int, int]:
    """Return the number of sentences, and of the hypotheses of each, in the rows of a batch."""
    beam = getattr(decoder, "_beam_size", 1)
    if states is not None and states.size(1) < rows:  # BART does not repeat its states
        return states.size(1), rows // states.size(1)
    if rows % beam or (states is not None and not repeated(states, beam)):
        return rows, 1  # an earlier search had another beam
    return rows // beam, beam
