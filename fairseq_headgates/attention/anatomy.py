"""The blocks of a transformer: attention and feed-forward blocks, whose output is added to the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fairseq_headgates.attention.features import LAYER_ATTRIBUTES
from fairseq_headgates.attention.modules import attention_modules


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
    """

    name: str
    layer: str
    linear: str
    norm: str | None
    pre_norm: bool
    attention_type: str

    @property
    def is_attention(self) -> bool:
        """Whether it is an attention block."""
        return self.name != self.linear


def blocks_of(model: nn.Module) -> list[Block]:
    """Return the blocks of all layers with attention, in the order of the computation."""
    attention_types = {module.name: module.attention_type for module in attention_modules(model)}
    blocks, type_of = list[Block](), dict[str, str]()
    for name, module in model.named_modules():  # registered in the order of the computation
        layer, _, last = name.rpartition(".")
        if name in attention_types:
            type_of.setdefault(layer, attention_types[name])
            blocks.append(_block(model, layer, last, f"{name}.out_proj", attention_types[name]))
        elif last == "fc2" and isinstance(module, nn.Linear) and layer in type_of:
            blocks.append(_block(model, layer, last, name, type_of[layer]))
    return blocks


def _block(model: nn.Module, layer: str, last: str, linear: str, attention_type: str) -> Block:
    module = model.get_submodule(layer)
    norm = "final_layer_norm" if last == "fc2" else f"{last}_layer_norm"
    pre_norm = getattr(module, "normalize_before", getattr(module, "layer_norm_first", None))  # of wav2vec 2.0
    scaled = any(getattr(module, name, None) is not None for name in LAYER_ATTRIBUTES)
    known = pre_norm is not None and not scaled and isinstance(getattr(module, norm, None), nn.Module)
    return Block(f"{layer}.{last}", layer, linear, f"{layer}.{norm}" if known else None, bool(pre_norm), attention_type)
