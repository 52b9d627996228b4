"""Checkpoints without some of their heads: of this plugin's architecture, or of fairseq's own."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from omegaconf import OmegaConf
from torch import nn

from fairseq_headgates.checkpoints.building import architecture, build_model, freeze_as_stored
from fairseq_headgates.checkpoints.loading import model_args
from fairseq_headgates.checkpoints.optimizer import cut_average, cut_optimizer
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.models import DEFAULTS
from fairseq_headgates.pruning import (
    apply_cuts,
    cut_tensors,
    cuts,
    fill_heads,
    kept_heads,
    prune,
    pruned_options,
)

PLAIN_CRITERION = "label_smoothed_cross_entropy"  # what is left of our criterion when there are no gates


def prune_checkpoint(
    state: Mapping[str, Any], mask: HeadTable, optimizer: bool = True, model: nn.Module | None = None
) -> dict[str, Any]:
    """The checkpoint without the heads that `mask` removes, as a `transformer_head_gates` that knows its own shape.

    What the optimiser remembers and the moving average of the weights are cut in the same way, so that training goes
    on without a jump; without `optimizer` the former is left out. `state` is not changed; `model` is its model.
    Raises ValueError for a mask of another shape and an optimiser that is not known.
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
    model.upgrade_state_dict(weights)
    result["model"] = cut_tensors(weights, found)
    result["extra_state"] = dict(state.get("extra_state") or {})
    for key in {"ema", "ema_fp32_params"} & set(result["extra_state"]):
        result["extra_state"][key] = cut_average(result["extra_state"][key], model, found)
    result["last_optimizer_state"] = remembered and cut_optimizer(remembered, model, pruned, found)
    return result


def stock_checkpoint(state: Mapping[str, Any], mask: HeadTable, model: nn.Module | None = None) -> dict[str, Any]:
    """The checkpoint as one of fairseq's own `transformer`: of the old size, removed heads zero, gates folded.

    fairseq ties the size of a head to width / heads, so there is no smaller form that it could load. The options are
    stored as plain values and what an optimiser or a counter left is dropped: this loads without any plugin.
    """
    model = model or build_model(state)
    if not state.get("cfg"):
        cfg = convert_namespace_to_omegaconf(state["args"])
        state = {**state, "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)}
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
    iterator = (state.get("extra_state") or {}).get("train_iterator") or {"epoch": 1, "iterations_in_epoch": 0}
    result["extra_state"] = {"train_iterator": iterator}
    result["optimizer_history"] = result.get("optimizer_history") or [
        {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    ]
    return result


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
        cfg["model"] = args if isinstance(cfg["model"], argparse.Namespace) else vars(args)
        criterion = cfg.get("criterion")
        if isinstance(criterion, dict) and criterion.get("_name") == f"{PLAIN_CRITERION}_l0":
            kept = {k: v for k, v in criterion.items() if not k.startswith("l0_") and k != "tensorboard_logdir"}
            cfg["criterion"] = {**kept, "_name": PLAIN_CRITERION}
        if isinstance(cfg.get("common"), dict):
            cfg["common"] = {**cfg["common"], "user_dir": None}
        result["cfg"] = cfg
    if result.get("optimizer_history"):
        *before, last = result["optimizer_history"]
        if "criterion_name" in last:
            last = {**last, "criterion_name": last["criterion_name"].replace("L0Criterion", "Criterion")}
        result["optimizer_history"] = [*before, last]
    return result
