"""Alignments: the average attention of a decoder layer to the source, over all heads or the first `alignment_heads`.

Alignment heads are known by their position. So pruning does not remove them, and averages include them even if they
are closed: an alignment is never that of other heads.

Shapes: B batch, T target length, S source length, H heads.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fairseq_headgates.attention.head_attention import HeadAttention
from fairseq_headgates.attention.weights import averaged_heads


def watch_alignments(model: nn.Module) -> None:
    """Mark the alignment heads of a model of `HeadAttention`, and register hooks on its decoders, in place.

    `transformer_align` has the layer and the number of its alignment heads as attributes. Other decoders take them as
    arguments of a forward pass.
    """
    for module in model.modules():
        heads, layer = (getattr(module, f"alignment_{part}", None) for part in ("heads", "layer"))
        aligned = _attention(getattr(module, "decoder", None), layer)
        if isinstance(heads, int) and aligned is not None:
            aligned.aligned = min(heads, aligned.heads)
        if isinstance(getattr(module, "encoder_attn", None), HeadAttention):
            if _average not in module._forward_hooks.values():
                module.register_forward_hook(_average)
        elif _attention(module, 0) is not None and _check not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_check, with_kwargs=True)


def alignment_of(model: Any) -> tuple[int, int]:
    """Return the layer of a model's alignments, and of how many first heads they are the mean, at least 1.

    These are those of `transformer_align`, by default all heads of the last layer, as in fairseq.
    """
    layers = model.decoder.layers
    layer: Any = getattr(model, "alignment_layer", None)
    heads = getattr(model, "alignment_heads", None)
    if layer not in range(len(layers)):
        layer, heads = len(layers) - 1, None
    attention = layers[layer].encoder_attn
    kept = getattr(attention, "kept", range(attention.num_heads))
    return layer, max(1, sum(head < heads for head in kept) if heads else len(kept))


def _attention(decoder: Any, layer: Any) -> HeadAttention | None:
    """Return the attention to the source of a layer of a decoder; None if there is none."""
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList) or layer not in range(len(layers)):
        return None
    attention = getattr(layers[layer], "encoder_attn", None)
    return attention if isinstance(attention, HeadAttention) else None


def _average(layer: nn.Module, inputs: tuple, output: tuple) -> tuple | None:
    """Hook on decoder layers that keeps of the attention weights [H, B, T, S] those of `averaged_heads`."""
    weights = output[1]
    if weights is None or weights.dim() != 4:
        return None
    return (output[0], averaged_heads(layer.encoder_attn, weights, 0), *output[2:])


def _check(decoder: Any, inputs: tuple, options: dict[str, Any]) -> None:
    """Hook on decoders that raises ValueError if the argument `alignment_heads` would select other heads."""
    heads, layer = options.get("alignment_heads"), options.get("alignment_layer")
    layer = len(decoder.layers) - 1 if layer is None else layer
    attention = _attention(decoder, layer)
    if heads is None or attention is None or heads <= attention.aligned:
        return
    scale = None if attention.training else attention.head_scale()
    open_heads = [head for i, head in enumerate(attention.kept) if scale is None or scale[i] != 0]
    missing = sorted(set(range(min(heads, attention.heads))) - set(open_heads))
    if missing:
        raise ValueError(
            f"alignment_heads is {heads}, but head {missing[0]} of dec-enc layer {layer} is closed, masked or removed: "
            "leave alignment_heads out, or keep this head open"
        )
