"""Attention that takes the place of a whole transformer layer: relative positions and persistent vectors in every head.

After Sukhbaatar et al. 2019 ("Augmenting Self-attention with Persistent Memory") and, for the relative positions, Dai
et al. 2019 (Transformer-XL).

Shapes: T length of a block, M length of the memory before it, S = M + T, N persistent vectors of a head, B batch, H
heads, D head size, E model size.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_headgates.attention.head_attention import HeadAttention
from fairseq_headgates.inference.kernels import fused_attention, fused_attention_backward, has_fused_attention
from fairseq_headgates.inference.shapes import mask_value, merge_heads

Past = tuple[Tensor, Tensor]  # keys and values, [H, B, M, D] each


class QueryBias(nn.Module):
    """Biases of the queries of every head, for content and for position: [H, D] each."""

    def __init__(self, heads: int, size: int):
        super().__init__()
        self.content = nn.Parameter(torch.zeros(heads, size))
        self.position = nn.Parameter(torch.zeros(heads, size))


class PersistentVectors(nn.Module):
    """Keys and values of every head that do not depend on the input: [H, N, D] each."""

    def __init__(self, heads: int, number: int, size: int):
        super().__init__()
        self.key = nn.Parameter(torch.randn(heads, number, size) / math.sqrt(size))
        self.value = nn.Parameter(torch.randn(heads, number, size) / math.sqrt(max(1, number)))


class AllAttention(HeadAttention):
    """Self-attention over a block, the memory before it, and persistent vectors, in one softmax per query.

    With q, k, v of a head, its persistent keys k' and values v', and the encoding r of a distance (all in rows),

        a_ij = ((q_i + b) k_j^T + (q_i + c) (r_{i-j} W_R)^T) / sqrt(D)     for the positions j <= i
        p_in = (q_i + b) k'_n^T                                            for the persistent vectors n
        head_i = sum_j softmax(a_i, p_i)_j v_j + sqrt(N) sum_n softmax(a_i, p_i)_n v'_n

    (Sukhbaatar et al. 2019, eq. 8 to 10; Dai et al. 2019, section 3.3). b and c are trained biases of each head. The
    parameters k' and v' are multiplied by sqrt(D) and sqrt(N), so that their initial size does not depend on D and N;
    for k' the factor cancels 1 / sqrt(D).

    A removed head is removed from all of these parameters.

    Args:
        embed_dim: E
        heads: H
        persistent: N
        dropout: dropout on attention weights
    """

    INPUTS: ClassVar[tuple[str, ...]] = (*HeadAttention.INPUTS, "position_proj", "query_bias", "persistent")

    def __init__(self, embed_dim: int, heads: int, persistent: int, dropout: float = 0.0):
        super().__init__(MultiheadAttention(embed_dim, heads, dropout=dropout, bias=False, self_attention=True))
        self.vectors = persistent
        self.position_proj = nn.Linear(embed_dim, heads * self.head_dim, bias=False)
        nn.init.xavier_uniform_(self.position_proj.weight, gain=1 / math.sqrt(2))  # as for queries, keys and values
        self.query_bias = QueryBias(heads, self.head_dim)
        self.persistent = PersistentVectors(heads, persistent, self.head_dim)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        positions: Tensor,
        masked: Tensor,
        memory: Tensor | None = None,
        past: Past | None = None,
    ) -> tuple[Tensor, Past]:
        """Compute the attention of a block.

        Args:
            x: the block, [T, B, E]
            positions: encodings of the distances S - 1, ..., 1, 0 and of one more, which is not used: [S + 1, E]
            masked: which positions a query does not see, [B or 1, T, S]
            memory: the states before the block, [M, B, E]
            past: instead of `memory`, their keys and values

        Returns:
            The output [T, B, E], and the keys and values of all S positions
        """
        if self.num_heads == 0:
            none = x.new_empty(0, x.size(1), masked.size(2), self.head_dim)
            return self._bias(x, None), (none, none)
        q, k, v = self._projected(x, memory)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        scores, q = self._scores(q, k, positions, masked)
        weights_asked = self._dropout() > 0 or (self.hook is not None and self.hook.weights)
        fused = q.device.type == "cpu" and q.dtype != torch.float16 and has_fused_attention()
        if self.vectors and fused and not weights_asked:
            vectors = self.persistent.key, self.persistent.value
            context = JointAttention.apply(scores, v, q, *vectors, math.sqrt(self.vectors))
            context = context.transpose(0, 1)
            context = context if self.hook is None else self.hook(None, context)
        else:
            context = self._by_formula(scores, q, v)
        return self._project_out(merge_heads(context)), (k, v)

    def _projected(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [H, B, T, D], and k and v [H, B, T or S, D]."""
        if memory is None and self._in_proj is not None and not torch.is_grad_enabled():
            return tuple(map(self._by_head, self._in_proj(x).chunk(3, dim=-1)))  # type: ignore[return-value]
        every = x if memory is None else torch.cat([memory, x])
        return self._by_head(self.q_proj(x)), self._by_head(self.k_proj(every)), self._by_head(self.v_proj(every))

    def _by_head(self, x: Tensor) -> Tensor:
        """Split heads: [T, B, H D] -> [H, B, T, D]."""
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).permute(2, 1, 0, 3).contiguous()

    def _scores(self, q: Tensor, k: Tensor, positions: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the positions [H, B, T, S], and the queries of the persistent vectors [H, B T, D]."""
        heads, batch, length, size = q.shape
        content, position = (q + bias[:, None, None] for bias in (self.query_bias.content, self.query_bias.position))
        distances = self.position_proj(positions).view(-1, heads, size).permute(1, 2, 0)
        scores = shifted((position.flatten(1, 2) @ distances).view(heads, batch, length, -1)).flatten(0, 1)
        keys = k.flatten(0, 1).transpose(1, 2)
        scores = torch.baddbmm(scores, content.flatten(0, 1), keys, beta=self.scaling, alpha=self.scaling)
        scores = scores.view(heads, batch, length, -1).masked_fill_(masked, mask_value(scores.dtype))
        return scores, content.flatten(1, 2)

    def _by_formula(self, scores: Tensor, q: Tensor, v: Tensor) -> Tensor:
        """Return the contexts [B, H, T, D]; see `JointAttention`. The hook sees the weights on the block itself."""
        heads, batch, length, positions = scores.shape
        persistent = (q @ self.persistent.key.transpose(1, 2)).view(heads, batch, length, -1)
        all_scores = torch.cat([scores, persistent], dim=-1)
        weights = all_scores.softmax(-1, dtype=torch.promote_types(all_scores.dtype, torch.float32))
        attended = self.dropout_module(weights).to(v)
        on_vectors = attended[..., positions:].flatten(1, 2) @ self.persistent.value
        on_vectors = math.sqrt(self.vectors) * on_vectors.view(heads, batch, length, -1)
        context = (attended[..., :positions] @ v + on_vectors).transpose(0, 1)
        if self.hook is None:
            return context
        return self.hook(weights[..., positions - length : positions].transpose(0, 1), context)


def shifted(scores: Tensor) -> Tensor:
    """Sort scores by position instead of distance: [..., T, S + 1] for distances S - 1, ..., 0, -1 -> [..., T, S].

    Query i is at position S - T + i. Scores of later positions are undefined.
    """
    length, positions = scores.size(-2), scores.size(-1) - 1
    # The score of query i and position j is at i (S + 1) + (T - 1 - i + j) = T - 1 + i S + j: a view.
    return scores.flatten(-2)[..., length - 1 : length - 1 + length * positions].unflatten(-1, (length, positions))


def distance_encodings(size: int, dim: int, like: Tensor) -> Tensor:
    """Return sinusoidal encodings of the distances size - 1, ..., 0, -1: [size + 1, dim] (Vaswani et al. 2017)."""
    distances = torch.arange(size - 1, -2, -1, device=like.device, dtype=torch.float64)
    rates = 10000 ** (-torch.arange(0, dim, 2, device=like.device, dtype=torch.float64) / dim)
    angles = distances[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :dim].to(like.dtype)


class JointAttention(torch.autograd.Function):
    """One softmax over positions and persistent vectors, without materialising the attention weights on the vectors.

    With scores a on positions and q k'^T on vectors, and z the sum of all their exponentials,

        out = sum_j exp(a_j) / z v_j + c sum_n exp(q k'_n^T) / z v'_n

    The second sum is computed by PyTorch's fused attention, which also returns the logarithm of its own sum of
    exponentials. Its backward pass takes the logarithm of the whole sum z and the whole output instead: the gradient of
    a weight p = exp(s) / z is p (dp - out . dout) for all keys alike (Dao et al. 2022, appendix B.2).

    The arguments of `apply` are the masked scores a [H, B, T, S] and the values v [H, B, S, D] of the positions; the
    queries q of the vectors, in the order of those of a, [H, B T, D]; their keys k' and values v', [H, N, D]; and c.
    The result are the contexts [H, B, T, D].
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, v: Tensor, q: Tensor, keys: Tensor, values: Tensor, factor: float) -> Tensor:
        """Return the contexts; torch calls it."""
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
        """Return the gradients of the arguments; torch calls it."""
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
