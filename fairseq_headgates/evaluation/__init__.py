"""A model on real data: fairseq's batches, shared among processes; the loss on them, translations and their BLEU."""

from fairseq_headgates.evaluation.corpus import (
    Corpus,
    FirstSentences,
    Sample,
    check_target,
    files_of,
    load_corpus,
    setup_task,
)
from fairseq_headgates.evaluation.losses import at_least_single, finite, mean_loss, token_losses
from fairseq_headgates.evaluation.translations import (
    bleu_metric,
    bleu_with_significance,
    make_generator,
    references,
    translate,
)
from fairseq_headgates.evaluation.workers import device_of, join_workers, leave_workers, total, union

__all__ = [
    "Corpus",
    "FirstSentences",
    "Sample",
    "at_least_single",
    "bleu_metric",
    "bleu_with_significance",
    "check_target",
    "device_of",
    "files_of",
    "finite",
    "join_workers",
    "leave_workers",
    "load_corpus",
    "make_generator",
    "mean_loss",
    "references",
    "setup_task",
    "token_losses",
    "total",
    "translate",
    "union",
]
