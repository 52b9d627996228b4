"""Padding masks and attention layers to compare."""

import torch

E, H, D, T, S, B = 12, 3, 4, 5, 6, 2


def padding_mask(side):
    mask = torch.zeros(B, S, dtype=torch.bool)
    if side == "left":
        mask[1, :2] = True
    elif side == "right":
        mask[1, -3:] = True
    return mask if side else None
