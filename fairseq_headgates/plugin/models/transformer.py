"""`transformer_head_gates`: fairseq's encoder-decoder transformer with gates, fixed and removed heads."""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model
from fairseq.models.transformer import TransformerModel, base_architecture

from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, register_preset, register_presets


@register_model("transformer_head_gates")
class TransformerHeadGatesModel(HeadGatesMixin, TransformerModel):
    """fairseq's `transformer` with head gates; without options of this plugin it computes the same."""

    stock = TransformerModel


def acl19(args: Any) -> None:
    """The model of Voita et al. 2019: pre-norm transformer-base, dropout 0.1 on residuals, attention and ReLU."""
    args.encoder_normalize_before = getattr(args, "encoder_normalize_before", True)
    args.decoder_normalize_before = getattr(args, "decoder_normalize_before", True)
    args.dropout = getattr(args, "dropout", 0.1)
    args.attention_dropout = getattr(args, "attention_dropout", 0.1)
    args.activation_dropout = getattr(args, "activation_dropout", 0.1)
    base_architecture(args)


register_presets("transformer_head_gates")
register_preset("transformer_head_gates", "transformer_head_gates_acl19", acl19)
