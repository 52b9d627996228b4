"""The cache of one attention module in incremental decoding: that of a `DecoderStep`, or else fairseq's.

Shapes: T target length, S source length, B sentences, K hypotheses of each (the beam; 1 without beam search), H heads,
D head size, E model size. Rows are the B K hypotheses, those of a sentence one after another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class AttentionCache:
    """Keys and values of earlier steps, or of the encoder, that `state`, fairseq's incremental state, holds.

    Args:
        attention: the attention module, which knows its place in the state
        state: the incremental state of the decoder
    """

    def __init__(self, attention: Any, state: dict):
        self.attention, self.state = attention, state

    @property
    def of_step(self) -> Any:
        """The `StepCache` or `SourceCache` of a `DecoderStep`, None if there is none."""
        return self.attention.get_incremental_state(self.state, "step_cache")

    def is_filled(self) -> bool:
        """Return whether there are keys and values."""
        return self.of_step is not None or bool(self.attention._get_input_buffer(self.state))

    def repeats(self, query: Tensor, key: Tensor) -> int:
        """Return the number of copies of each encoder state in `key` [S, B K, E]: the beam size, or 1.

        fairseq's beam search repeats them for every hypothesis of a sentence, except in BART.
        """
        beam = self.attention.beam_size
        searches = query.size(0) == 1 and beam > 1 and key.size(1) == query.size(1)
        return beam if searches and repeated(key, beam) else 1

    def store_encoder(self, query: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> None:
        """Store keys and values of the encoder [B, H, S, D]; `padding` [B or B K, S] is true on padding."""
        self._set_copies(query.size(1) // k.size(0))
        if padding is not None:
            padding = padding[:: padding.size(0) // k.size(0)].bool()  # BART repeats neither states nor their mask
            padding = padding if padding.any() else None
        k, v = k.contiguous(), v.contiguous()  # every step reads them
        self._set({"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding})

    def encoder(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return keys and values of the encoder [B, H, S, D], and their padding [B, S] or mask [B, 1, 1, S]."""
        if self.of_step is not None:
            return self.of_step
        saved = self.attention._get_input_buffer(self.state)
        return saved["prev_key"], saved["prev_value"], saved.get("prev_key_padding_mask")

    def append(self, k: Tensor, v: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append keys and values [B K, H, T, D] to fairseq's cache. Return all, and their padding."""
        saved = self.attention._get_input_buffer(self.state)
        if "prev_key" in saved:
            k, v = torch.cat([saved["prev_key"], k], dim=2), torch.cat([saved["prev_value"], v], dim=2)
        padding = self.attention._append_prev_key_padding_mask(
            padding, saved.get("prev_key_padding_mask"), k.size(0), k.size(2), static_kv=False
        )
        self._set({**saved, "prev_key": k, "prev_value": v, "prev_key_padding_mask": padding})
        return k, v, padding

    def reorder(self, new_order: Tensor) -> None:
        """Reorder fairseq's cache: row i of the batch continues row `new_order[i]`."""
        beam = self.attention.get_incremental_state(self.state, "copies") or 1
        if beam > 1:  # keys and values of sentences
            sentences = sentences_of(new_order, beam)
            self._set_copies(1 if sentences is None else beam)
            new_order = new_order // beam if sentences is None else sentences
        saved = self.attention._get_input_buffer(self.state)
        for name, tensor in saved.items():
            saved[name] = None if tensor is None else tensor.index_select(0, new_order)

    def _set_copies(self, number: int) -> None:
        """Store how many hypotheses share the keys and values of the encoder."""
        self.attention.set_incremental_state(self.state, "copies", number)

    def _set(self, saved: dict[str, Tensor | None]) -> None:
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


def mask_value(dtype: torch.dtype) -> float:
    """Return the number that is added to the score of a masked position; its exponential is 0.

    It is finite, so that a fully masked row gives no NaN, and half of the smallest number, so that adding a score does
    not overflow.
    """
    return torch.finfo(dtype).min / 2


def padding_mask(padding: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask [B, 1, 1, S] that is added to scores; `padding` [B, S] is true on padding."""
    mask = torch.zeros(padding.shape, dtype=dtype, device=padding.device)
    return mask.masked_fill_(padding, mask_value(dtype))[:, None, None]


def sentences_of(order: Tensor, beam: int) -> Tensor | None:
    """Return the sentences [B'] that the rows `order` [B' K] belong to; None if it separates those of a sentence."""
    of_rows = order // beam
    sentences = of_rows[::beam]
    together = len(order) == beam * len(sentences) and torch.equal(sentences.repeat_interleave(beam), of_rows)
    return sentences if together else None


def repeated(states: Tensor, beam: int) -> bool:
    """Return whether encoder states [S, B K, E] are those of B sentences, repeated for K hypotheses each."""
    rows = states.size(1)
    return rows % beam == 0 and torch.equal(states[:, ::beam].repeat_interleave(beam, dim=1), states)
