"""Attention weights by the plain formula, contexts by fused kernels, and their masks.

Shapes: T target length, S source length, B batch, H heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_headgates.inference.shapes import mask_value


def join_masks(attn_mask: Tensor | None, key_padding_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Join both masks into one that broadcasts to [B, H, T, S]: true on masked positions, or added to the scores.

    `key_padding_mask` is true on padding [B, S], or added to the scores [B, 1, 1, S].
    """
    padding = key_padding_mask
    if padding is not None and padding.dim() == 2:
        padding = padding.bool()[:, None, None, :]
    if attn_mask is None:
        return padding
    mask = attn_mask.to(dtype).clamp(min=mask_value(dtype))
    if padding is None:
        return mask
    padding = padding if padding.dtype == torch.bool else padding.lt(0)
    return mask.expand(padding.size(0), 1, *mask.shape).masked_fill(padding, mask_value(dtype))


def fused_contexts(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scaling: float) -> Tensor:
    """Compute the contexts [B, H, T, D] by torch's fused kernels, but not by cuDNN's; `mask` is that of `join_masks`.

    With a mask, torch 2.11 chooses cuDNN on recent GPUs, which takes tens of milliseconds or more for each new shape of
    a batch.
    """
    if mask is not None and mask.dtype == torch.bool:  # a fully masked row would give NaN
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, mask_value(q.dtype))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, scale=scaling)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Compute softmax(Q K^T / sqrt(D)), at least in single precision: [B, H, T, S]."""
    scores = (q * scaling) @ k.transpose(2, 3)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill_(mask, mask_value(scores.dtype))
    elif mask is not None:
        scores = scores.add_(mask)
    return F.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))


def averaged_heads(attention: Any, weights: Tensor, dim: int) -> Tensor:
    """Return the attention weights of the heads of a `HeadAttention` that averages are over; `dim` is that of heads.

    These are the heads with a factor other than 0. So averages are the same when the other heads are removed. Without
    any, return zeros for one head. In training all heads count, because a closed gate may open again.
    """
    counted = None if attention.training else attention.counted_heads()
    if counted is None:
        return weights
    if not len(counted):
        return torch.zeros_like(weights.narrow(dim, 0, 1))
    return weights.index_select(dim, counted)


def average_open_heads(layer: Any, inputs: tuple, output: tuple) -> tuple | None:
    """Hook on decoder layers that keeps of the attention weights [H, B, T, S] those of `averaged_heads`."""
    weights = output[1]
    if weights is None or weights.dim() != 4:
        return None
    return (output[0], averaged_heads(layer.encoder_attn, weights, 0), *output[2:])


def per_hypothesis(attention: Any, weights: Tensor, beam: int, per_head: bool) -> Tensor:
    """[B, H, beam T, S] -> [H, B beam, T, S], or their mean over `averaged_heads` [B beam, T, S]."""
    batch, _, queries, positions = weights.shape
    weights = weights if per_head else averaged_heads(attention, weights, 1).mean(dim=1, keepdim=True)
    weights = weights.view(batch, -1, beam, queries // beam, positions).permute(1, 0, 2, 3, 4)
    weights = weights.reshape(-1, batch * beam, queries // beam, positions)
    return weights if per_head else weights[0]
