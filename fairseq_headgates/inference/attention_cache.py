"""Heads, hypotheses and masks in the tensors of attention.

Shapes: T target length, S source length, B sentences, K hypotheses of each (the beam; 1 without beam search), H heads,
D head size. Rows are the B K hypotheses, those of a sentence one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
