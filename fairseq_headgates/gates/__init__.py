"""Stochastic gates: the Hard Concrete distribution, the gates of a layer, methods for all gates of a model."""

from fairseq_headgates.gates.distribution import OPEN, HardConcrete, parse_stretch
from fairseq_headgates.gates.layer import HeadGates, check_lr_scale
from fairseq_headgates.gates.method import GateMethod
from fairseq_headgates.gates.methods import METHODS, L0Gates, LagrangianGates, SubsetGates, TargetGates
from fairseq_headgates.gates.schedule import L0_REDUCTIONS, L0Schedule, parse_weights
from fairseq_headgates.gates.target import Target, parse_target

__all__ = [
    "L0_REDUCTIONS",
    "METHODS",
    "OPEN",
    "GateMethod",
    "HardConcrete",
    "HeadGates",
    "L0Gates",
    "L0Schedule",
    "LagrangianGates",
    "SubsetGates",
    "Target",
    "TargetGates",
    "check_lr_scale",
    "parse_stretch",
    "parse_target",
    "parse_weights",
]
