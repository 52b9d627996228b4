"""Fast inference: packed linear layers in single precision or in 8 bits, and the caches of beam search."""

from fairseq_headgates.inference.attention_cache import AttentionCache, merge_heads, split_heads
from fairseq_headgates.inference.beam_stacks import BeamDecoder, BeamEncoder, use_beam_stacks
from fairseq_headgates.inference.decoder_step import MODES
from fairseq_headgates.inference.device_search import DeviceSearch
from fairseq_headgates.inference.packed_linear import (
    DTYPES,
    InferenceLinear,
    ParameterCache,
    int8_obstacle,
    is_quantised,
    pack_linears,
    usable_dtype,
)

__all__ = [
    "DTYPES",
    "MODES",
    "AttentionCache",
    "BeamDecoder",
    "BeamEncoder",
    "DeviceSearch",
    "InferenceLinear",
    "ParameterCache",
    "int8_obstacle",
    "is_quantised",
    "merge_heads",
    "pack_linears",
    "split_heads",
    "usable_dtype",
    "use_beam_stacks",
]
