"""Linear layers in 8 bits for inference on a CPU: weights once, activations as they come.

A row x of activations and a row w of a weight become whole numbers with a scale each,

    q_x = round(x L / max|x|), from -L to L         q_w = round(w / s_w), from -127 to 127

so that x w = max|x| / L s_w (q_x q_w). L is 127, or 63 on a CPU that has no exact sums for it, see `int8_range`: no sum
of products is rounded or saturates. Numbers that are not negative, such as the outputs of a ReLU, have L = 127 on every
CPU. A row of activations has its own scale, so a result does not depend on the other rows of a batch.

Shapes: K inputs, N outputs of a layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_headgates.inference.kernels import int8_linear, int8_pack, int8_range, int8_unpack

SMALLEST = 1e-30  # largest number of a row of a weight, at least
SCALE_BITS = 16  # of a scale of weights: its products with q_w are exact, so weights that are rounded stay as they are


class Int8Weight:
    """A weight [N, K] in 8 bits, packed for oneDNN.

    Args:
        weight: the weight, in single precision
        nonnegative: whether the activations are never negative
    """

    def __init__(self, weight: Tensor, nonnegative: bool = False):
        self._scale = weight_scales(weight)
        rounded = (weight / self._scale[:, None]).round_()
        self._packed = int8_pack(rounded.to(torch.int8))
        self._offset = 0 if nonnegative else (int8_range() + 1) // 2  # oneDNN takes no negative activations
        self._steps = torch.tensor(127.0 if nonnegative else self._offset - 1.0)  # L
        self._factor = self._scale / self._steps
        self._sums = None if nonnegative else -self._offset * self._factor * rounded.sum(1)
        self._no_zeros = torch.zeros(len(weight), dtype=torch.long)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[..., K] -> [..., N]. A row with NaN gives NaN."""
        largest = (x.abs() if self._offset else x).amax(-1, keepdim=True)
        # A row of zeros becomes any numbers, and is multiplied by 0 again.
        numbers = self._unsigned(x * torch.div(self._steps, largest))
        y = int8_linear(numbers, self._packed, self._factor, self._no_zeros, self._sums)
        return y.mul_(largest) if bias is None else torch.addcmul(bias, y, largest)

    def _unsigned(self, x: Tensor) -> Tensor:
        """Round to whole numbers, plus the offset, as uint8. Torch converts to int8 much faster than to uint8."""
        if self._offset == 128:
            return x.round_().to(torch.int8).bitwise_xor_(-128).view(torch.uint8)
        return x.add_(self._offset + 0.5).to(torch.int8).view(torch.uint8)

    def to_dense(self) -> Tensor:
        """Return the rounded weight in single precision."""
        return int8_unpack(self._packed).float() * self._scale[:, None]


def weight_scales(weight: Tensor) -> Tensor:
    """Return the scale [N] of each row of a weight [N, K], of `SCALE_BITS` bits."""
    mantissa, exponent = torch.frexp(weight.abs().amax(1).clamp_(min=SMALLEST) / 127)
    return torch.ldexp(mantissa.mul_(2**SCALE_BITS).ceil_().div_(2**SCALE_BITS), exponent)
