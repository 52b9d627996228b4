"""Observe a model: hooks on the attention weights and contexts of its heads, and on inputs and outputs of modules.

Shapes: B batch, T target length, S source length, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import AttentionModule, attention_modules
from fairseq_headgates.attention.head_attention import HeadHook
from fairseq_headgates.attention.modules import use_head_attention
from fairseq_headgates.heads import TYPES


@contextmanager
def hooked(
    model: nn.Module,
    call: Callable[[AttentionModule, Tensor | None, Tensor], Tensor | None],
    weights: bool = False,
    types: Sequence[str] = TYPES,
) -> Iterator[nn.Module]:
    """Within the context, `call(module, weights, context)` is a hook on every attention layer of `types`.

    See `head_attention.HeadHook` for the shapes and the return value of `call`.
    """
    use_head_attention(model)
    modules = [module for module in attention_modules(model) if module.attention_type in types]
    before = [module.attention.hook for module in modules]
    try:
        for module in modules:
            module.attention.hook = HeadHook(partial(call, module), weights)
        yield model
    finally:
        for module, old in zip(modules, before, strict=True):
            module.attention.hook = old


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Within the context, `forward` replaces that of a module."""
    instance_forward = vars(module).get("forward")  # of this instance: --checkpoint-activations sets one
    module.forward = forward
    try:
        yield
    finally:
        if instance_forward is None:
            del module.forward
        else:
            module.forward = instance_forward


@dataclass(frozen=True)
class Recorded:
    """The first input and the output of modules in their last forward pass, by the keys given to `recorded`."""

    inputs: dict[Any, Tensor]
    outputs: dict[Any, Any]


@contextmanager
def recorded(
    inputs: Mapping[Any, nn.Module] = MappingProxyType({}), outputs: Mapping[Any, nn.Module] = MappingProxyType({})
) -> Iterator[Recorded]:
    """Context manager that records the first input of some modules and the output of others, {key: module}."""
    seen = Recorded({}, {})
    with ExitStack() as hooks:
        for key, module in inputs.items():
            hook = module.register_forward_pre_hook(lambda _, args, key=key: seen.inputs.update({key: args[0]}))
            hooks.callback(hook.remove)
        for key, module in outputs.items():
            hook = module.register_forward_hook(lambda _, __, output, key=key: seen.outputs.update({key: output}))
            hooks.callback(hook.remove)
        yield seen


@dataclass(frozen=True)
class Observed:
    """Attention weights [B, H, T, S] and contexts [B, H, T, D] of one attention layer, before gates.

    H counts the remaining heads (`attention.kept` names them); T and S include padding.
    """

    weights: Tensor
    contexts: Tensor


@contextmanager
def observe(model: nn.Module) -> Iterator[dict[str, dict[int, Observed]]]:
    """Context manager that records the attention weights and contexts of every head in the last forward pass.

    A layer without heads has no entry. Recorded tensors keep their graph, if there is one, until they are deleted.

    Yields:
        {type: {layer: `Observed`}}, filled in by each forward pass
    """
    seen: dict[str, dict[int, Observed]] = {}

    def remember(module: AttentionModule, weights: Tensor | None, context: Tensor) -> None:
        assert weights is not None
        seen.setdefault(module.attention_type, {})[module.layer] = Observed(weights, context)

    with hooked(model, remember, weights=True):
        yield seen
