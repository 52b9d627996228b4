"""One step of a decoder in beam search, with a cache that is never reordered.

After every step beam search keeps some hypotheses, drops others and continues some twice. fairseq then copies the
cached keys and values of all layers into the new order, which takes a third of a decoder step on a CPU. Here every
hypothesis writes new entries for its sentence, and one table for all layers says from which entries each hypothesis
descends; all other entries are masked. Encoder keys and values, equal for all hypotheses of a sentence, are stored
once.

Shapes: B sentences, K hypotheses of each (the beam), H heads, N entries of each sentence, S source positions, D head
size, E model size, V symbols. Rows are the B K hypotheses, those of a sentence one after another.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from fairseq.modules.transformer_layer import TransformerDecoderLayer, TransformerDecoderLayerBase
from torch import Tensor

from fairseq_headgates.inference.packed_linear import output_dtype
from fairseq_headgates.inference.shapes import mask_value, split_heads

FIRST_POSITIONS = 16  # for whose entries there is room at first


class DecoderStep:
    """The steps of a decoder in one search of fairseq's, and their cache.

    Args:
        decoder: fairseq's decoder with `HeadAttention`; see `has_step`
        rows: number of rows of the batch
        encoder_out: the output of fairseq's encoder, None without one

    Attributes:
        beam: number of hypotheses of each sentence
        source: number of positions of the source, 0 without an encoder
        used: number of entries that have been written
        buffers: keys and values of all layers [B, H, N or S, D], the table "mask" [B, K, N]: 0 where a hypothesis
            descends from an entry of its sentence, else `mask_value`; and "source_mask" [B, 1, 1, S]
    """

    def __init__(self, decoder: Any, rows: int, encoder_out: Any):
        states, padding = encoder_parts(encoder_out)
        self.decoder = decoder
        self.beam = beam = _hypotheses(decoder, rows, states)
        self.source, self.used = 0 if states is None else states.size(0), 0
        like, sentences, room = decoder.layers[0].final_layer_norm.weight, rows // beam, beam * FIRST_POSITIONS
        others = ~torch.eye(beam, dtype=torch.bool, device=like.device)
        self._own = like.new_zeros(beam, beam).masked_fill_(others, mask_value(like.dtype))  # each descends from itself
        buffers = {"mask": like.new_full((sentences, beam, room), mask_value(like.dtype))}
        for keys, values, attention in self._of_target():
            shape = (sentences, attention.num_heads, room, attention.head_dim)
            dtype = output_dtype(attention.k_proj, like.dtype)
            buffers[keys], buffers[values] = (like.new_zeros(shape, dtype=dtype) for _ in range(2))
        if states is not None:
            states = states[:, :: states.size(1) // sentences]
            for keys, values, attention in self._of_source():
                for name, project in ((keys, attention.k_proj), (values, attention.v_proj)):
                    buffers[name] = split_heads(project(states), attention.num_heads).contiguous()
        mask = buffers["source_mask"] = like.new_zeros(sentences, 1, 1, self.source)
        self._padded = padding is not None and bool(padding.any())
        if padding is not None:
            of_sentences = padding[:: padding.size(0) // sentences].bool()
            mask.masked_fill_(of_sentences[:, None, None], mask_value(mask.dtype))
        self._use(buffers)

    @property
    def mask(self) -> Tensor:
        """The part of the table that is in use [B, K, N]."""
        return self.buffers["mask"][:, :, : self.used]

    def decode(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits [rows, 1, V] after `tokens` [rows, T].

        With an encoder also the weights of the last layer's attention to it: their mean over heads [rows, 1, S].
        """
        decoder, last, weights = self.decoder, len(self.decoder.layers) - 1, None
        self._make_room()
        padding = tokens[:, -1].eq(decoder.padding_idx).view(-1, self.beam, 1)
        self.mask[:, :, -self.beam :] = self._own.masked_fill(padding, mask_value(self._own.dtype))
        x = self._embedded(tokens)
        # Layers read the size of the encoder states alone: keys and values are in their caches.
        source = x.new_empty(self.source, 0, 0) if self.source else None
        for i, layer in enumerate(decoder.layers):
            wanted = bool(self.source) and i == last
            asked = {"need_attn": wanted, "need_head_weights": wanted}
            x, weights, _ = layer(x, source, incremental_state=self._state, **asked)
        x = x if decoder.layer_norm is None else decoder.layer_norm(x)
        x = x.transpose(0, 1)
        x = x if decoder.project_out_dim is None else decoder.project_out_dim(x)
        weights = weights.float().to(x).mean(dim=0) if self.source and weights is not None else None
        return decoder.output_layer(x), weights

    def reorder(self, new_order: Tensor) -> bool:
        """Let row i continue row `new_order[i]` of the batch. Return False if that separates those of a sentence."""
        of_rows = new_order.cpu() // self.beam  # on a GPU, a check would take longer and wait as long
        sentences = of_rows[:: self.beam]
        together = torch.equal(sentences.repeat_interleave(self.beam), of_rows)
        if not together or len(sentences.unique()) < len(sentences):
            return False
        mask = self.buffers["mask"]
        moved = mask.flatten(0, 1).index_select(0, new_order).view(-1, *mask.shape[1:])
        if torch.equal(sentences, torch.arange(len(mask))):
            self.buffers["mask"] = moved
        else:  # sentences have ended
            kept = sentences.to(mask.device)
            buffers = {name: x.index_select(0, kept) for name, x in self.buffers.items() if name != "mask"}
            self._use({**buffers, "mask": moved})
        return True

    def write(self, buffer: Tensor, values: Tensor) -> Tensor:
        """Write the entries of this step, [B, H, K, D] into [B, H, room, D]. Return all entries [B, H, N, D]."""
        buffer[:, :, self.used - self.beam : self.used] = values
        return buffer[:, :, : self.used]

    def hand_over(self, state: dict[str, Any]) -> None:
        """Write the caches to fairseq's incremental state, as fairseq's own: separate for every hypothesis."""
        of_rows = torch.arange(len(self.mask), device=self.mask.device).repeat_interleave(self.beam)
        seen = self.mask.flatten(0, 1).eq(0)
        order = seen.byte().argsort(dim=1, descending=True, stable=True)[:, : int(seen.sum(1).max())]
        padding = ~seen.gather(1, order)
        for *names, attention in self._of_target():
            k, v = (self.buffers[name][of_rows[:, None], :, order].transpose(1, 2) for name in names)
            saved = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
            attention._set_input_buffer(state, saved)
        padding = self.buffers["source_mask"][:, 0, 0].index_select(0, of_rows).lt(0)
        for *names, attention in self._of_source():
            k, v = (self.buffers[name].index_select(0, of_rows) for name in names)
            saved = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
            attention._set_input_buffer(state, saved)

    def _of_target(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the names of the buffers of keys and of values, and the module, of every self-attention with heads."""
        for i, layer in enumerate(self.decoder.layers.children()):
            if layer.self_attn.num_heads:
                yield f"{i}.keys", f"{i}.values", layer.self_attn

    def _of_source(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the same for every attention to the encoder."""
        for i, layer in enumerate(self.decoder.layers.children()):
            if self.source and layer.encoder_attn is not None and layer.encoder_attn.num_heads:
                yield f"{i}.source_keys", f"{i}.source_values", layer.encoder_attn

    def _use(self, buffers: dict[str, Tensor]) -> None:
        """Use other buffers, and let the attention modules use them."""
        self.buffers = buffers
        self._state: dict[str, Any] = {}  # fairseq's incremental state: the caches of the layers
        for keys, values, attention in self._of_target():
            attention.set_incremental_state(self._state, "step_cache", StepCache(self, buffers[keys], buffers[values]))
        mask = buffers["source_mask"] if self._padded else None
        for keys, values, attention in self._of_source():
            source = SourceCache(buffers[keys], buffers[values], mask)
            attention.set_incremental_state(self._state, "step_cache", source)

    def _make_room(self) -> None:
        """Make room for the entries of a step: remove those from which no hypothesis descends, or double the room.

        All sentences keep the same number of entries: that of the sentence that needs most.
        """
        room = self.buffers["mask"].size(2)
        if self.used + self.beam > room:
            needed = self.mask.eq(0).any(1)
            self.used = int(needed.sum(1).max())
            kept = needed.logical_not().byte().argsort(dim=1, stable=True)[:, : self.used].sort(1).values
            room *= 2 if 4 * self.used > 3 * room else 1
            mask = self.buffers["mask"].gather(2, kept[:, None].expand(-1, self.beam, -1))
            buffers = {**self.buffers, "mask": with_room(mask, room, mask_value(mask.dtype))}
            for *names, _ in self._of_target():
                buffers |= {name: with_room(select_entries(self.buffers[name], kept), room, 0) for name in names}
            self._use(buffers)
        self.used += self.beam

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Return the input of the first layer [1, B K, E] after `tokens` [rows, T]."""
        decoder = self.decoder
        x = decoder.embed_scale * decoder.embed_tokens(tokens[:, -1:])
        x = x if decoder.quant_noise is None else decoder.quant_noise(x)
        x = x if decoder.project_in_dim is None else decoder.project_in_dim(x)
        if decoder.embed_positions is not None:  # fairseq reads the position from the shape
            last = tokens[:, -1:].expand(-1, tokens.size(1))
            x += decoder.embed_positions(last, incremental_state=self._state)[:, -1:]
        x = x if decoder.layernorm_embedding is None else decoder.layernorm_embedding(x)
        return decoder.dropout_module(x).transpose(0, 1)


class StepCache:
    """Cache of self-attention in the buffers of a `DecoderStep`."""

    def __init__(self, step: DecoderStep, keys: Tensor, values: Tensor):
        self.step, self._keys, self._values = weakref.proxy(step), keys, values
        self.beam = step.beam

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


def has_step(decoder: Any) -> bool:
    """Return whether a decoder can take the steps of a search from a `DecoderStep`."""
    if decoder.training or torch.is_grad_enabled() or decoder.cross_self_attention or not len(decoder.layers):
        return False
    for layer in decoder.layers.children():  # iterating over them draws random numbers with LayerDrop
        if type(layer) not in (TransformerDecoderLayer, TransformerDecoderLayerBase):
            return False
        attentions = [layer.self_attn] + ([] if layer.encoder_attn is None else [layer.encoder_attn])
        if any(getattr(attention, "hook", attention) is not None for attention in attentions):
            return False
    return True


def _hypotheses(decoder: Any, rows: int, states: Tensor | None) -> int:
    """Return the number of consecutive rows that are hypotheses of one sentence."""
    beam = getattr(decoder, "_beam_size", 1)
    if states is not None and states.size(1) < rows:  # BART does not repeat its states
        return rows // states.size(1)
    repeated = states is None or torch.equal(states[:, ::beam].repeat_interleave(beam, dim=1), states)
    return beam if rows % beam == 0 and repeated else 1  # an earlier search had another beam


def encoder_parts(encoder_out: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return the encoder states [S, B or B K, E] and their padding [B or B K, S]; a part that is missing is None."""
    found = encoder_out or {}
    states, padding = (found.get(name) or [None] for name in ("encoder_out", "encoder_padding_mask"))
    return states[0], padding[0]


def with_room(entries: Tensor, room: int, empty: float) -> Tensor:
    """Return entries [B, ., N', ...] with room for N = `room` of them."""
    result = entries.new_full((*entries.shape[:2], room, *entries.shape[3:]), empty)
    result[:, :, : entries.size(2)] = entries
    return result


def select_entries(cache: Tensor, kept: Tensor) -> Tensor:
    """Return the entries `kept` [B, N'] of each sentence, of keys or values [B, H, N, D]."""
    batch, heads, number, size = cache.shape
    first = number * torch.arange(batch * heads, device=cache.device).view(batch, heads, 1)
    rows = first + kept[:, None]  # of all sentences and heads, one after another: faster than `gather`
    return cache.view(-1, size).index_select(0, rows.view(-1)).view(batch, heads, -1, size)
