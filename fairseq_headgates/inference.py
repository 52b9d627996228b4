"""Linear layers for inference: several as one, and on a CPU with their weights laid out for oneDNN.

A matrix multiplication on a CPU first brings its matrices into blocks that fit the caches. For a decoder step, a few
rows times a large weight, that takes as long as the arithmetic or longer, and it is the same work at every step. Here
it is done once. Nothing is kept that training or a later change of the weights could contradict: results made from
parameters are made again when the parameters have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Numbers in a weight from which the blocks are worth the longer call: between 128 x 512 (not) and 512 x 512, measured
# on two cores with 1 to 128 rows.
WORTH_PACKING = 512 * 512


class FromParameters:
    """Something made from parameters, kept, and made again when they have changed."""

    def __init__(self) -> None:
        self._value: Any = None
        self._state: tuple | None = None
        self._held: list[Tensor] = []  # so that nothing else can come to have the addresses they are known by

    def get(self, parameters: Callable[[], list[Tensor]], make: Callable[[], Any]) -> Any:
        """What `make` gives of the `parameters`; it may move them."""
        if self._state is None or self._state != _state(parameters()):
            with torch.no_grad():
                self._value = make()
            self._held = [parameter.detach() for parameter in parameters()]
            self._state = _state(parameters())
        return self._value


def _state(parameters: list[Tensor]) -> tuple:
    return tuple((parameter.data_ptr(), parameter._version) for parameter in parameters)


class InferenceLinear:
    """The outputs of linear layers with the same input, side by side, without gradients.

    The layers keep their parameters: of several layers they become views of one large one.
    """

    def __init__(self, layers: Sequence[nn.Linear]):
        self.layers = tuple(layers)
        self._weights = FromParameters()
        self._packed: Tensor | None = None

    def __getstate__(self) -> dict:
        return {"layers": self.layers}  # torch cannot copy the blocks; they are made again

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
        """Memory that the blocks take beside the parameters."""
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
    """A linear layer that computes by an `InferenceLinear` where no gradient is asked for."""

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
    """Swaps the large linear layers of a model that is on a CPU for `PackedLinear`, in place; names stay."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if type(layer) is nn.Linear and _can_be_packed(layer.weight):
                setattr(module, name, PackedLinear(layer))


def packed_bytes(model: nn.Module) -> int:
    """Memory in bytes that a model which has made inference on a CPU holds beside its parameters."""
    held = (value for module in model.modules() for value in vars(module).values())
    return sum(value.packed_bytes for value in held if isinstance(value, InferenceLinear))


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """One tensor of the rows of all; the parameters become views of it."""
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
