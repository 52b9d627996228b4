"""The operators of torch outside its public interface that this package uses on a CPU, all of them.

Each has a function here that says whether this torch and this CPU have it; without it, callers use the public
interface.

    torch.ops.mkldnn._reorder_linear_weight, _linear_pointwise     a weight packed for oneDNN, and its product
    torch.ops.onednn.qlinear_prepack, qlinear_pointwise            the same in 8 bits
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu     fused attention that returns its normaliser
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_FUSED = "_scaled_dot_product_flash_attention_for_cpu"


def can_pack() -> bool:
    """Return whether weights in single precision can be packed."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pack(weight: Tensor) -> Tensor:
    """Pack a weight [N, K] in single precision."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def unpack(packed: Tensor) -> Tensor:
    """Return the weight that was packed."""
    return packed.to_dense()


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Return F.linear(x, weight, bias) for a packed weight."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


@lru_cache(1)
def int8_range() -> int:
    """Return the largest activation for which products with weights in 8 bits are exact, 0 without the operators.

    255 on a CPU with VNNI instructions. Others add two products in 16 bits, which 255 x 127 + 255 x 127 exceeds and
    127 x 127 + 127 x 127 does not: there it is 127. It is found by a product of such numbers.
    """
    operators = getattr(torch.ops, "onednn", None)
    if not torch.backends.mkldnn.is_available() or not hasattr(operators, "qlinear_pointwise"):
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
        zeros: the number of W that stands for 0, 0 for every output, [N]
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
    """Return the gradients at q, k and v."""
    return getattr(torch.ops.aten, f"{_FUSED}_backward")(*tensors, 0.0, False, scale=1.0)
