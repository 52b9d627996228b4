"""Rules of layer-wise relevance propagation for each kind of layer, on plain tensors.

For an output j of a layer f and all its inputs i, let

    z_ji = J_ji x_i + f(0)_j / n
    R_i = sum_j R_j [alpha z+_ji / (sum_i z+_ji + eps) + beta z-_ji / (sum_i z-_ji - eps)]

with the Jacobian J, the number n of inputs, and the positive and negative parts z+ and z-, so that positive relevance
stays positive. Then the inputs are rescaled to the L1 norm of the outputs: token by token, or head by head within
attention, and then, except for sums, over the whole sentence (Voita et al. 2019, section 4; details as in their code).

The Jacobian of a whole layer is never computed: linear layers and LayerNorm work token by token, and the Jacobian of
attention factorises.

Shapes: T target, S source length (or any), N explained target positions, H heads, D head size; E, I, O vector sizes.
Relevance is [T, N, E]: of every number at every token, for every explained position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 2**18  # numbers of z computed at a time, which fit into the cache of one core
GROUP = 4  # tokens whose relevance passes through the same weights in one multiplication

Dims = int | tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """Rule by which relevance is divided among inputs.

    Attributes:
        alpha: weight of positive contributions. None for `alpha` and `beta` is the epsilon rule
            R_i = sum_j R_j z_ji / (z_j + eps sign(z_j)) with z_j = sum_i z_ji (Bach et al. 2015). Its z_j may be nearly
            0, so that in single precision the relevance of heads is exact to about one percent.
        beta: weight of negative contributions
        eps: keeps denominators away from 0
        rescale_eps: keeps denominators of the rescaling away from 0
        constant_attention: treat attention weights as constants: queries and keys get no relevance
    """

    alpha: float | None = 0.5
    beta: float | None = 0.5
    eps: float = 1e-5
    rescale_eps: float = 1e-5
    constant_attention: bool = False


RULES = {
    "story-of-heads": Rule(),  # the numbers of the paper's released code
    "attn-constant": Rule(constant_attention=True),
    "alpha1beta0": Rule(alpha=1.0, beta=0.0),  # only positive contributions: relevance is a share
    "epsilon": Rule(alpha=None, beta=None),
}


def linear(R: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, rule: Rule) -> Tensor:
    """Return relevance [T, N, I] at the input x [T, I] of x W^T + b, from R [T, N, O]; W [O, I], bias [O] or None."""
    return linears([(R, weight, bias)], x, rule)


def linears(layers: list[tuple[Tensor, Tensor, Tensor | None]], x: Tensor, rule: Rule) -> Tensor:
    """Return relevance [T, N, I] at the common input x [T, I] of linear layers, as if they were one.

    `layers` are R [T, N, O], W [O, I], and bias [O] or None, of each. The list is emptied, so that each R can be freed.
    """
    relevance = layers[0][0].new_zeros(*layers[0][0].shape[:2], x.size(-1))
    norms = _sum(_through_linear(*layers.pop(), x, rule, relevance) for _ in range(len(layers)))
    return _rescale(norms, rule, relevance, dim=-1)[0]


def _through_linear(R: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, rule: Rule, into: Tensor) -> Tensor:
    """Add relevance at the input of x W^T + b, before rescaling, to `into`. Returns the L1 norms of R, [T, N, 1]."""
    share = weight.new_zeros(len(weight), 1) if bias is None else bias[:, None] / x.size(-1)

    def positive(tokens: slice, outputs: slice) -> Tensor:
        return (weight[outputs] * x[tokens, None]).add_(share[outputs]).clamp_(min=0)

    def weighted(r: Tensor, tokens: slice) -> Tensor:
        return (r @ weight).mul_(x[tokens, None]).add_(r @ share)

    return _divide(R, F.linear(x, weight, bias), positive, weighted, rule, into)


def layer_norm(R: Tensor, x: Tensor, norm: nn.LayerNorm, rule: Rule) -> Tensor:
    """Return relevance [T, N, E] at the input x [T, E] of a LayerNorm, from R [T, N, E].

    With y = (x - mean) / sigma: J_ji = gamma_j / sigma (delta_ji - 1/E - y_j y_i / E) and f(0) = bias.
    """
    size = x.size(-1)
    centred = x - x.mean(-1, keepdim=True)
    sigma = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    y, slope = centred / sigma, norm.weight / sigma
    share = norm.bias[:, None] / size
    left = torch.stack([slope, slope * y], dim=-1) / -size  # J = diag(slope) + left [1, y]
    right = torch.stack([x, y * x], dim=-2)

    def positive(tokens: slice, outputs: slice) -> Tensor:
        z = torch.baddbmm(share[outputs], left[tokens, outputs], right[tokens])
        diagonal = (slope[tokens] * x[tokens])[:, outputs]
        z.diagonal(offset=outputs.start, dim1=-2, dim2=-1).add_(diagonal)
        return z.clamp_(min=0)

    def weighted(r: Tensor, tokens: slice) -> Tensor:
        steep = r * slope[tokens, None]
        removed = y[tokens, None] * (steep @ y[tokens, :, None]) + steep.sum(-1, keepdim=True)
        return (steep - removed / size).mul_(x[tokens, None]).add_(r @ share)

    total = slope * (centred - y * (y * x).mean(-1, keepdim=True)) + norm.bias
    relevance = torch.zeros_like(R)
    norms = _divide(R, total, positive, weighted, rule, relevance)
    return _rescale(norms, rule, relevance, dim=-1)[0]


def add(R: Tensor, a: Tensor, b: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Return relevance [T, N, E] at both terms of a + b, each [T, E], from R [T, N, E]."""
    up, down = a.clamp(min=0) + b.clamp(min=0), a.clamp(max=0) + b.clamp(max=0)
    to_positive, to_negative = _coefficients(up, down, rule)
    parts = [R * (x * torch.where(x > 0, to_positive, to_negative))[:, None] for x in (a, b)]
    at_a, at_b = _rescale(l1_norm(R, -1), rule, *parts, dim=-1, whole=False)
    return at_a, at_b


def attention(
    R: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, scaling: float, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """Return relevance [H, T, N, D] at queries [H, T, D], and [H, S, N, D] at keys and at values [H, S, D].

    Heads give c_td = sum_s w_ts v_sd; `R` is [H, T, N, D], `weights` w [H, T, S] are softmax(scaling q k^T). Then

        v: z = w_ts v_sd,   q: z = sum_s A_tsd B_tse,   k: z = A_tsd B_tse,

    where A_tsd = w_ts (v_sd - c_td) and B_tse = scaling q_te k_se, so that |z| = |A| |B| at the keys, and all sums are
    matrix products. Every head is rescaled on its own, over all its tokens.
    """
    at_q, at_k, at_v = (_by_token(R, length) for length in (q.size(1), k.size(1), k.size(1)))
    numbers = q.size(1) * v.size(-1) * (k.size(1) + k.size(2) + R.size(2))  # of z, A and R of a head
    for heads in _slices(len(R), CHUNK // numbers):
        relevance = _attention_of_heads(R[heads], q[heads], k[heads], v[heads], weights[heads], scaling, rule)
        at_q[heads], at_k[heads], at_v[heads] = relevance
    norms = l1_norm(R, (1, 3))
    if rule.constant_attention:
        return at_q, at_k, _rescale(norms, rule, at_v, dim=(1, 3))[0]
    at_q, at_k, at_v = _rescale(norms, rule, at_q, at_k, at_v, dim=(1, 3))
    return at_q, at_k, at_v


def _by_token(R: Tensor, length: int) -> Tensor:
    """Return an empty tensor [H, length, N, D] for R [H, T, N, D].

    It is stored as [length, N, H, D], so that joining the heads needs no copy.
    """
    heads, _, positions, size = R.shape
    return R.new_empty(length, positions, heads, size).permute(2, 0, 1, 3)


def _attention_of_heads(
    R: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, scaling: float, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """Return relevance at queries, keys and values of some heads before rescaling; see `attention`."""
    context = weights @ v
    up, down = weights @ v.clamp(min=0), weights @ v.clamp(max=0)
    if rule.constant_attention:
        for_positive, for_negative = _per_output(R, up, down, rule)
        to_v = _at_values(for_positive, for_negative, v, weights)
        return R.new_zeros(R.shape), torch.zeros_like(to_v), to_v
    a = (v[:, None] - context[:, :, None]).mul_(weights[..., None])  # [H, T, S, D]
    q = q * scaling
    at_q = (a.transpose(2, 3).flatten(1, 2) @ k).view(*a.shape[:2], v.size(-1), k.size(-1)).mul_(q[:, :, None])
    at_q_positive = at_q.clamp(min=0)  # [H, T, D, D]
    at_q_negative = at_q.clamp_(max=0)
    scores, sizes = q @ k.transpose(1, 2), q.abs() @ k.abs().transpose(1, 2)
    at_k = (scores[:, :, None] @ a).squeeze(2)  # the sum over s and e of z, [H, T, D]; next, that of |z|
    at_k_size = (sizes[:, :, None] @ a.abs()).squeeze(2)
    up = up + at_q_positive.sum(-1) + (at_k_size + at_k) / 2
    down = down + at_q_negative.sum(-1) - (at_k_size - at_k) / 2
    for_positive, for_negative = _per_output(R, up, down, rule)
    to_v = _at_values(for_positive, for_negative, v, weights)
    to_q = for_positive @ at_q_positive + for_negative @ at_q_negative
    # z+ = (|z| + z) / 2 and z- = (z - |z|) / 2.
    mean = for_positive.add_(for_negative).div_(2)
    difference = for_negative.neg_().add_(mean)  # (positive - negative) / 2
    to_k = _at_keys(mean, a, q, k) + _at_keys(difference, a.abs_(), q.abs(), k.abs())
    return to_q, to_k, to_v


def merge(*parts: Tensor) -> Tensor:
    """Return the sum of relevance [T, N, E] from several paths, rescaled to the L1 norm of all parts."""
    total = sum(parts[1:], parts[0])
    return total.mul_(quotient(_sum(l1_norm(part, (0, 2)) for part in parts), l1_norm(total, (0, 2))))


def keep_norm(norm: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """Rescale `parts`, each [.., N, E], in place, so that together they have this L1 norm [1, N, 1]."""
    ratio = quotient(norm, _sum(l1_norm(part, (0, 2)) for part in parts))
    return tuple(part.mul_(ratio) for part in parts)


def _divide(
    R: Tensor,
    total: Tensor,
    positive: Callable[[slice, slice], Tensor],
    weighted: Callable[[Tensor, slice], Tensor],
    rule: Rule,
    into: Tensor,
) -> Tensor:
    """Add relevance at the inputs of a layer that works token by token, before rescaling, to `into` [T, N, I].

    `R` is [T, N, O], `total` [T, O] is sum_i z_ji; for some tokens and outputs, `positive(tokens, outputs)` gives
    z+ [T', O', I], and `weighted(r, tokens)` the sum over j of r_j z_ji. The two are enough: z- = z - z+.
    Returns the L1 norms of R, [T, N, 1].
    """
    norms, inputs = l1_norm(R, -1), into.size(-1)
    explained = _explained(norms)
    for_all = _coefficients(total, 0 * total, rule)[1]  # the factors of z; with alpha and beta, those of z-, set below
    for tokens in _slices(len(R), CHUNK // (total.size(-1) * inputs)) if rule.alpha is not None else ():
        n = explained(tokens)
        for outputs in _slices(total.size(-1), CHUNK // inputs):
            z = positive(tokens, outputs)
            up = z.sum(-1)
            down = (total[tokens, outputs] - up).clamp_(max=0)
            for_positive, for_negative = _coefficients(up, down, rule)
            into[tokens, n].baddbmm_(R[tokens, n, outputs] * (for_positive - for_negative)[:, None], z)
            for_all[tokens, outputs] = for_negative
            del z
    for tokens in _slices(len(R), GROUP):
        n = explained(tokens)
        into[tokens, n] += weighted(R[tokens, n] * for_all[tokens, None], tokens)
    return norms


def _slices(length: int, step: int) -> Iterator[slice]:
    """Cut `length` into slices of `step`, at least 1."""
    step = max(1, step)
    return (slice(first, min(first + step, length)) for first in range(0, length, step))


def _explained(norms: Tensor) -> Callable[[slice], slice]:
    """Return which explained positions have relevance at some tokens, from its L1 norms [T, N, 1].

    In a decoder, a token has relevance for itself and later positions only: the first that has some starts the slice.
    """
    positions = norms.size(1)
    empty = (norms[..., 0] != 0).int().cummax(1).values.eq(0).sum(1).tolist()  # before the first, for every token
    return lambda tokens: slice(min(empty[tokens]), positions)


def _coefficients(up: Tensor, down: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Return the factors of z+_ji and z-_ji, one for every output, from their sums over i."""
    if rule.alpha is None or rule.beta is None:
        total = up + down
        both = 1 / (total + torch.copysign(total.new_tensor(rule.eps), total))
        return both, both
    return rule.alpha / (up + rule.eps), rule.beta / (down - rule.eps)


def _per_output(R: Tensor, up: Tensor, down: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Return R_j times both coefficients: [H, T, N, D] from sums [H, T, D]."""
    for_positive, for_negative = _coefficients(up, down, rule)
    return R * for_positive[:, :, None], R * for_negative[:, :, None]


def _at_values(for_positive: Tensor, for_negative: Tensor, v: Tensor, weights: Tensor) -> Tensor:
    """Return the sum over t of r_td w_ts v_sd, [H, S, N, D], with the first r if v > 0 and else the second."""
    heads, length, positions, size = for_positive.shape
    back = weights.transpose(1, 2)
    sums = [(back @ r.flatten(2)).view(heads, -1, positions, size) for r in (for_positive, for_negative)]
    return torch.where((v > 0)[:, :, None], sums[0], sums[1]).mul_(v[:, :, None])


def _at_keys(r: Tensor, a: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return the sum over t and d of r_td A_tsd q_te k_se, [H, S, N, D]; r [H, T, N, D], A [H, T, S, D]."""
    to_weights = r @ a.transpose(2, 3)  # [H, T, N, S]
    back = to_weights.permute(0, 3, 2, 1).flatten(1, 2) @ q  # [H, S N, D]
    return back.unflatten(1, (k.size(1), -1)).mul_(k[:, :, None])


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def l1_norm(x: Tensor, dim: Dims) -> Tensor:
    """Return the sum of absolute values over some dimensions, -1 or a tuple, which are kept with size 1."""
    rows = max(1, CHUNK * len(x) // x.numel()) if x.numel() else 1
    # abs and sum are twice as fast as vector_norm on a CPU, but make a copy: of some rows at a time.
    sums = [part.abs().sum(dim, keepdim=True) for part in x.split(rows)]
    return _sum(sums) if isinstance(dim, tuple) and 0 in dim else torch.cat(sums)


def quotient(dividend: Tensor, divisor: Tensor) -> Tensor:
    """Return dividend / divisor, where 0 / 0 = 0."""
    return dividend / divisor.clamp(min=torch.finfo(divisor.dtype).tiny)


def _rescale(norms: Tensor, rule: Rule, *inputs: Tensor, dim: Dims, whole: bool = True) -> tuple[Tensor, ...]:
    """Rescale `inputs`, in place, to L1 norms `norms` over `dim` and then, if `whole`, over the first dimension.

    As in the original: since both have an epsilon, this is not the same as the first alone.
    """
    there = _sum(l1_norm(part, dim) for part in inputs)
    ratio = quotient(norms, there + rule.rescale_eps)
    if whole:
        ratio *= quotient(norms.sum(0), (there * ratio).sum(0) + rule.rescale_eps)
    return tuple(part.mul_(ratio) for part in inputs)
