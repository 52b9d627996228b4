"""Walk back through a model: layer-wise relevance propagation (LRP) from predictions to heads and tokens.

After Voita et al. 2019 (section 4) and Ding et al. 2017: the logit of a prediction has relevance 1, which every layer
passes to its inputs by the rules in rules.py; activation functions pass it unchanged.

Shapes: T target, S source length, N explained predictions, H heads, D head size, E model size, B sentences, L layers.
Relevance is [T, N, E]: of every number at every token, for every explained prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import layers_of, stacks_of
from fairseq_headgates.attention.cuts import head_positions
from fairseq_headgates.attention.head_attention import HeadAttention
from fairseq_headgates.scores.relevance.predictions import Predictions, Relevance, layer_states
from fairseq_headgates.scores.relevance.rules import (
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

BLOCK = 2**21  # numbers of relevance in the widest layer that are computed at a time
POSITIONS = 32  # predictions that are at least explained at a time: every time z is computed again

# Computes relevance at the input of a module (and at the memory, if it reads that) from that at its output.
Back = Callable[[Tensor], tuple[Tensor, ...]]
Branch = Callable[[Tensor], tuple[Tensor, Back | None]]  # the output, and the function back: None for a constant


def propagate(model: Any, predictions: Predictions, rule: Rule) -> Relevance:
    """Return the relevance of heads and tokens for the logits of predictions; see `explain`."""
    states = layer_states(model, predictions.net_input)
    readout = predictions.readout(model)
    result = predictions.empty(model, next(iter(states.values()))[-1])
    fill = _explain_sentence if predictions.head is None else _explain_class
    for row in range(len(predictions.predicted)):
        weight, bias = (None if part is None else part[row] for part in readout)
        fill(model, predictions, (cast("Tensor", weight), bias), states, result, row, rule)
    return result


def _explain_sentence(
    model: Any,
    predictions: Predictions,
    readout: tuple[Tensor, Tensor | None],
    states: dict[str, list[Tensor]],
    result: Relevance,
    row: int,
    rule: Rule,
) -> None:
    """Fill in one row of the result, of a model with a decoder."""
    words, targets = predictions.places(row)
    weight, bias = readout
    encoder = [x[words, row] for x in states.get("encoder", ())]
    decoder = [x[targets, row] for x in states["decoder"]]
    widest = max(layer.fc1.out_features for layer in layers_of(model))
    step = max(POSITIONS, BLOCK // (widest * max(len(words), len(targets))))
    positions = predictions.real[row, targets].nonzero()[:, 0].tolist()
    for first in range(positions[0], positions[-1] + 1, step) if positions else ():
        last = min(first + step, positions[-1] + 1)
        explained = targets[first:last]
        heads = {attention_type: values[row, explained] for attention_type, values in result.heads.items()}
        walk = _Walk(rule, _normed(model.encoder.layer_norm, encoder[-1]) if encoder else None, heads)
        # A position does not depend on later ones.
        R, sign = _from_logits(
            model.decoder,
            decoder[-1][:last],
            weight[explained],
            bias if bias is None else bias[explained],
            rule,
        )
        R = walk.layers(R, model.decoder.layers, [x[:last] for x in decoder])
        result.target[row, explained[:, None], targets[:last]] = R.sum(-1).t() * sign
        conserved = l1_norm(R, (0, 2))
        if walk.at_memory is not None:
            R = walk.layers(walk.leave_memory(model.encoder.layer_norm, encoder[-1]), model.encoder.layers, encoder)
            result.source[row, explained[:, None], words] = R.sum(-1).t() * sign
            conserved = conserved + l1_norm(R, (0, 2))
        result.conserved[row, explained] = conserved.view(-1)
        for attention_type, values in heads.items():
            result.heads[attention_type][row, explained] = values


def _explain_class(
    model: Any,
    predictions: Predictions,
    readout: tuple[Tensor, Tensor | None],
    states: dict[str, list[Tensor]],
    result: Relevance,
    row: int,
    rule: Rule,
) -> None:
    """Fill in one row of the result, of an encoder with a classification head."""
    words, _ = predictions.places(row)
    stack, classifier = stacks_of(model)["encoder"], model.classification_heads[cast("str", predictions.head)]
    encoder = [x[words, row] for x in states["encoder"]]
    first = _normed(stack.layer_norm, encoder[-1])[:1]
    hidden = classifier.activation_fn(classifier.dense(first))
    weight, bias = readout
    R = linear(hidden.new_ones(1, 1, 1), hidden, weight, bias, rule)
    sign = _signs(F.linear(hidden, weight, bias), rule)
    R = linear(R, first, classifier.dense.weight, classifier.dense.bias, rule)
    R = F.pad(R, (0, 0, 0, 0, 0, len(words) - 1))  # a class is predicted from the first token
    R = R if stack.layer_norm is None else layer_norm(R, encoder[-1], stack.layer_norm, rule)
    walk = _Walk(rule, None, {attention_type: values[row] for attention_type, values in result.heads.items()})
    R = walk.layers(R, stack.layers, encoder)
    result.source[row, :, words] = R.sum(-1).t() * sign
    result.conserved[row] = l1_norm(R, (0, 2)).view(-1)


def _from_logits(decoder: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """Return relevance [T, N, E] at the last decoder layer's output x [T, E], and the signs of the logits [N, 1].

    `weight` [N, E] and `bias` [N] give the logits of the last N tokens.
    """
    normed = _normed(decoder.layer_norm, x)
    project = decoder.project_out_dim
    features = normed if project is None else project(normed)
    ones = torch.diag_embed(torch.eye(len(weight), dtype=x.dtype, device=x.device))  # every token explains itself
    R = linear(F.pad(ones, (0, 0, 0, 0, len(x) - len(weight), 0)), features, weight, bias, rule)
    logits = (features[-len(weight) :] * weight).sum(-1, keepdim=True)
    sign = _signs(logits if bias is None else logits + bias[:, None], rule)
    if project is not None:
        R = linear(R, normed, project.weight, project.bias, rule)
    return (R if decoder.layer_norm is None else layer_norm(R, x, decoder.layer_norm, rule)), sign


def _signs(logits: Tensor, rule: Rule) -> Tensor:
    """Return the factor with which positive relevance of the epsilon rule raises a logit: its sign. Otherwise 1."""
    return torch.ones_like(logits) if rule.alpha is not None else logits.sign()


def _normed(norm: nn.LayerNorm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class _Walk:
    """Backward propagation through a model, for one sentence and some explained predictions.

    `memory` [S, E] is the encoder output, None without one to attend to. `heads` {type: [N, L, H]} is filled in.
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
        attention_type = "dec-self" if hasattr(layer, "encoder_attn") else "enc-self"
        yield layer.self_attn_layer_norm, partial(self._attention, layer.self_attn, attention_type, number)
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

    def _attention(
        self, module: HeadAttention, attention_type: str, number: int, x: Tensor
    ) -> tuple[Tensor, Back | None]:
        """Return attention over heads with a factor other than 0, and the function back; a constant without heads."""
        scale = module.head_scale()
        alive = list(range(module.num_heads)) if scale is None else scale.nonzero()[:, 0].tolist()
        if not alive:
            return module.out_proj.bias.expand_as(x), None
        rows = _rows(module, alive)
        memory = self.memory if attention_type == "dec-enc" else x
        inputs = {"q": x, "k": memory, "v": memory}
        q, k, v = (_heads(F.linear(inputs[name], *_part(module, name, rows)), module.head_dim) for name in inputs)
        scores = module.scaling * q @ k.transpose(1, 2)
        if attention_type == "dec-self":
            future = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        weights = scores.softmax(-1)
        merged = (weights @ v).transpose(0, 1)
        merged = (merged if scale is None else merged * scale[alive, None]).flatten(1)
        kept, out_weight = [module.kept[i] for i in alive], module.out_proj.weight[:, rows]

        def back(R: Tensor) -> tuple[Tensor, ...]:
            R = linear(R, merged, out_weight, module.out_proj.bias, self.rule)
            R = R.unflatten(-1, (len(alive), -1)).permute(2, 0, 1, 3).contiguous()
            self.heads[attention_type][:, number, kept] = l1_norm(R, (1, 3))[:, 0, :, 0].t()
            parts = dict(zip("qkv", attention(R, q, k, v, weights, module.scaling, self.rule), strict=True))
            del R

            def into(names: str) -> Tensor:
                """Propagate through these projections, which have the same input."""
                layers = [(parts.pop(n).permute(1, 2, 0, 3).flatten(2), *_part(module, n, rows)) for n in names]
                return linears(layers, inputs[names[0]], self.rule)

            return (into("q"), into("kv")) if attention_type == "dec-enc" else (into("qkv"),)

        return F.linear(merged, out_weight, module.out_proj.bias), back

    def leave_memory(self, norm: nn.LayerNorm | None, x: Tensor) -> Tensor:
        """Return relevance [S, N, E] at the last encoder layer's output x [S, E], and keep none at the memory."""
        R, norm_before = cast("tuple[Tensor, Tensor]", (self.at_memory, self.memory_norm))
        self.at_memory = self.memory_norm = None
        R.mul_(quotient(norm_before, l1_norm(R, (0, 2))))
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
    return head_positions(heads, module.head_dim).to(module.out_proj.weight.device)


def _part(module: HeadAttention, name: str, rows: Tensor | slice) -> tuple[Tensor, Tensor | None]:
    """Return rows of the weight and the bias of the query, key or value projection."""
    projection = getattr(module, f"{name}_proj")
    return projection.weight[rows], projection.bias[rows]
