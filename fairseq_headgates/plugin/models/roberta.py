"""`roberta_head_gates`: fairseq's RoBERTa with gates, fixed and removed heads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fairseq.models import register_model
from fairseq.models.roberta import RobertaModel
from torch import Tensor

from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, register_presets


@register_model("roberta_head_gates")
class RobertaHeadGatesModel(HeadGatesMixin, RobertaModel):
    """fairseq's `roberta` with head gates; without options of this plugin it computes the same."""

    stock = RobertaModel

    @classmethod
    def set_defaults(cls, args: Any) -> None:
        """Set the options that `args` leaves open, as fairseq does for their architecture, or else for `roberta`."""
        if getattr(args, "max_positions", None) is None and getattr(args, "tokens_per_sample", None) is not None:
            args.max_positions = args.tokens_per_sample
        super().set_defaults(args)

    @classmethod
    def current_names(cls, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights by the names of today's fairseq: its first RoBERTa called the encoder "decoder"."""
        names = {name: re.sub(r"^decoder\.", "encoder.", name) for name in weights}
        names = {name: new.replace(".emb_layer_norm.", ".layernorm_embedding.") for name, new in names.items()}
        return {names[name]: weight for name, weight in weights.items()}


register_presets("roberta_head_gates")
