"""`transformer_lm_head_gates`: fairseq's decoder-only language model with gates, fixed and removed heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, register_model
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.modules import CharacterTokenEmbedder
from torch import nn

from fairseq_headgates.models.mixin import HeadGatesMixin, register_preset


@register_model("transformer_lm_head_gates")
class TransformerLMHeadGatesModel(HeadGatesMixin, TransformerLanguageModel):
    """fairseq's `transformer_lm` with head gates; without options of this plugin it computes the same."""

    stock = TransformerLanguageModel
    stacks: ClassVar[Mapping[str, str]] = {"decoder": "decoder"}

    @classmethod
    def set_defaults(cls, args: Any) -> None:
        """Set the options that `args` leaves open, as fairseq does for `transformer_lm`."""
        with_defaults(None, args)

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of `transformer_lm` and of this plugin; fairseq calls it."""
        gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)
        super().add_args(parser)


def read_characters(model: nn.Module, dictionary: Any) -> None:
    """Let embeddings of characters (--character-embeddings) look up the symbols of a dictionary, in place.

    A checkpoint does not hold the characters, so a model that is built from it alone cannot read tokens.
    """
    for module in model.modules():
        if isinstance(module, CharacterTokenEmbedder):
            module.set_vocab(dictionary, module.max_char_len)


def with_defaults(preset: Callable[[Any], None] | None, args: Any) -> None:
    """Set what the command line leaves open: by a preset of fairseq, then by the defaults of `transformer_lm`."""
    if preset is not None:
        preset(args)
    for field in fields(TransformerLanguageModelConfig):
        of_task = isinstance(field.default, str) and field.default.startswith("${")
        if not field.name.startswith("_") and not of_task and not hasattr(args, field.name):
            setattr(args, field.name, field.default)
    if not hasattr(args, "max_target_positions"):  # with fairseq-hydra-train it is an option of the task alone
        args.max_target_positions = None


register_preset("transformer_lm_head_gates", "transformer_lm_head_gates", partial(with_defaults, None))
for _name, _model in list(ARCH_MODEL_REGISTRY.items()):
    if _model is TransformerLanguageModel and _name != "transformer_lm":
        _gated = _name.replace("transformer_lm", "transformer_lm_head_gates", 1)
        register_preset("transformer_lm_head_gates", _gated, partial(with_defaults, ARCH_CONFIG_REGISTRY[_name]))
