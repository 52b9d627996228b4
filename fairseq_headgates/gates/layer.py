"""The gates of one attention layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.gates.distribution import LARGEST, OPEN, HardConcrete

SMALLEST_LR_SCALE = 1e-4  # theta + (S - 1) theta loses all its digits towards S = 0


class HeadGates(nn.Module):
    """Stochastic gates of one attention layer: one per head, independent of the input.

    The state dict holds `log_alpha` [H]. The optimiser trains theta = log_alpha / lr_scale and gets the gradient of
    log_alpha unscaled. Each step moves log_alpha lr_scale times as far as a plain parameter with the same learning
    rate, with any optimiser, without parameter groups and without a larger share of the gradient norm.

    Args:
        heads: H, the number of gates
        distribution: temperature and stretch
        init: initial log_alpha of every gate, or "glorot" for U(-sqrt(3/H), sqrt(3/H)), as in the code of
            Voita et al. 2019. From 2.398 up (default stretch) the evaluation gate is exactly 1.
        lr_scale: factor on the learning rate of the gates, 1e-4 to 1e6

    Raises:
        ValueError: if `lr_scale` is out of range
    """

    def __init__(
        self,
        heads: int,
        distribution: HardConcrete,
        init: float | str = OPEN,
        lr_scale: float = 1.0,
    ):
        super().__init__()
        self.distribution = distribution
        self.lr_scale = check_lr_scale(lr_scale)
        if init == "glorot":
            bound = math.sqrt(3 / heads)
            first = torch.empty(heads).uniform_(-bound, bound)
        else:
            first = torch.full((heads,), float(init))
        self.theta = nn.Parameter(first / lr_scale)
        self.fixed: Tensor | None = None  # once the gates are fixed: whether each is open, [H]
        self.methods: tuple[Any, ...] = ()  # the `GateMethod` of all gates of the model, once it exists; no submodule

    def log_alpha(self) -> Tensor:
        """Return the location of every gate, [H], in single precision: half is too coarse for the noise."""
        return joint_log_alpha([self])

    def forward(self) -> Tensor:
        """Return the gates, [H]: in evaluation mode their `factor`, in training those drawn for this forward pass.

        Without a `GateMethod`, every call in training draws a new sample.
        """
        if not self.training:
            return self.factor()
        return self.methods[0].training_gates(self) if self.methods else self.distribution.sample(self.log_alpha())

    def evaluation_value(self) -> Tensor:
        """Return the evaluation gates, [H]."""
        if self.methods:
            return self.methods[0].evaluation_gates(self)
        return self.distribution.evaluation_value(self.log_alpha())

    def factor(self) -> Tensor:
        """Return the factors on the heads in evaluation, [H]: the evaluation gates, times the output scale if any."""
        return self.methods[0].factor(self) if self.methods else self.evaluation_value()

    def open_probability(self) -> Tensor:
        """Return P(g != 0) of every gate, [H] (Voita et al. 2019, eq. 6)."""
        if self.methods:
            return self.methods[0].open_probabilities(self)
        return self.distribution.open_probability(self.log_alpha())

    def read(self) -> list[Tensor]:
        """Return the parameters that the gates of this layer depend on."""
        return [layer.theta for layer in self.methods[0].layers] if self.methods else [self.theta]

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        d = self.distribution
        shape = f"temperature={d.temperature:g}, stretch=({d.low:g}, {d.high:g})"
        return f"{self.theta.numel()}, {shape}, lr_scale={self.lr_scale:g}"

    # Files hold log_alpha, whatever scales its learning rate. In double precision the conversion is exact in both
    # directions, so a resumed run continues from the same theta.
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self.fixed is not None:
            log_alpha = self.log_alpha().double()
        else:
            theta = self.theta if keep_vars else self.theta.detach()
            log_alpha = theta.double() * self.lr_scale
        destination[prefix + "log_alpha"] = log_alpha

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        key = prefix + "log_alpha"
        if key in state_dict:
            state_dict[prefix + "theta"] = state_dict.pop(key).double() / self.lr_scale
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def joint_log_alpha(layers: Sequence[HeadGates]) -> Tensor:
    """Return log alpha of all gates of layers that have the same settings and are fixed together, [N].

    One computation for all layers takes fewer kernels, whose launches take most of the time on a GPU.
    """
    first, theta = layers[0], torch.cat([layer.theta for layer in layers]).float()
    log_alpha = theta + (first.lr_scale - 1) * theta.detach()
    if first.fixed is None:
        return log_alpha
    fixed = torch.cat([layer.fixed for layer in layers if layer.fixed is not None])
    at = first.distribution.fixed_at
    return torch.where(fixed, at, -at) + 0 * log_alpha  # a gradient of 0: distributed training waits for one


def check_lr_scale(scale: float) -> float:
    """Return the learning rate scale of gates. Raise ValueError if it is out of range."""
    if not SMALLEST_LR_SCALE <= scale <= LARGEST:
        raise ValueError(
            f"the learning rate scale of the gates is {scale:g}: it must be above 0 and finite, "
            f"from {SMALLEST_LR_SCALE:g} to {LARGEST:g}"
        )
    return scale
