"""One softmax over positions and persistent vectors, without materialising the attention weights on the vectors.

For CPUs and without attention dropout; elsewhere `AllAttention` uses the plain formula.

With scores a on positions and q k'^T on vectors, and z the sum of all their exponentials,

    out = sum_j exp(a_j) / z v_j + c sum_n exp(q k'_n^T) / z v'_n

The second sum is computed by PyTorch's fused attention, which also returns the logarithm of its own sum of
exponentials. Its backward pass takes the logarithm of the whole sum z and the whole output instead: the gradient of a
weight p = exp(s) / z is p (dp - out . dout) for all keys alike (Dao et al. 2022, appendix B.2).

Shapes: R queries of a head (rows of all sentences), S positions, N vectors, B batch, T queries of a row (R = B T), H
heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_headgates.inference.kernels import fused_attention, fused_attention_backward, has_fused_attention


def is_fused(x: Tensor) -> bool:
    """Return whether `joint_attention` works for tensors like this one: on a CPU, with PyTorch's fused attention."""
    return x.device.type == "cpu" and x.dtype != torch.float16 and has_fused_attention()


class _JointAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, v: Tensor, q: Tensor, keys: Tensor, values: Tensor, factor: float) -> Tensor:
        on_vectors, log_z = fused_attention(q[None], keys[None], values[None])
        on_vectors, log_z = on_vectors[0].view(*v.shape[:2], -1, v.size(3)), log_z[0].view(*v.shape[:2], -1, 1)
        weights = scores.softmax(-1)
        # The largest weight is exp(its score) / z of the positions: faster than another sum of exponentials.
        log_sum = (scores.amax(-1, keepdim=True) - weights.amax(-1, keepdim=True).log()).to(log_z.dtype)
        whole = torch.logaddexp(log_sum, log_z)
        weights.mul_((log_sum - whole).exp_().to(v.dtype))
        out = torch.matmul(weights, v).addcmul_(on_vectors, (log_z - whole).exp_().to(v.dtype), value=factor)
        ctx.save_for_backward(weights, v, q, keys, values, out, whole)
        ctx.factor = factor
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, v, q, keys, values, out, whole = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        at_v = weights.transpose(2, 3) @ gradient
        at_scores = (gradient @ v.transpose(2, 3)).sub_((gradient * out).sum(-1, keepdim=True)).mul_(weights)
        rows = (gradient * ctx.factor).view_as(q)[None]
        whole = whole.view(1, *q.shape[:2])
        at_q, at_keys, at_values = fused_attention_backward(
            rows, q[None], keys[None], values[None], out.view_as(q)[None] / ctx.factor, whole
        )
        return at_scores, at_v, at_q[0], at_keys[0], at_values[0], None


def joint_attention(scores: Tensor, v: Tensor, q: Tensor, keys: Tensor, values: Tensor, factor: float = 1.0) -> Tensor:
    """Attend to positions and persistent vectors in one softmax.

    Args:
        scores: scores of the positions, masked, [H, B, T, S]
        v: values of the positions, [H, B, S, D]
        q: queries of the vectors, in the order of those of `scores`, [H, B T, D]
        keys: keys of the vectors, [H, N, D]
        values: their values, [H, N, D]
        factor: c, a factor on these values

    Returns:
        The contexts [H, B, T, D]
    """
    return _JointAttention.apply(scores, v, q, keys, values, factor)
