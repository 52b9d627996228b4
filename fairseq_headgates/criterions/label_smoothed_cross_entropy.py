"""`label_smoothed_cross_entropy_l0`: fairseq's label-smoothed cross-entropy with the L0 penalty."""

# Without `from __future__ import annotations`: fairseq reads the types of the options.
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from omegaconf import II

from fairseq_headgates.criterions.l0 import HELP, L0Mixin
from fairseq_headgates.gates import L0_REDUCTIONS


@dataclass
class LabelSmoothedCrossEntropyL0Config(LabelSmoothedCrossEntropyCriterionConfig):
    """Options of fairseq's criterion, lambda and the reduction of the penalty."""

    l0_weight: str = field(default="0.0", metadata={"help": HELP["l0_weight"]})
    l0_reduction: ChoiceEnum(L0_REDUCTIONS) = field(  # type: ignore[valid-type]
        default="sum", metadata={"help": HELP["l0_reduction"]}
    )
    l0_warmup_updates: int = field(default=0, metadata={"help": HELP["l0_warmup_updates"]})
    l0_start_update: int = field(default=0, metadata={"help": HELP["l0_start_update"]})
    # fairseq knows only this spelling of the type
    tensorboard_logdir: Optional[str] = II("common.tensorboard_logdir")  # noqa: UP045


@register_criterion("label_smoothed_cross_entropy_l0", dataclass=LabelSmoothedCrossEntropyL0Config)
class LabelSmoothedCrossEntropyL0Criterion(L0Mixin, LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy + lambda L_C."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        l0_weight: str,
        l0_reduction: str,
        l0_warmup_updates: int = 0,
        l0_start_update: int = 0,
        tensorboard_logdir: Optional[str] = None,  # noqa: UP045
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
    ):
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.set_l0(l0_weight, str(l0_reduction), tensorboard_logdir, l0_warmup_updates, l0_start_update)
