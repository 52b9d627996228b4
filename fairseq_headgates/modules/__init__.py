"""Attention with access to its heads, its cache in beam search, and packed linear layers."""

from fairseq_headgates.modules.all_attention import AllAttention, distance_encodings
from fairseq_headgates.modules.attention_weights import averaged_heads
from fairseq_headgates.modules.beam_stacks import BeamDecoder, BeamEncoder
from fairseq_headgates.modules.head_attention import HeadAttention, HeadHook
from fairseq_headgates.modules.packed_linear import pack_linears

__all__ = [
    "AllAttention",
    "BeamDecoder",
    "BeamEncoder",
    "HeadAttention",
    "HeadHook",
    "averaged_heads",
    "distance_encodings",
    "pack_linears",
]
