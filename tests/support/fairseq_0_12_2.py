"""Encoder layers as fairseq 0.12.2 has them, on any version: copies of the weights, and an inference shortcut."""

import torch
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules.sinusoidal_positional_embedding import SinusoidalPositionalEmbedding
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import nn

COPIES = [f"{module}_{kind}" for module in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]
IS_0_12_2 = "_load_from_state_dict" in vars(TransformerEncoderLayerBase)


def as_later_versions():
    """On fairseq 0.12.2 only: build stock models as later versions do, in this process.

    Without the shortcut, with which it cannot evaluate its own post-norm models, and without the buffer
    `_float_tensor` of sinusoidal positions, whose value nothing sets.
    """
    if not IS_0_12_2:
        return

    def after(method, change):
        def changed(self, *args, **kwargs):
            method(self, *args, **kwargs)
            change(self)

        return changed

    def forget_copies(layer):
        layer.can_use_fastpath = False
        for name in COPIES:
            delattr(layer, name)

    def forget_buffer(positions):
        positions.register_buffer("_float_tensor", positions._float_tensor, persistent=False)

    def load(self, state_dict, prefix, *args):
        state_dict.pop(f"{prefix}_float_tensor", None)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args)

    def without_buffer(upgrade):
        def upgraded(self, state_dict, name):
            upgrade(self, state_dict, name)
            state_dict.pop(f"{name}.embed_positions._float_tensor", None)
            return state_dict

        return upgraded

    for part in (TransformerEncoderBase, TransformerDecoderBase):
        part.upgrade_state_dict_named = without_buffer(part.upgrade_state_dict_named)
    TransformerEncoderLayerBase.__init__ = after(TransformerEncoderLayerBase.__init__, forget_copies)
    TransformerEncoderLayerBase._load_from_state_dict = nn.Module._load_from_state_dict
    SinusoidalPositionalEmbedding.__init__ = after(SinusoidalPositionalEmbedding.__init__, forget_buffer)
    SinusoidalPositionalEmbedding._load_from_state_dict = load


class OldEncoderLayer(TransformerEncoderLayerBase):
    """Made of an encoder layer by `as_in_0_12_2`."""

    def _load_from_state_dict(self, state_dict, prefix, *args):
        self.load_to_BT = True
        state_dict.update({prefix + name: weight for name, weight in self.copied(state_dict, prefix).items()})
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args)

    @staticmethod
    def copied(weights, prefix=""):
        """The copies of the weights of a layer."""
        found = {}
        for kind in ("weight", "bias"):
            parts = [weights[f"{prefix}self_attn.{name}_proj.{kind}"] for name in "qkv"]
            found[f"in_proj_{kind}"] = torch.cat(parts)
            found[f"out_proj_{kind}"] = weights[f"{prefix}self_attn.out_proj.{kind}"]
            found |= {f"{name}_{kind}": weights[f"{prefix}{name}.{kind}"] for name in ("fc1", "fc2")}
        return found

    def forward(self, *args, **kwargs):
        if self.can_use_fastpath and self.load_to_BT and not self.training:
            raise RuntimeError("Mask Type should be defined")  # of torch 2
        return super().forward(*args, **kwargs)


def as_in_0_12_2(model):
    """Give the encoder layers of a stock model what those of fairseq 0.12.2 have, in place."""
    for layer in model.encoder.layers:
        for name, weight in OldEncoderLayer.copied(layer.state_dict()).items():
            setattr(layer, name, nn.Parameter(torch.zeros_like(weight)))
        layer.can_use_fastpath, layer.load_to_BT = not layer.normalize_before, False
        layer.__class__ = OldEncoderLayer
    return model
