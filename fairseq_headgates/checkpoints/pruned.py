"""Checkpoints without some of their heads: of this plugin's architecture, or of fairseq's own."""

from __future__ import annotations

import argparse
import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from omegaconf import OmegaConf
from torch import nn

from fairseq_headgates.checkpoints.building import architecture, build_model, freeze_as_stored
from fairseq_headgates.checkpoints.loading import model_args
from fairseq_headgates.checkpoints.optimizer import cut_average, cut_optimizer
from fairseq_headgates.heads import Mask
from fairseq_headgates.models import DEFAULTS
from fairseq_headgates.pruning import (
    apply_cuts,
    cut_tensors,
    cuts,
    fill_heads,
    kept_heads,
    kept_heads_entries,
    prune,
    pruned_options,
)

logger = logging.getLogger(__name__)

PLAIN_CRITERION = "label_smoothed_cross_entropy"  # what is left of our criterion when there are no gates
L0_OPTIONS = ("l0_weight", "l0_reduction", "tensorboard_logdir")


def prune_checkpoint(
    state: Mapping[str, Any],
    mask: Mask,
    optimizer: bool = True,
    model: nn.Module | None = None,
    notice: Callable[[str], None] = logger.warning,
) -> dict[str, Any]:
    """Returns the checkpoint without the heads that `mask` removes, as a `transformer_head_gates` of its own shape.

    What the optimiser remembers and the moving average of the weights are cut in the same way, so that training goes on
    without a jump. What of them cannot be cut is left out, and `notice` is called with one line that says so; without
    `optimizer` its state is left out in any case. `state` is not changed; `model` is its model. Raises ValueError for a
    mask of another shape.
    """
    model = model or build_model(state)
    pattern = getattr(model_args(state), "freeze_params", None)
    remembered = state.get("last_optimizer_state") if optimizer else None
    found = cuts(model, mask)
    pruned = apply_cuts(copy.deepcopy(model), found)
    args = pruned_options(model_args(state), kept_heads(pruned))
    if pattern is not None and not (isinstance(pattern, str) and freeze_as_stored(pruned, pattern)):
        args.freeze_params = None  # it was about gates
        pruned.requires_grad_(True)
    result = _with_options(state, args, _gated_architecture(architecture(args)))
    weights = dict(state["model"])
    model.convert_old_names(weights)
    result["model"] = {**cut_tensors(weights, found), **kept_heads_entries(pruned)}
    result["extra_state"] = dict(_mapping(state.get("extra_state")))
    for key in [key for key in ("ema", "ema_fp32_params") if key in result["extra_state"]]:
        average = result["extra_state"].pop(key)
        try:
            result["extra_state"][key] = {**cut_average(average, model, found), **kept_heads_entries(pruned)}
        except ValueError as error:
            notice(f"the moving average {key} is left out: {error}")
    result["last_optimizer_state"] = None
    if remembered:
        try:
            result["last_optimizer_state"] = cut_optimizer(remembered, model, pruned, found)
        except ValueError as error:
            notice(f"the state of the optimiser is left out: {error}")
    return result


def _mapping(value: Any) -> Mapping:
    return value if isinstance(value, Mapping) else {}


def stock_checkpoint(state: Mapping[str, Any], mask: Mask, model: nn.Module | None = None) -> dict[str, Any]:
    """The checkpoint as one of fairseq's own `transformer`: of the old size, removed heads zero, gates folded.

    fairseq ties the size of a head to width / heads, so there is no smaller form that it could load. The options are
    stored as plain values and what an optimiser or a counter left is dropped: this loads without any plugin.
    """
    model = model or build_model(state)
    if not state.get("cfg"):
        state = {**state, "cfg": _converted(state["args"])}
    pruned = prune_checkpoint(state, mask, optimizer=False, model=model)
    args = model_args(pruned)
    name = architecture(args).replace("_head_gates", "")
    for option in DEFAULTS:
        if hasattr(args, option):
            delattr(args, option)
    stock_name = name if ARCH_MODEL_REGISTRY.get(name) is TransformerModel else "transformer"
    result = _with_options(pruned, args, stock_name)
    result["args"] = None
    result["cfg"] = {**result["cfg"], "model": vars(model_args(result))}
    result["model"] = fill_heads(prune(model, mask), pruned["model"])
    # fairseq wants these, also where the checkpoint was stripped of them
    iterator = _mapping(_mapping(state.get("extra_state")).get("train_iterator"))
    result["extra_state"] = {"train_iterator": iterator or {"epoch": 1, "iterations_in_epoch": 0}}
    result["optimizer_history"] = result.get("optimizer_history") or [
        {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    ]
    return result


def _converted(args: argparse.Namespace) -> dict[str, Any]:
    """Options as fairseq stored them before version 0.10, in the form of today. Raises ValueError."""
    try:
        return OmegaConf.to_container(convert_namespace_to_omegaconf(args), resolve=True, enum_to_str=True)  # type: ignore[return-value]
    except Exception as error:  # of fairseq, hydra or omegaconf, for an option of an odd type
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the options of the checkpoint cannot be brought into the form of today: {reason}") from None


def _gated_architecture(name: str) -> str:
    """'transformer_iwslt_de_en' -> 'transformer_head_gates_iwslt_de_en' where there is one."""
    if "head_gates" in name:
        return name
    ours = name.replace("transformer", "transformer_head_gates", 1)
    return ours if ours in ARCH_MODEL_REGISTRY else "transformer_head_gates"


def _with_options(state: Mapping[str, Any], args: argparse.Namespace, name: str) -> dict[str, Any]:
    """The checkpoint with other options of the model, under the architecture `name`; the L0 criterion goes with it."""
    result = dict(state)
    for option in {"arch", "_name"} & set(vars(args)):
        setattr(args, option, name)
    args.user_dir = None
    if getattr(args, "criterion", None) == f"{PLAIN_CRITERION}_l0":
        args.criterion = PLAIN_CRITERION
    if result.get("args"):
        result["args"] = args
    if result.get("cfg"):
        cfg = dict(result["cfg"])
        cfg["model"] = args if isinstance(cfg.get("model"), argparse.Namespace) else vars(args)
        criterion = cfg.get("criterion")
        if isinstance(criterion, dict) and criterion.get("_name") == f"{PLAIN_CRITERION}_l0":
            kept = {k: v for k, v in criterion.items() if k not in L0_OPTIONS}
            cfg["criterion"] = {**kept, "_name": PLAIN_CRITERION}
        if isinstance(cfg.get("common"), dict):
            cfg["common"] = {**cfg["common"], "user_dir": None}
        result["cfg"] = cfg
    history = result.get("optimizer_history")
    if isinstance(history, list) and history and isinstance(history[-1], Mapping):
        *before, last = history
        if isinstance(last.get("criterion_name"), str):
            last = {**last, "criterion_name": last["criterion_name"].replace("L0Criterion", "Criterion")}
        result["optimizer_history"] = [*before, last]
    return result
