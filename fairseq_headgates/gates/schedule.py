"""Lambda over the updates: `--l0-weight`, `--l0-start-update`, `--l0-warmup-updates`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_headgates.gates.target import ALL
from fairseq_headgates.heads import TYPES
from fairseq_headgates.messages import shown

L0_REDUCTIONS = ("sum", "layer-mean")  # Voita et al. 2019: the paper; its released code
LARGEST_WEIGHT = 1e9  # times all tokens of an update and all heads, squared by an optimiser, it stays finite


@dataclass(frozen=True)
class L0Schedule:
    """The weight lambda of the L0 penalty at every update.

    Lambda is 0 before the update `start`, and rises linearly to its value in `warmup` updates.

    Attributes:
        weights: {attention type, or `ALL` for all types: lambda}
        warmup: number of updates, 0 for the full lambda at once
        start: number of the first update with a penalty, from 0
    """

    weights: tuple[tuple[str, float], ...] = ((ALL, 0.0),)
    warmup: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        for attention_type, weight in self.weights:
            if not 0 <= weight <= LARGEST_WEIGHT:
                of_type = f" of {attention_type}" if attention_type else ""
                raise ValueError(f"--l0-weight{of_type} is {weight:g}: it must be from 0 to {LARGEST_WEIGHT:g}")
        for name, updates in (("--l0-warmup-updates", self.warmup), ("--l0-start-update", self.start)):
            if updates < 0:
                raise ValueError(f"{name} is {updates}: it must be at least 0")

    def at(self, update: int, head_types: Sequence[str]) -> list[float]:
        """Return lambda of every gate, whose attention types are `head_types`, at an update."""
        done = update - self.start + 1
        factor = 0.0 if done <= 0 else min(1.0, done / self.warmup) if self.warmup else 1.0
        weights = dict(self.weights)
        return [factor * weights.get(attention_type, weights.get(ALL, 0.0)) for attention_type in head_types]


def parse_weights(text: str) -> tuple[tuple[str, float], ...]:
    """Parse lambda: '0.02', or 'enc-self=0.05,dec-enc=0.2' (0 for other types). Raise ValueError."""
    weights: dict[str, float] = {}
    parts = str(text).split(",")
    for part in parts:
        attention_type, equals, number = part.strip().rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            raise ValueError(f"{shown(number)} is not a number") from None
        known = attention_type in TYPES if equals else len(parts) == 1
        if not known or attention_type in weights:
            raise ValueError(
                f"{shown(text)} is not a weight: give a number (0.02), or numbers by attention type "
                f"({', '.join(TYPES)}), e.g. enc-self=0.05,dec-enc=0.2"
            )
        weights[attention_type] = weight
    return tuple(weights.items())
