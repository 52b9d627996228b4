"""All private operators of torch that this package uses, on a CPU.

A function for each says whether this torch and this processor have it; without it, callers use public functions.

    torch.ops.mkldnn._reorder_linear_weight, _linear_pointwise     a weight packed for oneDNN, and its product
    torch.ops.onednn.qlinear_prepack, qlinear_pointwise            the same in int8
    torch.cpu._is_avx512_bf16_supported                            whether the processor multiplies in bfloat16
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu     fused attention that returns its normaliser
"""

from __future__ import annotations

import os
import platform
from functools import lru_cache

import torch
from torch import Tensor

_FUSED = "_scaled_dot_product_flash_attention_for_cpu"
# Rows below which `RoundedProduct` multiplies in single precision, which is then as fast (docs/how-it-works.md).
FEW_ROWS = 8


def can_pack() -> bool:
    """Return whether weights in single precision can be packed."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Float32Weight:
    """A packed weight [N, K] in single precision."""

    def __init__(self, weight: Tensor):
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias: [..., K] -> [..., N]."""
        return torch.ops.mkldnn._linear_pointwise.default(x, self._packed, bias, "none", [], "")

    def to_dense(self) -> Tensor:
        """Return the weight."""
        return self._packed.to_dense()


def multiplies_bfloat16() -> bool:
    """Return whether the processor multiplies in bfloat16: it has AMX or AVX512_BF16, and oneDNN may use them.

    On others bfloat16 is converted to single precision, which takes longer than single precision itself.
    """
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # processors with AMX have it, too
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    allowed = limit in ("", "ALL", "DEFAULT") or any(name in limit for name in ("BF16", "FP16", "AMX", "AVX10"))
    return allowed and can_pack() and hasattr(torch.backends.mkldnn, "matmul") and supported is not None and supported()


class BFloat16Weight:
    """A packed weight [N, K] in bfloat16."""

    def __init__(self, weight: Tensor):
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16())

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias, with x rounded to bfloat16, sums in single precision, rounded: [..., K] -> [..., N]."""
        return torch.ops.mkldnn._linear_pointwise.default(x.bfloat16(), self._packed, bias, "none", [], "")

    def to_dense(self) -> Tensor:
        """Return the rounded weight in single precision."""
        return self._packed.to_dense().float()


class RoundedProduct(Float32Weight):
    """A packed weight [N, K] in single precision, multiplied with `FEW_ROWS` rows or more in bfloat16."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x W^T + bias, x and W rounded to bfloat16, sums in single precision: [..., K] -> [..., N]."""
        if x.numel() < FEW_ROWS * x.size(-1):
            return super().__call__(x, bias)
        settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        before = settings.fp32_precision  # its own, or that of all backends
        settings.fp32_precision = "bf16"
        try:
            return super().__call__(x, bias)
        finally:
            settings.fp32_precision = "none"
            if settings.fp32_precision != before:
                settings.fp32_precision = before


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
