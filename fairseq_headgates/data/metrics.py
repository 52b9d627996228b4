"""Metrics that compare predictions with references, and test differences between models: BLEU and accuracy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from fairseq.data.data_utils import post_process
from sacrebleu.metrics import BLEU
from torch import nn

from fairseq_headgates.attention.modules import use_head_attention
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.objectives import Classes
from fairseq_headgates.data.results import scorers
from fairseq_headgates.data.symbols import MARKS, SHARE, subwords_of
from fairseq_headgates.data.translations import bleu_metric, references, translate
from fairseq_headgates.messages import Progress

TOKENISED = 100  # sentences that end in a blank and a full stop; sacreBLEU warns at this number


class Metric:
    """Predicts a corpus with models, and scores what they predict.

    Args:
        corpus: the data
        references: what predictions are compared with, in the order of the corpus
        bleu: sacreBLEU's metric; None for classes

    Attributes:
        name: "bleu" or "accuracy"
        scorers: by the names of the scores
        main: the first of them
        warning: what makes scores incomparable, and what to do; "" for nothing
    """

    name = warning = ""

    def __init__(self, corpus: Corpus, references: list[Any], bleu: BLEU | None = None):
        self.corpus, self.bleu = corpus, bleu
        self.use(references)

    def use(self, references: list[Any]) -> None:
        """Compare predictions with these references from now on."""
        self.references, self.scorers = references, scorers(references, self.bleu)
        self.main = next(iter(self.scorers.values()))

    def prepared(self, model: nn.Module) -> nn.Module:
        """Return a copy of a model, prepared for `predict`."""
        return use_head_attention(copy.deepcopy(model))

    def predict(self, model: nn.Module, progress: Progress = iter) -> list[Any]:
        """Return the predictions of a prepared model, in the order of the corpus."""
        raise NotImplementedError


class Bleu(Metric):
    """BLEU and chrF2 of translations."""

    name = "bleu"

    def __init__(self, model: nn.Module, corpus: Corpus):
        super().__init__(corpus, references(model, corpus), bleu_metric(corpus))
        self.warning = not_comparable(corpus, self.references)

    def prepared(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model prepared for generation, as fairseq-generate does."""
        model = super().prepared(model)
        model.prepare_for_inference_(self.corpus.cfg)  # type: ignore[operator]
        return model

    def predict(self, model: nn.Module, progress: Progress = iter) -> list[str]:
        """Return the translations of a prepared model."""
        return translate(model, self.corpus, progress)


def not_comparable(corpus: Corpus, references: Sequence[str]) -> str:
    """Return what makes BLEU incomparable, subwords or tokenised text, and the options to pass; "" for nothing."""
    joined, problems, options = references, [], []
    mark, chosen = MARKS.get(subwords_of(corpus.task.target_dictionary.symbols)), corpus.cfg.common_eval.post_process
    split = sum(mark.text in line for line in references) if mark and chosen not in mark.post_process else 0
    if mark and split > SHARE * len(references):
        problems.append(f"{split} references have subwords ({mark.text})")
        options.append(mark.hint or "a text in which they are joined, for which fairseq has no option")
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


class Accuracy(Metric):
    """The percentage of sentences that are classified as labelled."""

    name = "accuracy"

    def __init__(self, model: nn.Module, corpus: Corpus):
        super().__init__(corpus, corpus.in_order(sample["target"].view(-1).tolist() for sample in corpus.batches))

    @torch.no_grad()
    def predict(self, model: nn.Module, progress: Progress = iter) -> list[int]:
        """Return the class that the model predicts for every sentence."""
        objective, batches = self.corpus.objective, progress(self.corpus.batches)
        assert isinstance(objective, Classes)  # the only one with this metric
        return self.corpus.in_order(objective.predicted(model, sample).tolist() for sample in batches)


METRICS: dict[str, type[Bleu] | type[Accuracy]] = {"bleu": Bleu, "accuracy": Accuracy}


def metric_of(name: str, model: nn.Module, corpus: Corpus) -> Metric | None:
    """Return the metric of this name on a corpus, None for one that is computed from the loss ("nll", "ppl")."""
    return METRICS[name](model, corpus) if name in METRICS else None
