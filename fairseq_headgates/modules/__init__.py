"""Attention with access to its heads."""

from fairseq_headgates.modules.all_attention import AllAttention, distance_encodings
from fairseq_headgates.modules.attention_weights import averaged_heads
from fairseq_headgates.modules.head_attention import HeadAttention, HeadHook

__all__ = [
    "AllAttention",
    "HeadAttention",
    "HeadHook",
    "averaged_heads",
    "distance_encodings",
]
