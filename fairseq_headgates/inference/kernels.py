"""All private operators of torch that this package uses, on a CPU.

A function for each says whether this torch and this processor have it; without it, callers use public functions.

    torch.ops.mkldnn._reorder_linear_weight, _linear_pointwise     a weight packed for oneDNN, and its product
    torch.ops.onednn.qlinear_prepack, qlinear_pointwise            the same in int8
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu     fused attention that returns its normaliser
"""

from __future__ import annotations

import platform
from functools import lru_cache

import torch
from torch import Tensor

_FUSED = "_scaled_dot_product_flash_attention_for_cpu"


def can_pack() -> bool:
    """Return whether weights in single precision can be packed."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Float32Weight:
    """A packed weight [N, K] in single precision."""

    def __init__(self, weight: Tensor):
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] -> [..., N]."""
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")

    def to_dense(self) -> Tensor:
        """Return the weight."""
        return self._packed.to_dense()


@lru_cache(1)
def int8_range() -> int:
    """Return the largest uint8 activation for which int8 matrix multiplication does not saturate; 0 if there is none.

    255 on x86 processors with VNNI instructions. Others add two products in int16: 2 x 255 x 127 overflows and
    2 x 127 x 127 does not, so it is 127. It is found by a test multiplication. Other processors were not measured.
    """
    operators, x86 = getattr(torch.ops, "onednn", None), platform.machine().lower() in ("x86_64", "amd64")
    if not x86 or not torch.backends.mkldnn.is_available() or not hasattr(operators, "qlinear_pointwise"):
        return 0
    weight, rows = torch.full((64, 64), 127, dtype=torch.int8), 32
    for largest in (255, 127):
        x = torch.full((rows, 64), largest, dtype=torch.uint8)
        try:
            found = int8_linear(x, int8_pack(weight), torch.ones(64), torch.zeros(64, dtype=torch.long), None)
        except (RuntimeError, TypeError):  # another signature, or a build without them
            return 0
        if torch.equal(found, torch.full_like(found, 64 * 127 * largest)):
            return largest
    return 0


def int8_pack(weight: Tensor) -> Tensor:
    """Pack a weight [N, K] of int8."""
    return torch.ops.onednn.qlinear_prepack(weight.contiguous(), None)  # it ignores strides


def int8_unpack(packed: Tensor) -> Tensor:
    """Return the weight that `int8_pack` packed."""
    return packed.to_dense().t()


def int8_linear(x: Tensor, packed: Tensor, scale: Tensor, zeros: Tensor, bias: Tensor | None) -> Tensor:
    """Return (x W^T) scale + bias in single precision.

    Args:
        x: [..., K], uint8, at most `int8_range`
        packed: W [N, K] of `int8_pack`
        scale: [N]
        zeros: zero points of the rows of W, all 0, [N]
        bias: [N]
    """
    linear = torch.ops.onednn.qlinear_pointwise.default
    return linear(x, 1.0, 0, packed, scale, zeros, bias, 1.0, 0, torch.float32, "none", [], "")


def has_fused_attention() -> bool:
    """Return whether torch has `fused_attention`."""
    return hasattr(torch.ops.aten, _FUSED)


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax(q k^T) v, and the logarithm of the sum of the exponentials."""
    return getattr(torch.ops.aten, _FUSED)(q, k, v, 0.0, False, scale=1.0)


def fused_attention_backward(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients with respect to q, k and v."""
    return getattr(torch.ops.aten, f"{_FUSED}_backward")(*tensors, 0.0, False, scale=1.0)
