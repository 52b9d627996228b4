"""fairseq's checkpoint files: loaded safely, read for their heads, pruned, written whole."""

from __future__ import annotations

import argparse
import collections
import copy
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fairseq.distributed.utils
import numpy
import omegaconf
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_headgates.freezing import freeze
from fairseq_headgates.heads import TYPES, HeadTable, replacing
from fairseq_headgates.models import DEFAULTS, HeadGatesMixin, TransformerHeadGatesModel
from fairseq_headgates.pruning import (
    Cut,
    apply_cuts,
    cut_tensors,
    cuts,
    fill_heads,
    kept_heads,
    prune,
    pruned_options,
    refolded,
)
from fairseq_headgates.sites import gate_values, gated_sites, open_probabilities, to_tables

# What fairseq's checkpoints hold besides tensors and plain Python values. torch.load takes nothing else since 2.6.
SAFE_GLOBALS = [
    argparse.Namespace,  # the options of a model
    # the counters that --eval-bleu leaves in the training state
    numpy.ndarray,
    numpy.dtype,
    type(numpy.dtype("int64")),
    type(numpy.dtype("float64")),  # where several workers have added them up
    numpy.zeros(0).__reduce__()[0],  # numpy's array constructor, whose module moved between versions
    # the options again, as the first worker sends a checkpoint to the others
    omegaconf.DictConfig,
    omegaconf.ListConfig,
    omegaconf.base.ContainerMetadata,
    omegaconf.base.Metadata,
    omegaconf.nodes.AnyNode,
    fairseq.distributed.utils._TensorPlaceholder,
    collections.defaultdict,
    typing.Any,
    list,
    dict,
    int,
]
if hasattr(torch.serialization, "add_safe_globals"):
    torch.serialization.add_safe_globals(SAFE_GLOBALS)

PLAIN_CRITERION = "label_smoothed_cross_entropy"  # what is left of our criterion when there are no gates
# How what an optimiser remembers of a parameter grows with the parameter (see `pruning.Cut`).
MOMENTS = {
    "exp_avg": -1,  # Adam and its kin
    "exp_avg_sq": -2,
    "max_exp_avg_sq": -2,
    "exp_inf": -1,
    "momentum_buffer": -1,  # SGD, NAG
    "sum": -2,  # Adagrad
}


# --- reading ---------------------------------------------------------------------------------------------------------


def load_checkpoint(path: str, trust: bool = False) -> dict[str, Any]:
    """Loads a fairseq checkpoint on the CPU: tensors and what is in `SAFE_GLOBALS`, unless `trust` allows all.

    Raises ValueError for anything that is no fairseq checkpoint, or holds more.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=not trust)
    except OSError as error:
        raise ValueError(
            f"cannot read the checkpoint {path!r} ({error.strerror}): give the path of a .pt file"
        ) from None
    except Exception as error:  # a damaged or hostile file can make the reader raise anything
        raise ValueError(f"{path!r} {_first_reason(error)}") from None
    if not _is_checkpoint(state):
        raise ValueError(f"{path!r} is not a fairseq checkpoint: it holds no model with its options")
    return state


def _is_checkpoint(state: Any) -> bool:
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        return False
    options = state.get("args") or (state.get("cfg") or {}).get("model")
    tensors = all(isinstance(weight, Tensor) for weight in state["model"].values())
    return tensors and isinstance(options, (argparse.Namespace, dict))


def _first_reason(error: Exception) -> str:
    """One line of torch's long message: the forbidden object if it names one."""
    forbidden = re.search(r"GLOBAL (\S+)", str(error))
    if forbidden:
        return (
            f"is not loaded: it holds {forbidden.group(1)}, which is neither a weight nor a plain option and could run "
            "code; pass --trust if you know where the file comes from"
        )
    told = re.search(r"WeightsUnpickler error: ([^\n]+)", str(error))  # after torch's advice, which does not help here
    reason = told.group(1) if told else str(error).partition("\n")[0] or type(error).__name__
    if "weights_only" in reason:
        reason = "its contents cannot be read"
    return f"is damaged or no checkpoint ({reason}): copy or train it again"


def model_args(state: Mapping[str, Any]) -> argparse.Namespace:
    """The options of the model stored in a checkpoint, as attributes; changing them does not change the checkpoint."""
    args = state.get("args") or state["cfg"]["model"]
    return argparse.Namespace(**(vars(args) if isinstance(args, argparse.Namespace) else args))


def updates_of(state: Mapping[str, Any]) -> int | str:
    """The number of updates a checkpoint was trained for, '?' if it does not say."""
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates", "?")


def load_model(path: str, trust: bool = False) -> tuple[dict[str, Any], nn.Module]:
    """`load_checkpoint`, and `build_model` of it. Raises ValueError that names the file."""
    state = load_checkpoint(path, trust)
    try:
        return state, build_model(state)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


class _Vocabulary:
    """As much of a dictionary as building a model needs: the number of symbols, and which is the padding."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def pad(self) -> int:
        return 1  # fairseq's dictionaries begin with <s> <pad> </s> <unk>


class _Task:
    def __init__(self, weights: Mapping[str, Tensor], shared: bool):
        sizes = [len(weights.get(f"{side}.embed_tokens.weight", ())) for side in ("encoder", "decoder")]
        self.source_dictionary = _Vocabulary(sizes[0])
        self.target_dictionary = self.source_dictionary if shared else _Vocabulary(sizes[1])


def build_model(state: Mapping[str, Any]) -> nn.Module:
    """The model of a checkpoint with its weights, of our architecture also where the checkpoint is of fairseq's.

    Needs no data and no dictionary. Raises ValueError, with every reason at once, for a model that is not known.
    """
    args = model_args(state)
    reasons = list(_unknown(state, args))
    if reasons:
        raise ValueError("this checkpoint cannot be handled: " + "; ".join(reasons))
    args.encoder_embed_path = args.decoder_embed_path = None  # files that the weights make unnecessary
    weights = dict(state["model"])
    task = _Task(weights, getattr(args, "share_all_embeddings", False))
    try:
        model = TransformerHeadGatesModel.build_model(args, task)
        model.load_state_dict(weights, strict=True, model_cfg=args)
    except Exception as error:  # options that contradict each other or the weights make fairseq raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise ValueError(
            f"the options and the weights of the checkpoint make no model: {' '.join(lines[:2])}"
        ) from None
    return model.eval()


def _unknown(state: Mapping[str, Any], args: argparse.Namespace) -> typing.Iterator[str]:
    name = architecture(args)
    model_class = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
    if model_class is not TransformerModel and not (
        isinstance(model_class, type) and issubclass(model_class, HeadGatesMixin)
    ):
        yield f"its architecture is {name!r}, known are fairseq's transformer and transformer_head_gates"
    if not any(re.search(r"attn\.(out_proj|in_proj)", key) for key in state["model"]):
        yield "it has no attention layer"
    if getattr(args, "quant_noise_pq", 0):
        yield "it was trained with quantisation noise (--quant-noise-pq)"
    if getattr(args, "encoder_xformers_att_config", None) or getattr(args, "decoder_xformers_att_config", None):
        yield "its attention is xFormers' (--encoder-xformers-att-config)"
    if "fsdp_metadata" in state:
        yield "it is one shard of several (fully sharded training): consolidate it first"


def load_dictionaries(state: Mapping[str, Any], folder: str | None = None) -> tuple[Dictionary, Dictionary]:
    """The source and target dictionary of a translation model, from `folder` or where it was trained. ValueError."""
    task = argparse.Namespace(**((state.get("cfg") or {}).get("task") or vars(model_args(state))))
    folder = folder or str(getattr(task, "data", "")).partition(":")[0]
    languages = [getattr(task, "source_lang", None), getattr(task, "target_lang", None)]
    if None in languages and Path(folder).is_dir():
        languages = infer_language_pair(folder)
    if None in languages:
        raise ValueError(
            f"nothing names the languages: give the folder of the binarised data with --data, not {folder!r}"
        )
    found = []
    for side, language in zip(("encoder", "decoder"), languages, strict=True):
        path = Path(folder) / f"dict.{language}.txt"
        if not path.is_file():
            raise ValueError(f"there is no dictionary {path}: give the folder of dict.*.txt with --data")
        try:
            found.append(Dictionary.load(str(path)))
        except Exception as error:  # fairseq raises no other
            raise ValueError(f"cannot read the dictionary {path}: {str(error).splitlines()[0]}") from None
        expected = len(state["model"][f"{side}.embed_tokens.weight"])
        if len(found[-1]) != expected:
            raise ValueError(
                f"{path} has {len(found[-1])} symbols, the checkpoint {expected}: give its own with --data"
            )
    return found[0], found[1]


def architecture(args: argparse.Namespace) -> str:
    """The name that fairseq builds the model by."""
    return getattr(args, "_name", None) or getattr(args, "arch", None) or "?"


@dataclass(frozen=True)
class CheckpointHeads:
    """The heads of a checkpoint: P(gate != 0) and the evaluation gate of every head, which types are gated, and the
    number of parameters of the model."""

    open_probability: HeadTable
    gate: HeadTable
    gated: tuple[str, ...]
    parameters: int


def read_heads(state: Mapping[str, Any], name: str, model: nn.Module | None = None) -> CheckpointHeads:
    """The heads of a checkpoint called `name`; `model` is its model, if that was built already.

    A head without a gate counts as 1, a fixed head as its 0 or 1, one that was taken out as 0. Raises ValueError.
    """
    model = model or build_model(state)
    signature = f"ckpt:{Path(name).name}|updates:{updates_of(state)}"
    gated = {site.kind for site in gated_sites(model)}
    return CheckpointHeads(
        to_tables(open_probabilities(model), "P(open)", signature),
        to_tables(gate_values(model), "gate", signature),
        tuple(kind for kind in TYPES if kind in gated),
        sum(p.numel() for p in model.parameters()),
    )


# --- pruning ---------------------------------------------------------------------------------------------------------


def prune_checkpoint(
    state: Mapping[str, Any], mask: HeadTable, optimizer: bool = True, model: nn.Module | None = None
) -> dict[str, Any]:
    """The checkpoint without the heads that `mask` removes, as a `transformer_head_gates` that knows its own shape.

    What the optimiser remembers and the moving average of the weights are cut in the same way, so that training goes
    on without a jump; without `optimizer` the former is left out. `state` is not changed; `model` is its model.
    Raises ValueError for a mask of another shape and an optimiser that is not known.
    """
    model = model or build_model(state)
    found = cuts(model, mask)
    pruned = apply_cuts(copy.deepcopy(model), found)
    args = pruned_options(model_args(state), kept_heads(pruned))
    if getattr(args, "freeze_params", None) and not _can_be_frozen(pruned, args.freeze_params):
        args.freeze_params = None  # it was about gates
        pruned.requires_grad_(True)
    result = _with_options(state, args, _gated_architecture(architecture(args)))
    weights = dict(state["model"])
    model.upgrade_state_dict(weights)
    result["model"] = cut_tensors(weights, found)
    result["extra_state"] = dict(state.get("extra_state") or {})
    for key in {"ema", "ema_fp32_params"} & set(result["extra_state"]):
        result["extra_state"][key] = _cut_average(result["extra_state"][key], model, found)
    remembered = state.get("last_optimizer_state") if optimizer else None
    result["last_optimizer_state"] = remembered and _cut_optimizer(remembered, model, pruned, found)
    return result


def _can_be_frozen(model: nn.Module, pattern: str) -> bool:
    """Whether the pattern still matches something, and not everything."""
    try:
        freeze(copy.deepcopy(model), pattern)
    except ValueError:
        return False
    return True


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


def _cut_average(average: Mapping[str, Tensor], model: nn.Module, found: Mapping[str, Cut]) -> dict[str, Tensor]:
    """The moving average of the weights: the same heads stay, each with the average of its own gate."""
    averaged = copy.deepcopy(model)
    averaged.load_state_dict(dict(average), strict=False)
    return cut_tensors(average, refolded(found, averaged))


def _cut_optimizer(
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


# --- writing ---------------------------------------------------------------------------------------------------------


def save_checkpoint(state: Mapping[str, Any], path: str, force: bool = False) -> None:
    """Writes a checkpoint whole or not at all; an existing file only with `force` (else ValueError)."""
    with replacing(path, force) as temporary:
        try:
            torch.save(dict(state), temporary)
        except RuntimeError as error:  # how torch says that the disk is full, or the folder missing
            reason = str(error).partition("\n")[0]
            raise ValueError(f"cannot write {path} ({reason}): look at the folder and the room on the disk") from None
