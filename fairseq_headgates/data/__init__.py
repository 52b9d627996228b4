"""Binarised data, and models on them: batches, shared among workers; losses, translations, BLEU, significance.

The names here read files of results, without torch; everything else is imported from its module.
"""

from fairseq_headgates.data.results import Difference, Evaluation, differences, read_evaluations

__all__ = ["Difference", "Evaluation", "differences", "read_evaluations"]
