"""`transformer_lm_head_gates`: fairseq's decoder-only language model with gates, fixed and removed heads."""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.modules import CharacterTokenEmbedder
from torch import nn

from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, register_presets


@register_model("transformer_lm_head_gates")
class TransformerLMHeadGatesModel(HeadGatesMixin, TransformerLanguageModel):
    """fairseq's `transformer_lm` with head gates; without options of this plugin it computes the same."""

    stock = TransformerLanguageModel


def read_characters(model: nn.Module, dictionary: Any) -> None:
    """Let embeddings of characters (--character-embeddings) look up the symbols of a dictionary, in place.

    A checkpoint does not hold the characters, so a model that is built from it alone cannot read tokens.
    """
    for module in model.modules():
        if isinstance(module, CharacterTokenEmbedder):
            module.set_vocab(dictionary, module.max_char_len)


register_presets("transformer_lm_head_gates")
