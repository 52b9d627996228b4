"""The L0 penalty on gates for any fairseq criterion: L = L_xent + lambda L_C (Voita et al. 2019, eq. 8)."""

from __future__ import annotations

from typing import Any, ClassVar

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.logging import metrics
from omegaconf import OmegaConf
from torch import nn

from fairseq_headgates.attention.modules import gate_method
from fairseq_headgates.gates import L0_REDUCTIONS, GateMethod, L0Schedule, TargetGates, parse_weights
from fairseq_headgates.messages import PROGRAM, fail, shown
from fairseq_headgates.plugin.criterions.config import HELP, L0Config
from fairseq_headgates.plugin.monitoring import GateMonitor, open_head_counts, unwrapped, updates_of
from fairseq_headgates.plugin.options.reading import one_line_errors

OWN_METRICS = ("l0", "heads_open", "gate_certainty")


class L0Mixin:
    """Mixin that adds the L0 penalty, lambda L_C, to the training loss of a fairseq criterion.

    fairseq sums the loss over all tokens of an update and divides the gradient by their number, `sample_size`. The
    penalty is multiplied by `sample_size`, so that lambda weighs against the loss per token (per sentence with
    --sentence-avg), independent of batch size, --update-freq and number of workers. Validation losses contain no
    penalty and compare with those of a baseline.
    """

    adds_penalty: ClassVar[bool] = True
    schedule: L0Schedule
    l0_reduction: str

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the criterion. fairseq skips those that the parser already has."""
        parser.add_argument("--l0-weight", type=_weight, default="0.0", metavar="LAMBDA", help=HELP["l0_weight"])
        parser.add_argument("--l0-reduction", type=_reduction, default="sum", help=HELP["l0_reduction"])
        super().add_args(parser)  # type: ignore[misc]
        gen_parser_from_dataclass(parser, L0Config())  # for a criterion without a configuration of its own

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> Any:
        """Build the criterion; fairseq calls it with the options of the criterion, a part of all options."""
        criterion = super().build_criterion(cfg, task)  # type: ignore[misc]
        schedule = cfg.l0_warmup_updates, cfg.l0_start_update
        criterion.set_l0(cfg.l0_weight, str(cfg.l0_reduction), cfg.tensorboard_logdir, *schedule)
        criterion.monitor.configuration = cfg._get_root() if OmegaConf.is_config(cfg) else None
        return criterion

    def set_l0(
        self,
        weight: str | float,
        reduction: str = "sum",
        tensorboard_logdir: str | None = None,
        warmup: int = 0,
        start: int = 0,
    ) -> None:
        """Set the penalty; without it, a criterion that is not built by fairseq cannot be called.

        Args:
            weight: lambda, a number or numbers by attention type, "enc-self=0.05,dec-enc=0.2"
            reduction: "sum" over all gated heads, or "layer-mean": that sum divided by the number of gated layers
            tensorboard_logdir: folder of TensorBoard's logs
            warmup: updates in which lambda rises from 0
            start: first update with the penalty
        """
        try:
            self.schedule = L0Schedule(parse_weights(str(weight)), warmup, start)
        except ValueError as error:
            fail(PROGRAM, str(error))
        self.l0_reduction = reduction
        self.monitor = GateMonitor(tensorboard_logdir, {"--l0-warmup-updates": start + warmup})

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True) -> tuple:
        """Return the loss, the sample size and the logging outputs of fairseq's criterion, with the penalty added."""
        loss, sample_size, logs = super().forward(model, sample, reduce)  # type: ignore[misc]
        method = self._method(model)
        layers = len(method.layers) if self.l0_reduction == "layer-mean" else 1
        log_alpha = method.log_alpha()
        if model.training:
            self.monitor.training(model)
            weight = log_alpha.new_tensor(self.schedule.at(updates_of(unwrapped(model)), method.head_types)) / layers
            loss = loss + sample_size * method.penalty(log_alpha, weight)
            logs["loss"] = loss.data
        else:
            self.monitor.validating(model)
        open_probability = method.open_probability(log_alpha.detach())
        certainty = (2 * open_probability - 1).abs()  # 1: each is open or closed for certain
        logs["gate_certainty"] = certainty.mean() * sample_size
        logs["l0"] = open_probability.sum() / layers * sample_size
        logs.update({key: count * sample_size for key, count in open_head_counts(method).items()})
        return loss, sample_size, logs

    def _method(self, model: nn.Module) -> GateMethod:
        with one_line_errors():
            method = gate_method(unwrapped(model))
            if isinstance(method, TargetGates) and any(weight for _, weight in self.schedule.weights):
                raise ValueError(
                    "--l0-weight has no effect with --target-heads, which sets the number of heads: leave one out"
                )
            for attention_type, weight in self.schedule.weights:
                if attention_type and weight and attention_type not in method.head_types:
                    raise ValueError(
                        f"--l0-weight names {attention_type}, which has no gates: add it to --gate-heads, or leave it "
                        "out"
                    )
        return method

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the metrics of fairseq's criterion, `l0`, the counts of open heads, and how certain the gates are."""
        super().reduce_metrics(logging_outputs)  # type: ignore[misc]
        weight = sum(log.get("sample_size", 0) for log in logging_outputs)
        keys = {key for log in logging_outputs for key in log if key.startswith(OWN_METRICS)}
        for key in sorted(keys):
            metrics.log_scalar(key, sum(log.get(key, 0) for log in logging_outputs) / weight, weight, round=2)


# argparse would print all of fairseq's usage before the error.


def _weight(text: str) -> str:
    try:
        parse_weights(text)
    except ValueError as error:
        fail(PROGRAM, f"argument --l0-weight: {error}")
    return text


def _reduction(text: str) -> str:
    if text not in L0_REDUCTIONS:
        fail(PROGRAM, f"argument --l0-reduction: {shown(text)} is unknown: choose from {', '.join(L0_REDUCTIONS)}")
    return text
