"""Derivatives of the loss with respect to what hooks insert into a model, whose parameters are constant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.hooks import replaced_forward


def gradients(losses: Tensor, inserted: list[Tensor]) -> Sequence[Tensor]:
    """Return the derivative of the sum of `losses` [B, T], converted from bits to nats, with respect to each tensor.

    It is 0 where the loss does not depend on the tensor: in an encoder that no decoder layer reads.
    """
    if not losses.requires_grad:
        return [torch.zeros_like(tensor) for tensor in inserted]
    return torch.autograd.grad(losses.sum() * math.log(2), inserted, materialize_grads=True, allow_unused=True)


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Within the context, parameters need no gradients, and --checkpoint-activations is off."""
    with ExitStack() as stack:
        for parameter in model.parameters():
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
        model.requires_grad_(False)
        for module in model.modules():
            if hasattr(module, "precheckpoint_forward"):
                stack.enter_context(replaced_forward(module, module.precheckpoint_forward))  # type: ignore[arg-type]
        yield
