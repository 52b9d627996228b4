"""Evaluate a model on binarised data: batches, shared among workers; losses, translations, BLEU, significance.

The names here read files of results, without torch; everything else is imported from its module.
"""

from fairseq_headgates.evaluation.results import Difference, Evaluation, pairwise, read_evaluations

__all__ = ["Difference", "Evaluation", "pairwise", "read_evaluations"]
