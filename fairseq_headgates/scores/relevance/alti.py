"""ALTI+ (Ferrando et al. 2022): how much each input token contributes to the output of every attention block.

The output of a block at token t is a sum of vectors, one of each token s that it attends to, and biases:

    y_t = sum_s T_t(x_s) + bias,   T_t(x_s) = LN( sum_h g_h w_hts W_O,h (W_V,h x_s + b_V,h) + [s = t] x_t )

with the residual [s = t] x_t, the gates g, and the LayerNorm after a post-norm block without its bias (its standard
deviation is that of the whole output). The share of a token is how much nearer to y_t its vector brings the origin,

    c_ts = max(0, |y_t|_1 - |y_t - T_t(x_s)|_1) / sum_s' max(0, |y_t|_1 - |y_t - T_t(x_s')|_1)

and 0 if none does: biases alone made y_t. In a block of cross-attention, the residual is a token of its own. The
product of the matrices c of all layers gives the contributions of the input tokens. They belong to the state that a
prediction is made from, not to one of its logits. Feed-forward blocks work on single tokens and change nothing.

Shapes of one sentence: T queries, S keys, H heads, D head size, E model size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairseq_headgates.attention.anatomy import Block, blocks_of, stacks_of
from fairseq_headgates.attention.hooks import Observed, Recorded, observe, recorded
from fairseq_headgates.data.losses import at_least_single
from fairseq_headgates.scores.relevance.predictions import Predictions, Relevance
from fairseq_headgates.scores.relevance.rules import quotient

NUMBERS = 2**24  # of vectors, computed at a time


def alti(model: Any, predictions: Predictions) -> Relevance:
    """Return the contributions of tokens to the state of each prediction, see `explain`."""
    blocks = {(block.attention_type, block.number): block for block in blocks_of(model) if block.is_attention}
    residuals, values = {}, {}
    for block in blocks.values():
        if model.get_submodule(block.name).num_heads:
            residuals[block.name] = model.get_submodule(block.norm if block.pre_norm else f"{block.name}.q_proj")
            values[block.name] = model.get_submodule(f"{block.name}.v_proj")
    # With gradients, a model that is prepared for inference runs its modules one by one.
    with torch.enable_grad(), recorded(residuals, values) as passed, observe(model) as seen:
        model(**predictions.net_input, features_only=True)
    relevance = predictions.empty(model, next(model.parameters()))
    for row in range(len(predictions.predicted)):
        words, places = predictions.places(row)
        shares = partial(_shares, model=model, blocks=blocks, passed=passed, seen=seen, row=row)
        sides = stacks_of(model)
        source = _encoder(len(sides["encoder"].layers), words, shares) if "encoder" in sides else None
        if "decoder" in sides:
            of_source, of_target = _decoder(len(sides["decoder"].layers), places, words, source, shares)
            relevance.target[row, places[:, None], places] = of_target.to(relevance.target)
            relevance.source[row, places[:, None], words] = of_source.to(relevance.source)
        elif source is not None:
            first = source[:1]  # a class is predicted from the first token
            relevance.source[row, :, words] = first.to(relevance.source)
    relevance.conserved.copy_(relevance.source.sum(-1) + relevance.target.sum(-1))
    relevance.heads.clear()
    return relevance


Shares = Callable[[str, int, Tensor, Tensor], Tensor]


def _encoder(layers: int, words: Tensor, shares: Shares) -> Tensor:
    """Return the contributions of source tokens to the encoder output: [S, S]."""
    mixed = torch.eye(len(words), dtype=torch.double, device=words.device)
    for layer in range(layers):
        mixed = shares("enc-self", layer, words, words) @ mixed
    return mixed


def _decoder(
    layers: int, places: Tensor, words: Tensor, memory: Tensor | None, shares: Shares
) -> tuple[Tensor, Tensor]:
    """Return the contributions of source [T, S] and prefix tokens [T, T] to the decoder output.

    `memory` [S, S] are those of source tokens to the encoder output, None for a language model.
    """
    of_target = torch.eye(len(places), dtype=torch.double, device=places.device)
    of_source = of_target.new_zeros(len(places), len(words))
    for layer in range(layers):
        mixed = shares("dec-self", layer, places, places)
        of_target, of_source = mixed @ of_target, mixed @ of_source
        if memory is not None:
            mixed = shares("dec-enc", layer, places, words)
            across, residual = mixed[:, :-1], mixed[:, -1:]
            of_target, of_source = residual * of_target, residual * of_source + across @ memory
    return of_source, of_target


def _shares(
    attention_type: str,
    layer: int,
    queries: Tensor,
    keys: Tensor,
    model: Any,
    blocks: dict[tuple[str, int], Block],
    passed: Recorded,
    seen: dict[str, dict[int, Observed]],
    row: int,
) -> Tensor:
    """Return the shares of tokens in one block: [T, S], of cross-attention [T, S + 1] with the residual at the end.

    `passed` has the residuals [T, B, E] and the values [S, B, H D] of the blocks, `seen` their weights and contexts.
    """
    block, across = blocks[attention_type, layer], attention_type == "dec-enc"
    attention: Any = model.get_submodule(block.name)
    if not attention.num_heads:  # y = x + bias
        identity = torch.eye(len(queries), dtype=torch.double, device=queries.device)
        ones = identity.new_ones(len(queries), 1)
        return torch.cat([identity.new_zeros(len(queries), len(keys)), ones], 1) if across else identity
    norm = None if block.pre_norm else model.get_submodule(block.norm)
    observed = seen[attention_type][layer]
    values = passed.outputs[block.name][keys, row].unflatten(-1, (attention.num_heads, -1))
    out, scale = attention.out_proj.weight.unflatten(1, (attention.num_heads, -1)), attention.head_scale()
    moved = torch.einsum("shd,ehd->hse", values, out if scale is None else out * scale[:, None].to(out))
    parts = []
    for numbers in torch.arange(len(queries)).split(max(1, NUMBERS // moved[0].numel())):
        places = queries[numbers]
        weights, residual = observed.weights[row][:, places][:, :, keys], passed.inputs[block.name][places, row]
        vectors = torch.einsum("hts,hse->tse", weights.to(moved), moved)
        if across:
            vectors = torch.cat([vectors, residual[:, None]], 1)
        else:
            vectors[torch.arange(len(numbers)), numbers] += residual
        total = residual + attention.output_of(observed.contexts[row : row + 1, :, places])[:, 0]
        parts.append(_nearer(at_least_single(vectors), total, norm))
    nearer = torch.cat(parts).double()
    return quotient(nearer, nearer.sum(-1, keepdim=True))


def _nearer(vectors: Tensor, total: Tensor, norm: Any) -> Tensor:
    """Return how much nearer the vectors [T, S, E] bring 0 to the output, after the LayerNorm of a post-norm block."""
    wide = at_least_single(total)
    if norm is not None:
        deviation = (wide.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
        vectors = (vectors - vectors.mean(-1, keepdim=True)) * (norm.weight / deviation)[:, None]
        wide = at_least_single(norm(total))
    return (wide.abs().sum(-1, keepdim=True) - (wide[:, None] - vectors).abs().sum(-1)).clamp(min=0)
