"""Attention types, head tables, and their files: masks, scores, functions (no torch)."""

from fairseq_headgates.heads.counts import count_of, number_of_heads, parse_count
from fairseq_headgates.heads.files import (
    SCORE_FORMAT,
    Mask,
    as_mask,
    mask_to_json,
    parse_mask,
    parse_scores,
    read_scores,
    scores_of,
    scores_to_json,
)
from fairseq_headgates.heads.table import (
    DATA,
    TYPES,
    AttentionMap,
    AttentionType,
    Contributions,
    HeadId,
    HeadTable,
    Signature,
    check_shape,
    parse_heads,
    parse_types,
)

__all__ = [
    "DATA",
    "SCORE_FORMAT",
    "TYPES",
    "AttentionMap",
    "AttentionType",
    "Contributions",
    "HeadId",
    "HeadTable",
    "Mask",
    "Signature",
    "as_mask",
    "check_shape",
    "count_of",
    "mask_to_json",
    "number_of_heads",
    "parse_count",
    "parse_heads",
    "parse_mask",
    "parse_scores",
    "parse_types",
    "read_scores",
    "scores_of",
    "scores_to_json",
]
