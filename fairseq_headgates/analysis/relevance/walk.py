"""Layer-wise relevance propagation (LRP): the contribution of heads and tokens to a prediction.

After Voita et al. 2019 (section 4) and Ding et al. 2017: the top-1 logit of a target position has relevance 1, which
every layer passes to its inputs by the rules in rules.py; activation functions pass it unchanged.

Shapes: T target, S source length, N explained target positions, H heads, D head size, E model size, B sentences,
L layers. Relevance is [T, N, E]: of every number at every token, for every explained position.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_headgates.analysis.relevance.rules import (
    RULES,
    Rule,
    add,
    attention,
    keep_norm,
    l1_norm,
    layer_norm,
    linear,
    linears,
    merge,
    quotient,
)
from fairseq_headgates.messages import shown
from fairseq_headgates.modules import HeadAttention
from fairseq_headgates.surgery import evaluating, head_counts, stacks_of, use_head_attention
from fairseq_headgates.surgery.features import model_features, unsupported

logger = logging.getLogger(__name__)

BLOCK = 2**21  # numbers of relevance in the widest layer that are computed at a time
POSITIONS = 32  # target positions that are at least explained at a time: every time z is computed again
TOLERANCE = 0.1  # share of relevance that may be lost without a warning; with the eps of RULES it is about 0.01

# Computes relevance at the input of a module (and at the memory, if it reads that) from that at its output.
Back = Callable[[Tensor], tuple[Tensor, ...]]
Branch = Callable[[Tensor], tuple[Tensor, Back | None]]  # the output, and the function back: None for a constant

# Features of a model that relevance can be propagated through; see surgery/features.py.
SUPPORTED = (
    "gates",
    "fixed-heads",
    "no-encoder",
    "no-positions",
    "adaptive-input",
    "character-input",
    "decoder-dims",
    "lang-tok",
)


@dataclass(frozen=True)
class Relevance:
    """Relevance of heads and tokens for the top-1 logit of every target position; 0 at padding.

    Attributes:
        heads: {type: [B, T, L, H]}, the sum of absolute relevance at the input of the output projection, over tokens
            and the D numbers of a head, for the H heads that the model was trained with
        source: [B, T, S], the sum of relevance at the input of the first encoder layer, by explained position and
            token; S is 0 for a language model
        target: [B, T, T], the same for the decoder
        top: [B, T], the token of the logit
        conserved: [B, T], the sum of absolute relevance at the inputs of the first layers of encoder and decoder: 1
            minus the share lost to eps
    """

    heads: dict[str, Tensor]
    source: Tensor
    target: Tensor
    top: Tensor
    conserved: Tensor


class NotFiniteError(RuntimeError, ValueError):
    """Relevance is infinite or NaN. It is also a ValueError, which the commands report in one line."""


def head_relevance(
    model: nn.Module, net_input: Mapping[str, Tensor], rule: str | Rule = "story-of-heads"
) -> dict[str, Tensor]:
    """Return the relevance of every head for the top-1 logit: {type: [B, T, L, H]}; see `explain`."""
    return explain(model, net_input, rule).heads


def token_contributions(
    model: nn.Module, net_input: Mapping[str, Tensor], rule: str | Rule = "story-of-heads"
) -> tuple[Tensor, Tensor]:
    """Return the relevance of source [B, T, S] and target tokens [B, T, T] for the top-1 logit; see `explain`."""
    found = explain(model, net_input, rule)
    return found.source, found.target


@torch.no_grad()
def explain(model: Any, net_input: Mapping[str, Tensor], rule: str | Rule = "story-of-heads") -> Relevance:
    """Explain the top-1 logit of every target position by layer-wise relevance propagation to heads and tokens.

    Args:
        model: a fairseq transformer, encoder-decoder or language model, evaluated without dropout; its attention
            modules become `HeadAttention`. Heads whose gate or mask is 0 have no relevance.
        net_input: the input of the model: src_tokens [B, S] and prev_output_tokens [B, T], or src_tokens [B, T] of a
            language model
        rule: a name in `RULES`, or a `Rule`

    Raises:
        ValueError: for an unknown rule or, with every reason, for a model that is not supported
        RuntimeError: if relevance is not finite
    """
    rule = _rule(rule)
    _check(model)
    pad, tokens = model.decoder.padding_idx, net_input["src_tokens"]
    targets = net_input.get("prev_output_tokens", tokens)
    sources = tokens if "encoder" in stacks_of(model) else tokens[:, :0]
    is_word, is_target = sources != pad, targets != pad
    with evaluating(model):
        with _recording(model) as states:
            top = model(**net_input)[0].argmax(-1)
        new_zeros = states["decoder"][-1].new_zeros
        result = Relevance(
            heads={kind: new_zeros(*targets.shape, *size) for kind, size in head_counts(model).items()},
            source=new_zeros(*targets.shape, sources.size(1)),
            target=new_zeros(*targets.shape, targets.size(1)),
            top=top.masked_fill(~is_target, pad),
            conserved=new_zeros(targets.shape),
        )
        for row in range(len(targets)):
            words, places = is_word[row].nonzero()[:, 0], is_target[row].nonzero()[:, 0]
            _explain_sentence(model, states, result, row, words, places, rule)
    lost = (result.conserved - 1)[is_target].abs().amax().item() if is_target.any() else 0.0
    if not math.isfinite(lost):
        raise NotFiniteError("relevance is not finite: check the weights for inf and NaN, or leave out --fp16")
    if lost > TOLERANCE:
        logger.warning(
            "up to %.0f %% of the relevance of a logit is lost in rescaling: use a `Rule` with a rescale_eps below %g",
            100 * lost,
            rule.rescale_eps,
        )
    return result


def _rule(rule: str | Rule) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if rule not in RULES:
        raise ValueError(f"unknown rule {shown(rule)}: choose from {', '.join(RULES)}")
    return RULES[rule]


def _check(model: Any) -> None:
    """Raise ValueError, with every reason, if relevance cannot be propagated through a model."""
    features = model_features(model)
    reasons = unsupported(features, SUPPORTED)
    if not any(name.startswith("class ") or name == "no-decoder" for name in features):
        output = model.decoder.output_projection if model.decoder.adaptive_softmax is None else None
        if output is not None and not isinstance(output, nn.Linear):
            reasons.append(f"an output projection of class {type(output).__name__}")
    if reasons:
        raise ValueError(
            "relevance cannot be propagated through this model: it has "
            + ", ".join(reasons)
            + "; choose another method"
        )
    use_head_attention(model)


@contextmanager
def _recording(model: Any) -> Iterator[dict[str, list[Tensor]]]:
    """Within the context, record the inputs of all layers and the output of the last: {side: [T, B, E] each}."""
    states: dict[str, list[Tensor]] = {side: [] for side in stacks_of(model)}
    handles = []
    for side, seen in states.items():
        layers = list(getattr(model, side).layers)
        handles += [x.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0])) for x in layers]
        handles.append(layers[-1].register_forward_hook(lambda _, args, out, seen=seen: seen.append(_first(out))))
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _first(output: Tensor | tuple) -> Tensor:
    """Return the output of a layer; decoder layers return a tuple."""
    return output if isinstance(output, Tensor) else output[0]


def _explain_sentence(
    model: Any,
    states: dict[str, list[Tensor]],
    result: Relevance,
    row: int,
    words: Tensor,
    targets: Tensor,
    rule: Rule,
) -> None:
    """Fill in one row of the result; `words` [S'] and `targets` [T'] are the positions without padding."""
    encoder = [x[words, row] for x in states.get("encoder", ())]
    decoder = [x[targets, row] for x in states["decoder"]]
    widest = max(layer.fc1.out_features for side in states for layer in getattr(model, side).layers)
    step = max(POSITIONS, BLOCK // (widest * max(len(words), len(targets))))
    for first in range(0, len(targets), step):
        last = min(first + step, len(targets))
        explained = targets[first:last]
        heads = {kind: values[row, explained] for kind, values in result.heads.items()}
        walk = _Walk(rule, _normed(model.encoder.layer_norm, encoder[-1]) if encoder else None, heads)
        # A position does not depend on later ones.
        R = walk.layers(
            _from_logits(model.decoder, decoder[-1][:last], result.top[row, explained], rule),
            model.decoder.layers,
            [x[:last] for x in decoder],
        )
        result.target[row, explained[:, None], targets[:last]] = R.sum(-1).t()
        conserved = l1_norm(R, (0, 2))
        if walk.at_memory is not None:
            R = walk.layers(walk.leave_memory(model.encoder.layer_norm, encoder[-1]), model.encoder.layers, encoder)
            result.source[row, explained[:, None], words] = R.sum(-1).t()
            conserved = conserved + l1_norm(R, (0, 2))
        result.conserved[row, explained] = conserved.view(-1)
        for kind, values in heads.items():
            result.heads[kind][row, explained] = values


def _from_logits(decoder: Any, x: Tensor, top: Tensor, rule: Rule) -> Tensor:
    """Return relevance [T, N, E] at the last decoder layer's output x [T, E], from logits `top` of N tokens."""
    normed = _normed(decoder.layer_norm, x)
    project, output = decoder.project_out_dim, decoder.output_projection
    features = normed if project is None else project(normed)
    bias = None if output.bias is None else output.bias[top]
    ones = torch.diag_embed(torch.eye(len(top), dtype=x.dtype, device=x.device))  # every token explains itself
    R = linear(F.pad(ones, (0, 0, 0, 0, len(x) - len(top), 0)), features, output.weight[top], bias, rule)
    if project is not None:
        R = linear(R, normed, project.weight, project.bias, rule)
    return R if decoder.layer_norm is None else layer_norm(R, x, decoder.layer_norm, rule)


def _normed(norm: nn.LayerNorm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class _Walk:
    """Backward propagation through a model, for one sentence and some explained positions.

    `memory` [S, E] is the encoder output, None for a language model. `heads` {type: [N, L, H]} is filled in.
    `at_memory` [S, N, E] is the sum of the relevance at the memory, `memory_norm` [1, N, 1] the sum of its L1 norms.
    """

    def __init__(self, rule: Rule, memory: Any, heads: dict[str, Tensor]):
        self.rule, self.memory, self.heads = rule, memory, heads
        self.at_memory: Tensor | None = None
        self.memory_norm: Tensor | None = None

    def layers(self, R: Tensor, layers: Any, states: list[Tensor]) -> Tensor:
        """Return relevance [T, N, E] at the input of the first layer, from that at the output of the last."""
        flow = [R]  # only the step that works on it holds it, so that it can free it
        del R
        for number in reversed(range(len(layers))):
            x, backs = states[number], []
            for norm, branch in self._branches(layers[number], number):
                x, back = self._residual(x, norm, layers[number].normalize_before, branch)
                backs.append(back)
            while backs:  # each frees its tensors
                flow.append(backs.pop()(flow.pop()))
        return flow.pop()

    def _branches(self, layer: Any, number: int) -> Iterator[tuple[nn.LayerNorm, Branch]]:
        encoder_attention = getattr(layer, "encoder_attn", None)  # a language model's is None, an encoder has none
        kind = "dec-self" if hasattr(layer, "encoder_attn") else "enc-self"
        yield layer.self_attn_layer_norm, partial(self._attention, layer.self_attn, kind, number)
        if encoder_attention is not None:
            yield layer.encoder_attn_layer_norm, partial(self._attention, encoder_attention, "dec-enc", number)
        yield layer.final_layer_norm, partial(self._feed_forward, layer)

    def _residual(
        self, x: Tensor, norm: nn.LayerNorm, norm_first: bool, branch: Branch
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return x + branch(norm(x)), or norm(x + branch(x)), and the function back."""
        y, back_through_branch = branch(norm(x) if norm_first else x)
        total = x + y

        def back(R: Tensor) -> Tensor:
            if not norm_first:
                R = layer_norm(R, total, norm, self.rule)
            if back_through_branch is None:
                return R
            before = l1_norm(R, (0, 2))
            at_x, *of_branch = add(R, x, y, self.rule)
            del R
            at_y, *at_memory = back_through_branch(of_branch.pop())  # which frees it
            at_x = merge(at_x, layer_norm(at_y, x, norm, self.rule) if norm_first else at_y)
            if at_memory:
                at_x, *at_memory = keep_norm(before, at_x, *at_memory)
                self._to_memory(*at_memory)
            return at_x

        return total if norm_first else norm(total), back

    def _feed_forward(self, layer: Any, x: Tensor) -> tuple[Tensor, Back]:
        hidden = layer.activation_fn(layer.fc1(x))

        def back(R: Tensor) -> tuple[Tensor]:
            R = linear(R, hidden, layer.fc2.weight, layer.fc2.bias, self.rule)
            return (linear(R, x, layer.fc1.weight, layer.fc1.bias, self.rule),)

        return layer.fc2(hidden), back

    def _attention(self, module: HeadAttention, kind: str, number: int, x: Tensor) -> tuple[Tensor, Back | None]:
        """Return attention over heads with a factor other than 0, and the function back; a constant without heads."""
        scale = module.head_scale()
        alive = list(range(module.num_heads)) if scale is None else scale.nonzero()[:, 0].tolist()
        if not alive:
            return module.out_proj.bias.expand_as(x), None
        rows = _rows(module, alive)
        memory = self.memory if kind == "dec-enc" else x
        inputs = {"q": x, "k": memory, "v": memory}
        q, k, v = (_heads(F.linear(inputs[name], *_part(module, name, rows)), module.head_dim) for name in inputs)
        scores = module.scaling * q @ k.transpose(1, 2)
        if kind == "dec-self":
            future = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        weights = scores.softmax(-1)
        merged = (weights @ v).transpose(0, 1)
        merged = (merged if scale is None else merged * scale[alive, None]).flatten(1)
        kept, out_weight = [module.kept[i] for i in alive], module.out_proj.weight[:, rows]

        def back(R: Tensor) -> tuple[Tensor, ...]:
            R = linear(R, merged, out_weight, module.out_proj.bias, self.rule)
            R = R.unflatten(-1, (len(alive), -1)).permute(2, 0, 1, 3).contiguous()
            self.heads[kind][:, number, kept] = l1_norm(R, (1, 3))[:, 0, :, 0].t()
            parts = dict(zip("qkv", attention(R, q, k, v, weights, module.scaling, self.rule), strict=True))
            del R

            def into(names: str) -> Tensor:
                """Propagate through these projections, which have the same input."""
                layers = [(parts.pop(n).permute(1, 2, 0, 3).flatten(2), *_part(module, n, rows)) for n in names]
                return linears(layers, inputs[names[0]], self.rule)

            return (into("q"), into("kv")) if kind == "dec-enc" else (into("qkv"),)

        return F.linear(merged, out_weight, module.out_proj.bias), back

    def leave_memory(self, norm: nn.LayerNorm | None, x: Tensor) -> Tensor:
        """Return relevance [S, N, E] at the last encoder layer's output x [S, E], and keep none at the memory."""
        R, wanted = cast("tuple[Tensor, Tensor]", (self.at_memory, self.memory_norm))
        self.at_memory = self.memory_norm = None
        R.mul_(quotient(wanted, l1_norm(R, (0, 2))))
        return R if norm is None else layer_norm(R, x, norm, self.rule)

    def _to_memory(self, R: Tensor) -> None:
        norm = l1_norm(R, (0, 2))
        self.memory_norm = norm if self.memory_norm is None else self.memory_norm + norm
        self.at_memory = R if self.at_memory is None else self.at_memory.add_(R)


def _heads(x: Tensor, size: int) -> Tensor:
    """Split heads: [T, H D] -> [H, T, D]."""
    return x.unflatten(-1, (-1, size)).transpose(0, 1)


def _rows(module: HeadAttention, heads: list[int]) -> Tensor | slice:
    """Return the rows of heads in a projection; for all of them a slice, which copies nothing."""
    if len(heads) == module.num_heads:
        return slice(None)
    first = module.head_dim * torch.tensor(heads, device=module.out_proj.weight.device)
    return (first[:, None] + torch.arange(module.head_dim, device=first.device)).view(-1)


def _part(module: HeadAttention, name: str, rows: Tensor | slice) -> tuple[Tensor, Tensor | None]:
    """Return rows of the weight and the bias of the query, key or value projection."""
    projection = getattr(module, f"{name}_proj")
    return projection.weight[rows], projection.bias[rows]
