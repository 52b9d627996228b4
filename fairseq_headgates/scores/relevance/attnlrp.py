"""AttnLRP (Achtibat et al. 2024): relevance as input times gradient, with a backward pass that follows LRP rules.

Where the relevance of x is x times its gradient, a rule is a change of the gradient alone:

    linear layer, sum   R_i = x_i sum_j W_ji R_j / y_j       the gradient itself (epsilon rule with eps = 0)
    activation          R_x = R_y                            f(x) = x c, with the constant c = f(x) / x
    LayerNorm           R_i = x_i sum_j J_ji R_j / y_j       J = diag(gamma / sigma) (I - 1 1^T / E), sigma constant
    softmax             R_i = x_i (R_i - y_i sum_j R_j)      the gradient itself
    matrix product      half of R for each factor            half of the gradient

LayerNorm has E numbers, the weights gamma and the standard deviation sigma, which is that of x.
The two products of attention halve the gradient of values once, and those of queries and keys twice.

Shapes: B sentences, N predictions, n predictions that are explained at a time, S source and T target length, E model
size, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import attention_modules, stacks_of
from fairseq_headgates.attention.head_attention import HeadAttention
from fairseq_headgates.attention.hooks import observe, replaced_forward
from fairseq_headgates.data.losses import at_least_single
from fairseq_headgates.scores.relevance.predictions import Predictions, Relevance

SHARES = {"q_proj": 0.25, "k_proj": 0.25, "v_proj": 0.5}  # of the gradient
NUMBERS = 2**24  # of gradients of the widest layer or the attention weights of one, computed at a time


def attnlrp(model: Any, predictions: Predictions) -> Relevance:
    """Return the relevance of heads and tokens for the logits of predictions; see `explain`."""
    with torch.enable_grad(), _modified(model), _leaves(model) as leaves, observe(model) as seen:
        logits = _logits(model, predictions)
    relevance = predictions.empty(model, logits)
    heads = [(each, layer, observed.contexts) for each, layers in seen.items() for layer, observed in layers.items()]
    inputs = list(leaves.values())
    kept = {(module.attention_type, module.layer): list(module.attention.kept) for module in attention_modules(model)}
    wide = 4 * sum(layer.numel() for layer in inputs)  # a feed-forward layer has 4 E numbers
    weights = max((each.weights.numel() for layers in seen.values() for each in layers.values()), default=0)
    rows = predictions.real.any(0).nonzero()[:, 0]
    ones = torch.eye(logits.size(1), dtype=logits.dtype, device=logits.device)
    for chosen in rows.split(max(1, NUMBERS // max(wide, weights))) if len(rows) else ():
        one = ones[chosen, None].expand(-1, len(logits), -1)
        tensors = [*inputs, *(contexts for _, _, contexts in heads)]
        options = {"retain_graph": True, "allow_unused": True, "is_grads_batched": True}
        gradients = torch.autograd.grad(logits, tensors, one, **options)
        by_token = dict(zip(leaves, gradients, strict=False))
        for side, into in (("encoder", relevance.source), ("decoder", relevance.target)):
            if by_token.get(side) is not None:  # None: the logits do not depend on the encoder
                into[:, chosen] = (by_token[side] * leaves[side]).sum(-1).permute(2, 0, 1)
        for (attention_type, layer, contexts), gradient in zip(heads, gradients[len(leaves) :], strict=True):
            if gradient is not None:
                of_heads = (gradient * contexts).abs().sum((-2, -1)).transpose(0, 1)  # [B, n, H]
                relevance.heads[attention_type][:, chosen[:, None], layer, kept[attention_type, layer]] = of_heads
    total, logits = relevance.source.sum(-1) + relevance.target.sum(-1), logits.detach()
    relevance.conserved.copy_(torch.where(logits == 0, torch.zeros_like(total), total / logits))
    return relevance


def _logits(model: Any, predictions: Predictions) -> Tensor:
    """Return the logits, or differences of logits, to explain: [B, N]."""
    weight, bias = predictions.readout(model)
    if predictions.head is None:
        features = model(**predictions.net_input, features_only=True)[0]
    else:
        classifier = model.classification_heads[predictions.head]
        first = model(**predictions.net_input, features_only=True)[0][:, :1]
        features = classifier.activation_fn(classifier.dense(first))
    logits = (features * weight.to(features)).sum(-1)
    return logits if bias is None else logits + bias


@contextmanager
def _leaves(model: Any) -> Iterator[dict[str, Tensor]]:
    """Within the context, the inputs of the first layers are leaves of the graph: {side: [T, B, E]}."""
    leaves: dict[str, Tensor] = {}

    def start(_: nn.Module, args: tuple, side: str) -> tuple:
        leaves[side] = args[0].detach().requires_grad_()
        return leaves[side], *args[1:]

    with ExitStack() as hooks:
        for side, stack in stacks_of(model).items():
            hooks.callback(stack.layers[0].register_forward_pre_hook(partial(start, side=side)).remove)
        yield leaves


@contextmanager
def _modified(model: Any) -> Iterator[None]:
    """Within the context, the backward pass of the model follows the rules."""
    with ExitStack() as changes:
        for module in list(model.modules()):
            if hasattr(module, "normalized_shape"):  # also that of Apex
                changes.enter_context(replaced_forward(module, partial(_layer_norm, module)))
            if callable(activation := vars(module).get("activation_fn")):
                changes.callback(setattr, module, "activation_fn", activation)
                module.activation_fn = partial(_identity_rule, activation)
            for name, share in SHARES.items() if isinstance(module, HeadAttention) and module.num_heads else ():
                hook = getattr(module, name).register_forward_hook(partial(_scaled, share=share))
                changes.callback(hook.remove)
        yield


def _layer_norm(norm: Any, x: Tensor) -> Tensor:
    wide = at_least_single(x)  # squares overflow in half precision
    centred = wide - wide.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return (centred / deviation.detach() * norm.weight + norm.bias).to(x)


def _identity_rule(activation: Any, x: Tensor) -> Tensor:
    slope = activation(x) / x
    return x * torch.where(x == 0, 0, slope).detach()


def _scaled(_: nn.Module, args: tuple, x: Tensor, share: float) -> Tensor:
    """Return `x` with a gradient that is multiplied by `share`."""
    return share * x + (1 - share) * x.detach()
