"""The Hard Concrete distribution (Louizos et al. 2018), from which the gates of heads are drawn.

A gate g in [0, 1] is a binary concrete variable with location `log_alpha`, stretched to (low, high) and clipped. It is
exactly 0 or exactly 1 with a probability above 0, and is differentiable with respect to `log_alpha`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_headgates.messages import quoted

OPEN = 2.5  # a log_alpha at which the evaluation gate is exactly 1 (from 2.398 up, with the default stretch)
NOISE_EPS = 1e-6  # uniform noise is drawn from (eps, 1 - eps): its logit must be finite
# The limits of single precision: beyond these, gates and their gradients are infinite or NaN.
LARGEST, SMALLEST = 1e6, 1e-6


@dataclass(frozen=True)
class HardConcrete:
    """Hard Concrete distribution with a free location.

    Tensors may have any shape. `log_alpha` is a logit; gates and probabilities are in [0, 1].

    Args:
        temperature: 0.33 as in the code of Voita et al. 2019 (2/3 in Louizos et al. 2018)
        low: lower end of the stretch, below 0; -0.1 in both papers
        high: upper end of the stretch, above 1; 1.1 in both papers

    Raises:
        ValueError: for a temperature or a stretch outside of these limits
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
                f"the gate stretch is {self.low:g},{self.high:g}: LOW must be from {-LARGEST:g} to {-SMALLEST:g}, "
                f"and HIGH from 1 + {SMALLEST:g} to {LARGEST:g}"
            )

    def sample(self, log_alpha: Tensor, uniform: Tensor | None = None) -> Tensor:
        """Draw training gates (Louizos et al. 2018, eq. 10-11); `uniform` in (0, 1) fixes the noise."""
        if uniform is None:
            uniform = torch.rand_like(log_alpha) * (1 - 2 * NOISE_EPS) + NOISE_EPS
        return self._stretch(torch.sigmoid((torch.logit(uniform) + log_alpha) / self.temperature))

    def evaluation_value(self, log_alpha: Tensor) -> Tensor:
        """Return evaluation gates, which depend on neither noise nor temperature (Louizos et al. 2018, eq. 13)."""
        return self._stretch(torch.sigmoid(log_alpha))

    def open_probability(self, log_alpha: Tensor) -> Tensor:
        """Return P(g != 0) (Louizos et al. 2018, eq. 12; Voita et al. 2019, eq. 6)."""
        return torch.sigmoid(log_alpha - self.temperature * math.log(-self.low / self.high))

    @property
    def closes_at(self) -> float:
        """The largest `log_alpha` whose evaluation gate is exactly 0 (-2.398 by default)."""
        return math.log(-self.low / self.high)

    @property
    def fixed_at(self) -> float:
        """The `log_alpha` of gates that are fixed to 1, and minus that of gates that are fixed to 0: 10 by default.

        There evaluation gate and P(g != 0) are exactly, or almost, 1 and 0.
        """
        opens_at = math.log((1 - self.low) / (self.high - 1))
        edge = max(opens_at, abs(self.closes_at), self.temperature * abs(self.closes_at))
        return 10.0 if edge < 5 else 2 * edge + 30

    def _stretch(self, s: Tensor) -> Tensor:
        return (s * (self.high - self.low) + self.low).clamp(0, 1)


def parse_stretch(text: str) -> tuple[float, float]:
    """Parse a stretch: '-0.1,1.1' -> (-0.1, 1.1). Raise ValueError."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"the gate stretch is {quoted(text)}: it must be two numbers LOW,HIGH, e.g. -0.1,1.1"
        ) from None
    HardConcrete(low=low, high=high)
    return low, high
