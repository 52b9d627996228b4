"""`transformer_lm_head_gates`: fairseq's decoder-only language model with gates, fixed and removed heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, register_model, register_model_architecture
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig

from fairseq_headgates.models.mixin import HeadGatesMixin

PRESETS = (
    "big",
    "wiki103",
    "baevski_wiki103",
    "gbw",
    "baevski_gbw",
    "gpt",
    "gpt2_small",
    "gpt2_tiny",
    "gpt2_medium",
    "gpt2_big",
    "gpt2_big_wide",
    "gpt2_bigger",
)


@register_model("transformer_lm_head_gates")
class TransformerLMHeadGatesModel(HeadGatesMixin, TransformerLanguageModel):
    """fairseq's `transformer_lm` with head gates; without options of this plugin it computes the same."""

    stock = TransformerLanguageModel
    stacks = ("decoder",)

    @classmethod
    def set_defaults(cls, args: Any) -> None:
        """Set the options that `args` leaves open, as fairseq does for `transformer_lm`."""
        with_defaults(None, args)

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of `transformer_lm` and of this plugin; fairseq calls it."""
        gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)
        super().add_args(parser)


def with_defaults(preset: Callable[[Any], None] | None, args: Any) -> None:
    """Set what the command line leaves open: by a preset of fairseq, then by the defaults of `transformer_lm`."""
    if preset is not None:
        preset(args)
    for field in fields(TransformerLanguageModelConfig):
        interpolated = isinstance(field.default, str) and field.default.startswith("${")
        if not field.name.startswith("_") and not interpolated and not hasattr(args, field.name):
            setattr(args, field.name, field.default)


register_model_architecture("transformer_lm_head_gates", "transformer_lm_head_gates")(partial(with_defaults, None))
for _preset in PRESETS:
    _stock_preset = ARCH_CONFIG_REGISTRY.get(f"transformer_lm_{_preset}")
    if _stock_preset is not None:
        register_model_architecture("transformer_lm_head_gates", f"transformer_lm_head_gates_{_preset}")(
            partial(with_defaults, _stock_preset)
        )
