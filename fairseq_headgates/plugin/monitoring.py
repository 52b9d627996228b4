"""Monitor the gates in training: counts of open heads, a heat map, a check of the schedule."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch import Tensor, nn

from fairseq_headgates.attention.modules import gate_method, gated_modules, open_probabilities, to_table
from fairseq_headgates.gates import GateMethod, SubsetGates
from fairseq_headgates.heads import HeadTable

logger = logging.getLogger(__name__)

OTHER_RATES = ("manual", "pass_through")  # learning rate schedules whose rates are not those of --lr


class GateMonitor:
    """Reports on the gates of a model in training, in the first worker only.

    The criterion calls `training` and `validating` with the model at every step. At the first update, and after the
    first epoch, the monitor warns if the learning rate schedule is too short to close a gate. At each validation it
    writes a heat map of P(gate = 0), `gates/closed`, to TensorBoard.

    Attributes:
        configuration: all options of fairseq's training, None outside of it

    Args:
        tensorboard_logdir: folder of TensorBoard's logs, None for no heat map
        schedule_ends: {option: update at which its schedule ends}, to warn if the training ends before
    """

    def __init__(self, tensorboard_logdir: str | None, schedule_ends: Mapping[str, int] | None = None):
        self.tensorboard_logdir, self.schedule_ends = tensorboard_logdir, schedule_ends or {}
        self.configuration: Any = None
        self._first_update: int | None = None  # of this process
        self._schedule_checked = False
        self._trained_since_validation = False

    def training(self, model: nn.Module) -> None:
        """Note a training step. At the first one, check a schedule whose length is given in updates."""
        model = unwrapped(model)
        if self._first_update is None:
            self._first_update = updates_of(model)
            self._check_schedule(model, self._configured("optimization", "max_update"))
        self._trained_since_validation = True

    def validating(self, model: nn.Module) -> None:
        """Note a validation step. At the first one of each validation, write the heat map."""
        if not self._trained_since_validation:
            return
        self._trained_since_validation = False
        model = unwrapped(model)
        # The first validation ends the first epoch: now the length of a run given in epochs is known in updates.
        if self._first_update == 0 and not self._configured("dataset", "validate_interval_updates"):
            epochs = self._configured("optimization", "max_epoch") or 0
            self._check_schedule(model, int((updates_of(model) + 1) * epochs))
        if self.tensorboard_logdir and _is_first_worker() and self._writer is not None:
            from fairseq_headgates.drawing.figures import heat_map

            # fairseq tells a model the number of updates before each, so that the last one is not counted.
            self._writer.add_figure("gates/closed", heat_map(_closed(model)), updates_of(model) + 1)
            self._writer.flush()

    def _configured(self, group: str, name: str) -> Any:
        """Return an option of fairseq's training, None outside of it."""
        return getattr(getattr(self.configuration, group, None), name, None)

    def _check_schedule(self, model: nn.Module, updates: int | None) -> None:
        if self._schedule_checked or not updates or not _is_first_worker():
            return
        self._schedule_checked = True
        check_schedule(model, self.configuration, updates)
        method = getattr(model, "gate_method", None)
        ends = {**self.schedule_ends, **(method.schedule_ends() if method is not None else {})}
        for option, end in ends.items():
            if end > updates or (end == updates and option == "--fix-gates-after"):
                logger.warning(f"the training has {updates} updates, but {option} lasts until update {end}: lower it")

    @cached_property
    def _writer(self) -> Any:
        try:
            import matplotlib  # noqa: F401
            from tensorboardX import SummaryWriter
        except ImportError as error:
            logger.warning(
                f"no heat map of the gates: {error.name} is missing (pip install 'fairseq-headgates[plots]')"
            )
            return None
        return SummaryWriter(str(Path(str(self.tensorboard_logdir)) / "gates"))


def _closed(model: nn.Module) -> HeadTable:
    return to_table(open_probabilities(model), "P(open)").map(lambda p: 1 - p, "P(gate = 0)")


def open_head_counts(method: GateMethod) -> dict[str, Tensor]:
    """Count gated heads with an evaluation gate above 0: `heads_open` in all, `heads_open_enc_self` and so on."""
    with torch.no_grad():
        is_open = (method.evaluate(method.log_alpha()) > 0).split(method.sizes)
    counts = {}
    for attention_type in dict.fromkeys(method.layer_types):
        layers = [part for part, other in zip(is_open, method.layer_types, strict=True) if other == attention_type]
        counts["heads_open_" + attention_type.replace("-", "_")] = torch.cat(layers).sum()
    return {"heads_open": torch.stack(list(counts.values())).sum(), **counts}


def check_schedule(model: nn.Module, configuration: Any, updates: int) -> None:
    """Log how far a gate can move in `updates` updates, and when the first one can close; warn if that is too late.

    With Adam an update moves log_alpha by about --gate-lr-scale times the learning rate, or less. The learning rate is
    taken to rise linearly to its peak, and to stay there: later decay is left out.

    Args:
        model: the model in training
        configuration: all options of fairseq's training
        updates: length of the training
    """
    modules, schedule = gated_modules(model), getattr(configuration, "lr_scheduler", None)
    if not modules or schedule is None or schedule._name in OTHER_RATES:
        return
    if isinstance(gate_method(model), SubsetGates):  # it ranks gates, and none has to close
        return
    gate, rates = modules[0].attention.gate, configuration.optimization.lr
    distance = float(gate.log_alpha().detach().max()) - gate.distribution.closes_at
    peak = max(*(rates if isinstance(rates, Sequence) else [rates]), getattr(schedule, "max_lr", None) or 0)
    warmup = getattr(schedule, "warmup_updates", None) or 0
    change = gate.lr_scale * peak * (updates - warmup / 2 if updates > warmup else updates**2 / (2 * warmup))
    at_peak = max(distance, 0.0) / max(gate.lr_scale * peak, 1e-12)  # updates that close a gate at the peak rate
    first = math.ceil(at_peak + warmup / 2 if at_peak > warmup / 2 else math.sqrt(2 * warmup * at_peak))
    message = (
        f"over {updates} updates, log_alpha of a gate can change by about {change:.1f} at most; "
        f"closing a gate takes {distance:.1f}: at update {first} at the earliest"
    )
    if change < 2 * distance:  # the loss pulls the other way, and Adam's steps are shorter than the learning rate
        logger.warning(f"{message}: expect few closed gates; raise --gate-lr-scale, --lr or the number of updates")
    else:
        logger.info(message)


def updates_of(model: nn.Module) -> int:
    """Return the number of updates before the present one, 0 for a model that is not told."""
    return int(getattr(model, "num_updates", 0))


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside fairseq's and torch's distributed wrappers; of a part, the whole (`GateMethod.join`)."""
    while hasattr(model, "module"):
        model = model.module  # type: ignore[assignment]
    return getattr(model, "whole", model)


def _is_first_worker() -> bool:
    return distributed_utils.get_global_rank() == 0
