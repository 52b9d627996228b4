"""Evaluate a model on binarised data: batches, shared among workers; losses, translations, BLEU, significance.

A name is imported when it is first used: programs that only need statistics or files of results start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_headgates.evaluation.corpus import (
        Corpus,
        FirstSentences,
        check_target,
        check_tokens,
        files_of,
        load_corpus,
        load_dataset,
    )
    from fairseq_headgates.evaluation.corpus_losses import finite, mean_loss, sentence_losses
    from fairseq_headgates.evaluation.losses import Sample, at_least_single, outputs, token_losses
    from fairseq_headgates.evaluation.metrics import Metric, metric_of
    from fairseq_headgates.evaluation.objectives import Objective, check_has_loss, objective_of
    from fairseq_headgates.evaluation.options import setup_task
    from fairseq_headgates.evaluation.result_files import parse_evaluation, read_evaluations
    from fairseq_headgates.evaluation.results import Difference, Evaluation, differences, pairwise
    from fairseq_headgates.evaluation.statistics import Comparison, mcnemar, paired_bootstrap, perplexity
    from fairseq_headgates.evaluation.translations import beam_search, translate
    from fairseq_headgates.evaluation.workers import all_reduce, device_of, gather, join_workers, leave_workers

__all__ = [
    "Comparison",
    "Corpus",
    "Difference",
    "Evaluation",
    "FirstSentences",
    "Metric",
    "Objective",
    "Sample",
    "all_reduce",
    "at_least_single",
    "beam_search",
    "check_has_loss",
    "check_target",
    "check_tokens",
    "device_of",
    "differences",
    "files_of",
    "finite",
    "gather",
    "join_workers",
    "leave_workers",
    "load_corpus",
    "load_dataset",
    "mcnemar",
    "mean_loss",
    "metric_of",
    "objective_of",
    "outputs",
    "paired_bootstrap",
    "pairwise",
    "parse_evaluation",
    "perplexity",
    "read_evaluations",
    "sentence_losses",
    "setup_task",
    "token_losses",
    "translate",
]

MODULES = (
    "statistics",
    "results",
    "result_files",
    "workers",
    "losses",
    "objectives",
    "options",
    "corpus",
    "corpus_losses",
    "translations",
    "metrics",
)


def __getattr__(name: str) -> Any:
    for module in MODULES if name in __all__ else ():
        found = vars(import_module(f"{__name__}.{module}"))
        if name in found:
            return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
