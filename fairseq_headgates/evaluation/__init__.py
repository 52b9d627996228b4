"""Evaluate a model on binarised data: batches, shared among workers; losses, translations and BLEU."""

from fairseq_headgates.evaluation.corpus import (
    Corpus,
    FirstSentences,
    check_target,
    check_tokens,
    files_of,
    finite,
    load_corpus,
    load_dataset,
    mean_loss,
    setup_task,
)
from fairseq_headgates.evaluation.losses import Sample, at_least_single, token_losses
from fairseq_headgates.evaluation.metrics import Metric, metric_of
from fairseq_headgates.evaluation.objectives import Objective, objective_of
from fairseq_headgates.evaluation.options import to_config
from fairseq_headgates.evaluation.translations import beam_search, translate
from fairseq_headgates.evaluation.workers import all_reduce, device_of, gather, join_workers, leave_workers

__all__ = [
    "Corpus",
    "FirstSentences",
    "Metric",
    "Objective",
    "Sample",
    "all_reduce",
    "at_least_single",
    "beam_search",
    "check_target",
    "check_tokens",
    "device_of",
    "files_of",
    "finite",
    "gather",
    "join_workers",
    "leave_workers",
    "load_corpus",
    "load_dataset",
    "mean_loss",
    "metric_of",
    "objective_of",
    "setup_task",
    "to_config",
    "token_losses",
    "translate",
]
