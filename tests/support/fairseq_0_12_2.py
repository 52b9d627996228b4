"""fairseq 0.12.2, whose encoder layers have copies of their weights and an inference shortcut, as later versions."""

from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules.sinusoidal_positional_embedding import SinusoidalPositionalEmbedding
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import nn

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
        for module in ("in_proj", "out_proj", "fc1", "fc2"):
            delattr(layer, f"{module}_weight")
            delattr(layer, f"{module}_bias")

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
