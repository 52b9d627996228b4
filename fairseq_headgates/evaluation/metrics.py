"""Metrics that compare predictions with references, and test differences between models: BLEU and accuracy."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from fairseq.data.data_utils import post_process
from torch import nn

from fairseq_headgates.attention.sites import use_head_attention
from fairseq_headgates.evaluation.corpus import Corpus
from fairseq_headgates.evaluation.objectives import Classes
from fairseq_headgates.evaluation.statistics import Comparison, mcnemar, paired_bootstrap
from fairseq_headgates.evaluation.symbols import MARKS, SHARE, subwords_of
from fairseq_headgates.evaluation.translations import bleu_metric, references, translate
from fairseq_headgates.evaluation.workers import gather

TOKENISED = 100  # sentences that end in a blank and a full stop; sacreBLEU warns at this number


class Metric(Protocol):
    """A metric on one corpus.

    Attributes:
        name: "bleu" or "accuracy"
        test: the significance test, in words
        warning: what makes scores incomparable, and what to do; "" for nothing
    """

    name: str
    test: str
    warning: str

    def prepared(self, model: nn.Module) -> nn.Module:
        """Return a copy of a model, prepared for `predict`."""

    def predict(self, model: nn.Module) -> list[Any]:
        """Return the predictions of a prepared model, in the order of the corpus."""

    def score(self, predictions: Sequence[Any]) -> float:
        """Return the score of predictions, from 0 to 100."""

    def compare(self, systems: Mapping[str, Sequence[Any]]) -> Comparison:
        """Return the score of every system, and the p-value of its difference from the first."""

    def signature(self) -> str:
        """Return how the score is computed."""


class Bleu:
    """BLEU by sacreBLEU; its test is paired bootstrap (Koehn 2004)."""

    name, test = "bleu", "paired bootstrap"

    def __init__(self, model: nn.Module, corpus: Corpus):
        self.corpus, self.metric, self.references = corpus, bleu_metric(corpus), references(model, corpus)
        self.warning = not_comparable(corpus, self.references)

    def prepared(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model prepared for generation, as fairseq-generate does."""
        model = use_head_attention(copy.deepcopy(model))
        model.prepare_for_inference_(self.corpus.cfg)  # type: ignore[operator]
        return model

    def predict(self, model: nn.Module) -> list[str]:
        """Return the translations of a prepared model."""
        return translate(model, self.corpus)

    def score(self, predictions: Sequence[str]) -> float:
        """Return BLEU."""
        return float(self.metric.corpus_score(predictions, [self.references]).score)

    def compare(self, systems: Mapping[str, Sequence[str]]) -> Comparison:
        """Return BLEU of every system, and the p-value of its difference from the first."""
        return paired_bootstrap({"BLEU": self.metric}, systems, self.references)["BLEU"]

    def signature(self) -> str:
        """Return sacreBLEU's signature."""
        return str(self.metric.get_signature())


def not_comparable(corpus: Corpus, references: Sequence[str]) -> str:
    """Return what makes BLEU incomparable, subwords or tokenised text, and the options to pass; "" for nothing."""
    joined, problems, options = references, [], []
    mark, chosen = MARKS.get(subwords_of(corpus.task.target_dictionary.symbols)), corpus.cfg.common_eval.post_process
    split = sum(mark.text in line for line in references) if mark and chosen not in mark.post_process else 0
    if mark and split > SHARE * len(references):
        problems.append(f"{split} references have subwords ({mark.text})")
        options.append(mark.cure or "a text in which they are joined, for which fairseq has no option")
        joined = [post_process(line, mark.post_process[0]) for line in references] if mark.post_process else []
    elif not mark and references and all(line.replace(" ", "").isdecimal() for line in references):
        problems.append("the references are numbers")
        options.append("--bpe gpt2 if they are those of its subwords")
    tokenised = sum(line.endswith(" .") for line in joined)
    if tokenised >= TOKENISED and not corpus.cfg.tokenizer:
        problems.append(f"{tokenised} references end in ' .'")
        options.append("--tokenizer moses")
    if not problems:
        return ""
    return f"{' and '.join(problems)}: BLEU of such text is not comparable; pass {' and '.join(options)}"


class Accuracy:
    """The percentage of sentences that are classified as labelled; its test is McNemar's exact test."""

    name, test, warning = "accuracy", "McNemar's exact test", ""

    def __init__(self, model: nn.Module, corpus: Corpus):
        self.corpus = corpus
        self.labels = _in_order(corpus, [sample["target"].view(-1) for sample in corpus.batches])

    def prepared(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model."""
        return use_head_attention(copy.deepcopy(model))

    @torch.no_grad()
    def predict(self, model: nn.Module) -> list[int]:
        """Return the class that the model predicts for every sentence."""
        objective = self.corpus.objective
        assert isinstance(objective, Classes)  # the only one with this metric
        return _in_order(self.corpus, [objective.predicted(model, sample) for sample in self.corpus.batches])

    def score(self, predictions: Sequence[int]) -> float:
        """Return the percentage of correct predictions."""
        return 100 * sum(map(int.__eq__, predictions, self.labels)) / len(self.labels)

    def compare(self, systems: Mapping[str, Sequence[int]]) -> Comparison:
        """Return the accuracy of every system, and the p-value of its difference from the first."""
        first, *others = systems
        p_values: dict[str, float | None] = {
            name: mcnemar(systems[first], systems[name], self.labels) for name in others
        }
        return Comparison({name: self.score(found) for name, found in systems.items()}, p_values, self.signature())

    def signature(self) -> str:
        """Return the number of sentences."""
        return f"accuracy on {len(self.labels)} sentences"


def _in_order(corpus: Corpus, classes: Sequence[torch.Tensor]) -> list[int]:
    """Return a class for every sentence of all workers, in the order of the corpus, from those of the batches."""
    found: dict[int, int] = {}
    for sample, of_batch in zip(corpus.batches, classes, strict=True):
        found.update(zip(sample["id"].tolist(), of_batch.tolist(), strict=True))
    return [label for _, label in sorted(gather(found).items())]


METRICS: dict[str, type[Bleu] | type[Accuracy]] = {"bleu": Bleu, "accuracy": Accuracy}


def metric_of(name: str, model: nn.Module, corpus: Corpus) -> Metric | None:
    """Return the metric of this name on a corpus, None for one that is computed from the loss ("nll", "ppl")."""
    return METRICS[name](model, corpus) if name in METRICS else None
