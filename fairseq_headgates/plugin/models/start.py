"""The start of a training: options that the checkpoint decides, and options that cannot work on this machine."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import nullcontext
from typing import Any

from fairseq.models.transformer import TransformerConfig
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from fairseq_headgates.attention.anatomy import stack_names
from fairseq_headgates.messages import printable
from fairseq_headgates.plugin.models.presets import stock_name
from fairseq_headgates.plugin.models.recognition import assumed_options, register_stand_ins, unknown_names
from fairseq_headgates.plugin.options.declared import DEFAULTS
from fairseq_headgates.plugin.options.stored import flat_options, model_options, transformer_options
from fairseq_headgates.safety.checkpoint import load_checkpoint, model_args

logger = logging.getLogger(__name__)

UNKNOWN = "headgates_unknown"  # an attribute of the options: names to register also in the processes of other GPUs
MARK, PARSED = "headgates_parsed", object()  # an attribute of the options that fairseq-train has just parsed
DEFAULT_FILE = "checkpoint_last.pt"  # of --restore-file
# Options of the training and of the data: they do not change the function that the weights compute.
FREE = {
    *(DEFAULTS.keys() - {"ffn_dims"}),
    *"_name arch dropout attention_dropout activation_dropout relu_dropout adaptive_softmax_dropout".split(),
    *"pooler_dropout encoder_layerdrop decoder_layerdrop encoder_layers_to_keep decoder_layers_to_keep".split(),
    *"checkpoint_activations offload_activations tpu add_bos_token tokens_per_sample".split(),
}
# Defaults of the parsers of tasks and of RoBERTa, which do not show that an option is given.
PARSER_DEFAULTS = {"quant_noise_pq": 0, "max_source_positions": 1024, "max_target_positions": 1024}


def prepare_training(model_class: Any, args: Any) -> dict[str, Any]:
    """Complete the options of a training by those of the checkpoint that it starts from, in place.

    fairseq calls a preset with the options that it has just parsed, and again for every checkpoint that it loads; only
    the former are changed.

    Args:
        model_class: the model that is built
        args: the options that are given, before a preset completes them

    Returns:
        The options that are taken from the checkpoint
    """
    run = _run(args)
    if run is None:
        return {}
    if (dtype := getattr(args, "inference_dtype", None)) not in (None, DEFAULTS["inference_dtype"]):
        logger.info(f"{_flag('inference_dtype', dtype)} has no effect on training and validation")
    path = starting_checkpoint(run)
    if path is None:
        return {}
    try:
        state = load_checkpoint(path)
        if unknown := unknown_names(state):
            _set(args, UNKNOWN, unknown)
            register_stand_ins(unknown, stock_name(model_class))
        stored = _stored(model_class, model_args(state))
        if assumed := assumed_options(model_args(state), stock_name(model_class)) if "arch" in unknown else {}:
            stored = {name: value for name, value in stored.items() if name not in assumed}
            logger.warning(
                f"neither {path} nor its weights show {', '.join(assumed)}: give those that it was trained with"
            )
    except ValueError as error:
        logger.warning(f"the options of the model are not taken from the checkpoint ({error}): give all of them")
        return {}
    return _take(model_class, args, stored, path)


def register_unknown(model_class: Any, args: Any) -> None:
    """Register the names in the checkpoint of a training that fairseq does not know, which `prepare_training` found."""
    with open_dict(args) if OmegaConf.is_config(args) else nullcontext():
        names = (args if isinstance(args, MutableMapping) else vars(args)).pop(UNKNOWN, None)
    register_stand_ins(names or {}, stock_name(model_class))


def check_kept(taken: Mapping[str, Any], args: Any, architecture: str) -> None:
    """Raise ValueError if a preset has changed options that are taken from a checkpoint: some are not to be chosen."""
    changed = [_flag(name, getattr(args, name)) for name, value in taken.items() if getattr(args, name) != value]
    if changed:
        raise ValueError(
            f"this preset always has {', '.join(changed)}, unlike the checkpoint: choose --arch {architecture}"
        )


def _run(args: Any) -> argparse.Namespace | None:
    """Return the options of the training; None if `args` are those of a checkpoint."""
    if not OmegaConf.is_config(args):
        return args if vars(args).pop(MARK, None) is PARSED else None
    if not HydraConfig.initialized():
        return None
    with open_dict(args):
        beside = OmegaConf.create({"checkpoint": "${checkpoint}", "common": "${common}"}, parent=args)
    return argparse.Namespace(**{**beside.common, **beside.checkpoint})


def starting_checkpoint(run: argparse.Namespace) -> str | None:
    """Return the checkpoint that fairseq will load, None if there is none; see `fairseq.checkpoint_utils`."""
    restored = getattr(run, "restore_file", None) or DEFAULT_FILE
    if restored != DEFAULT_FILE:
        candidates = [restored]
    else:
        last = os.path.join(getattr(run, "save_dir", None) or "", DEFAULT_FILE)
        candidates = [last, getattr(run, "continue_once", None), getattr(run, "finetune_from_model", None)]
    return next((path for path in candidates if path and os.path.isfile(path)), None)


def _stored(model_class: Any, stored: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a checkpoint that change its function."""
    args = argparse.Namespace(**flat_options(vars(stored)))
    names = {*vars(args), *transformer_options()} - FREE  # a model may start from one of another family
    model_class.set_defaults(args)
    if len(stack_names(model_class)) == 2:  # what is not stored has the default that fairseq's transformer declares
        usual = TransformerConfig()
        for name in sorted(names - vars(args).keys()):
            if (value := getattr(usual, name, None)) is not None:
                setattr(args, name, value)
    found = vars(model_options(vars(args), model_class.stock))
    return {name: value for name, value in found.items() if name in names & transformer_options().keys()}


def _take(model_class: Any, args: Any, stored: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Set the options in `args` that are not given, and return them. Log those that are given and differ."""
    given = {name: value for name, value in _given(args) if value not in (None, "", PARSER_DEFAULTS.get(name))}
    chosen = {name: value for name, value in given.items() if name in stored and name != "ffn_dims"}  # may be a path
    chosen = vars(model_options(chosen, model_class.stock))
    if different := [_flag(name, value) for name, value in chosen.items() if value != stored[name]]:
        logger.warning(printable(f"{' '.join(different)} given, but the checkpoint {path} has other values"))
    taken = {name: value for name, value in stored.items() if name not in given}
    for name, value in taken.items():
        _set(args, name, value)
    usual = argparse.Namespace()
    model_class.set_defaults(usual)
    unusual = [_flag(name, value) for name, value in taken.items() if value != getattr(usual, name, value)]
    if unusual:
        logger.info(printable(f"options of the model taken from {path}: {' '.join(unusual)}"))
    return taken


def _given(args: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options that are given; `encoder: {layers: 2}` of hydra gives no other option of its group."""
    for name, value in (args if isinstance(args, Mapping) else vars(args)).items():
        if isinstance(value, Mapping):
            yield from ((f"{name}_{inner}", inner_value) for inner, inner_value in value.items())
        else:
            yield name, value


def _set(args: Any, name: str, value: Any) -> None:
    """Set an option, in the group where hydra's configuration has it."""
    group, _, inner = name.partition("_")
    if not OmegaConf.is_config(args):
        setattr(args, name, value)
        return
    with open_dict(args):
        if OmegaConf.is_config(args.get(group)):
            args[group][inner] = value
        else:
            args[name] = value


def _flag(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {value}"
