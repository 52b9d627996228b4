"""What training keeps beside the weights, cut as they are: the state of the optimiser and the moving average."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.pruning import (
    Cut,
    cut_tensors,
    refolded,
)

# How what an optimiser remembers of a parameter grows with the parameter (see `pruning.Cut`).
MOMENTS = {
    "exp_avg": -1,  # Adam and its kin
    "exp_avg_sq": -2,
    "max_exp_avg_sq": -2,
    "exp_inf": -1,
    "momentum_buffer": -1,  # SGD, NAG
    "sum": -2,  # Adagrad
}


def cut_average(average: Mapping[str, Tensor], model: nn.Module, found: Mapping[str, Cut]) -> dict[str, Tensor]:
    """The moving average of the weights: the same heads stay, each with the average of its own gate."""
    averaged = copy.deepcopy(model)
    averaged.load_state_dict(dict(average), strict=False)
    return cut_tensors(average, refolded(found, averaged))


def cut_optimizer(
    state: Mapping[str, Any], model: nn.Module, pruned: nn.Module, found: Mapping[str, Cut]
) -> dict[str, Any]:
    """What the optimiser remembers of each parameter, cut as the parameter was.

    Optimisers know parameters by their number among those that are trained. --fp16 trains all of them as one vector.
    """
    old, new = _trained(model), _trained(pruned)
    try:
        (group,) = state["param_groups"]
        flat = len(group["params"]) == 1 and len(old) > 1
        if not flat and len(group["params"]) != len(old):
            raise ValueError(f"it has {len(group['params'])} parameters, the model trains {len(old)}")
        entries = state["state"]
        by_name = _unflattened(entries, old) if flat else _named(entries, group["params"], old)
        cut = {name: _cut_entry(name, by_name[name], old[name], found) for name in new if name in by_name}
        numbered = _flattened(cut) if flat else {i: cut[name] for i, name in enumerate(new) if name in cut}
    except (KeyError, TypeError, ValueError) as error:
        reason = error if isinstance(error, ValueError) else "its form is not known"
        raise ValueError(f"the optimiser state cannot be cut ({reason}): pass --no-optimizer to leave it out") from None
    numbers = [0] if flat else list(range(len(new)))
    return {**state, "state": numbered, "param_groups": [{**group, "params": numbers}]}


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _named(entries: Mapping[int, dict], numbers: list[int], trained: Mapping[str, Tensor]) -> dict[str, dict]:
    return {name: entries[number] for number, name in zip(numbers, trained, strict=True) if number in entries}


def _unflattened(entries: Mapping[int, dict], trained: Mapping[str, Tensor]) -> dict[str, dict]:
    """One long vector for all parameters, taken apart again."""
    ((_, entry),) = entries.items()
    sizes = [parameter.numel() for parameter in trained.values()]
    parts: dict[str, dict] = {name: {} for name in trained}
    for key, value in entry.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            if value.numel() != sum(sizes):
                raise ValueError(f"{key} has {value.numel()} numbers, the model trains {sum(sizes)}")
            pieces = [x.view(p.shape) for x, p in zip(value.split(sizes), trained.values(), strict=True)]
        else:
            pieces = [value] * len(sizes)
        for name, piece in zip(trained, pieces, strict=True):
            parts[name][key] = piece
    return parts


def _flattened(parts: Mapping[str, dict]) -> dict[int, dict]:
    first = next(iter(parts.values()))
    moments = [key for key, value in first.items() if isinstance(value, Tensor) and value.dim() > 0]
    joined = {key: torch.cat([part[key].reshape(-1) for part in parts.values()]) for key in moments}
    return {0: {**first, **joined}}


def _cut_entry(name: str, entry: Mapping[str, Any], parameter: Tensor, found: Mapping[str, Cut]) -> dict[str, Any]:
    result = {}
    for key, value in entry.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            if key not in MOMENTS or value.shape != parameter.shape:
                raise ValueError(f"{key} of {name} is not one of {', '.join(MOMENTS)} of the parameter's shape")
            value = cut_tensors({name: value}, found, MOMENTS[key])[name]
        result[key] = value
    return result
