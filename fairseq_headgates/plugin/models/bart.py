"""`bart_head_gates`: fairseq's BART and mBART with gates, fixed and removed heads."""

from __future__ import annotations

from fairseq.models import register_model
from fairseq.models.bart import BARTModel

from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, register_presets


@register_model("bart_head_gates")
class BARTHeadGatesModel(HeadGatesMixin, BARTModel):
    """fairseq's `bart` with head gates; without options of this plugin it computes the same."""

    stock = BARTModel


register_presets("bart_head_gates")
