"""The L0 penalty L_C: the expected number of open heads (Voita et al. 2019, eq. 7)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_headgates.gates.distribution import HardConcrete
from fairseq_headgates.gates.layer import HeadGates
from fairseq_headgates.messages import shown

L0_REDUCTIONS = ("sum", "layer-mean")  # Voita et al. 2019: the paper; its released code


def gates_penalty(gates: Sequence[HeadGates], reduction: str = "sum") -> Tensor:
    """Return L_C = sum over all gates of P(g != 0) (Voita et al. 2019, eq. 7), a scalar with its gradient.

    Args:
        gates: the gates of each attention layer
        reduction: "sum", or "layer-mean": that sum divided by the number of layers in `gates`

    Raises:
        ValueError: without gates, or for an unknown reduction
    """
    if not gates:
        raise ValueError("the model has no stochastic gates: train it with --gate-heads, e.g. --gate-heads enc-self")
    if reduction not in L0_REDUCTIONS:
        raise ValueError(f"unknown reduction {shown(reduction)}: choose from {', '.join(L0_REDUCTIONS)}")
    # One operation for the gates of all layers: many tiny ones would cost more than the gates themselves.
    groups: dict[HardConcrete, list[Tensor]] = {}
    for gate in gates:
        groups.setdefault(gate.distribution, []).append(gate.log_alpha())
    total = torch.stack(
        [distribution.open_probability(torch.cat(group)).sum() for distribution, group in groups.items()]
    ).sum()
    return total / len(gates) if reduction == "layer-mean" else total
