"""Remove heads from a checkpoint, for this plugin's architecture or for fairseq's own."""

from __future__ import annotations

import argparse
import copy
import json
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import under_all_names
from fairseq_headgates.attention.cuts import Pruned, as_state_dict, cut_copy, cut_tensors, kept_mask, pad_heads
from fairseq_headgates.attention.neurons import ffn_dims, pad_neurons
from fairseq_headgates.checkpoints.optimizer import cut_average, cut_optimizer
from fairseq_headgates.heads import Mask, mask_to_json
from fairseq_headgates.inference.packed_linear import without_effect
from fairseq_headgates.messages import first_line, logging_only, quoted
from fairseq_headgates.plugin.criterions.config import L0Config
from fairseq_headgates.plugin.criterions.l0 import L0Mixin
from fairseq_headgates.plugin.models.building import build_model, freeze_as_stored
from fairseq_headgates.plugin.models.mixin import HeadGatesMixin, head_gates_class
from fairseq_headgates.plugin.models.recognition import HIDDEN, with_known_names
from fairseq_headgates.plugin.options.declared import DEFAULTS
from fairseq_headgates.plugin.options.stored import flat_options, transformer_options
from fairseq_headgates.safety.checkpoint import architecture, as_mapping, model_args
from fairseq_headgates.safety.literals import is_plain

logger = logging.getLogger(__name__)

LONGEST_LIST = 2_000  # characters of a list among the options: hydra takes milliseconds for each element
L0_OPTIONS = {field.name for field in fields(L0Config)} - {"_name"}  # of our criterions only


def prune_checkpoint(
    state: Mapping[str, Any],
    mask: Mask,
    optimizer: bool = True,
    model: nn.Module | None = None,
    notice: Callable[[str], None] = logger.warning,
    options: Mapping[str, Any] = MappingProxyType({}),
    refitted: Mapping[str, Tensor] = MappingProxyType({}),
    neurons: Mapping[str, Sequence[int]] = MappingProxyType({}),
    pruned: Pruned | None = None,
) -> dict[str, Any]:
    """Return a checkpoint without the heads that `mask` removes, of an architecture of this plugin.

    The optimiser state and the moving average of the weights are cut like the weights, so that training continues
    without a jump. A part of them that cannot be cut is dropped.

    Args:
        state: a checkpoint; it is not changed
        mask: a mask in any form of `heads.as_mask`
        optimizer: keep the optimiser state
        model: the model of the checkpoint, if it is already built
        notice: called with one line for every part that is dropped
        options: options of the model that get other values than those of the checkpoint
        refitted: parameters that get other values than those of the checkpoint; see `compression.refit`. A moving
            average of the weights is then dropped
        neurons: the neurons that feed-forward blocks keep, by the name of the layer (default: all)
        pruned: `cut_copy(model, mask, neurons)`, if the model is already cut

    Raises:
        ValueError: if the mask has another shape than the model
    """
    state, _ = with_known_names(state)
    model = model or build_model(state)
    cut = pruned or cut_copy(model, mask, neurons)
    pattern = getattr(model_args(state), "freeze_params", None)
    remembered = state.get("last_optimizer_state") if optimizer else None
    args = _pruned_options(model_args(state), cut.model)
    if neurons:
        args.ffn_dims = json.dumps(ffn_dims(cut.model))
    vars(args).update(options)
    if pattern is not None and not (isinstance(pattern, str) and freeze_as_stored(cut.model, pattern)):
        args.freeze_params = None  # it matched gates only
        cut.model.requires_grad_(True)
    result = _with_options(state, args, _model_class(args).gated_architecture(architecture(args)))
    weights = dict(state["model"])
    model.upgrade_checked(weights)  # type: ignore[operator]
    smaller = cut_tensors(weights, under_all_names(cut.cuts, model))
    smaller.update({name: value.to(smaller[name].dtype) for name, value in refitted.items()})
    result["model"] = as_state_dict(smaller, cut.model)
    result["extra_state"] = dict(as_mapping(state.get("extra_state")))
    for key in [key for key in ("ema", "ema_fp32_params") if key in result["extra_state"]]:
        average = result["extra_state"].pop(key)
        try:
            if refitted:
                raise ValueError("it is not refitted")
            result["extra_state"][key] = as_state_dict(cut_average(average, model, cut.cuts), cut.model)
        except ValueError as error:
            notice(f"the moving average {key} is dropped: {error}")
    result["last_optimizer_state"] = None
    if remembered:
        try:
            result["last_optimizer_state"] = cut_optimizer(remembered, state["model"], model, cut.model, cut.cuts)
        except ValueError as error:
            notice(
                f"the optimiser state is dropped ({error}): training from this checkpoint starts with a new optimiser"
            )
    return result


def checkpoint_of(state: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return the checkpoint of a model that `prune`, `refit` or `compress` returned; `save_checkpoint` writes it.

    It loads like those of `prune_checkpoint`, without the optimiser state and the moving average of the weights.

    Args:
        state: the checkpoint of the original model; it is not changed
        model: the model without heads or neurons

    Raises:
        ValueError: if fairseq could not load it, for example because the model has gates or is of another checkpoint
    """
    state, _ = with_known_names(state)
    args, weights = _pruned_options(model_args(state), model), model.state_dict()
    args.freeze_params, args.ffn_dims = None, json.dumps(ffn_dims(model))
    result = _with_options(state, args, _model_class(args).gated_architecture(architecture(args)))
    types = {name: weight.dtype for name, weight in state["model"].items()}
    smaller = {name: weight.detach().cpu().to(types.get(name, weight.dtype)) for name, weight in weights.items()}
    extra = {key: value for key, value in as_mapping(state.get("extra_state")).items() if not key.startswith("ema")}
    result |= {"model": as_state_dict(smaller, model), "extra_state": extra, "last_optimizer_state": None}
    check_loads(result)
    return result


def _pruned_options(args: argparse.Namespace, model: nn.Module) -> argparse.Namespace:
    """Return the options of a pruned model, which has only the remaining heads."""
    changed = copy.copy(args)
    assumed = HIDDEN.keys() - flat_options(vars(args)).keys()
    built = vars(getattr(model, "args", argparse.Namespace()))
    vars(changed).update({name: value for name, value in built.items() if name in assumed})
    changed.gate_heads = ""
    for name in ("sparsity_method", "target_heads"):  # options of gates, refused without them
        if hasattr(changed, name):
            setattr(changed, name, DEFAULTS[name])
    changed.alive_heads = mask_to_json(kept_mask(model), one_line=True)
    changed.remove_heads = True
    return changed


def stock_checkpoint(
    state: Mapping[str, Any],
    mask: Mask,
    model: nn.Module | None = None,
    refitted: Mapping[str, Tensor] = MappingProxyType({}),
    pruned: Pruned | None = None,
) -> dict[str, Any]:
    """Return the checkpoint for fairseq's own architecture: same size, removed heads zero, gates folded.

    fairseq computes the size of a head as width / heads, so it cannot load a smaller form. The options are one table of
    plain values, without optimiser state and counters, so that the checkpoint loads without any plugin. See
    `prune_checkpoint` for the arguments.
    """
    model = model or build_model(state)
    cut = pruned or cut_copy(model, mask)
    smaller = prune_checkpoint(state, mask, optimizer=False, model=model, refitted=refitted, pruned=cut)
    args = model_args(smaller)
    name = _model_class(args).stock_architecture(architecture(args))
    iterator = as_mapping(smaller["extra_state"].get("train_iterator"))
    history = smaller.get("optimizer_history")
    # fairseq requires these entries
    unknown = [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}]
    return {
        "args": _table(_stock_options(smaller, vars(model.args)) | {"arch": name}),
        "cfg": None,
        "model": pad_neurons(model, pad_heads(cut.model, smaller["model"])),
        "optimizer_history": history if history and is_plain(history) else unknown,
        "extra_state": {"train_iterator": iterator if is_plain(iterator) else {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }


def _stock_options(state: Mapping[str, Any], built: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a checkpoint that are plain values, by flat names, without those of this plugin.

    Args:
        state: a checkpoint of this plugin
        built: the options of its model as it is built, for those that are not stored
    """
    options = {name: value for name, value in built.items() if name in transformer_options()}
    for group in ("criterion", "task"):  # hydra stores them apart
        values = as_mapping((state.get("cfg") or {}).get(group))
        options.update({**values, group: values["_name"]} if values.get("_name") else values)
    options.update(flat_options(vars(model_args(state))))
    unwanted = {*DEFAULTS, "_name"}
    options = {n: v for n, v in options.items() if isinstance(n, str) and n not in unwanted and is_plain(v)}
    return options | {name: None for name in options if name.endswith("embed_path")}  # the weights hold them


def _table(options: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return options as a dictionary whose keys are its attributes, too.

    fairseq reads options as attributes, as CTranslate2's converter for fairseq does, which also sets some. `torch.load`
    creates no object with attributes but an `OrderedDict`, unless it is told to trust the file.
    """
    table = OrderedDict((name, value) for name, value in options.items() if not hasattr(OrderedDict, str(name)))
    vars(table).update(table)
    return table


def check_loads(state: Mapping[str, Any]) -> nn.Module:
    """Build and return the model of a pruned checkpoint. Raise ValueError unless fairseq can convert its options."""
    model: Any = build_model(state)
    if message := without_effect(model):
        logger.warning(message)
    if not state.get("args"):
        return model
    for name, value in vars(model_args(state)).items():
        if isinstance(value, (list, tuple)) and len(str(value)) > LONGEST_LIST:
            raise ValueError(f"the stored option {name} is {quoted(value)}: it must be a short list")
    try:
        with logging_only(logging.CRITICAL, "fairseq", "hydra"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hydra's, of its own versions; fairseq logs what it raises
            convert_namespace_to_omegaconf(model_args(state))
    except Exception as error:  # of fairseq, hydra or omegaconf, for an option of an odd type
        raise ValueError(
            f"the options of the checkpoint cannot be converted to those of fairseq 0.12: {first_line(error)}"
        ) from None
    return model


def _model_class(args: argparse.Namespace) -> type[HeadGatesMixin]:
    """Return the model of this plugin that a checkpoint is built as."""
    model_class = head_gates_class(architecture(args))
    assert model_class is not None  # its model is built
    return model_class


def _stock_criterion(name: Any) -> Any:
    """Return fairseq's counterpart of one of this plugin's criterions: 'cross_entropy_l0' -> 'cross_entropy'."""
    ours = CRITERION_REGISTRY.get(name) if isinstance(name, str) else None
    return name.removesuffix("_l0") if isinstance(ours, type) and issubclass(ours, L0Mixin) else name


def _with_options(state: Mapping[str, Any], args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the checkpoint with other options of the model, architecture `name`, and without the L0 criterion."""
    result = dict(state)
    for option in {"arch", "_name"} & set(vars(args)):
        setattr(args, option, name)
    args.user_dir = None
    if hasattr(args, "criterion"):
        args.criterion = _stock_criterion(args.criterion)
    if result.get("args"):
        result["args"] = args
    if result.get("cfg"):
        cfg = dict(result["cfg"])
        cfg["model"] = args if isinstance(cfg.get("model"), argparse.Namespace) else vars(args)
        criterion = as_mapping(cfg.get("criterion"))
        stock = _stock_criterion(criterion.get("_name"))
        if stock != criterion.get("_name"):
            kept = {k: v for k, v in criterion.items() if k not in L0_OPTIONS}
            cfg["criterion"] = {**kept, "_name": stock}
        if isinstance(cfg.get("common"), dict):
            cfg["common"] = {**cfg["common"], "user_dir": None}
        result["cfg"] = cfg
    history = result.get("optimizer_history")
    if isinstance(history, list) and history and isinstance(history[-1], Mapping):
        *before, last = history
        for ours in L0Mixin.__subclasses__():
            if last.get("criterion_name") == ours.__name__:
                last = {**last, "criterion_name": ours.__bases__[-1].__name__}
        result["optimizer_history"] = [*before, last]
    return result
