"""The cache of one attention module in incremental decoding: that of beam search, or else fairseq's.

Shapes: T target length, S source length, B sentences, K hypotheses of each (the beam; 1 without beam search), H heads,
D head size, E model size. Rows are the B K hypotheses, those of a sentence one after another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_headgates.inference.beam_cache import (
    BeamCache,
    Beams,
    EncoderCache,
    StepCache,
    padding_mask,
    repeated,
)


class AttentionCache:
    """Keys and values of earlier steps, or of the encoder, that `state`, fairseq's incremental state, holds.

    Args:
        attention: the attention module, which knows its place in the state
        state: the incremental state of the decoder
    """

    def __init__(self, attention: Any, state: dict):
        self.attention, self.state, self.beam = attention, state, attention.beam_size

    @property
    def beams(self) -> BeamCache | None:
        """The cache of beam search, None if there is none."""
        return self.attention.get_incremental_state(self.state, "beam_cache")

    def is_filled(self) -> bool:
        """Return whether there are keys and values."""
        return bool(self.beams or self.attention._get_input_buffer(self.state))

    def repeats(self, query: Tensor, key: Tensor) -> int:
        """Return the number of copies of each encoder state in `key` [S, B K, E]: the beam size, or 1.

        fairseq's beam search repeats them for every hypothesis of a sentence, except in BART.
        """
        rows = self._searches(query) and key.size(1) == query.size(1)
        return self.beam if rows and repeated(key, self.beam) else 1

    def store_encoder(self, query: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> None:
        """Store keys and values of the encoder [B, H, S, D]; `padding` [B or B K, S] is true on padding."""
        if padding is not None:
            padding = padding[:: padding.size(0) // k.size(0)].bool()  # BART repeats neither states nor their mask
            padding = padding if padding.any() else None
        k, v = k.contiguous(), v.contiguous()  # every step reads them
        if query.size(1) > k.size(0):
            mask = None if padding is None else padding_mask(padding, k.dtype)
            self._set_beams(EncoderCache(self._shared(query.size(1), k), k, v, mask))
        else:
            self._set_plain({"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding})

    def encoder(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return keys and values of the encoder [B, H, S, D], and their padding [B, S] or mask [B, 1, 1, S]."""
        beams = self.beams
        if isinstance(beams, EncoderCache):
            return beams.keys, beams.values, beams.mask
        saved = self.attention._get_input_buffer(self.state)
        return saved["prev_key"], saved["prev_value"], saved.get("prev_key_padding_mask")

    def steps_of_beams(self, k: Tensor, attn_mask: Tensor | None) -> StepCache | None:
        """Return the cache of self-attention in beam search; None if fairseq's must be used. `k` is [T, B K, H D]."""
        beams = self.beams
        if beams is not None or self.attention._get_input_buffer(self.state):
            return beams if isinstance(beams, StepCache) else None
        if not self._searches(k) or not self.attention.self_attention or attn_mask is not None:
            return None
        if torch.is_grad_enabled():  # a StepCache is written in place, which breaks a backward pass
            return None
        cache = StepCache(self._shared(k.size(1), k))
        self._set_beams(cache)
        return cache

    def append(self, k: Tensor, v: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append keys and values [B K, H, T, D] to fairseq's cache. Return all, and their padding."""
        saved = self.attention._get_input_buffer(self.state)
        if "prev_key" in saved:
            k, v = torch.cat([saved["prev_key"], k], dim=2), torch.cat([saved["prev_value"], v], dim=2)
        padding = self.attention._append_prev_key_padding_mask(
            padding, saved.get("prev_key_padding_mask"), k.size(0), k.size(2), static_kv=False
        )
        self._set_plain({**saved, "prev_key": k, "prev_value": v, "prev_key_padding_mask": padding})
        return k, v, padding

    def by_position(self, weights: Tensor) -> Tensor:
        """Return attention weights [B, H, K T, S] with S positions instead of the entries of a `StepCache`."""
        beams = self.beams
        return beams.beams.by_position(weights) if isinstance(beams, StepCache) else weights

    def reorder(self, new_order: Tensor) -> None:
        """Reorder hypotheses: row i of the batch continues row `new_order[i]`."""
        beams = self.beams
        if beams is None:
            saved = self.attention._get_input_buffer(self.state)
            for name, tensor in saved.items():
                saved[name] = None if tensor is None else tensor.index_select(0, new_order)
        elif not beams.reorder(new_order):
            self._set_plain(beams.plain())
            self._set_beams(None)

    def _searches(self, query: Tensor) -> bool:
        """Return whether `query` [T, B K, E] is one step of a beam search."""
        return query.size(0) == 1 and self.beam > 1 and query.size(1) % self.beam == 0

    def _shared(self, rows: int, like: Tensor) -> Beams:
        """Return the object that all layers of a decoder share in a search; its name is the same for all layers."""
        if "beams" not in self.state:
            self.state["beams"] = Beams(rows, self.beam, like.dtype, like.device)
        return self.state["beams"]

    def _set_beams(self, cache: BeamCache | None) -> None:
        self.attention.set_incremental_state(self.state, "beam_cache", cache)

    def _set_plain(self, saved: dict[str, Tensor | None]) -> None:
        self.attention._set_input_buffer(self.state, saved)


def split_heads(x: Tensor, heads: int, beam: int = 1) -> Tensor:
    """Split heads: [T, B K, H D] -> [B, H, K T, D]; hypotheses of a sentence are queries on the same keys."""
    length, rows, size = x.shape
    if beam == 1:
        return x.view(length, rows, heads, size // heads).permute(1, 2, 0, 3)
    if length == 1:
        return x.view(rows // beam, beam, heads, size // heads).transpose(1, 2)
    return x.view(length, rows // beam, beam, heads, size // heads).permute(1, 3, 2, 0, 4).flatten(2, 3)


def merge_heads(context: Tensor, beam: int = 1) -> Tensor:
    """Merge heads, the reverse of `split_heads`: [B, H, K T, D] -> [T, B K, H D]."""
    batch, heads, queries, size = context.shape
    if beam == 1:
        return context.permute(2, 0, 1, 3).reshape(queries, batch, -1)
    context = context.view(batch, heads, beam, queries // beam, size).permute(3, 0, 2, 1, 4)
    return context.reshape(queries // beam, batch * beam, -1)
