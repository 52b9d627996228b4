"""Gates of three attention layers, without a model."""

import torch

from fairseq_headgates.gates import HardConcrete, HeadGates

LAYER_TYPES = ["enc-self", "enc-self", "dec-enc"]


def layers(log_alpha=None, lr_scale=1.0):
    """Four gates for each of `LAYER_TYPES`, with log_alpha [3][4] if given."""
    made = [HeadGates(4, HardConcrete(), lr_scale=lr_scale) for _ in LAYER_TYPES]
    if log_alpha is not None:
        for layer, row in zip(made, log_alpha, strict=True):
            layer.load_state_dict({"log_alpha": torch.as_tensor(row, dtype=torch.float64)})
    return made
