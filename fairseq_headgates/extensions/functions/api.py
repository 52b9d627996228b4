"""The public names of this extension, `fairseq_headgates.functions`."""

from fairseq_headgates.extensions.functions.aligning import Alignments, align, attention_of, contributions_by
from fairseq_headgates.extensions.functions.counting import Annotations
from fairseq_headgates.extensions.functions.results import find
from fairseq_headgates.extensions.functions.trees import read_alignments, read_trees
from fairseq_headgates.heads.functions import best_head

__all__ = [
    "Alignments",
    "Annotations",
    "align",
    "attention_of",
    "best_head",
    "contributions_by",
    "find",
    "read_alignments",
    "read_trees",
]
