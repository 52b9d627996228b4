"""Read a mask: from JSON, a mask file, or the options and gates of a checkpoint, without building its model."""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import base_architecture
from torch import Tensor

from fairseq_headgates.gates import METHODS, HardConcrete, HeadGates
from fairseq_headgates.heads import TYPES, HeadTable, attention_type_and_layer, check_shape, parse_mask
from fairseq_headgates.messages import shown
from fairseq_headgates.plugin.options.declared import option_value
from fairseq_headgates.plugin.options.stored import model_options
from fairseq_headgates.safety.checkpoint import architecture, load_checkpoint, model_args
from fairseq_headgates.safety.reading import is_checkpoint_file

logger = logging.getLogger(__name__)

GATE = ".gate.log_alpha"
OUTPUT = re.compile(r"(.*attn)\.out_proj\.weight$")


def read_mask(text: str) -> HeadTable:
    """Read a mask from inline JSON, from a mask file, or from a checkpoint of this plugin.

    Args:
        text: JSON, which starts with '{', or the path of a mask file or of a checkpoint

    Raises:
        ValueError: if there is no mask to read
    """
    if text.lstrip().startswith("{"):
        return parse_mask(text)
    try:
        stored = os.path.isfile(text) and is_checkpoint_file(text)
    except OSError as error:
        raise ValueError(
            f"cannot read the mask {text!r} ({error.strerror}): give a mask file or a checkpoint"
        ) from None
    return mask_of_checkpoint(text) if stored else parse_mask(text)


def mask_of_checkpoint(path: str) -> HeadTable:
    """Return the open heads of a checkpoint of this plugin: not removed, not masked, evaluation gate above 0.

    It is the mask that ``headgates show CKPT --out FILE`` writes.

    Raises:
        ValueError: in one line, if the file is not such a checkpoint
    """
    state = load_checkpoint(path, cure="take another file, or a mask as JSON")
    try:
        args, weights = _options(model_args(state)), state["model"]
        sizes = _sizes(weights, args)
        mask = _full(sizes)
        if getattr(args, "alive_heads", None):
            if not args.alive_heads.lstrip().startswith("{"):
                raise ValueError(f"the stored option alive_heads is {shown(args.alive_heads)}, not inline JSON")
            alive = parse_mask(args.alive_heads)
            check_shape(alive, sizes, "its own mask")
            mask.update({attention_type: [list(row) for row in rows] for attention_type, rows in alive.values.items()})
        for attention_type, layer, gates in evaluation_gates(weights, args, path):
            _close(mask, attention_type, layer, gates, args)
    except ValueError as error:
        raise ValueError(f"{path!r} cannot be taken as a mask: {error}") from None
    return HeadTable(mask, "alive", f"ckpt:{path.rpartition('/')[2]}")


def _options(stored: argparse.Namespace) -> argparse.Namespace:
    """Return the checked options of a checkpoint of this plugin, with fairseq's defaults."""
    args = model_options(vars(stored))
    base_architecture(args)
    name = architecture(args)
    if not hasattr(ARCH_MODEL_REGISTRY.get(name), "gated_architecture"):  # of `HeadGatesMixin`
        raise ValueError(
            f"its architecture is {shown(name)}, not transformer_head_gates or another one of this plugin: give a mask "
            "file instead"
        )
    return args


def _sizes(weights: Mapping[str, Tensor], args: argparse.Namespace) -> dict[str, tuple[int, int]]:
    """Return {type: (layers, heads)}, removed heads included."""
    layers: dict[str, int] = {}
    heads: dict[str, int] = {}
    places: set[tuple[str, int]] = set()
    for name, weight in weights.items():
        if not (match := OUTPUT.match(name)):
            continue
        attention_type, _ = place = attention_type_and_layer(match[1])
        if place in places:  # they are counted over all stacks, in an order that their names do not tell
            raise ValueError(
                f"it has several stacks of {attention_type} layers: write its mask with headgates show --out"
            )
        places.add(place)
        layers[attention_type] = layers.get(attention_type, 0) + 1
        option = f"{'encoder' if attention_type == 'enc-self' else 'decoder'}_attention_heads"
        number = getattr(args, option, None)
        if not isinstance(number, int) or weight.dim() != 2 or not 1 <= number <= weight.size(0):
            raise ValueError(f"the stored option {option} is {shown(number)}: it does not fit {name}")
        heads[attention_type] = number
    if not layers:
        raise ValueError("it has no attention layer")
    return {attention_type: (layers[attention_type], heads[attention_type]) for attention_type in layers}


def _full(sizes: Mapping[str, tuple[int, int]]) -> dict[str, list[list[float]]]:
    return {attention_type: [[1] * heads for _ in range(layers)] for attention_type, (layers, heads) in sizes.items()}


def _gated_layers(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, int, Tensor]]:
    """Yield attention type, number and log_alpha of every layer with gates."""
    for name, tensor in weights.items():
        if name.endswith(GATE):
            yield (*attention_type_and_layer(name.removesuffix(GATE)), tensor)


def _close(
    mask: dict[str, list[list[float]]], attention_type: str, layer: int, values: Tensor, args: argparse.Namespace
) -> None:
    """Set the heads of one attention layer to 0 whose evaluation gate is 0."""
    rows = mask.get(attention_type, [])
    if layer >= len(rows):
        raise ValueError(f"it has a gate on {attention_type} layer {layer}, but no such layer")
    # With --remove-heads only the remaining heads have gates.
    gated = [i for i, alive in enumerate(rows[layer]) if alive or not getattr(args, "remove_heads", False)]
    if values.shape != (len(gated),):
        raise ValueError(
            f"it has {values.numel()} gates on {attention_type} layer {layer}, which has {len(gated)} heads"
        )
    for head, gate in zip(gated, values.tolist(), strict=True):
        rows[layer][head] *= int(gate > 0)


def evaluation_gates(weights: Mapping[str, Tensor], args: Any, path: str = "") -> list[tuple[str, int, Tensor]]:
    """Return attention type, number and evaluation gates of every layer with gates, exactly as the model computes them.

    Args:
        weights: the weights of a checkpoint
        args: the options of its model
        path: its name, to warn if the training of its gates is unfinished
    """
    gated = sorted(_gated_layers(weights), key=lambda layer: (TYPES.index(layer[0]), layer[1]))
    if not gated:
        return []
    layer_types, rows = [attention_type for attention_type, *_ in gated], [row for *_, row in gated]
    low, high = option_value(args, "gate_stretch")
    lr_scale = option_value(args, "gate_lr_scale")
    layers = [HeadGates(row.numel(), HardConcrete(low=low, high=high), lr_scale=lr_scale) for row in rows]
    for layer, row in zip(layers, rows, strict=True):
        layer.load_state_dict({"log_alpha": row.reshape(-1)})
    target = option_value(args, "target_heads")
    heads = {
        each: sum(row.numel() for row, other in zip(rows, layer_types, strict=True) if other == each)
        for each in layer_types
    }
    settings: dict[str, Any] = {"target": target.counts(heads)} if target else {}
    method = METHODS[option_value(args, "sparsity_method")](layers, layer_types, **settings)
    if path and (warning := method.unfinished()):
        logger.warning(f"{path}: {warning}")
    with torch.no_grad():
        values = method.evaluate(method.log_alpha()).split(method.sizes)
    return [(attention_type, layer, row) for (attention_type, layer, _), row in zip(gated, values, strict=True)]
