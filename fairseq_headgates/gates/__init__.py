"""Stochastic gates: the Hard Concrete distribution, the gates of a layer, the L0 penalty."""

from fairseq_headgates.gates.distribution import OPEN, HardConcrete, parse_stretch
from fairseq_headgates.gates.layer import HeadGates, check_lr_scale
from fairseq_headgates.gates.penalty import L0_REDUCTIONS, count_open_gates, gates_penalty

__all__ = [
    "L0_REDUCTIONS",
    "OPEN",
    "HardConcrete",
    "HeadGates",
    "check_lr_scale",
    "count_open_gates",
    "gates_penalty",
    "parse_stretch",
]
