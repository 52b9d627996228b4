"""What a report shows: the contents of the files of an experiment (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_headgates.data.results import Evaluation
from fairseq_headgates.heads import AttentionMap, Contributions, HeadTable


@dataclass(frozen=True)
class ModelHeads:
    """The heads of a checkpoint.

    Attributes:
        name: the checkpoint, as the user named it
        gate: evaluation gates; 0 for a removed head
        open_probability: P(gate != 0)
        alive: the mask of the heads in the weights, whose other heads are removed; None if no head is removed
        parameters: number of parameters
        distribution: temperature, low and high of the Hard Concrete distribution; None without gates
        neurons: for each side from which neurons were removed, the number in each layer before and after
    """

    name: str
    gate: HeadTable
    open_probability: HeadTable
    alive: HeadTable | None
    parameters: int
    distribution: tuple[float, float, float] | None
    neurons: Mapping[str, tuple[int, Sequence[int]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Input:
    """A file that a report was made from: its name, what it is, and its signature if it has one."""

    name: str
    kind: str
    signature: str = ""


@dataclass
class Experiment:
    """Everything that a report shows. Result files are pairs of a name and what the file has."""

    inputs: list[Input] = field(default_factory=list)
    models: list[ModelHeads] = field(default_factory=list)
    scores: list[tuple[str, HeadTable]] = field(default_factory=list)
    functions: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    curves: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    ablations: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    sweeps: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    attention: list[tuple[str, dict[int, list[AttentionMap]]]] = field(default_factory=list)
    overlaps: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    evaluations: list[tuple[str, Evaluation]] = field(default_factory=list)
    compressions: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    explanations: list[tuple[str, dict[int, Contributions]]] = field(default_factory=list)
