"""fairseq's losses with the L0 penalty: the criterions that `--criterion` names."""

# Without `from __future__ import annotations`: fairseq reads the types of the options.
from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss, AdaptiveLossConfig
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion

from fairseq_headgates.criterions.config import L0Config
from fairseq_headgates.criterions.l0 import L0Mixin


@dataclass
class LabelSmoothedCrossEntropyL0Config(L0Config, LabelSmoothedCrossEntropyCriterionConfig):
    """Options of fairseq's criterion and of the penalty."""


@register_criterion("label_smoothed_cross_entropy_l0", dataclass=LabelSmoothedCrossEntropyL0Config)
class LabelSmoothedCrossEntropyL0Criterion(L0Mixin, LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy + lambda L_C."""


@dataclass
class CrossEntropyL0Config(L0Config, CrossEntropyCriterionConfig):
    """Options of fairseq's criterion and of the penalty."""


@register_criterion("cross_entropy_l0", dataclass=CrossEntropyL0Config)
class CrossEntropyL0Criterion(L0Mixin, CrossEntropyCriterion):
    """Cross-entropy + lambda L_C."""


@dataclass
class AdaptiveLossL0Config(L0Config, AdaptiveLossConfig):
    """Options of fairseq's criterion and of the penalty."""


@register_criterion("adaptive_loss_l0", dataclass=AdaptiveLossL0Config)
class AdaptiveLossL0Criterion(L0Mixin, AdaptiveLoss):
    """The loss of the adaptive softmax + lambda L_C."""


@dataclass
class MaskedLmL0Config(L0Config, MaskedLmConfig):
    """Options of fairseq's criterion and of the penalty."""


@register_criterion("masked_lm_l0", dataclass=MaskedLmL0Config)
class MaskedLmL0Criterion(L0Mixin, MaskedLmLoss):
    """The loss of masked language modelling + lambda L_C."""


@dataclass
class SentencePredictionL0Config(L0Config, SentencePredictionConfig):
    """Options of fairseq's criterion and of the penalty."""


@register_criterion("sentence_prediction_l0", dataclass=SentencePredictionL0Config)
class SentencePredictionL0Criterion(L0Mixin, SentencePredictionCriterion):
    """The loss of a classifier + lambda L_C."""
