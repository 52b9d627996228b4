"""Hard Concrete gates (Louizos et al. 2018), one scalar per attention head (Voita et al. 2019, section 6.1).

A gate g in [0, 1] is a binary concrete variable with location `log_alpha`, stretched to (low, high) and clipped:
it is exactly 0 or exactly 1 with a probability above 0, and can still be trained by gradient descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.arguments import shown

OPEN = 2.5  # a log_alpha at which the gate is exactly 1 at evaluation (from 2.398 up, with the default stretch)
NOISE_EPS = 1e-6  # uniform noise is drawn from (eps, 1 - eps): its logit must be finite
# What single precision can express: beyond these, gates and their gradients are infinite, or not a number.
LARGEST, SMALLEST = 1e6, 1e-6
SMALLEST_LR_SCALE = 1e-4  # theta + (S - 1) theta loses all its digits towards S = 0


@dataclass(frozen=True)
class HardConcrete:
    """The distribution of a gate, but for its location.

    Defaults: temperature 0.33 and stretch (-0.1, 1.1), as in Voita et al. 2019 (its code) and Louizos et al. 2018
    (2/3 there). Tensors are in any shape; `log_alpha` has no unit, gates and probabilities lie in [0, 1].
    """

    temperature: float = 0.33
    low: float = -0.1
    high: float = 1.1

    def __post_init__(self) -> None:
        if not SMALLEST <= self.temperature <= LARGEST:
            raise ValueError(
                f"the gate temperature is {self.temperature:g}: it must be above 0 and finite, "
                f"from {SMALLEST:g} to {LARGEST:g}"
            )
        if not -LARGEST <= self.low <= -SMALLEST or not 1 + SMALLEST <= self.high <= LARGEST:
            raise ValueError(
                f"the gate stretch is {self.low:g},{self.high:g}: it must have LOW < 0 and HIGH > 1, "
                f"both by at least {SMALLEST:g} and within {LARGEST:g} of 0"
            )

    def sample(self, log_alpha: Tensor, uniform: Tensor | None = None) -> Tensor:
        """A gate as seen in training (Louizos et al. 2018, eq. 10-11); `uniform` fixes the noise, in (0, 1)."""
        if uniform is None:
            uniform = torch.rand_like(log_alpha) * (1 - 2 * NOISE_EPS) + NOISE_EPS
        return self._stretch(torch.sigmoid((torch.logit(uniform) + log_alpha) / self.temperature))

    def evaluation_value(self, log_alpha: Tensor) -> Tensor:
        """The gate used at evaluation (Louizos et al. 2018, eq. 13): no noise, no temperature."""
        return self._stretch(torch.sigmoid(log_alpha))

    def open_probability(self, log_alpha: Tensor) -> Tensor:
        """P(g != 0) (Louizos et al. 2018, eq. 12; Voita et al. 2019, eq. 6): what the L0 penalty adds up."""
        return torch.sigmoid(log_alpha - self.temperature * math.log(-self.low / self.high))

    @property
    def closes_at(self) -> float:
        """The `log_alpha` at and below which the evaluation gate is exactly 0 (-2.398 by default)."""
        return math.log(-self.low / self.high)

    def _stretch(self, s: Tensor) -> Tensor:
        return (s * (self.high - self.low) + self.low).clamp(0, 1)


def parse_stretch(text: str) -> tuple[float, float]:
    """'-0.1,1.1' -> (-0.1, 1.1). Raises ValueError."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"the gate stretch is {shown(text)}: it must be two numbers LOW,HIGH, e.g. -0.1,1.1") from None
    HardConcrete(low=low, high=high)
    return low, high


def check_lr_scale(scale: float) -> float:
    """The learning rate scale of gates, if it can be used. Raises ValueError."""
    if not SMALLEST_LR_SCALE <= scale <= LARGEST:
        raise ValueError(
            f"the learning rate scale of the gates is {scale:g}: it must be above 0 and finite, "
            f"from {SMALLEST_LR_SCALE:g} to {LARGEST:g}"
        )
    return scale


class HeadGates(nn.Module):
    """The gates of one attention layer: one per head, independent of the input.

    In a state dict the gates are `log_alpha` [H]. What the optimiser trains is theta = log_alpha / lr_scale, with
    the gradient of log_alpha passed on unscaled: every step then moves log_alpha lr_scale times as far as a plain
    parameter with the same learning rate, for any optimiser, without parameter groups and without making gates
    count for more in gradient clipping. (Decoupled weight decay is not scaled.)

    Args:
        heads: H, the number of gates
        distribution: temperature and stretch
        init: the first log_alpha of every gate, or "glorot" for U(-sqrt(3/H), sqrt(3/H)), as in the code of
            Voita et al. 2019. From 2.398 up (default stretch) a gate is exactly 1 at evaluation.
        lr_scale: how many times as fast as other parameters the gates learn
    """

    def __init__(self, heads: int, distribution: HardConcrete, init: float | str = OPEN, lr_scale: float = 1.0):
        super().__init__()
        self.distribution = distribution
        self.lr_scale = check_lr_scale(lr_scale)
        if init == "glorot":
            bound = math.sqrt(3 / heads)
            first = torch.empty(heads).uniform_(-bound, bound)
        else:
            first = torch.full((heads,), float(init))
        self.theta = nn.Parameter(first / lr_scale)

    def log_alpha(self) -> Tensor:
        """The location of each gate, [H], in single precision: half is too coarse for the logit of the noise."""
        theta = self.theta.float()
        return theta + (self.lr_scale - 1) * theta.detach()

    def forward(self) -> Tensor:
        """The gates, [H]: in training one fresh draw for every call, at evaluation their fixed value."""
        log_alpha = self.log_alpha()
        return self.distribution.sample(log_alpha) if self.training else self.distribution.evaluation_value(log_alpha)

    def open_probability(self) -> Tensor:
        """P(g != 0) of every gate, [H]."""
        return self.distribution.open_probability(self.log_alpha())

    def extra_repr(self) -> str:
        d = self.distribution
        shape = f"temperature={d.temperature:g}, stretch=({d.low:g}, {d.high:g})"
        return f"{self.theta.numel()}, {shape}, lr_scale={self.lr_scale:g}"

    # The file format knows log_alpha only, whatever makes it learn faster. In double precision the way there and
    # back is exact, so a resumed run continues from the very same theta.
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        theta = self.theta if keep_vars else self.theta.detach()
        destination[prefix + "log_alpha"] = theta.double() * self.lr_scale

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        key = prefix + "log_alpha"
        if key in state_dict:
            state_dict[prefix + "theta"] = state_dict.pop(key).double() / self.lr_scale
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
