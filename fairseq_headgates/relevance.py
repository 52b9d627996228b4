"""Layer-wise relevance propagation: how much heads and tokens have contributed to a prediction.

After Voita et al. 2019 (section 4.2 and appendix A) and Ding et al. 2017: the top-1 logit of a target position has
relevance 1, which every layer hands down to its inputs. For an output j of a layer f and all its inputs i, let

    z_ji = J_ji x_i + f(0)_j / n
    R_i = sum_j R_j [alpha z+_ji / (sum_i z+_ji + eps) + beta z-_ji / (sum_i z-_ji - eps)]

with the Jacobian J, the number n of inputs, and the positive and negative parts z+ and z-; then the inputs are rescaled
to the L1 norm of the outputs. Positive relevance so stays positive. Activation functions hand on what they get.

No Jacobian of a whole layer is formed: linear layers and LayerNorm go token by token, and the Jacobian of attention
factorises. Shapes: T target, S source length (or any), N explained target positions, H heads, D head size, E, I, O
sizes of vectors, B sentences, L layers. Relevance is [T, N, E]: of every number at every token, for every explained
position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayer,
    TransformerDecoderLayerBase,
    TransformerEncoderLayer,
    TransformerEncoderLayerBase,
)
from torch import Tensor, nn

from fairseq_headgates.attention import HeadAttention
from fairseq_headgates.sites import head_counts, use_head_attention

CHUNK = 2**18  # numbers of z formed at a time: what stays in the cache of one core
BLOCK = 2**24  # numbers of relevance at a time, at the widest place; more positions are explained in turns


# The way back through something: relevance at its input (and at the memory, if it reads that), from that at its output.
Back = Callable[[Tensor], tuple[Tensor, ...]]
Branch = Callable[[Tensor], tuple[Tensor, Back | None]]  # its output, and the way back: None through a constant

ENCODER_LAYERS = (TransformerEncoderLayer, TransformerEncoderLayerBase)
DECODER_LAYERS = (TransformerDecoderLayer, TransformerDecoderLayerBase)
EXTRAS = {  # what decoder layers may have besides
    "attn_ln": "a LayerNorm after attention (--scale-attn)",
    "c_attn": "scaled heads (--scale-heads)",
    "ffn_layernorm": "a LayerNorm within the feed-forward layer (--scale-fc)",
    "w_resid": "scaled residuals (--scale-resids)",
}


@dataclass(frozen=True)
class Rule:
    """How relevance is divided among inputs.

    `alpha` and `beta` weigh positive and negative contributions; None for both is the epsilon rule
    R_i = sum_j R_j z_ji / (z_j + eps sign(z_j)) with z_j = sum_i z_ji (Bach et al. 2015, eq. 58). `eps` keeps
    denominators away from 0, `rescale_eps` those of the rescaling. With `constant_attention` the attention weights are
    constants: queries and keys get nothing.
    """

    alpha: float | None = 0.5
    beta: float | None = 0.5
    eps: float = 1e-5
    rescale_eps: float = 1e-5
    constant_attention: bool = False


RULES = {
    "story-of-heads": Rule(),  # the numbers of the paper's released code
    "attn-constant": Rule(constant_attention=True),
    "epsilon": Rule(alpha=None, beta=None),
}


@dataclass(frozen=True)
class Relevance:
    """Where the relevance of the top-1 logit of every target position came from; 0 at padding.

    `heads`: {type: [B, T, L, H]}, the sum of absolute relevance at the input of the output projection, over tokens and
    the D numbers of a head, for the H heads that the model was trained with. `source` [B, T, S] and `target` [B, T, T]:
    the sum of relevance at the input of the first layer, for explained position and token. `top` [B, T]: the token of
    the logit. `conserved` [B, T]: the sum of absolute relevance at the inputs of both first layers: 1, less what eps
    has swallowed.
    """

    heads: dict[str, Tensor]
    source: Tensor
    target: Tensor
    top: Tensor
    conserved: Tensor


def head_relevance(model: nn.Module, net_input: Mapping[str, Tensor], rule: str | Rule = "story-of-heads"):
    """{type: [B, T, L, H]} of `explain`."""
    return explain(model, net_input, rule).heads


def token_contributions(model: nn.Module, net_input: Mapping[str, Tensor], rule: str | Rule = "story-of-heads"):
    """(source [B, T, S], target [B, T, T]) of `explain`."""
    found = explain(model, net_input, rule)
    return found.source, found.target


# The rule for each kind of layer, on plain tensors


def linear(R: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, rule: Rule) -> Tensor:
    """Relevance [T, N, I] at the input x [T, I] of x W^T + b, from R [T, N, O]; weight [O, I], bias [O] or None."""
    share = weight.new_zeros(len(weight), 1) if bias is None else bias[:, None] / x.size(-1)

    def positive(tokens: slice) -> Tensor:
        return torch.addcmul(share, weight, x[tokens, None]).clamp_(min=0)

    def weighted(r: Tensor, tokens: slice) -> Tensor:
        return (r @ weight).mul_(x[tokens, None]).add_(r @ share)

    found = _divide(R, F.linear(x, weight, bias), x.size(-1), positive, weighted, rule)
    return _rescale(R, rule, found, dim=-1)[0]


def layer_norm(R: Tensor, x: Tensor, norm: nn.LayerNorm, rule: Rule) -> Tensor:
    """Relevance [T, N, E] at the input x [T, E] of a LayerNorm, from R [T, N, E].

    With y = (x - mean) / sigma: J_ji = gamma_j / sigma (delta_ji - 1/E - y_j y_i / E) and f(0) = bias.
    """
    size = x.size(-1)
    centred = x - x.mean(-1, keepdim=True)
    sigma = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    y, slope = centred / sigma, norm.weight / sigma
    share = norm.bias[:, None] / size
    left = torch.stack([slope, slope * y], dim=-1) / -size  # J = diag(slope) + left [1, y]
    right = torch.stack([x, y * x], dim=-2)

    def positive(tokens: slice) -> Tensor:
        z = torch.baddbmm(share, left[tokens], right[tokens])
        z.diagonal(dim1=-2, dim2=-1).add_(slope[tokens] * x[tokens])
        return z.clamp_(min=0)

    def weighted(r: Tensor, tokens: slice) -> Tensor:
        steep = r * slope[tokens, None]
        removed = y[tokens, None] * (steep @ y[tokens, :, None]) + steep.sum(-1, keepdim=True)
        return (steep - removed / size).mul_(x[tokens, None]).add_(r @ share)

    total = slope * (centred - y * (y * x).mean(-1, keepdim=True)) + norm.bias
    return _rescale(R, rule, _divide(R, total, size, positive, weighted, rule), dim=-1)[0]


def add(R: Tensor, a: Tensor, b: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Relevance [T, N, E] at both terms of a + b, each [T, E], from R [T, N, E]."""
    up, down = a.clamp(min=0) + b.clamp(min=0), a.clamp(max=0) + b.clamp(max=0)
    to_positive, to_negative = _coefficients(up, down, rule)
    parts = [R * (x * torch.where(x > 0, to_positive, to_negative))[:, None] for x in (a, b)]
    return _rescale(R, rule, *parts, dim=-1, whole=False)


def attention(
    R: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, scaling: float, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance [H, T, N, D], [H, S, N, D] twice, at queries [H, T, D], keys and values [H, S, D], from that of heads.

    Heads give c_td = sum_s w_ts v_sd; `R` is [H, T, N, D], `weights` w [H, T, S] are softmax(scaling q k^T). Then

        v: z = w_ts v_sd,   q: z = sum_s A_tsd B_tse,   k: z = A_tsd B_tse,

    where A_tsd = w_ts (v_sd - c_td) and B_tse = scaling q_te k_se, so that |z| = |A| |B| at the keys, and all sums are
    matrix products. Every head is rescaled on its own, over all its tokens.
    """
    context = weights @ v
    up, down = weights @ v.clamp(min=0), weights @ v.clamp(max=0)
    if rule.constant_attention:
        for_positive, for_negative = _per_output(R, up, down, rule)
        found = _at_values(for_positive, for_negative, v, weights)
        return R.new_zeros(R.shape), torch.zeros_like(found), _rescale(R, rule, found, dim=(1, 3))[0]
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
    return _rescale(R, rule, to_q, to_k, to_v, dim=(1, 3))


def merge(*parts: Tensor) -> Tensor:
    """The sum of relevance [T, N, E] that comes to the same place on several ways, with the L1 norm of all parts."""
    total = sum(parts[1:], parts[0])
    return total.mul_(_ratio(sum(_norm(part, (0, 2)) for part in parts), _norm(total, (0, 2))))


def keep_norm(R: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """`parts`, each [.., N, E], in place, with the L1 norm of R [T, N, E] together."""
    ratio = _ratio(_norm(R, (0, 2)), sum(_norm(part, (0, 2)) for part in parts))
    return tuple(part.mul_(ratio) for part in parts)


def _divide(
    R: Tensor,
    total: Tensor,
    inputs: int,
    positive: Callable[[slice], Tensor],
    weighted: Callable[[Tensor, slice], Tensor],
    rule: Rule,
) -> Tensor:
    """Relevance [T, N, I] before rescaling, from R [T, N, O], for a layer that treats every token on its own.

    `total` [T, O] is sum_i z_ji, over I = `inputs`; for some tokens, `positive(tokens)` gives z+ [T', O, I] and
    `weighted(r, tokens)` the sum over j of r_j z_ji. The two are enough: z- = z - z+.
    """
    if rule.alpha is None:
        return weighted(R * _coefficients(total, 0 * total, rule)[0][:, None], slice(None))
    parts = []
    step = max(1, CHUNK // (total.size(-1) * inputs))
    for first in range(0, len(R), step):
        tokens = slice(first, first + step)
        z = positive(tokens)
        up = z.sum(-1)
        for_positive, for_negative = _coefficients(up, (total[tokens] - up).clamp_(max=0), rule)
        r = R[tokens]
        found = weighted(r * for_negative[:, None], tokens)
        parts.append(found.baddbmm_(r * (for_positive - for_negative)[:, None], z))
    return torch.cat(parts)


def _coefficients(up: Tensor, down: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """What z+_ji and z-_ji are multiplied by, from their sums over i: as these, one number for every output."""
    if rule.alpha is None:
        total = up + down
        both = 1 / (total + rule.eps * torch.where(total < 0, -1.0, 1.0))
        return both, both
    return rule.alpha / (up + rule.eps), rule.beta / (down - rule.eps)


def _per_output(R: Tensor, up: Tensor, down: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """R_j times both coefficients: [H, T, N, D] from sums [H, T, D]."""
    for_positive, for_negative = _coefficients(up, down, rule)
    return R * for_positive[:, :, None], R * for_negative[:, :, None]


def _at_values(for_positive: Tensor, for_negative: Tensor, v: Tensor, weights: Tensor) -> Tensor:
    """[H, S, N, D]: sum over t of r_td w_ts v_sd, with the first r where v > 0 and the second where it is below."""
    heads, length, positions, size = for_positive.shape
    back = weights.transpose(1, 2)
    sums = [(back @ r.flatten(2)).view(heads, -1, positions, size) for r in (for_positive, for_negative)]
    return torch.where((v > 0)[:, :, None], *sums).mul_(v[:, :, None])


def _at_keys(r: Tensor, a: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """[H, S, N, D]: sum over t and d of r_td A_tsd q_te k_se; r [H, T, N, D], A [H, T, S, D]."""
    to_weights = r @ a.transpose(2, 3)  # [H, T, N, S]
    back = to_weights.permute(0, 3, 2, 1).flatten(1, 2) @ q  # [H, S N, D]
    return back.unflatten(1, (k.size(1), -1)).mul_(k[:, :, None])


def _norm(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    return x.abs().sum(dim, keepdim=True)  # twice as fast as vector_norm on a CPU


def _ratio(wanted: Tensor, there: Tensor) -> Tensor:
    """wanted / there, where nothing makes nothing."""
    return wanted / there.clamp(min=torch.finfo(there.dtype).tiny)


def _rescale(
    R: Tensor, rule: Rule, *inputs: Tensor, dim: int | tuple[int, ...], whole: bool = True
) -> tuple[Tensor, ...]:
    """`inputs`, in place, with the L1 norm that R has over `dim`, and then, if `whole`, over the first dimension too.

    As in the original: since both have an epsilon, this is not the same as the first alone.
    """
    wanted, there = _norm(R, dim), sum(_norm(part, dim) for part in inputs)
    ratio = _ratio(wanted, there + rule.rescale_eps)
    if whole:
        ratio *= _ratio(wanted.sum(0), (there * ratio).sum(0) + rule.rescale_eps)
    return tuple(part.mul_(ratio) for part in inputs)


# The rule for a model


@torch.no_grad()
def explain(model: nn.Module, net_input: Mapping[str, Tensor], rule: str | Rule = "story-of-heads") -> Relevance:
    """Relevance of the top-1 logit at every position of `prev_output_tokens`, as a fairseq transformer sees it.

    `net_input` has src_tokens [B, S] and prev_output_tokens [B, T], as the model takes it; the model is evaluated
    without dropout whatever its mode. Attention is swapped for `HeadAttention`, in place, which changes no output.
    Heads whose gate or mask is 0 are not there. Raises ValueError for an unknown rule and, with every reason, for a
    model that cannot be explained; RuntimeError if relevance is not finite.
    """
    rule = _rule(rule)
    _check(model)
    with _evaluating(model), _recording(model) as recorded:
        logits = model(**net_input)[0]
    sources, targets = net_input["src_tokens"], net_input["prev_output_tokens"]
    is_word, is_target = sources != model.encoder.padding_idx, targets != model.decoder.padding_idx
    top = logits.argmax(-1).masked_fill(~is_target, model.decoder.padding_idx)
    zeros = logits.new_zeros
    result = Relevance(
        heads={kind: zeros(*targets.shape, *counts) for kind, counts in head_counts(model).items()},
        source=zeros(*targets.shape, sources.size(1)),
        target=zeros(*targets.shape, targets.size(1)),
        top=top,
        conserved=zeros(targets.shape),
    )
    for i in range(len(targets)):
        _explain_sentence(model, recorded, result, i, is_word[i].nonzero()[:, 0], is_target[i].nonzero()[:, 0], rule)
    if not result.conserved.isfinite().all():
        raise RuntimeError("relevance is not finite: are there infinite or NaN weights, or is the precision too low?")
    return result


def _rule(rule: str | Rule) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}: choose from {', '.join(RULES)}")
    return RULES[rule]


def _check(model: nn.Module) -> None:
    """Raises ValueError with all reasons why relevance cannot go through a model."""
    reasons = list(dict.fromkeys(_unsupported(model)))
    if not reasons:
        try:
            use_head_attention(model)
        except ValueError as error:
            reasons = [str(error)]
    if reasons:
        raise ValueError("relevance cannot be propagated through this model: it has " + ", ".join(reasons))


def _unsupported(model: nn.Module) -> Iterator[str]:
    encoder, decoder = getattr(model, "encoder", None), getattr(model, "decoder", None)
    if not isinstance(encoder, TransformerEncoderBase) or not isinstance(decoder, TransformerDecoderBase):
        yield "no transformer encoder and decoder"
        return
    if decoder.adaptive_softmax is not None:
        yield "an adaptive softmax (--adaptive-softmax-cutoff)"
    elif not isinstance(decoder.output_projection, nn.Linear):
        yield f"an output projection of class {type(decoder.output_projection).__name__}"
    if decoder.cross_self_attention:
        yield "self-attention over encoder states (--cross-self-attention)"
    for layer, known in [(x, ENCODER_LAYERS) for x in encoder.layers] + [(x, DECODER_LAYERS) for x in decoder.layers]:
        if type(layer) not in known:
            yield f"a layer of class {type(layer).__name__}"
            continue
        if getattr(layer, "encoder_attn", layer) is None:
            yield "decoder layers without encoder attention (--no-cross-attention)"
        if getattr(layer, "quant_noise", 0):
            yield "quantisation noise (--quant-noise-pq)"
        yield from (why for name, why in EXTRAS.items() if getattr(layer, name, None) is not None)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Within the context, no module is in training mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _recording(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Gives what goes into every layer and what comes out of the last, each [T, B, E], as {"encoder": [...], ...}."""
    states: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}

    def remember(side: str, last: bool, args: tuple, output: Any) -> None:
        states[side].append(args[0])
        if last:
            states[side].append(output if isinstance(output, Tensor) else output[0])

    handles = []
    for side in states:
        layers = list(getattr(model, side).layers)
        for i, layer in enumerate(layers):
            call = partial(remember, side, i + 1 == len(layers))
            handles.append(layer.register_forward_hook(lambda _, args, output, call=call: call(args, output)))
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _explain_sentence(
    model: nn.Module,
    states: dict[str, list[Tensor]],
    result: Relevance,
    row: int,
    words: Tensor,
    targets: Tensor,
    rule: Rule,
) -> None:
    """Fills in one row of the result; `words` [S'] and `targets` [T'] are the positions that are not padding."""
    encoder = [x[words, row] for x in states["encoder"]]
    decoder = [x[targets, row] for x in states["decoder"]]
    widest = max(layer.fc1.out_features for side in (model.encoder, model.decoder) for layer in side.layers)
    step = max(1, BLOCK // (widest * max(len(words), len(targets))))
    for first in range(0, len(targets), step):
        last = min(first + step, len(targets))
        explained = targets[first:last]
        heads = {kind: values[row, explained] for kind, values in result.heads.items()}
        walk = _Walk(rule, _normed(model.encoder.layer_norm, encoder[-1]), heads)
        # No position sees those after it.
        R = _from_logits(model.decoder, decoder[-1][:last], result.top[row, explained], rule)
        R = walk.layers(R, model.decoder.layers, [x[:last] for x in decoder])
        result.target[row, explained[:, None], targets[:last]] = R.sum(-1).t()
        conserved = _norm(R, (0, 2))
        if walk.at_memory is not None:
            R = walk.at_memory * _ratio(walk.memory_norm, _norm(walk.at_memory, (0, 2)))
            R = R if model.encoder.layer_norm is None else layer_norm(R, encoder[-1], model.encoder.layer_norm, rule)
            R = walk.layers(R, model.encoder.layers, encoder)
            result.source[row, explained[:, None], words] = R.sum(-1).t()
            conserved = conserved + _norm(R, (0, 2))
        result.conserved[row, explained] = conserved.view(-1)
        for kind, values in heads.items():
            result.heads[kind][row, explained] = values


def _from_logits(decoder: nn.Module, x: Tensor, top: Tensor, rule: Rule) -> Tensor:
    """Relevance [T, N, E] of the logits `top` of the last N tokens, at x [T, E], what the last decoder layer gives."""
    normed = _normed(decoder.layer_norm, x)
    project, output = decoder.project_out_dim, decoder.output_projection
    features = normed if project is None else project(normed)
    first = len(x) - len(top)
    bias = None if output.bias is None else output.bias[top]
    R = features.new_zeros(len(x), len(top), features.size(-1))
    of_last = R[first:].diagonal(dim1=0, dim2=1)  # every token explains itself
    of_last.copy_(_at_logits(features[first:], output.weight[top], bias, rule).t())
    if project is not None:
        R = linear(R, normed, project.weight, project.bias, rule)
    return R if decoder.layer_norm is None else layer_norm(R, x, decoder.layer_norm, rule)


def _at_logits(x: Tensor, weight: Tensor, bias: Tensor | None, rule: Rule) -> Tensor:
    """Relevance [N, I] at x [N, I], of one output for each: that of the row of `weight` [N, I] and `bias` [N]."""
    z = weight * x if bias is None else weight * x + bias[:, None] / x.size(-1)
    sums = z.clamp(min=0).sum(-1, keepdim=True), z.clamp(max=0).sum(-1, keepdim=True)
    found = z * torch.where(z > 0, *_coefficients(*sums, rule))
    return _rescale(z.new_ones(1, len(z), 1), rule, found[None], dim=-1)[0][0]


def _normed(norm: nn.LayerNorm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class _Walk:
    """One way back through a model, for one sentence and some explained positions.

    `memory` [S, E] is what encoder attention reads. `heads` {type: [N, L, H]} is filled in. `at_memory` [S, N, E] is
    the sum of the relevance that has come to the memory, `memory_norm` [1, N, 1] that of its L1 norms.
    """

    def __init__(self, rule: Rule, memory: Tensor, heads: dict[str, Tensor]):
        self.rule, self.memory, self.heads = rule, memory, heads
        self.at_memory: Tensor | None = None
        self.memory_norm: Tensor | None = None

    def layers(self, R: Tensor, layers: nn.ModuleList, states: list[Tensor]) -> Tensor:
        """Relevance [T, N, E] at the input of the first layer, from that at the output of the last."""
        for number in reversed(range(len(layers))):
            x, backs = states[number], []
            for norm, branch in self._branches(layers[number], number):
                x, back = self._residual(x, norm, layers[number].normalize_before, branch)
                backs.append(back)
            while backs:  # what a way back needs goes with it
                R = backs.pop()(R)
        return R

    def _branches(self, layer: nn.Module, number: int) -> Iterator[tuple[nn.LayerNorm, Branch]]:
        encoder_attention = getattr(layer, "encoder_attn", None)
        kind = "enc-self" if encoder_attention is None else "dec-self"
        yield layer.self_attn_layer_norm, partial(self._attention, layer.self_attn, kind, number)
        if encoder_attention is not None:
            yield layer.encoder_attn_layer_norm, partial(self._attention, encoder_attention, "dec-enc", number)
        yield layer.final_layer_norm, partial(self._feed_forward, layer)

    def _residual(self, x: Tensor, norm: nn.LayerNorm, norm_first: bool, branch: Branch):
        """x + branch(norm(x)), or norm(x + branch(x)), and the way back."""
        y, back_through_branch = branch(norm(x) if norm_first else x)
        total = x + y

        def back(R: Tensor) -> Tensor:
            if not norm_first:
                R = layer_norm(R, total, norm, self.rule)
            if back_through_branch is None:
                return R
            at_x, at_y = add(R, x, y, self.rule)
            at_y, *at_memory = back_through_branch(at_y)
            at_x = merge(at_x, layer_norm(at_y, x, norm, self.rule) if norm_first else at_y)
            if at_memory:
                at_x, *at_memory = keep_norm(R, at_x, *at_memory)
                self._to_memory(*at_memory)
            return at_x

        return total if norm_first else norm(total), back

    def _feed_forward(self, layer: nn.Module, x: Tensor) -> tuple[Tensor, Back]:
        hidden = layer.activation_fn(layer.fc1(x))

        def back(R: Tensor) -> tuple[Tensor]:
            R = linear(R, hidden, layer.fc2.weight, layer.fc2.bias, self.rule)
            return (linear(R, x, layer.fc1.weight, layer.fc1.bias, self.rule),)

        return layer.fc2(hidden), back

    def _attention(self, module: HeadAttention, kind: str, number: int, x: Tensor) -> tuple[Tensor, Back | None]:
        """Only heads that are there and whose gate is not 0: without any, the layer is a constant."""
        scale = module.head_scale()
        alive = list(range(module.num_heads)) if scale is None else scale.nonzero()[:, 0].tolist()
        if not alive:
            return module.out_proj.bias.expand_as(x), None
        rows = (torch.tensor(alive)[:, None] * module.head_dim + torch.arange(module.head_dim)).view(-1).to(x.device)
        memory = self.memory if kind == "dec-enc" else x
        into_q, into_kv = _joined(rows, module.q_proj), _joined(rows, module.k_proj, module.v_proj)
        q, k, v = (
            y.unflatten(-1, (len(alive), -1)).transpose(0, 1)
            for y in (F.linear(x, *into_q), *F.linear(memory, *into_kv).chunk(2, dim=-1))
        )
        scores = module.scaling * q @ k.transpose(1, 2)
        if kind == "dec-self":
            future = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        weights = scores.softmax(-1)
        merged = (weights @ v).transpose(0, 1)
        merged = (merged if scale is None else merged * scale[alive, None]).flatten(1)
        out = module.out_proj.weight[:, rows], module.out_proj.bias
        kept = [module.kept[i] for i in alive]

        def back(R: Tensor) -> tuple[Tensor, ...]:
            R = linear(R, merged, *out, self.rule)
            R = R.unflatten(-1, (len(alive), -1)).permute(2, 0, 1, 3).contiguous()
            self.heads[kind][:, number, kept] = _norm(R, (1, 3))[:, 0, :, 0].t()
            at_q, at_k, at_v = attention(R, q, k, v, weights, module.scaling, self.rule)
            if kind != "dec-enc":
                joined = [torch.cat(pair) for pair in zip(into_q, into_kv, strict=True)]
                return (linear(_side_by_side(at_q, at_k, at_v), x, *joined, self.rule),)
            at_memory = linear(_side_by_side(at_k, at_v), memory, *into_kv, self.rule)
            return linear(_side_by_side(at_q), x, *into_q, self.rule), at_memory

        return F.linear(merged, *out), back

    def _to_memory(self, R: Tensor) -> None:
        norm = _norm(R, (0, 2))
        self.memory_norm = norm if self.memory_norm is None else self.memory_norm + norm
        self.at_memory = R if self.at_memory is None else self.at_memory.add_(R)


def _joined(rows: Tensor, *projections: nn.Linear) -> tuple[Tensor, Tensor]:
    """Rows of several projections as one: weight and bias."""
    return torch.cat([p.weight[rows] for p in projections]), torch.cat([p.bias[rows] for p in projections])


def _side_by_side(*parts: Tensor) -> Tensor:
    """[H, T, N, D] of several -> [T, N, .. H D], as `_joined` has its rows."""
    return torch.cat([part.permute(1, 2, 0, 3).flatten(2) for part in parts], dim=-1)
