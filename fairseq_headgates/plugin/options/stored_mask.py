"""Read a mask: from JSON, a mask file, or the options and gates of a checkpoint, without building its model."""

from __future__ import annotations

import argparse
import logging
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import base_architecture
from torch import Tensor

from fairseq_headgates.attention.anatomy import attention_type_and_layer
from fairseq_headgates.gates import HeadGates
from fairseq_headgates.heads import TYPES, HeadTable, check_shape, parse_mask
from fairseq_headgates.messages import check_finite, quoted
from fairseq_headgates.plugin.options.declared import OPTIONS, HeadOptions, option_value
from fairseq_headgates.plugin.options.stored import l0_end, model_options
from fairseq_headgates.safety.checkpoint import architecture, load_checkpoint, model_args, updates_of
from fairseq_headgates.safety.reading import is_checkpoint_file

logger = logging.getLogger(__name__)

GATE = ".gate.log_alpha"
OF_REMOVAL = ("alive_heads", "remove_heads", "ffn_dims")  # options that gates do not depend on
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
        stored = is_checkpoint_file(text)
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
    state = load_checkpoint(path, hint="take another file, or a mask as JSON")
    try:
        args, weights = _options(model_args(state)), state["model"]
        sizes = _sizes(weights, args)
        stored = getattr(args, "alive_heads", None)
        mask = parse_mask(stored) if stored else HeadTable({})
        check_shape(mask, sizes, "its own mask")
        rows = {each: [[1.0] * heads for _ in range(layers)] for each, (layers, heads) in sizes.items()}
        rows.update(mask.layers)
        for attention_type, layer, gates in evaluation_gates(weights, args, path, state):
            of_type = rows.get(attention_type, [])
            row = of_type[layer] if layer < len(of_type) else []
            # With --remove-heads only the remaining heads have gates.
            gated = [head for head, alive in enumerate(row) if alive or not getattr(args, "remove_heads", False)]
            if gates.shape != (len(gated),):
                raise ValueError(
                    f"it has {gates.numel()} gates on {attention_type} layer {layer}, which has {len(gated)} heads"
                )
            for head, gate in zip(gated, gates.tolist(), strict=True):
                row[head] *= int(gate > 0)
    except ValueError as error:
        raise ValueError(f"{path!r} cannot be taken as a mask: {error}") from None
    return HeadTable(rows, "alive", f"ckpt:{path.rpartition('/')[2]}")


def _options(stored: argparse.Namespace) -> argparse.Namespace:
    """Return the checked options of a checkpoint of this plugin, with fairseq's defaults."""
    args = model_options(vars(stored))
    base_architecture(args)
    name = architecture(args)
    if not hasattr(ARCH_MODEL_REGISTRY.get(name), "gated_architecture"):  # of `HeadGatesMixin`
        raise ValueError(
            f"its architecture is {quoted(name)}, not transformer_head_gates or another one of this plugin: give a "
            "mask file instead"
        )
    return args


def _sizes(weights: Mapping[str, Tensor], args: argparse.Namespace) -> dict[str, tuple[int, int]]:
    """Return {type: (layers, heads)}, removed heads included."""
    outputs = {match[1]: weight for name, weight in weights.items() if (match := OUTPUT.match(name))}
    places = [attention_type_and_layer(name) for name in outputs]
    layers = Counter(attention_type for attention_type, _ in places)
    if not layers:
        raise ValueError("it has no attention layer")
    if len({*places}) < len(places):  # they are counted over all stacks, in an order that their names do not tell
        raise ValueError("it has several stacks of layers: write its mask with headgates show --out")
    sizes = {}
    for (attention_type, _), weight in zip(places, outputs.values(), strict=True):
        option = f"{'encoder' if attention_type == 'enc-self' else 'decoder'}_attention_heads"
        heads = getattr(args, option)
        if weight.dim() != 2 or not 1 <= heads <= len(weight):
            raise ValueError(f"the stored option {option} is {heads}: it does not fit the weights")
        sizes[attention_type] = (layers[attention_type], heads)
    return sizes


def evaluation_gates(
    weights: Mapping[str, Tensor], args: Any, path: str = "", state: Mapping[str, Any] | None = None
) -> list[tuple[str, int, Tensor]]:
    """Return attention type, number and evaluation gates of every layer with gates, exactly as the model computes them.

    Args:
        weights: the weights of a checkpoint
        args: the options of its model
        path: its name, to warn if the training of its gates is unfinished
        state: the checkpoint, for this warning
    """
    places = {name: attention_type_and_layer(name.removesuffix(GATE)) for name in weights if name.endswith(GATE)}
    names = sorted(places, key=lambda name: (TYPES.index(places[name][0]), places[name][1]))
    if not names:
        return []
    options = HeadOptions(**{name: option_value(args, name) for name in OPTIONS if name not in OF_REMOVAL})
    layers = [HeadGates(weights[name].numel(), options.distribution, lr_scale=options.gate_lr_scale) for name in names]
    for layer, name in zip(layers, names, strict=True):
        check_finite(f"the gates {name}", weights[name])
        layer.load_state_dict({"log_alpha": weights[name].reshape(-1)})
    method = options.method(layers, [places[name][0] for name in names])
    if state:
        updates = updates_of(state)
        method.set_num_updates(updates if isinstance(updates, int) else 0)
        if warning := method.unfinished(l0_end(state)):
            logger.warning(f"{path}: {warning}")
    with torch.no_grad():
        values = method.evaluate(method.log_alpha()).split(method.sizes)
    return [(*places[name], row) for name, row in zip(names, values, strict=True)]
