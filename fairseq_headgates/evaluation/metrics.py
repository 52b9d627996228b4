"""The metric of a task besides the loss."""

from __future__ import annotations

from typing import Any


def is_language_modeling(task: Any) -> bool:
    """Return whether a task is one that fairseq-eval-lm evaluates."""
    return hasattr(task, "eval_lm_dataloader")


def metric_of(task: Any, chosen: str | None) -> str:
    """Return the chosen metric, by default that of the task. Raise ValueError if the task does not have it."""
    if not is_language_modeling(task):
        return chosen or "bleu"
    if chosen == "bleu":
        raise ValueError("--metric is bleu, but language models do not translate: choose nll or ppl")
    return chosen or "ppl"
