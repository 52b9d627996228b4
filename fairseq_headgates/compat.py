"""Differences between the supported versions of fairseq: 0.12.2, and its fork fairseq-fixed 0.12.3.1.

Each function names the difference; the rest of the package does not ask for the version.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

from torch import nn

# Parameters that encoder layers of fairseq 0.12.2 have besides those of their modules: copies of these for an inference
# shortcut, zero until a checkpoint is loaded. They are in its checkpoints.
COPIES = tuple(
    f"{module}_{parameter}" for module in ("in_proj", "out_proj", "fc1", "fc2") for parameter in ("weight", "bias")
)


def without_shortcut(layer: nn.Module) -> None:
    """Remove the inference shortcut of an encoder layer of fairseq 0.12.2, in place. Other layers are left as they are.

    The shortcut computes the layer in one function of torch, which bypasses the attention module, and fails with torch
    2.0 and later. Without it the copies of the weights are not needed, and loading does not ask for projections that a
    layer without heads does not have.
    """
    if not getattr(layer, "can_use_fastpath", None) and not hasattr(layer, COPIES[0]):
        return
    layer.can_use_fastpath = False  # type: ignore[assignment]
    for name in COPIES:
        delattr(layer, name)
    # Its own method copies the weights of a checkpoint.
    layer._load_from_state_dict = MethodType(nn.Module._load_from_state_dict, layer)  # type: ignore[method-assign]


def remove_copies(weights: dict[str, Any]) -> None:
    """Remove the copies of an encoder layer's weights from the weights of a checkpoint of fairseq 0.12.2, in place."""
    for name in copies(weights):
        del weights[name]


def copies(names: Iterable[str]) -> set[str]:
    """Return the names of the copies: `encoder.layers.0.fc1_weight` if there is `encoder.layers.0.fc1.weight`."""
    known = set(names)
    return {name for name in known if name.rpartition(".")[2] in COPIES and _original(name) in known}


def _original(name: str) -> str:
    """Return a parameter that a layer with this copy has: in_proj is a copy of q_proj, k_proj and v_proj."""
    parent, _, copy = name.rpartition(".")
    module, _, parameter = copy.rpartition("_")
    of_attention = {"in_proj": "self_attn.out_proj", "out_proj": "self_attn.out_proj"}
    return f"{parent}.{of_attention.get(module, module)}.{parameter}"
