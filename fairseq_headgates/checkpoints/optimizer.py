"""Prune the optimiser state and the moving average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.cuts import Cut, cut_tensors, with_gates_of
from fairseq_headgates.compat import copies

# How Adam's moments scale with their parameter (see `attention.cuts.Cut`).
MOMENTS = {"exp_avg": -1, "exp_avg_sq": -2, "max_exp_avg_sq": -2}


def cut_average(average: Mapping[str, Tensor], model: Any, layer_cuts: Mapping[str, Cut]) -> dict[str, Tensor]:
    """Cut a moving average of the weights: keep the same heads, and fold the averages of their gates.

    Raise ValueError if `average` is not an average of the weights of `model`.
    """
    averaged = copy.deepcopy(model)
    try:
        average = model.current_names(average)
        averaged.upgrade_checked(dict(average))  # raises; loading would end the process instead
        averaged.load_state_dict(dict(average), strict=False)
        return cut_tensors(average, with_gates_of(layer_cuts, averaged))
    except Exception:  # the entry may hold anything
        raise ValueError("it does not have the weights of this model") from None


def cut_optimizer(
    state: Mapping[str, Any],
    stored: Mapping[str, Tensor],
    model: nn.Module,
    pruned: nn.Module,
    layer_cuts: Mapping[str, Cut],
) -> dict[str, Any]:
    """Cut the state of the optimiser like the parameters.

    Optimisers number the trained parameters; --fp16 trains all of them as one vector. Raise ValueError, with the
    reason, for a state that cannot be cut.

    Args:
        state: `last_optimizer_state` of the checkpoint
        stored: the weights of the checkpoint, as they are stored
        model: the model of the checkpoint
        pruned: the model without the removed heads
        layer_cuts: the cut of each attention layer
    """
    try:
        return _cut_state(state, _numbered(model, stored), pruned, layer_cuts)
    except ValueError:
        raise
    except Exception:  # a state of another form can raise anything
        raise ValueError("its form is unknown") from None


def _cut_state(
    state: Mapping[str, Any], old: Mapping[str, Tensor], pruned: nn.Module, layer_cuts: Mapping[str, Cut]
) -> dict:
    new = _trained(pruned)
    (group,) = state["param_groups"]
    flat = len(group["params"]) == 1 and len(old) > 1
    if not flat and len(group["params"]) != len(old):
        raise ValueError(f"it has {len(group['params'])} parameters, but the model trains {len(old)}")
    entries = state["state"]
    by_name = _unflattened(entries, old) if flat else _named(entries, group["params"], old)
    cut = {name: _cut_entry(name, by_name[name], old[name], layer_cuts) for name in new if name in by_name}
    numbered = _flattened(cut) if flat else {i: cut[name] for i, name in enumerate(new) if name in cut}
    numbers = [0] if flat else list(range(len(new)))
    return {**state, "state": numbered, "param_groups": [{**group, "params": numbers}]}


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _numbered(model: nn.Module, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the trained parameters in the order of the optimiser, copies of fairseq 0.12.2 included.

    Raise ValueError for weights of an older fairseq, whose order is another one: its names are renamed on loading.
    """
    trained, copied = _trained(model), copies(stored)
    if any(".in_proj_" in name or ".layer_norms." in name for name in set(stored) - copied):
        raise ValueError("its parameters are in the order of an older fairseq")
    if not copied:
        return trained
    return {name: trained.get(name, stored[name]) for name in stored if name in trained or name in copied}


def _named(entries: Mapping[int, dict], numbers: list[int], trained: Mapping[str, Tensor]) -> dict[str, dict]:
    return {name: entries[number] for number, name in zip(numbers, trained, strict=True) if number in entries}


def _unflattened(entries: Mapping[int, dict], trained: Mapping[str, Tensor]) -> dict[str, dict]:
    """Split the one vector of --fp16 into parameters."""
    ((_, entry),) = entries.items()
    sizes = [parameter.numel() for parameter in trained.values()]
    parts: dict[str, dict] = {name: {} for name in trained}
    for key, value in entry.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            if value.numel() != sum(sizes):
                raise ValueError(f"{key} has {value.numel()} numbers, but the model trains {sum(sizes)}")
            pieces = [x.view(p.shape) for x, p in zip(value.split(sizes), trained.values(), strict=True)]
        else:
            pieces = [value] * len(sizes)
        for name, piece in zip(trained, pieces, strict=True):
            parts[name][key] = piece
    return parts


def _flattened(parts: Mapping[str, dict]) -> dict[int, dict]:
    first = next(iter(parts.values()))
    moments = [key for key, value in first.items() if isinstance(value, Tensor) and value.dim() > 0]
    vectors = {key: torch.cat([part[key].reshape(-1) for part in parts.values()]) for key in moments}
    return {0: {**first, **vectors}}


def _cut_entry(name: str, entry: Mapping[str, Any], parameter: Tensor, layer_cuts: Mapping[str, Cut]) -> dict[str, Any]:
    """Cut the moments of a parameter."""
    result = dict(entry)
    for key, value in entry.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            continue
        if key not in MOMENTS or value.shape != parameter.shape:
            raise ValueError(f"{key} of {name} is not a moment of Adam: only its state can be cut")
        result[key] = cut_tensors({name: value}, layer_cuts, MOMENTS[key])[name]
        if not result[key].isfinite().all() and value.isfinite().all():
            raise ValueError(f"{key} of {name} overflows its data type when it is rescaled for a folded gate")
    return result
