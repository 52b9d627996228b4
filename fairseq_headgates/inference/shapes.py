"""Heads, hypotheses and masks in the tensors of attention.

Shapes: T target length, B sentences, K hypotheses of each (the beam; 1 without beam search), H heads,
D head size. Rows are the B K hypotheses, those of a sentence one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor


def split_heads(x: Tensor, heads: int, beam: int = 1) -> Tensor:
    """Split heads: [T, B, H D] -> [B, H, T, D]; in a step of beam search [1, B K, H D] -> [B, H, K, D]."""
    length, rows, size = x.shape
    if beam == 1:
        return x.view(length, rows, heads, size // heads).permute(1, 2, 0, 3)
    return x.view(rows // beam, beam, heads, size // heads).transpose(1, 2)


def merge_heads(context: Tensor, beam: int = 1) -> Tensor:
    """Merge heads, the reverse of `split_heads`."""
    batch, _, queries, _ = context.shape
    if beam == 1:
        return context.permute(2, 0, 1, 3).reshape(queries, batch, -1)
    return context.transpose(1, 2).reshape(1, batch * beam, -1)


def mask_value(dtype: torch.dtype) -> float:
    """Return the number that is added to the score of a masked position; its exponential is 0.

    It is finite, so that a fully masked row gives no NaN, and half of the smallest number, so that adding a score does
    not overflow.
    """
    return torch.finfo(dtype).min / 2
