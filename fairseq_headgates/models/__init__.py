"""The registered architectures: fairseq's models with gates, fixed and removed heads, and frozen parameters."""

from fairseq_headgates.models import families  # noqa: F401  (registers architectures)
from fairseq_headgates.models.all_attention import TransformerLMAllAttentionModel
from fairseq_headgates.models.language_model import TransformerLMHeadGatesModel, read_characters
from fairseq_headgates.models.mixin import HeadGatesMixin, apply_head_options, head_gates_class
from fairseq_headgates.models.roberta import RobertaHeadGatesModel
from fairseq_headgates.models.transformer import TransformerHeadGatesModel

__all__ = [
    "HeadGatesMixin",
    "RobertaHeadGatesModel",
    "TransformerHeadGatesModel",
    "TransformerLMAllAttentionModel",
    "TransformerLMHeadGatesModel",
    "apply_head_options",
    "head_gates_class",
    "read_characters",
]
