"""LayerDrop at inference (Fan et al. 2020): masks and weights of the layers that --encoder-layers-to-keep names.

fairseq removes the other layers when it loads a checkpoint, and numbers those that stay from 0.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from omegaconf import OmegaConf, open_dict
from torch import Tensor

from fairseq_headgates.heads import HeadTable
from fairseq_headgates.messages import quoted

SIDES = ("encoder", "decoder")
LAYER_NUMBERS = re.compile(r"\d{1,4}(,\d{1,4})*")
LAYER = re.compile(r"(encoder|decoder)\b.*\blayers\.(\d+)(?=\.|$)")

Numbers = dict[str, dict[int, int]]


def layers_to_keep(args: Any) -> dict[str, list[int]]:
    """Return the layers to keep of encoder and decoder, sorted; a side of which all are kept is missing.

    Raise ValueError for an option that is not a list of numbers.
    """
    numbers = {}
    for side in SIDES:
        text = getattr(args, f"{side}_layers_to_keep", None)
        if text:
            if not LAYER_NUMBERS.fullmatch(str(text)):
                raise ValueError(
                    f"--{side}-layers-to-keep is {quoted(text)}: it must be numbers of layers, as in '0,2,4'"
                )
            numbers[side] = sorted(map(int, str(text).split(",")))
    return numbers


def side_of(attention_type: str) -> str:
    """Return the side of an attention type."""
    return "encoder" if attention_type == "enc-self" else "decoder"


def mask_of_layers(mask: HeadTable, args: Any) -> HeadTable:
    """Return the rows of a mask for the layers to keep. A mask of so many layers is returned as it is."""
    rows = {each: _of_layers(layers, side_of(each), args) for each, layers in mask.layers.items()}
    return HeadTable(rows, mask.name, mask.signature)


def dims_of_layers(dims: Mapping[str, Sequence[int]], args: Any) -> dict[str, tuple[int, ...]]:
    """Return numbers of neurons, {side: one for each layer}, of the layers to keep."""
    return {side: tuple(_of_layers(of_side, side, args)) for side, of_side in dims.items()}


def _of_layers(of_side: Sequence[Any], side: str, args: Any) -> list[Any]:
    """Return what belongs to the layers to keep, of one element for each layer of a side."""
    numbers = _numbers(layers_to_keep(args).get(side, []), len(of_side), side)
    return [of_side[i] for i in numbers or range(len(of_side))]


def layer_numbers(names: Iterable[str], args: Any) -> Numbers:
    """Return {side: {layer to keep: its new number}} for weights by name; a side that has no others is missing."""
    there: dict[str, set[int]] = {side: set() for side in SIDES}
    for name in names:
        if match := LAYER.match(name):
            there[match[1]].add(int(match[2]))
    kept = {side: _numbers(keep, len(there[side]), side) for side, keep in layers_to_keep(args).items()}
    return {side: {layer: i for i, layer in enumerate(keep)} for side, keep in kept.items() if keep}


def _numbers(keep: list[int], layers: int, side: str) -> list[int]:
    """Return the layers to keep of `layers`; none if there are no others. Raise ValueError if one is missing."""
    if layers <= len(keep):
        return []
    if keep and keep[-1] >= layers:
        raise ValueError(f"--{side}-layers-to-keep names layer {keep[-1]}: the {side} has the layers 0 to {layers - 1}")
    return keep


def weights_of_layers(weights: Mapping[str, Tensor], numbers: Numbers, args: Any) -> dict[str, Tensor]:
    """Return a state dict without the other layers. As in fairseq, the options of `args` are unset after that."""
    result = OrderedDict(_renumbered(weights, numbers))
    if hasattr(weights, "_metadata"):
        result._metadata = _renumbered(weights._metadata, numbers)  # type: ignore[attr-defined]
    with open_dict(args) if OmegaConf.is_config(args) else nullcontext():
        for side in numbers:
            setattr(args, f"{side}_layers_to_keep", None)
    return result


def _renumbered(named: Mapping[str, Any], numbers: Numbers) -> dict[str, Any]:
    result = {}
    for name, value in named.items():
        match = LAYER.match(name)
        if match is None or match[1] not in numbers:
            result[name] = value
        elif int(match[2]) in numbers[match[1]]:
            number = numbers[match[1]][int(match[2])]
            result[f"{name[: match.start(2)]}{number}{name[match.end(2) :]}"] = value
    return result
