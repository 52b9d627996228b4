"""Find the functions of heads: positional, syntactic, rare tokens, alignment."""

from fairseq_headgates.analysis.functions.aligning import (
    Alignments,
    align,
    attention_of,
    best_head,
    contributions_by,
)
from fairseq_headgates.analysis.functions.counting import (
    Annotations,
    FunctionCounts,
    check_annotations,
    count_functions,
)
from fairseq_headgates.analysis.functions.results import find, functions_of, kept_functions, scored_functions
from fairseq_headgates.analysis.functions.trees import parse_relations, read_alignments, read_trees

__all__ = [
    "Alignments",
    "Annotations",
    "FunctionCounts",
    "align",
    "attention_of",
    "best_head",
    "check_annotations",
    "contributions_by",
    "count_functions",
    "find",
    "functions_of",
    "kept_functions",
    "parse_relations",
    "read_alignments",
    "read_trees",
    "scored_functions",
]
