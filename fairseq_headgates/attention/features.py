"""Describe which optional features of fairseq a model has.

Gating, relevance, loading and export each support a different part of fairseq's options. Each asks this file which
features a model has and compares them with the features that it supports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairseq.models import FairseqMultiModel, transformer
from fairseq.modules import CharacterTokenEmbedder, MultiheadAttention, transformer_layer
from fairseq.modules.quant_noise import quant_noise
from torch import nn

from fairseq_headgates.attention.anatomy import LAYER_ATTRIBUTES, attention_modules, layers_of, stacks_of
from fairseq_headgates.attention.head_attention import HeadAttention
from fairseq_headgates.heads import TYPES
from fairseq_headgates.inference.beam_stacks import BeamDecoder, BeamEncoder

# Features by name, with their description in messages.
FEATURES = {
    "bias-kv": "an extra key and value (bias_k, add_zero_attn)",
    "xformers": "xFormers attention (--encoder-xformers-att-config, --decoder-xformers-att-config)",
    "quant-noise": "quantisation noise (--quant-noise-pq)",
    "scalar-noise": "8-bit weights in evaluation (--quant-noise-scalar): fine-tune it without this option",
    "gates": "gates on {types} (`headgates prune` folds them into the weights)",
    "fixed-heads": "masked heads on {types} (`headgates prune` removes them)",
    "no-encoder": "no encoder (a language model)",
    "no-decoder": "no decoder (an encoder such as RoBERTa)",
    "no-encoder-layers": "no encoder layers (--encoder-layers 0)",
    "no-decoder-layers": "no decoder layers (--decoder-layers 0)",
    "no-positions": "no positional embeddings (--no-token-positional-embeddings)",
    "adaptive-input": "embeddings of several sizes (--adaptive-input)",
    "character-input": "embeddings of characters (--character-embeddings)",
    "adaptive-softmax": "an adaptive softmax (--adaptive-softmax-cutoff)",
    "decoder-dims": "projections to other dimensions (--decoder-input-dim, --decoder-output-dim)",
    "cross-self-attention": "self-attention over encoder states (--cross-self-attention)",
    "no-cross-attention": "decoder layers without cross-attention (--no-cross-attention)",
    "scale-attn": "a LayerNorm after attention (--scale-attn)",
    "scale-heads": "scaled heads (--scale-heads)",
    "scale-fc": "a LayerNorm within the feed-forward layer (--scale-fc)",
    "scale-resids": "scaled residuals (--scale-resids)",
    "lang-tok": "language tags in place of <s> and </s> (--lang-tok-replacing-bos-eos)",
}
# Classes are compared by identity, because a subclass may compute something else.
ENCODERS = {transformer.TransformerEncoder, transformer.TransformerEncoderBase, BeamEncoder}
DECODERS = {transformer.TransformerDecoder, transformer.TransformerDecoderBase, BeamDecoder}
ENCODER_LAYERS = {transformer_layer.TransformerEncoderLayer, transformer_layer.TransformerEncoderLayerBase}
DECODER_LAYERS = {transformer_layer.TransformerDecoderLayer, transformer_layer.TransformerDecoderLayerBase}


def model_features(model: nn.Module) -> dict[str, str]:
    """Return the optional features of a transformer; see `FEATURES`.

    A part that is not of fairseq's transformer is a feature "class X", and nothing else is checked.

    Returns:
        {name: description}
    """
    strange = dict.fromkeys(_foreign_classes(model))
    if strange:
        return {f"class {name}": f"a part of class {name}" for name in strange}
    features = {*_stack_features(model), *_option_features(getattr(model, "args", None))}
    layers = layers_of(model)
    features |= {
        feature
        for name, feature in LAYER_ATTRIBUTES.items()
        if any(getattr(layer, name, None) is not None for layer in layers)
    }
    if any(getattr(layer, "quant_noise", 0) for layer in layers):
        features.add("quant-noise")
    types: dict[str, dict[str, None]] = {}  # a feature of attention: the attention types that have it, in order
    for module in attention_modules(model):
        for feature in _attention(module.attention):
            types.setdefault(feature, {})[module.attention_type] = None
    return {
        name: text.format(types=", ".join(sorted(types.get(name, ()), key=TYPES.index)))
        for name, text in FEATURES.items()
        if name in features or name in types
    }


def attention_features(attention: MultiheadAttention) -> list[str]:
    """Return the descriptions of all features of an attention module that `HeadAttention` cannot compute."""
    computed = ("gates", "fixed-heads", "quant-noise")
    descriptions = [FEATURES[name] for name in _attention(attention) if name not in computed]
    changed = type(attention) is not MultiheadAttention or "forward" in vars(attention)
    if changed and not isinstance(attention, HeadAttention):
        descriptions.append(f"a forward pass of its own (class {type(attention).__name__})")
    return descriptions


def other_attention(model: nn.Module) -> list[str]:
    """Return the names of the classes of attention in a model that are not fairseq's `MultiheadAttention`, sorted."""
    others = (module for module in model.modules() if not isinstance(module, MultiheadAttention))
    return sorted({name for name in (type(module).__name__ for module in others) if "attention" in name.lower()})


def option_features(args: Any) -> dict[str, str]:
    """Return the features that the options of a model tell before it is built, {name: description}."""
    features = set(_option_features(args))
    return {name: text for name, text in FEATURES.items() if name in features}


def _foreign_classes(model: nn.Module) -> Iterator[str]:
    if isinstance(model, FairseqMultiModel):
        yield type(model).__name__
        return
    classes = {"encoder": (ENCODERS, ENCODER_LAYERS), "decoder": (DECODERS, DECODER_LAYERS)}
    for side, stack in stacks_of(model).items():
        known, layers = classes[side]
        if type(stack) not in known:
            yield type(model if stack is None else stack).__name__
        else:
            yield from (type(layer).__name__ for layer in stack.layers.children() if type(layer) not in layers)


def _stack_features(model: Any) -> Iterator[str]:
    sides = stacks_of(model)
    for side, stack in sides.items():
        if not len(stack.layers):
            yield f"no-{side}-layers"
    stacks = sides.values()
    if any(stack.embed_positions is None for stack in stacks):
        yield "no-positions"
    embeddings = {type(stack.embed_tokens) for stack in stacks}
    if CharacterTokenEmbedder in embeddings:
        yield "character-input"
    elif embeddings != {nn.Embedding}:
        yield "adaptive-input"
    if any(stack.quant_noise is not None for stack in stacks):
        yield "quant-noise"
    if "decoder" not in sides:
        yield "no-decoder"
        return
    decoder = sides["decoder"]
    if decoder.adaptive_softmax is not None:
        yield "adaptive-softmax"
    if decoder.project_in_dim is not None or decoder.project_out_dim is not None:
        yield "decoder-dims"
    if decoder.cross_self_attention:
        yield "cross-self-attention"
    if "encoder" not in sides:
        yield "no-encoder"
    elif any(layer.encoder_attn is None for layer in decoder.layers.children()):
        yield "no-cross-attention"


def _option_features(args: Any) -> Iterator[str]:
    if getattr(args, "quant_noise_pq", 0):
        yield "quant-noise"
    if getattr(args, "quant_noise_scalar", 0):
        yield "scalar-noise"
    if getattr(args, "encoder_xformers_att_config", None) or getattr(args, "decoder_xformers_att_config", None):
        yield "xformers"
    if getattr(args, "lang_tok_replacing_bos_eos", False):
        yield "lang-tok"


def _attention(attention: MultiheadAttention) -> Iterator[str]:
    if getattr(attention, "bias_k", None) is not None or getattr(attention, "add_zero_attn", False):
        yield "bias-kv"
    if getattr(attention, "use_xformers", False):
        yield "xformers"
    hooks = attention.out_proj._forward_pre_hooks.values()
    if any(getattr(hook, "__module__", "") == quant_noise.__module__ for hook in hooks):
        yield "quant-noise"
    if getattr(attention, "gate", None) is not None:
        yield "gates"
    if getattr(attention, "head_mask", None) is not None:
        yield "fixed-heads"
