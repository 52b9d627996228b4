"""Evaluate a model on binarised data: batches, shared among workers; losses, translations and BLEU."""

from fairseq_headgates.evaluation.corpus import (
    Corpus,
    FirstSentences,
    Sample,
    check_target,
    check_tokens,
    files_of,
    load_corpus,
    load_dataset,
    setup_task,
)
from fairseq_headgates.evaluation.losses import at_least_single, finite, mean_loss, token_losses
from fairseq_headgates.evaluation.metrics import is_language_modeling, metric_of
from fairseq_headgates.evaluation.options import to_config
from fairseq_headgates.evaluation.translations import (
    bleu_metric,
    bleu_with_significance,
    make_generator,
    references,
    translate,
)
from fairseq_headgates.evaluation.workers import all_reduce, device_of, gather, join_workers, leave_workers

__all__ = [
    "Corpus",
    "FirstSentences",
    "Sample",
    "all_reduce",
    "at_least_single",
    "bleu_metric",
    "bleu_with_significance",
    "check_target",
    "check_tokens",
    "device_of",
    "files_of",
    "finite",
    "gather",
    "is_language_modeling",
    "join_workers",
    "leave_workers",
    "load_corpus",
    "load_dataset",
    "make_generator",
    "mean_loss",
    "metric_of",
    "references",
    "setup_task",
    "to_config",
    "token_losses",
    "translate",
]
