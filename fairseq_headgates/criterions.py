"""L = L_xent + lambda L_C (Voita et al. 2019, eq. 8): fairseq's criterions with the L0 penalty of the gates added."""

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from omegaconf import II

from fairseq_headgates import report
from fairseq_headgates.arguments import shown
from fairseq_headgates.options import one_line_errors, one_line_type
from fairseq_headgates.sites import L0_REDUCTIONS, HeadSite, gated_sites, open_probabilities, penalty_of, to_tables

logger = logging.getLogger(__name__)


@dataclass
class LabelSmoothedCrossEntropyL0Config(LabelSmoothedCrossEntropyCriterionConfig):
    l0_weight: float = field(
        default=0.0,
        metadata={"help": "lambda: weight of the expected number of open heads against the loss per token"},
    )
    l0_reduction: ChoiceEnum(L0_REDUCTIONS) = field(  # type: ignore[valid-type]
        default="sum",
        metadata={"help": "sum over heads (the paper), or the mean over gated layers of it (its code)"},
    )
    # fairseq reads this type itself, and knows only this spelling
    tensorboard_logdir: Optional[str] = II("common.tensorboard_logdir")  # noqa: UP045


LARGEST_WEIGHT = 1e9  # times all tokens of an update and all heads, squared by an optimiser, it stays finite


def check_weight(weight: float | str) -> float:
    """lambda as a number. Raises ValueError."""
    try:
        number = float(weight)
    except ValueError:
        raise ValueError(f"--l0-weight is {shown(weight)}: it must be a number") from None
    if not 0 <= number <= LARGEST_WEIGHT:
        raise ValueError(f"--l0-weight is {number:g}: it must be 0 or more, and at most {LARGEST_WEIGHT:g}")
    return number


def check_reduction(reduction: str) -> str:
    """The name of a reduction, if it is known. Raises ValueError."""
    if reduction not in L0_REDUCTIONS:
        raise ValueError(f"unknown reduction {shown(reduction)}: choose from {', '.join(L0_REDUCTIONS)}")
    return reduction


class L0Mixin:
    """Adds lambda L_C to the loss of the criterion it is mixed into, in training only.

    fairseq sums the loss over all tokens of an update and divides the gradient by their number, `sample_size`.
    The penalty is multiplied by `sample_size` first, so that lambda weighs against the loss per token (per sentence
    with --sentence-avg) whatever the batch size, --update-freq and number of workers. Validation adds nothing:
    its loss compares with the baseline's.
    """

    l0_weight: float
    l0_reduction: str
    tensorboard_logdir: str | None

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Adds the options of the criterion; those of this plugin first, which report a bad value in one line."""
        for name, check in {"l0_weight": check_weight, "l0_reduction": check_reduction}.items():
            field = LabelSmoothedCrossEntropyL0Config.__dataclass_fields__[name]
            parser.add_argument(
                "--" + name.replace("_", "-"),
                type=one_line_type(name, check),
                default=field.default,
                help=field.metadata["help"],
            )
        super().add_args(parser)  # type: ignore[misc]  (fairseq passes over options that the parser has)

    def set_l0(self, weight: float, reduction: str, tensorboard_logdir: str | None) -> None:
        with one_line_errors():
            check_weight(weight)
        self.l0_weight, self.l0_reduction, self.tensorboard_logdir = weight, reduction, tensorboard_logdir
        self._found: tuple[Any, list[HeadSite]] = (None, [])
        self._trained = self._trained_since_report = False

    def forward(self, model, sample, reduce=True):
        loss, sample_size, logs = super().forward(model, sample, reduce)  # type: ignore[misc]
        sites = self._sites_of(model)
        gates = [site.attention.gate for site in sites]
        penalty = penalty_of(gates, self.l0_reduction)
        if model.training:
            self._begin(model)
            loss = loss + self.l0_weight * sample_size * penalty
            logs["loss"] = loss.data
            self._trained_since_report = True
        elif self._trained_since_report:
            self._trained_since_report = False
            self._report(model)
        logs["l0"] = penalty.detach() * sample_size
        logs.update({key: count * sample_size for key, count in open_heads(sites).items()})
        return loss, sample_size, logs

    def _sites_of(self, model):
        if model is not self._found[0]:  # finding them anew for every batch would cost more than the gates do
            with one_line_errors():
                sites = gated_sites(model)
                penalty_of([site.attention.gate for site in sites], self.l0_reduction)
            self._found = (model, sites)  # in a tuple, or torch would take the model for a part of the criterion
        return self._found[1]

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        super().reduce_metrics(logging_outputs)  # type: ignore[misc]
        weight = sum(log.get("sample_size", 0) for log in logging_outputs)
        for key in sorted(
            {key for log in logging_outputs for key in log if key == "l0" or key.startswith("heads_open")}
        ):
            metrics.log_scalar(key, sum(log.get(key, 0) for log in logging_outputs) / weight, weight, round=2)

    def _begin(self, model) -> None:
        if not self._trained:
            self._trained = True
            if distributed_utils.get_global_rank() == 0 and hasattr(unwrap(model), "training_begins"):
                unwrap(model).training_begins()

    def _report(self, model) -> None:
        """Once for every validation, by the first worker: the heat map of P(gate = 0), and a look at the schedule."""
        if distributed_utils.get_global_rank() != 0:
            return
        model = unwrap(model)
        updates = getattr(model, "num_updates", -1) + 1  # fairseq tells the number before each update
        if hasattr(model, "training_pauses"):
            model.training_pauses()
        if self.tensorboard_logdir and self._writer is not None:
            closed = to_tables(open_probabilities(model), "P(open)").map(lambda p: 1 - p, "P(gate = 0)")
            self._writer.add_figure("gates/closed", report.heat_map(closed), updates)
            self._writer.flush()

    @cached_property
    def _writer(self):
        try:
            import matplotlib  # noqa: F401
            from tensorboardX import SummaryWriter
        except ImportError as error:
            logger.warning(
                f"no heat map of the gates: {error.name} is missing (pip install 'fairseq-headgates[plots]')"
            )
            return None
        return SummaryWriter(str(Path(self.tensorboard_logdir) / "gates"))


def open_heads(sites) -> dict[str, torch.Tensor]:
    """How many gated heads have an evaluation gate above 0: `heads_open` in all, `heads_open_enc_self` and so on."""
    with torch.no_grad():
        gates = [site.attention.gate for site in sites]
        margins = torch.cat([gate.log_alpha() - gate.distribution.closes_at for gate in gates])
        is_open = (margins > 0).split([gate.theta.numel() for gate in gates])
        counts = {"heads_open": torch.cat(is_open).sum()}
        for kind in dict.fromkeys(site.kind for site in sites):
            group = [row for site, row in zip(sites, is_open, strict=True) if site.kind == kind]
            counts["heads_open_" + kind.replace("-", "_")] = torch.cat(group).sum()
    return counts


def unwrap(model):
    """The model inside fairseq's and torch's distributed wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model


@register_criterion("label_smoothed_cross_entropy_l0", dataclass=LabelSmoothedCrossEntropyL0Config)
class LabelSmoothedCrossEntropyL0Criterion(L0Mixin, LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy + lambda L0."""

    def __init__(
        self, task, sentence_avg, label_smoothing, l0_weight, l0_reduction, tensorboard_logdir=None,
        ignore_prefix_size=0, report_accuracy=False,
    ):  # fmt: skip
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.set_l0(l0_weight, str(l0_reduction), tensorboard_logdir)
