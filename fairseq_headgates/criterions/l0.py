"""The L0 penalty on gates for any fairseq criterion: L = L_xent + lambda L_C (Voita et al. 2019, eq. 8)."""

from __future__ import annotations

from typing import Any

from fairseq.logging import metrics
from torch import nn

from fairseq_headgates.gates import L0_REDUCTIONS, gates_penalty
from fairseq_headgates.messages import fail, shown
from fairseq_headgates.monitoring import GateMonitor, open_head_counts
from fairseq_headgates.options import one_line_errors
from fairseq_headgates.surgery import HeadSite, gated_sites

LARGEST_WEIGHT = 1e9  # times all tokens of an update and all heads, squared by an optimiser, it stays finite
PROGRAM = "fairseq-headgates"
HELP = {
    "l0_weight": "lambda, the weight of the L0 penalty (the expected number of open heads) against the loss per token "
    "in nats (default: 0, no penalty)",
    "l0_reduction": "sum: over all gated heads, as in Voita et al. 2019; layer-mean: that sum divided by the "
    "number of gated attention layers, as in their code (default: sum)",
}


class L0Mixin:
    """Mixin that adds the L0 penalty, lambda L_C, to the training loss of a fairseq criterion.

    fairseq sums the loss over all tokens of an update and divides the gradient by their number, `sample_size`. The
    penalty is multiplied by `sample_size`, so that lambda weighs against the loss per token (per sentence with
    --sentence-avg), independent of batch size, --update-freq and number of workers. Validation losses contain no
    penalty and compare with those of a baseline.
    """

    l0_weight: float
    l0_reduction: str

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the criterion. fairseq skips those that the parser already has."""
        parser.add_argument("--l0-weight", type=_number, default=0.0, help=HELP["l0_weight"])
        parser.add_argument("--l0-reduction", type=_reduction, default="sum", help=HELP["l0_reduction"])
        super().add_args(parser)  # type: ignore[misc]

    def set_l0(self, weight: float, reduction: str, tensorboard_logdir: str | None) -> None:
        """Set lambda, the reduction ("sum" or "layer-mean"), and the folder of TensorBoard's logs or None."""
        if not 0 <= weight <= LARGEST_WEIGHT:
            fail(PROGRAM, f"--l0-weight is {weight:g}: it must be from 0 to {LARGEST_WEIGHT:g}")
        self.l0_weight, self.l0_reduction = weight, reduction
        self.monitor = GateMonitor(tensorboard_logdir)
        self._found: tuple[Any, list[HeadSite]] = (None, [])

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True) -> tuple:
        """Return the loss, the sample size and the logging outputs of fairseq's criterion, with the penalty added."""
        loss, sample_size, logs = super().forward(model, sample, reduce)  # type: ignore[misc]
        sites = self._gated_sites(model)
        penalty = gates_penalty([site.attention.gate for site in sites], self.l0_reduction)
        if model.training:
            self.monitor.training(model)
            loss = loss + self.l0_weight * sample_size * penalty
            logs["loss"] = loss.data
        else:
            self.monitor.validating(model)
        logs["l0"] = penalty.detach() * sample_size
        logs.update({key: count * sample_size for key, count in open_head_counts(sites).items()})
        return loss, sample_size, logs

    def _gated_sites(self, model: nn.Module) -> list[HeadSite]:
        if model is not self._found[0]:  # searching for every batch would take longer than the gates do
            with one_line_errors():
                sites = gated_sites(model)
                gates_penalty([site.attention.gate for site in sites], self.l0_reduction)
            self._found = (model, sites)  # a tuple, because a module as an attribute becomes a sub-module
        return self._found[1]

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the metrics of fairseq's criterion, `l0` and the counts of open heads."""
        super().reduce_metrics(logging_outputs)  # type: ignore[misc]
        weight = sum(log.get("sample_size", 0) for log in logging_outputs)
        for key in sorted(
            {key for log in logging_outputs for key in log if key == "l0" or key.startswith("heads_open")}
        ):
            metrics.log_scalar(key, sum(log.get(key, 0) for log in logging_outputs) / weight, weight, round=2)


# argparse would print all of fairseq's usage before the error.


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        fail(PROGRAM, f"argument --l0-weight: {shown(text)} is not a number")


def _reduction(text: str) -> str:
    if text not in L0_REDUCTIONS:
        fail(PROGRAM, f"argument --l0-reduction: {shown(text)} is unknown: choose from {', '.join(L0_REDUCTIONS)}")
    return text
