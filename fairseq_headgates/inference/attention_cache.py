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

    def store_encoder(self, rows: int, k: Tensor, v: Tensor, padding: Tensor | None) -> None:
        """Store keys and values of the encoder for B K `rows`; `padding` is true on padding.

        They are [B K, H, S, D] and [B K, S]; in BART, which does not repeat them, [B, H, S, D] and [B, S].
        """
        saved = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": padding}
        for name, tensor in saved.items():
            if tensor is not None:  # `contiguous`, because every step reads them
                saved[name] = tensor.repeat_interleave(rows // len(tensor), 0).contiguous()
        self._set(saved)

    def encoder(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return keys, values and padding of the encoder; of a `DecoderStep`, those of its `SourceCache`."""
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
        saved = self.attention._get_input_buffer(self.state)
        for name, tensor in saved.items():
            saved[name] = None if tensor is None else tensor.index_select(0, new_order)

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
