"""The registered criterions: fairseq's losses with the L0 penalty of the gates (Voita et al. 2019, eq. 8)."""

from fairseq_headgates.criterions.l0 import L0Mixin
from fairseq_headgates.criterions.losses import PENALISED

LabelSmoothedCrossEntropyL0Criterion = PENALISED["label_smoothed_cross_entropy"]

__all__ = ["PENALISED", "L0Mixin", "LabelSmoothedCrossEntropyL0Criterion"]
