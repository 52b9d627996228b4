"""The start of a training: options that the checkpoint decides, and options that cannot work on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import nullcontext
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from fairseq_headgates.messages import printable, quoted
from fairseq_headgates.plugin.models.presets import stock_name
from fairseq_headgates.plugin.models.recognition import assumed_options, register_stand_ins, unknown_names
from fairseq_headgates.plugin.options.declared import DEFAULTS
from fairseq_headgates.plugin.options.stored import flat_options, model_options, transformer_options
from fairseq_headgates.plugin.options.values import parse_ffn_dims
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
    *"encoder_xformers_att_config decoder_xformers_att_config quant_noise_scalar min_params_to_wrap export".split(),
    *"checkpoint_activations offload_activations char_inputs base_shuffle tpu add_bos_token tokens_per_sample".split(),
    *"lang_tok_replacing_bos_eos pooler_activation_fn spectral_norm_classification_head".split(),
}
# Options that single models of fairseq declare, besides those of its transformers, and that change this function.
OF_MODELS = set(
    """
    share_encoders share_decoders share_encoder_embeddings share_decoder_embeddings
    encoder_kernel_size_list decoder_kernel_size_list encoder_conv_type decoder_conv_type encoder_conv_dim
    decoder_conv_dim encoder_glu decoder_glu weight_softmax
    attn_type pos_enc_type depthwise_conv_kernel_size conv_version conv_kernel_sizes conv_channels conv_out_channels
    src_embedding_copy sg_length_pred pred_length_offset
    early_exit no_share_discriminator no_share_maskpredictor share_discriminator_maskpredictor
    """.split()
)
OPEN = {"mem_len", "quant_noise_pq_block_size"}  # taken from the checkpoint, but another value is no mistake
# Weights that may have another shape in a checkpoint.
OTHER_SHAPE = re.compile(r"attn\.|^classification_heads\.|^gate_method\.")
# Sizes of the weights only with learned positions.
POSITIONS = {"max_source_positions": "encoder_learned_pos", "max_target_positions": "decoder_learned_pos"}
# Defaults of the parsers of tasks and of RoBERTa, which do not show that an option is given.
PARSER_DEFAULTS = {"quant_noise_pq": 0, **{name: getattr(TransformerConfig(), name) for name in POSITIONS}}


def prepare_training(model_class: Any, args: Any) -> dict[str, Any]:
    """Complete and check the options of a training by those of the checkpoint that it starts from, in place.

    fairseq calls a preset with the options that it has just parsed, and again for every checkpoint that it loads; only
    the former are changed.

    Args:
        model_class: the model that is built
        args: the options that are given, before a preset completes them

    Returns:
        The options that are taken from the checkpoint

    Raises:
        ValueError: for options that differ from those of the checkpoint or cannot work here
    """
    run = _run(args)
    if run is None:
        return {}
    check_precision(run)
    for name in ("inference_dtype", "inference_mode"):
        if getattr(args, name, None) not in (None, DEFAULTS[name]):
            logger.info(f"{_flag(name, getattr(args, name))} has no effect on training and validation")
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
        logger.warning(
            f"the options of the model are not compared with those of the checkpoint ({error}): give all of them"
        )
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


def check_precision(run: argparse.Namespace) -> None:
    """Raise ValueError for half precision where fairseq would end with a traceback."""
    if getattr(run, "tpu", False) and importlib.util.find_spec("torch_xla") is None:
        raise ValueError("--bf16 makes fairseq-train use a TPU, but torch_xla is not installed: leave it out")
    half = getattr(run, "fp16", False) and not getattr(run, "memory_efficient_fp16", False)
    if half and not torch.cuda.is_available():
        raise ValueError("--fp16 needs a GPU, but torch finds none: leave it out")


def starting_checkpoint(run: argparse.Namespace) -> str | None:
    """Return the checkpoint that fairseq will load, None if there is none; see `fairseq.checkpoint_utils`."""
    restored = getattr(run, "restore_file", None) or DEFAULT_FILE
    if restored != DEFAULT_FILE:
        candidates = [restored]
    else:
        last = os.path.join(getattr(run, "save_dir", None) or "", DEFAULT_FILE)
        candidates = [last, getattr(run, "continue_once", None), getattr(run, "finetune_from_model", None)]
    return next((path for path in candidates if path and os.path.isfile(path)), None)


def check_dimensions(model: Any, weights: Mapping[str, Any]) -> None:
    """Raise ValueError if embeddings, layer norms or feed-forward blocks of a checkpoint have other sizes."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if not OTHER_SHAPE.search(name)}
    stored = {name: tuple(weights[name].shape) for name in shapes if name in weights}
    different = [name for name, shape in stored.items() if shape != shapes[name]]
    if different:
        name = different[0]
        raise ValueError(
            f"{name} has the shape {stored[name]} in the checkpoint and {shapes[name]} in the model (the first of "
            f"{len(different)} such weights): give all sizes of the checkpoint as options, and data binarised with "
            "its dictionaries"
        )


def _stored(model_class: Any, stored: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a checkpoint that change its function."""
    args = argparse.Namespace(**flat_options(vars(stored)))
    compared = {*vars(args), *transformer_options()} - FREE  # a model may start from one of another family
    model_class.set_defaults(args)
    if len(model_class.stacks) == 2:  # what is not stored has the default that fairseq's transformer declares
        usual = TransformerConfig()
        for name in sorted(compared - vars(args).keys()):
            if (value := getattr(usual, name, None)) is not None:
                setattr(args, name, value)
    compared -= {name for name, learned in POSITIONS.items() if not getattr(args, learned, False)}
    return {name: value for name, value in _known_options(model_class, vars(args)).items() if name in compared}


def _known_options(model_class: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of fairseq's transformers, and those of `OF_MODELS`, that the stock model has."""
    known = transformer_options().keys() | OF_MODELS
    return {name: value for name, value in vars(model_options(options, model_class.stock)).items() if name in known}


def _take(model_class: Any, args: Any, stored: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Set the options in `args` that are not given, and return them. Raise ValueError for those that differ."""
    given = {name: value for name, value in _given(args) if name in stored}
    given = {name: value for name, value in given.items() if value not in (None, "", PARSER_DEFAULTS.get(name))}
    given = _known_options(model_class, given)
    different = [
        f"{_flag(name, given[name])} (checkpoint: {'not set' if value is False else quoted(value)})"
        for name, value in stored.items()
        if name in given and name not in OPEN and not _same(name, given[name], value)
    ]
    if different:
        raise ValueError(
            f"the options of the model differ from those of the checkpoint {path}: {', '.join(different)}; leave these "
            "options out: they are taken from the checkpoint"
        )
    usual = argparse.Namespace()
    model_class.set_defaults(usual)
    missing = {name: value for name, value in stored.items() if name not in given}
    for name, value in missing.items():
        _set(args, name, value)
    unusual = [_flag(name, value) for name, value in missing.items() if value != getattr(usual, name, value)]
    if unusual:
        logger.info(printable(f"options of the model taken from {path}: {' '.join(unusual)}"))
    return missing


def _given(args: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options that are given; `encoder: {layers: 2}` of hydra gives no other option of its group."""
    for name, value in (args if isinstance(args, Mapping) else vars(args)).items():
        if isinstance(value, Mapping):
            yield from ((f"{name}_{inner}", inner_value) for inner, inner_value in value.items())
        else:
            yield name, value


def _same(name: str, given: Any, stored: Any) -> bool:
    if name == "ffn_dims":
        return parse_ffn_dims(given) == parse_ffn_dims(stored)
    return bool(given) == bool(stored) if name == "quant_noise_pq" else given == stored


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
