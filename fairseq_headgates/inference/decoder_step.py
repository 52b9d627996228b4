"""One step of a decoder in beam search, with a cache that is never reordered.

After every step beam search keeps some hypotheses, drops others and continues some twice. fairseq then copies the
cached keys and values of all layers into the new order, which takes a third of a decoder step on a CPU. Here every
hypothesis writes new entries for its sentence, and one table for all layers says from which entries each hypothesis
descends; all other entries are masked. Encoder keys and values, equal for all hypotheses of a sentence, are stored
once.

On a GPU, launching the operators of a step from Python takes longer than they compute. There a CUDA graph can replay
the step, if neither shapes nor addresses nor branches change: with `exact=False`, buffers have the sizes of a `Bucket`,
rounded up; padding and sentences that have ended are masked, and the index at which a step writes is in a buffer, too.

Shapes: B sentences, K hypotheses of each (the beam), H heads, N entries of each sentence, S source positions, D head
size, E model size, V symbols. Rows are the B K hypotheses, those of a sentence one after another.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from fairseq.modules.transformer_layer import TransformerDecoderLayer, TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_headgates.inference.graphs import Graphs
from fairseq_headgates.inference.shapes import mask_value, split_heads
from fairseq_headgates.inference.step_buffers import Bucket, StepBuffers, position_table

MODES = ("eager", "static", "graph")


class DecoderStep(StepBuffers):
    """The step of one decoder, and its buffers, which one search at a time can use.

    Args:
        decoder: fairseq's decoder with `HeadAttention`; see `has_step`
        exact: whether buffers have the sizes that a search needs, not those of a bucket

    Attributes:
        length: number of positions
        source: number of positions of the source, 0 without an encoder
        used: number of entries that have been written in exact buffers; None in those of a bucket, where entries are
            written at K times `position`
    """

    def __init__(self, decoder: nn.Module, exact: bool):
        super().__init__(decoder, exact)
        self.search: weakref.ref | None = None
        self.graphs = Graphs()
        self.length, self.source, self.used = 0, 0, 0 if exact else None
        self._state: dict[str, Any] = {}  # fairseq's incremental state: the caches of the layers

    @property
    def mask(self) -> Tensor:
        """The table: 0 where a hypothesis descends from an entry of its sentence, else `mask_value` [B, K, N]."""
        return self.buffers["mask"] if self.used is None else self.buffers["mask"][:, :, : self.used]

    def is_free(self) -> bool:
        """Return whether no search uses the buffers."""
        return self.search is None or self.search() is None

    def begin(self, search: Any, sentences: int, beam: int, encoder_out: Any) -> None:
        """Begin a search: compute keys and values of the encoder states, and empty the buffers of the target."""
        states, padding = encoder_parts(encoder_out)
        self.source = source = 0 if states is None else states.size(0)
        self.search = weakref.ref(search)
        self._padded = not self.exact or (padding is not None and bool(padding.any()))
        self.empty(sentences, beam, source)
        if states is None:
            return
        states = states[:, :: states.size(1) // sentences]
        for keys, values, attention in self.of_source():
            for name, project in ((keys, attention.k_proj), (values, attention.v_proj)):
                of_heads = split_heads(project(states), attention.num_heads)
                self.buffers[name][:sentences, :, :source] = of_heads
        mask = self.buffers["source_mask"][:sentences, :, :, :source].zero_()
        if padding is not None:
            of_sentences = padding[:: padding.size(0) // sentences].bool()
            mask.masked_fill_(of_sentences[:, None, None], mask_value(mask.dtype))

    def advance(self, position: int) -> None:
        """Make room for the entries of a position: remove those from which no hypothesis descends, or double the room.

        All sentences keep the same number of entries: that of the sentence that needs most.
        """
        beam, room, self.length = self.bucket.beam, self.bucket.beam * self.bucket.positions, position + 1
        self.position.fill_(position)
        if self.used is None:
            if beam * position == room:
                content = {name: buffer.clone() for name, buffer in self.buffers.items()}
                self.use(self.bucket._replace(positions=2 * self.bucket.positions), content)
            return
        if self.used + beam > room:
            needed = self.mask.eq(0).any(1)
            self.used = int(needed.sum(1).max())
            kept = needed.logical_not().byte().argsort(dim=1, stable=True)[:, : self.used].sort(1).values
            values = {"mask": self.buffers["mask"].gather(2, kept[:, None].expand(-1, beam, -1))}
            for *names, _ in self.of_target():
                values |= {name: select_entries(self.buffers[name], kept) for name in names}
            positions = self.bucket.positions * (2 if 4 * self.used > 3 * room else 1)
            self.use(self.bucket._replace(positions=positions), {**self.buffers, **values})
        self.used += beam

    def use(self, bucket: Bucket, content: Mapping[str, Tensor] | None = None) -> None:
        """Make buffers of other sizes, see `StepBuffers.use`, and let the attention modules use them."""
        super().use(bucket, content)
        self._state = {}
        for *names, attention in self.of_target():
            steps = StepCache(self, *(self.buffers[name] for name in names))
            attention.set_incremental_state(self._state, "step_cache", steps)
        for *names, attention in self.of_source():
            keys, values = (self.buffers[name] for name in names)
            source = SourceCache(keys, values, self.buffers["source_mask"] if self._padded else None)
            attention.set_incremental_state(self._state, "step_cache", source)

    def reorder(self, rows: Tensor | None, sources: Tensor) -> None:
        """Let hypotheses `rows`, None for all, continue hypotheses `sources` of the same sentences."""
        mask = self.buffers["mask"].flatten(0, 1)
        moved = mask.index_select(0, sources)
        if rows is not None:
            mask.index_copy_(0, rows, moved)
        elif self.exact:
            self.buffers["mask"] = moved.view(self.buffers["mask"].shape)
        else:
            mask.copy_(moved)

    def run(self, with_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Return what `logits` returns, in the mode "graph" from a graph; the next run overwrites it."""
        work = partial(self.logits, with_weights)
        if self.exact or self.decoder.inference_mode != "graph":
            return work()
        return self.graphs.run((self.key, with_weights), work, self.rows.device)

    def logits(self, with_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Compute the step of `position` on `tokens`: the logits [B K, 1, V] of the next token.

        Args:
            with_weights: whether to return the weights of the last layer's attention to the encoder, too: their mean
                over heads [B K, 1, S]
        """
        decoder, last, weights = self.decoder, len(self.decoder.layers) - 1, None
        self._extend()
        x = self._embedded()
        # Layers read the size of the encoder states alone: keys and values are in their caches.
        source = x.new_empty(self.bucket.source, 0, 0) if self.bucket.source else None
        for i, layer in enumerate(decoder.layers):
            wanted = with_weights and i == last
            asked = {"need_attn": wanted, "need_head_weights": wanted}
            x, weights, _ = layer(x, source, incremental_state=self._state, **asked)
        x = x if decoder.layer_norm is None else decoder.layer_norm(x)
        x = x.transpose(0, 1)
        x = x if decoder.project_out_dim is None else decoder.project_out_dim(x)
        weights = weights.float().to(x).mean(dim=0) if with_weights and weights is not None else None
        return decoder.output_layer(x), weights

    def write(self, buffer: Tensor, values: Tensor) -> Tensor:
        """Write the entries of this step, [B, H, K, D] into [B, H, room, D]. Return all entries [B, H, N, D]."""
        if self.used is None:
            return buffer.index_copy_(2, self._index, values)
        buffer[:, :, self.used - self.bucket.beam : self.used] = values
        return buffer[:, :, : self.used]

    def hand_over(self, state: dict[str, Any], sentences: Tensor) -> None:
        """Write the caches to fairseq's incremental state, as fairseq's own: separate for every hypothesis.

        Args:
            state: the incremental state
            sentences: rows of the sentences in the buffers [B']
        """
        sentences = sentences.to(self.rows.device)
        of_rows = sentences.repeat_interleave(self.bucket.beam)
        seen = self.mask.index_select(0, sentences).flatten(0, 1).eq(0)
        order = seen.byte().argsort(dim=1, descending=True, stable=True)[:, : int(seen.sum(1).max())]
        padding = ~seen.gather(1, order)
        for *names, attention in self.of_target():
            k, v = (self.buffers[name][of_rows[:, None], :, order].transpose(1, 2) for name in names)
            saved = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
            attention._set_input_buffer(state, saved)
        padding = self.buffers["source_mask"][:, 0, 0, : self.source].index_select(0, of_rows).lt(0)
        for *names, attention in self.of_source():
            k, v = (self.buffers[name][:, :, : self.source].index_select(0, of_rows) for name in names)
            saved = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
            attention._set_input_buffer(state, saved)

    def _extend(self) -> None:
        """Add a position to the table: every hypothesis descends from the entry that it writes, except for padding."""
        beam, padding = self.bucket.beam, self.tokens.eq(self.decoder.padding_idx)[:, :, None]
        own = self.own.expand(len(padding), -1, -1).masked_fill(padding, mask_value(self.own.dtype))
        if self.used is None:
            self._index = torch.add(self.rows[0], self.position, alpha=beam)
            self.mask.index_copy_(2, self._index, own)
        else:
            self.mask[:, :, -beam:] = own

    def _embedded(self) -> Tensor:
        """Return the input of the first layer [1, B K, E]."""
        decoder = self.decoder
        x = decoder.embed_scale * decoder.embed_tokens(self.tokens.view(-1, 1))
        x = x if decoder.quant_noise is None else decoder.quant_noise(x)
        x = x if decoder.project_in_dim is None else decoder.project_in_dim(x)
        if decoder.embed_positions is not None:
            x += self._positions()
        x = x if decoder.layernorm_embedding is None else decoder.layernorm_embedding(x)
        return decoder.dropout_module(x).transpose(0, 1)

    def _positions(self) -> Tensor:
        """Return the embedding of the position, [B K or 1, 1, E] or [1, E]."""
        embed = self.decoder.embed_positions
        if self.exact:  # fairseq reads the position from the shape
            tokens = self.tokens.view(-1, 1).expand(-1, self.length)
            return embed(tokens, incremental_state=self._state)[:, -1:]
        return position_table(self.decoder).index_select(0, self.position + (embed.padding_idx + 1))


class StepCache:
    """Cache of self-attention in the buffers of a `DecoderStep`."""

    def __init__(self, step: DecoderStep, keys: Tensor, values: Tensor):
        self.step, self._keys, self._values = weakref.proxy(step), keys, values
        self.beam = step.bucket.beam

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Append `k` and `v` [B, H, K, D]. Return all keys and values [B, H, N, D] and the mask [B, 1, K, N]."""
        return self.step.write(self._keys, k), self.step.write(self._values, v), self.step.mask[:, None]


class SourceCache(NamedTuple):
    """Cache of attention to the encoder in the buffers of a `DecoderStep`.

    Attributes:
        keys: [B, H, S, D]
        values: [B, H, S, D]
        mask: added to the scores [B, 1, 1, S], None without padding
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None


def has_step(decoder: Any, exact: bool) -> bool:
    """Return whether a decoder can take the steps of a search from a `DecoderStep`."""
    if decoder.training or torch.is_grad_enabled() or decoder.cross_self_attention or not len(decoder.layers):
        return False
    for layer in decoder.layers.children():  # iterating over them draws random numbers with LayerDrop
        if type(layer) not in (TransformerDecoderLayer, TransformerDecoderLayerBase):
            return False
        attentions = [layer.self_attn] + ([] if layer.encoder_attn is None else [layer.encoder_attn])
        if any(getattr(attention, "hook", attention) is not None for attention in attentions):
            return False
    return exact or _has_fixed_shapes(decoder)


def _has_fixed_shapes(decoder: Any) -> bool:
    """Return whether the step of a decoder does the same at every position."""
    if any("forward" in vars(layer) for layer in decoder.layers.children()):  # activation checkpoints
        return False
    for module in decoder.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]  # which a graph does not call
        if not all(getattr(hook, "can_be_captured", False) for hook in hooks):
            return False
        if getattr(module, "apply_during_inference", False):  # dropout
            return False
    known = (type(None), LearnedPositionalEmbedding, SinusoidalPositionalEmbedding)
    usual_embeddings = type(decoder.embed_tokens) is nn.Embedding and isinstance(decoder.embed_positions, known)
    return usual_embeddings and decoder.quant_noise is None and decoder.adaptive_softmax is None


def encoder_parts(encoder_out: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return the encoder states [S, B or B K, E] and their padding [B or B K, S]; a part that is missing is None."""
    found = encoder_out or {}
    states, padding = (found.get(name) or [None] for name in ("encoder_out", "encoder_padding_mask"))
    return states[0], padding[0]


def select_entries(cache: Tensor, kept: Tensor) -> Tensor:
    """Return the entries `kept` [B, N'] of each sentence, of keys or values [B, H, N, D]."""
    batch, heads, number, size = cache.shape
    first = number * torch.arange(batch * heads, device=cache.device).view(batch, heads, 1)
    rows = first + kept[:, None]  # of all sentences and heads, one after another: faster than `gather`
    return cache.view(-1, size).index_select(0, rows.view(-1)).view(batch, heads, -1, size)
