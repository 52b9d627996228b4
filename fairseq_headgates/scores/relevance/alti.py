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

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.features import stack_modules
from fairseq_headgates.attention.head_attention import HeadAttention
from fairseq_headgates.attention.hooks import Observed, observe
from fairseq_headgates.attention.modules import attention_modules
from fairseq_headgates.data.losses import at_least_single
from fairseq_headgates.scores.relevance.predictions import Predictions, Relevance
from fairseq_headgates.scores.relevance.rules import quotient

NUMBERS = 2**24  # of vectors, computed at a time


class Block(NamedTuple):
    """An attention block: its module, its LayerNorm and whether that comes first; inputs in the last forward pass."""

    attention: HeadAttention
    norm: nn.LayerNorm
    norm_first: bool
    inputs: dict[str, Tensor]  # of the LayerNorm, "norm", and of the queries, "query"; the values, "values"

    @property
    def residual(self) -> Tensor:
        """The residual [T, B, E]."""
        return self.inputs["norm" if self.norm_first else "query"]


def alti(model: Any, predictions: Predictions) -> Relevance:
    """Return the contributions of tokens to the state of each prediction, see `explain`."""
    # With gradients, a model that is prepared for inference runs its modules one by one.
    with torch.enable_grad(), _blocks(model) as blocks, observe(model) as seen:
        model(**predictions.net_input, features_only=True)
    relevance = predictions.empty(model, next(model.parameters()))
    for row in range(len(predictions.predicted)):
        words, places = predictions.places(row)
        shares = partial(_shares, blocks=blocks, seen=seen, row=row)
        sides = stack_modules(model)
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
    blocks: dict[tuple[str, int], Block],
    seen: dict[str, dict[int, Observed]],
    row: int,
) -> Tensor:
    """Return the shares of tokens in one block: [T, S], of cross-attention [T, S + 1] with the residual at the end."""
    block, across = blocks[attention_type, layer], attention_type == "dec-enc"
    if not block.attention.num_heads:  # y = x + bias
        identity = torch.eye(len(queries), dtype=torch.double, device=queries.device)
        ones = identity.new_ones(len(queries), 1)
        return torch.cat([identity.new_zeros(len(queries), len(keys)), ones], 1) if across else identity
    attention, observed = block.attention, seen[attention_type][layer]
    values = block.inputs["values"][keys, row].unflatten(-1, (attention.num_heads, -1))
    out, scale = attention.out_proj.weight.unflatten(1, (attention.num_heads, -1)), attention.head_scale()
    moved = torch.einsum("shd,ehd->hse", values, out if scale is None else out * scale[:, None].to(out))
    parts = []
    for numbers in torch.arange(len(queries)).split(max(1, NUMBERS // moved[0].numel())):
        places = queries[numbers]
        weights, residual = observed.weights[row][:, places][:, :, keys], block.residual[places, row]
        vectors = torch.einsum("hts,hse->tse", weights.to(moved), moved)
        if across:
            vectors = torch.cat([vectors, residual[:, None]], 1)
        else:
            vectors[torch.arange(len(numbers)), numbers] += residual
        total = residual + attention.output_of(observed.contexts[row : row + 1, :, places])[:, 0]
        parts.append(_nearer(at_least_single(vectors), total, None if block.norm_first else block.norm))
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


@contextmanager
def _blocks(model: Any) -> Iterator[dict[tuple[str, int], Block]]:
    """Within the context, record the inputs of all attention blocks: {(type, layer): block}."""
    blocks = {}
    with ExitStack() as hooks:
        for module in attention_modules(model):
            path, _, attribute = module.name.rpartition(".")
            layer: Any = model.get_submodule(path)
            norm = getattr(layer, f"{attribute}_layer_norm")
            inputs: dict[str, Tensor] = {}
            blocks[module.attention_type, module.layer] = Block(module.attention, norm, layer.normalize_before, inputs)
            parts = {"norm": norm, **({"query": module.attention.q_proj} if module.attention.num_heads else {})}
            for name, part in parts.items():
                hooks.callback(part.register_forward_pre_hook(partial(_remember, inputs, name)).remove)
            if module.attention.num_heads:
                hook = module.attention.v_proj.register_forward_hook(
                    lambda _, args, out, inputs=inputs: inputs.update(values=out)
                )
                hooks.callback(hook.remove)
        yield blocks


def _remember(inputs: dict[str, Tensor], part: str, _: nn.Module, args: tuple) -> None:
    inputs[part] = args[0]
