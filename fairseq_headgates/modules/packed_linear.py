"""Linear layers for inference: several in one multiplication, on a CPU with weights packed for oneDNN.

A matrix multiplication on a CPU first copies (packs) its matrices into blocks that fit the caches. In a decoder step, a
few rows times a large weight, packing the weight takes as long as the arithmetic or longer. Here a weight is packed
once, and again only if its parameters have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Smallest weight, in numbers, that is faster when packed: between 128 x 512 (slower) and 512 x 512, measured on two
# cores with 1 to 128 rows.
WORTH_PACKING = 512 * 512


class ParameterCache:
    """Cache of a value computed from parameters, which is computed again when they have changed."""

    def __init__(self) -> None:
        self._value: Any = None
        self._state: tuple | None = None
        self._held: list[Tensor] = []  # keeps their addresses, by which they are recognised, from being reused

    def get(self, parameters: Callable[[], list[Tensor]], make: Callable[[], Any]) -> Any:
        """Return the result of `make`, which may move the `parameters`."""
        if self._state is None or self._state != _state(parameters()):
            with torch.no_grad():
                self._value = make()
            self._held = [parameter.detach() for parameter in parameters()]
            self._state = _state(parameters())
        return self._value


def _state(parameters: list[Tensor]) -> tuple:
    return tuple((parameter.data_ptr(), parameter._version) for parameter in parameters)


class InferenceLinear:
    """Several linear layers with the same input, computed in one multiplication, without gradients.

    The layers keep their parameters; those of several layers become views of one tensor.
    """

    def __init__(self, layers: Sequence[nn.Linear]):
        self.layers = tuple(layers)
        self._weights = ParameterCache()
        self._packed: Tensor | None = None

    def __getstate__(self) -> dict:
        return {"layers": self.layers}  # torch cannot copy packed weights; they are packed again

    def __setstate__(self, state: dict) -> None:
        self.__init__(state["layers"])  # type: ignore[misc]

    def __call__(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs of all layers]."""
        weight, bias = self._weights.get(self._parameters, self._make)
        if self._packed is None:
            return F.linear(x, weight, bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")

    @property
    def packed_bytes(self) -> int:
        """Memory of the packed weights in bytes."""
        return 0 if self._packed is None else sum(layer.weight.nbytes for layer in self.layers)

    def _parameters(self) -> list[Tensor]:
        return [p for layer in self.layers for p in (layer.weight, layer.bias) if p is not None]

    def _make(self) -> tuple[Tensor, Tensor | None]:
        weight: Tensor = self.layers[0].weight
        bias: Tensor | None = self.layers[0].bias
        if len(self.layers) > 1:
            weight = _joined([layer.weight for layer in self.layers])
            bias = None if bias is None else _joined([layer.bias for layer in self.layers])
        self._packed = _packed(weight)
        return weight, bias


class PackedLinear(nn.Linear):
    """Linear layer that uses its packed weight if gradients are disabled."""

    def __init__(self, layer: nn.Linear):
        super(nn.Linear, self).__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.train(layer.training)
        self._inference: InferenceLinear | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        if torch.is_grad_enabled():
            return super().forward(x)
        if self._inference is None:
            self._inference = InferenceLinear([self])
        return self._inference(x)


def pack_linears(model: nn.Module) -> None:
    """Replace the large linear layers of a model on a CPU by `PackedLinear`, in place, under the same names."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if type(layer) is nn.Linear and _can_be_packed(layer.weight):
                setattr(module, name, PackedLinear(layer))


def packed_bytes(model: nn.Module) -> int:
    """Return the memory in bytes of all packed weights of a model."""
    held = (value for module in model.modules() for value in vars(module).values())
    return sum(value.packed_bytes for value in held if isinstance(value, InferenceLinear))


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """Concatenate parameters along their rows; they become views of the result."""
    joined = torch.cat([parameter.data for parameter in parameters])
    for parameter, rows in zip(parameters, joined.split([len(p) for p in parameters]), strict=True):
        parameter.data = rows
    return joined


def _can_be_packed(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= WORTH_PACKING
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _packed(weight: Tensor) -> Tensor | None:
    return torch.ops.mkldnn._reorder_linear_weight(weight) if _can_be_packed(weight) else None
