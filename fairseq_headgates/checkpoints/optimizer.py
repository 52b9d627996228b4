"""Prune the optimiser state and the moving average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.cuts import Cut, cut_tensors, module_and_parameter, with_gates_of
from fairseq_headgates.compat import copies

# How the moments of an optimiser scale with their parameter (see `attention.cuts.Cut`).
MOMENTS = {
    "exp_avg": -1,  # Adam and its kin, LAMB
    "exp_avg_sq": -2,
    "max_exp_avg_sq": -2,
    "exp_inf": -1,  # Adamax
    "momentum_buffer": -1,  # SGD, NAG
    "sum": -2,  # Adagrad
    "square_avg": -2,  # Adadelta
    "acc_delta": 0,  # of its steps, which do not depend on the size of the gradient
}
# Adafactor keeps of a matrix V of squared gradients the means of its rows, r, and of its columns, c, and approximates
# V = r c^T / mean(r). One of r and c is cut; the other becomes the mean of the remaining part of r c^T / mean(r), which
# is exact if the removed heads had no gradient.
ROWS, COLUMNS = "exp_avg_sq_row", "exp_avg_sq_col"


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

    Optimisers number the trained parameters. --fp16 trains all of them as one vector; `--optimizer composite` has a
    state for every group of parameters. Raise ValueError, with the reason, for a state that cannot be cut.

    Args:
        state: `last_optimizer_state` of the checkpoint
        stored: the weights of the checkpoint, as they are stored
        model: the model of the checkpoint
        pruned: the model without the removed heads
        layer_cuts: the cut of each attention layer
    """
    try:
        if "param_groups" not in state and len(state) == 1:
            ((group, group_state),) = state.items()
            return {group: _cut_state(group_state, _numbered(model, stored), pruned, layer_cuts)}
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
    result = dict(entry)
    for key, value in entry.items():
        if isinstance(value, Tensor) and value.dim() > 0 and key not in (ROWS, COLUMNS):
            result[key] = _cut_elements(f"{key} of {name}", name, value, parameter, layer_cuts, _power(key, entry))
    if ROWS in entry or COLUMNS in entry:
        result.update(_cut_means(name, entry[ROWS], entry[COLUMNS], parameter, layer_cuts))
    return result


def _power(key: str, entry: Mapping[str, Any]) -> int | None:
    """Return how a moment scales with its parameter, None if that is unknown."""
    if key == "exp_avg" and "RMS" in entry:  # Adafactor averages its steps, not the gradients
        return 0
    return MOMENTS.get(key)


def _cut_elements(
    what: str, name: str, value: Tensor, parameter: Tensor, layer_cuts: Mapping[str, Cut], power: int | None
) -> Tensor:
    """Cut a moment of the shape of its parameter."""
    if value.shape != parameter.shape:
        raise ValueError(f"{what} has the shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}")
    attention, _ = module_and_parameter(name, layer_cuts)
    if power is None and attention is not None and bool((layer_cuts[attention].factor != 1).any()):
        raise ValueError(f"{what} cannot be rescaled for a folded gate: only {', '.join(MOMENTS)} can")
    cut = cut_tensors({name: value}, layer_cuts, power or 0)[name]
    if not cut.isfinite().all() and value.isfinite().all():
        raise ValueError(f"{what} overflows its data type when it is rescaled for a folded gate")
    return cut


def _cut_means(
    name: str, rows: Tensor, columns: Tensor, parameter: Tensor, layer_cuts: Mapping[str, Cut]
) -> dict[str, Tensor]:
    """Cut Adafactor's means of the rows and columns of squared gradients."""
    if (*rows.shape, *columns.shape) != tuple(parameter.shape):
        raise ValueError(f"{ROWS} and {COLUMNS} of {name} do not have the shape {tuple(parameter.shape)} together")
    attention, weight = module_and_parameter(name, layer_cuts)
    if attention is None:
        return {ROWS: rows, COLUMNS: columns}
    if weight == "out_proj.weight":
        (cut,) = layer_cuts[attention](weight, columns[None], MOMENTS["exp_avg_sq"])
        return {ROWS: rows * _share(cut, columns), COLUMNS: cut}
    cut = layer_cuts[attention](weight, rows)
    return {ROWS: cut, COLUMNS: columns * _share(cut, rows)}


def _share(cut: Tensor, whole: Tensor) -> Tensor:
    """Return the mean of the remaining numbers divided by the mean of all; 0 if none remain."""
    return cut.mean() / whole.mean() if cut.numel() else whole.new_zeros(())
