"""Dynamic int8 quantisation of linear layers for inference on a CPU.

Weights have one scale per output, activations one scale per row (token), computed at run time; both are symmetric:

    q_x = round(x L / max|x|), from -L to L         q_w = round(w / s_w), from -127 to 127

    x . w ~ (max|x| / L) s_w (q_x . q_w)

The integers are multiplied as uint8, q_x plus an offset. L is 127. On processors where that saturates, see
`int8_range`, it is 63 (7 bits); activations that are never negative, such as the outputs of a ReLU, need no offset, and
have L = 127 on every processor. The result of a row does not depend on the other rows of a batch.

Shapes: K inputs, N outputs of a layer.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_headgates.inference.kernels import int8_linear, int8_pack, int8_range, int8_unpack

SMALLEST = 1e-30  # lower bound of max|w|, against division by 0
# The sum of this and a number from -2^22 to 2^22, in single precision, is rounded to an integer, and its lowest byte is
# that integer modulo 256: faster than rounding, and than torch's conversion to uint8.
ROUND = 1.5 * 2**23
SCALE_BITS = 16  # significant bits of s_w: s_w q_w is exact, so quantising a dequantised weight changes nothing


class Int8Weight:
    """A quantised weight [N, K], packed for oneDNN.

    Args:
        weight: the weight, in single precision
        nonnegative: whether the activations are never negative
    """

    def __init__(self, weight: Tensor, nonnegative: bool = False):
        self._scale = weight_scales(weight)
        quantised = (weight / self._scale[:, None]).round_()
        self._packed = int8_pack(quantised.to(torch.int8))
        self._offset = 0 if nonnegative else (int8_range() + 1) // 2
        self._steps = torch.tensor(127.0 if nonnegative else self._offset - 1.0)  # L
        self._factor = self._scale / self._steps
        self._sums = None if nonnegative else -self._offset * self._factor * quantised.sum(1)  # of the offset
        self._zero_points = torch.zeros(len(weight), dtype=torch.long)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[..., K] -> [..., N]. A row with NaN gives NaN, one with infinity what the dequantised weight gives."""
        largest = (x.abs() if self._offset else x).amax(-1, keepdim=True)
        # In a row of zeros this is NaN, which becomes arbitrary integers; the factor `largest` makes the result 0.
        scaled = x * torch.div(self._steps, largest)
        quantised = scaled.add_(ROUND + self._offset).view(torch.int32).to(torch.int8).view(torch.uint8)
        y = int8_linear(quantised, self._packed, self._factor, self._zero_points, self._sums)
        y = y.mul_(largest) if bias is None else torch.addcmul(bias, y, largest, out=y)
        if not math.isfinite(largest.sum()):
            infinite = largest.isinf().squeeze(-1)
            y[infinite] = F.linear(x[infinite], self.to_dense(), bias)
        return y

    def to_dense(self) -> Tensor:
        """Return the dequantised weight in single precision."""
        return int8_unpack(self._packed).float() * self._scale[:, None]


def weight_scales(weight: Tensor) -> Tensor:
    """Return s_w [N] of a weight [N, K]: max|w| / 127, rounded up to `SCALE_BITS` bits."""
    mantissa, exponent = torch.frexp(weight.abs().amax(1).clamp_(min=SMALLEST) / 127)
    return torch.ldexp(mantissa.mul_(2**SCALE_BITS).ceil_().div_(2**SCALE_BITS), exponent)
