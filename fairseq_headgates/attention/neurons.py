"""The feed-forward blocks of a model, and their numbers of neurons.

Shapes: F neurons of a block, the outputs of `fc1` and inputs of `fc2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import blocks_of
from fairseq_headgates.attention.cuts import Cut, apply_cuts


def feed_forward_layers(model: nn.Module) -> dict[str, list[str]]:
    """Return the layers with attention and a feed-forward block of `fc1` and `fc2`: {side: names of modules}.

    They are counted over all encoders or decoders of the model, in the order of its modules.
    """
    found: dict[str, list[str]] = {}
    for block in blocks_of(model):
        if not block.is_attention:
            found.setdefault(block.side, []).append(block.layer)
    return found


def ffn_dims(model: nn.Module) -> dict[str, list[int]]:
    """Return F of every feed-forward block: {side: [F of each layer]}."""
    layers: dict[str, list[Any]] = {
        side: [model.get_submodule(name) for name in names] for side, names in feed_forward_layers(model).items()
    }
    return {side: [layer.fc1.out_features for layer in of_side] for side, of_side in layers.items()}


def set_ffn_dims(model: nn.Module, dims: Mapping[str, Sequence[int]]) -> nn.Module:
    """Give the feed-forward blocks of a newly built model so many neurons, in place: the first of those that they have.

    Args:
        model: a model that is not trained
        dims: F of every layer, for one or both sides

    Raises:
        ValueError: if a side has other layers, or a block fewer neurons
    """
    layers, before, neuron_cuts = feed_forward_layers(model), ffn_dims(model), dict[str, Cut]()
    for side, numbers in dims.items():
        if len(numbers) != len(layers.get(side, ())):
            raise ValueError(
                f"--ffn-dims has {len(numbers)} layers of the {side}, the model has {len(layers.get(side, ()))}"
            )
        for name, neurons, number in zip(layers[side], before[side], numbers, strict=True):
            if number > neurons:
                raise ValueError(
                    f"--ffn-dims gives a layer of the {side} {number} neurons: it must be at most {neurons}, "
                    f"--{side}-ffn-embed-dim"
                )
            neuron_cuts[name] = Cut.of_neurons(neurons, range(number))
    return apply_cuts(model, {name: cut for name, cut in neuron_cuts.items() if cut.changes_weights})


def pad_neurons(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of a compressed model in the shapes of the stock model, with zeros for removed neurons."""
    filled = dict(tensors)
    for side, names in feed_forward_layers(model).items():
        for name in names:
            missing = getattr(model.args, f"{side}_ffn_embed_dim") - model.get_submodule(name).fc1.out_features
            for parameter, sizes in (("fc1.weight", (0, 0, 0)), ("fc1.bias", (0,)), ("fc2.weight", (0,))):
                key = f"{name}.{parameter}"
                filled[key] = nn.functional.pad(filled[key], (*sizes, missing))
    return filled
