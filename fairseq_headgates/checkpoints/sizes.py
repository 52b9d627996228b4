"""Compare stored options with stored weights, before a model of these sizes is allocated."""

from __future__ import annotations

import argparse
import copy
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.models import FairseqEncoderModel, FairseqLanguageModel
from fairseq.models.transformer import TransformerModel
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from fairseq_headgates.messages import quoted
from fairseq_headgates.plugin.models.mixin import HeadGatesMixin
from fairseq_headgates.plugin.options.layerdrop import layers_to_keep

SIZES = re.compile(  # options that are sizes of weights or of tables of positions
    r"(encoder|decoder)_((ffn_)?embed_dim|attention_heads|input_dim|output_dim)|max_(source|target)_positions|"
    r"persistent_vectors|character_embedding_dim|input_feat_per_channel|conv_out_channels"
)
MOST_LAYERS = 1_000  # of a stack; more take minutes to build
LARGEST_SIZE = 2**24
HIGHWAY = r"decoder\.embed_tokens\.highway\.layers"  # of embeddings of characters
LAYERS = r"{}\.(?:transformer_|conformer_)?layers"  # of a stack; encoders of speech have other layers, too
LARGEST_TABLE = 2**26  # numbers in a table of sinusoidal positions, which is not stored but computed
# Parameters that pruning makes smaller.
PROJECTION = re.compile(
    r"attn\.((q|k|v|out|position)_proj\.(weight|bias)|(query_bias|persistent)\.\w+)$|\.fc[12]\.(weight|bias)$"
)
MISSING_SHARE = 4  # how many times as large as the stored weights all that is not stored may be
MISSING_NUMBERS = 2**26
LARGEST_FEATURES = 2**18  # features of speech times channels
MOST_NUMBERS, MOST_DIGITS = 16, 2  # of options that list layers or kernels
DROPS_LAYERS = (TransformerModel, FairseqLanguageModel, FairseqEncoderModel)


def check_sizes(
    args: argparse.Namespace, weights: Mapping[str, Tensor], task: Any, model_class: type[HeadGatesMixin]
) -> None:
    """Raise ValueError unless the model that `args` describe has the shapes of `weights`.

    The model is built without memory for its weights.
    """
    args = copy.deepcopy(args)
    for name in ("encoder_layers", "decoder_layers"):  # before the defaults, which can have a number for each layer
        if isinstance(layers := getattr(args, name, None), int) and layers > MOST_LAYERS:
            raise ValueError(f"the stored option {name} is {quoted(layers)}: at most {MOST_LAYERS:,} are supported")
    model_class.set_defaults(args)
    if not issubclass(model_class.stock, DROPS_LAYERS):  # other models ignore these options
        args.encoder_layers_to_keep = args.decoder_layers_to_keep = None
    for side, stack in model_class.stacks_in(weights):
        _check_layers(args, weights, side, stack)
    for name, value in vars(args).items():
        if SIZES.fullmatch(name) and value is not None and not 0 < value <= LARGEST_SIZE:
            raise ValueError(f"the stored option {name} is {value}: it must be from 1 to {LARGEST_SIZE:,}")
    for name, side in (("max_source_positions", "encoder"), ("max_target_positions", "decoder")):
        positions = getattr(args, name, None)
        if positions is not None and side in model_class.stacks:
            table = not getattr(args, f"{side}_learned_pos", False) and not args.no_token_positional_embeddings
            table |= side not in model_class.reads_tokens  # an encoder of speech always has one
            if table and positions * getattr(args, f"{side}_embed_dim") > LARGEST_TABLE:
                raise ValueError(
                    f"the stored option {name} is {positions:,}: its table would have more than "
                    f"{LARGEST_TABLE:,} numbers"
                )
    _check_own_options(args)
    if getattr(args, "base_layers", 0):
        raise ValueError(f"the stored option base_layers is {quoted(args.base_layers)}: BASE layers are not supported")
    if getattr(args, "character_embeddings", False):
        _check_number("char_embedder_highway_layers", args.char_embedder_highway_layers, weights, HIGHWAY)
    _check_classification_heads(args, weights)
    _check_shapes(_skeleton(args, task, model_class), weights)


class _NotInitialised(TorchFunctionMode):
    """Within the context, weights are not initialised: without memory for them, torch imports torch._dynamo for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _skeleton(args: argparse.Namespace, task: Any, model_class: Any) -> nn.Module:
    """Build fairseq's model without memory for its weights, and without the positions that are computed."""
    try:
        if not any(getattr(args, f"{side}_learned_pos", True) for side in model_class.stacks):
            args.no_token_positional_embeddings = True
        with torch.device("meta"), _NotInitialised():
            return model_class.stock.build_model(args, task)
    except NotImplementedError:  # RoBERTa copies its weights to the CPU: fake tensors can, and take three times as long
        with FakeTensorMode():
            return model_class.stock.build_model(args, task)


def _check_classification_heads(args: argparse.Namespace, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the weights of each classification head fit together; fairseq reads only two of them."""
    for name in {match[1] for key in weights if (match := re.match(r"(classification_heads\.[^.]+)\.", key))}:
        parts = ("dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias")
        stored = [tuple(weights[f"{name}.{part}"].shape) if f"{name}.{part}" in weights else None for part in parts]
        inner, classes = (shape[0] if shape else 0 for shape in (stored[1], stored[3]))
        if stored != [(inner, args.encoder_embed_dim), (inner,), (classes, inner), (classes,)]:
            raise ValueError(f"the weights of {quoted(name)} do not fit together, or one is missing")


def _check_own_options(args: argparse.Namespace) -> None:
    """Raise ValueError for options of single models that take memory or time beyond that of the weights."""
    names = ("input_feat_per_channel", "conv_out_channels", "input_channels")
    features, *channels_of = (getattr(args, name, None) or 1 for name in names)
    channels = max(channels_of)
    if features * channels > LARGEST_FEATURES:  # fairseq runs a convolution of speech to find out its size
        raise ValueError(
            f"the stored options input_feat_per_channel and conv_out_channels are {features:,} and {channels:,}: their "
            f"product must be at most {LARGEST_FEATURES:,}"
        )
    for name in ("early_exit", "conv_kernel_sizes"):
        numbers = str(getattr(args, name, None) or "").split(",")
        if len(numbers) > MOST_NUMBERS or any(len(number) > MOST_DIGITS for number in numbers):
            raise ValueError(f"the stored option {name} is {quoted(','.join(numbers))}: it must be a few small numbers")


def _check_layers(args: argparse.Namespace, weights: Mapping[str, Tensor], side: str, stack: str) -> None:
    name = f"{side}_layers"
    kept = layers_to_keep(args).get(side)  # LayerDrop: fairseq takes these out of more
    number = len(kept) if kept else getattr(args, name)
    _check_number(name, number, weights, LAYERS.format(re.escape(stack)), more=bool(kept))


def _check_number(option: str, number: Any, weights: Mapping[str, Tensor], layers: str, more: bool = False) -> None:
    """Raise ValueError unless the weights have as many layers as an option says; with `more`, they may have more."""
    stored_layers = len({match[1] for key in weights if (match := re.match(rf"{layers}\.(\d+)\.", key))})
    if not (number <= stored_layers if more else number == stored_layers):
        raise ValueError(f"the stored option {option} is {quoted(number)}, but the weights have {stored_layers} layers")
    if stored_layers > MOST_LAYERS:
        raise ValueError(f"the stored option {option} is {quoted(number)}: at most {MOST_LAYERS:,} are supported")


def _check_shapes(skeleton: nn.Module, weights: Mapping[str, Tensor]) -> None:
    missing = 0
    for name, tensor in skeleton.state_dict().items():
        stored = weights.get(name)
        missing += tensor.numel() - (0 if stored is None else min(stored.numel(), tensor.numel()))
        if stored is not None and not _fits(name, stored.shape, tensor.shape):
            raise ValueError(
                f"the stored options give {name} the shape {tuple(tensor.shape)}, it is stored as {tuple(stored.shape)}"
            )
    stored_numbers = sum(math.prod(weight.shape) for weight in weights.values())
    if missing > MISSING_SHARE * stored_numbers + MISSING_NUMBERS:
        raise ValueError(f"the stored options are of a model with {missing:,} more parameters than are stored")


def _fits(name: str, stored: torch.Size, built: torch.Size) -> bool:
    if not PROJECTION.search(name) or len(stored) != len(built):
        return stored == built
    return all(size <= most for size, most in zip(stored, built, strict=True))  # heads and neurons may be removed
