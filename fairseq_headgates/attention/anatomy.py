"""The anatomy of a fairseq model: its stacks of layers, its attention layers, and the blocks of its layers.

A block, attention or feed-forward, adds its output y to the residual stream r. No other file searches a model for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fairseq.models import FairseqEncoderModel, FairseqLanguageModel
from fairseq.modules import MultiheadAttention
from torch import nn

from fairseq_headgates.heads import TYPES

ACROSS_CHANNELS = "cross_channel_attn"  # of speech_dlm, between two speakers: it is of none of the types
# Attributes of fairseq's layers and the features (attention/features.py) that they implement. They scale y or r.
LAYER_ATTRIBUTES = {
    "attn_ln": "scale-attn",
    "c_attn": "scale-heads",
    "ffn_layernorm": "scale-fc",
    "w_resid": "scale-resids",
}
T = TypeVar("T")


# --- stacks ----------------------------------------------------------------------------------------------------------


def stack_names(model_class: type) -> dict[str, str]:
    """Return the stacks of layers of a class of models: {"encoder" or "decoder": name of the module}."""
    if issubclass(model_class, FairseqLanguageModel):
        return {"decoder": "decoder"}
    if issubclass(model_class, FairseqEncoderModel):
        return {"encoder": "encoder.sentence_encoder"}
    return {"encoder": "encoder", "decoder": "decoder"}


def stacks_of(model: Any) -> dict[str, Any]:
    """Return the stacks of layers of a transformer: {"encoder" or "decoder": module with `layers`}."""
    sides = {side: getattr(model, side, None) for side in stack_names(type(model))}
    return {side: getattr(stack, "sentence_encoder", stack) for side, stack in sides.items()}


def layers_of(model: nn.Module) -> list[Any]:
    """Return all layers of the stacks of a transformer; LayerDrop hides none of them."""
    return [layer for stack in stacks_of(model).values() for layer in stack.layers.children()]


def number_of_layers(names: Iterable[str], stack: str) -> int:
    """Return how many layers of a stack the names of weights belong to."""
    layer = re.compile(rf"{re.escape(stack)}\.layers\.(\d+)\.")
    return len({found[1] for name in names if (found := layer.match(name))})


# --- attention layers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionModule:
    """One attention layer of a model: its type, its layer number from 0, its module name, and the module."""

    attention_type: str
    layer: int
    name: str
    attention: MultiheadAttention

    @property
    def heads(self) -> int:
        """The number of heads, removed heads included."""
        return getattr(self.attention, "heads", self.attention.num_heads)

    @property
    def layer_names(self) -> list[str]:
        """The names of its layer and of all below in its stack: 'decoder.layers.1', 'decoder.layers.0'."""
        stack, _, rest = self.name.rpartition("layers.")
        return [f"{stack}layers.{i}" for i in range(int(rest.partition(".")[0]), -1, -1)]


def attention_type_and_layer(name: str) -> tuple[str, int]:
    """Return type and layer of an attention module by its name: 'decoder.layers.3.encoder_attn' -> ('dec-enc', 3).

    In all architectures of fairseq, cross-attention is an `encoder_attn`, and a decoder or its list of layers
    has "decoder" in its name. The layer is the last number; several encoders or decoders repeat the numbers.
    """
    *path, attention = name.split(".")
    if attention.startswith("encoder_attn"):
        attention_type = "dec-enc"
    else:
        attention_type = "dec-self" if any("decoder" in part for part in path) else "enc-self"
    numbers = [part for part in path if part.isdecimal()]
    return attention_type, int(numbers[-1]) if numbers else 0


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """Return all attention layers of a fairseq model, stock or `HeadAttention`, ordered by type and layer.

    The layers of a type are counted over all encoders or decoders of the model, in the order of its modules. A module
    that several parts of the model share is one layer.

    Raises:
        ValueError: if the layers of a type have different numbers of heads
    """
    modules_by_type: dict[str, list[AttentionModule]] = {attention_type: [] for attention_type in TYPES}
    for name, module in model.named_modules():
        if isinstance(module, MultiheadAttention) and not name.endswith(ACROSS_CHANNELS):
            attention_type, _ = attention_type_and_layer(name)
            modules = modules_by_type[attention_type]
            modules.append(AttentionModule(attention_type, len(modules), name, module))
    for attention_type, modules in modules_by_type.items():
        heads = sorted({module.heads for module in modules})
        if len(heads) > 1:
            numbers = " and ".join(map(str, heads))
            raise ValueError(
                f"{type(model).__name__} has {attention_type} layers with {numbers} heads: all layers of an attention "
                "type must have the same number, build the model with one number of heads for each type"
            )
    return [module for modules in modules_by_type.values() for module in modules]


def under_all_names(values: Mapping[str, T], model: nn.Module) -> dict[str, T]:
    """Return values of modules by every name that these have in the state dict: parts of a model may share layers."""
    value_of = {model.get_submodule(name): value for name, value in values.items()}
    return {name: value_of[m] for name, m in model.named_modules(remove_duplicate=False) if m in value_of}


# --- blocks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A block of a layer.

    Attributes:
        name: the module whose output is y
        layer: the layer
        linear: its last linear layer (`out_proj`, `fc2`), which for a feed-forward block is `name`
        norm: its LayerNorm; None if the layer scales y or r (--scale-attn, ...) or is of an unknown form
        pre_norm: whether the input of `norm` is the residual stream r; otherwise it is r + y
        attention_type: an attention type; its queries are the positions of the stream
        number: the number from 0 of its layer among those with this attention type
    """

    name: str
    layer: str
    linear: str
    norm: str | None
    pre_norm: bool
    attention_type: str
    number: int

    @property
    def is_attention(self) -> bool:
        """Whether it is an attention block."""
        return self.name != self.linear

    @property
    def side(self) -> str:
        """The side of the model that it is on, "encoder" or "decoder"."""
        return "encoder" if self.attention_type == "enc-self" else "decoder"


def blocks_of(model: nn.Module) -> list[Block]:
    """Return the blocks of all layers with attention, in the order of the computation."""
    attention = {module.name: module for module in attention_modules(model)}
    blocks, first = list[Block](), dict[str, AttentionModule]()
    for name, module in model.named_modules():  # registered in the order of the computation
        layer, _, last = name.rpartition(".")
        if name in attention:
            first.setdefault(layer, attention[name])
            blocks.append(_block(model, layer, last, f"{name}.out_proj", attention[name]))
        elif last == "fc2" and isinstance(module, nn.Linear) and layer in first:
            blocks.append(_block(model, layer, last, name, first[layer]))
    return blocks


def _block(model: nn.Module, layer: str, last: str, linear: str, of: AttentionModule) -> Block:
    module = model.get_submodule(layer)
    norm = "final_layer_norm" if last == "fc2" else f"{last}_layer_norm"
    pre_norm = getattr(module, "normalize_before", getattr(module, "layer_norm_first", None))  # of wav2vec 2.0
    scaled = any(getattr(module, name, None) is not None for name in LAYER_ATTRIBUTES)
    known = pre_norm is not None and not scaled and isinstance(getattr(module, norm, None), nn.Module)
    norm_name = f"{layer}.{norm}" if known else None
    return Block(f"{layer}.{last}", layer, linear, norm_name, bool(pre_norm), of.attention_type, of.layer)
