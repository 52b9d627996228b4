"""Linear layers for inference: several in one multiplication, on a CPU with weights packed for oneDNN.

A matrix multiplication on a CPU first copies (packs) its matrices into blocks that fit the caches. In a decoder step, a
few rows times a large weight, packing the weight takes as long as the arithmetic or longer. Here a weight is packed
once, in single precision, bfloat16 or int8. The packed weight replaces the parameter, whose memory is released. Access
to the parameter restores it from the packed weight: rounded, if that is bfloat16 or int8. The weight is packed again at
the next use after an access, or after a change that torch has counted.

With bfloat16, layers in attention and feed-forward blocks have weights in bfloat16 ("bfloat16"), and return bfloat16 if
what reads it rounds to it anyway. Logits would be too coarse: other layers keep weights in single precision, which are
rounded in the product alone ("rounded").
"""

from __future__ import annotations

import ctypes
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention, TransformerEncoderLayer
from torch import Tensor, nn

from fairseq_headgates.inference import kernels
from fairseq_headgates.inference.int8 import Int8Weight
from fairseq_headgates.inference.kernels import BFloat16Weight, Float32Weight, RoundedProduct

logger = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "int8")  # of linear layers in inference
PackedWeight = Float32Weight | BFloat16Weight | Int8Weight
PACKED: dict[str, Callable[[Tensor], PackedWeight]] = {
    "float32": Float32Weight,
    "bfloat16": BFloat16Weight,
    "rounded": RoundedProduct,
    "int8": Int8Weight,
}
WORTH_PACKING = 256 * 512  # see `worth_packing`


class ParameterCache:
    """Cache of a value computed from parameters, which is computed again when they have changed."""

    def __init__(self) -> None:
        self._value: Any = None
        self._state: list[tuple[int, int]] | None = None
        self._held: list[Tensor] = []  # keeps their addresses, by which they are recognised, from being reused

    def get(self, parameters: Callable[[], list[Tensor]], make: Callable[[], Any]) -> Any:
        """Return the cached value; call `make` if the parameters have changed. It may give them new storage."""
        if self._state is None or self._state != parameter_state(parameters()):
            with torch.inference_mode(False), torch.no_grad():  # the value may be used in any mode later
                value = make()
            self.set(value, parameters())
        return self._value

    def forget(self) -> None:
        """Compute the value again at the next `get`."""
        self._state = None

    def set(self, value: Any, parameters: list[Tensor]) -> None:
        """Set the value that was computed from `parameters`."""
        self._value, self._state = value, parameter_state(parameters)
        self._held = [parameter.detach() for parameter in parameters]


def parameter_state(parameters: list[Tensor]) -> list[tuple[int, int]]:
    """Return the address and the number of changes of each parameter."""
    return [(parameter.data_ptr(), _version(parameter)) for parameter in parameters]


def _version(parameter: Tensor) -> int:
    try:
        return parameter._version
    except RuntimeError:  # moved in inference mode: torch does not count its changes
        return 0


def track_parameters(module: nn.Module) -> None:
    """Replace, in place, parameters that were created in inference mode: torch can neither track nor train them.

    Parameters that layers of the module share stay shared.
    """
    usual: dict[Tensor, nn.Parameter] = {}
    with torch.inference_mode(False):
        for layer in (layer for layer in module.modules() if not isinstance(layer, PackedLinear)):
            for name, parameter in layer._parameters.items():
                if parameter is not None and parameter.is_inference():
                    if parameter not in usual:
                        usual[parameter] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                    layer._parameters[name] = usual[parameter]


class InferenceLinear:
    """Several linear layers with the same input, computed in one multiplication, without gradients.

    The layers keep their parameters until `release` frees their memory; those of several layers become views of one
    tensor.

    Args:
        layers: the layers
        dtype: of the packed weight, one of `PACKED`
        nonnegative: whether the inputs are never negative

    Attributes:
        output: data type of the result for inputs in single precision; float32, or also bfloat16 for that dtype
    """

    def __init__(self, layers: Sequence[nn.Linear], dtype: str = "float32", nonnegative: bool = False):
        self.layers, self.dtype, self.nonnegative = tuple(layers), dtype, nonnegative
        self.output = torch.float32
        self._weights = ParameterCache()  # of the joined weight, None if it was released, and the joined bias
        self._packed: PackedWeight | None = None

    def __getstate__(self) -> dict:
        # torch cannot copy packed weights; they are packed again
        return {**vars(self), "_weights": ParameterCache(), "_packed": None}

    def __call__(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs of all layers]."""
        can_use_packed = x.dtype == torch.float32 or (self.dtype == "bfloat16" and x.dtype == torch.bfloat16)
        if not can_use_packed:
            self.restore()
        weight, bias = self._weights.get(self._parameters, self._make)
        if can_use_packed and self._packed is not None:
            y = self._packed(x, bias)
            return y if y.dtype == self.output else y.to(self.output)
        return F.linear(x, weight, bias)

    def release(self) -> None:
        """Free the parameters whose weights are packed, except those that are referenced elsewhere."""
        if any(_own(layer, "weight") is not None for layer in self.layers):
            self._weights.forget()
        weight, bias = self._weights.get(self._parameters, self._make)
        if weight is None or self._packed is None:
            return
        del weight
        for layer in self.layers:
            if isinstance(layer, PackedLinear):
                layer.release_weight()
        if all(_own(layer, "weight") is None for layer in self.layers):
            self._weights.set((None, bias), self._parameters())

    def restore(self) -> None:
        """Compute released weights from the packed weight."""
        if self._packed is None or all(_own(layer, "weight") is not None for layer in self.layers):
            return
        rows = self._packed.to_dense().split([layer.out_features for layer in self.layers])
        for layer, weight in zip(self.layers, rows, strict=True):
            if isinstance(layer, PackedLinear):
                layer.restore_weight(weight)

    def give(self) -> None:
        """Restore the weights for someone who may change them in a way that torch does not count (`weight.data`)."""
        self.restore()
        self._weights.forget()

    def _parameters(self) -> list[Tensor]:
        parameters = [_own(layer, name) for layer in self.layers for name in ("weight", "bias")]
        return [parameter for parameter in parameters if parameter is not None]

    def _make(self) -> tuple[Tensor, Tensor | None]:
        self.restore()
        weight = _joined([layer.__dict__["_parameters"]["weight"] for layer in self.layers])
        bias = None if self.layers[0].bias is None else _joined([layer.bias for layer in self.layers])
        self._packed = None
        if _can_be_packed(self.dtype, weight):
            self._packed = Int8Weight(weight, True) if self.nonnegative else PACKED[self.dtype](weight)
        return weight, bias


class PackedLinear(nn.Linear):
    """Linear layer that uses its packed weight if gradients are disabled.

    `release` of its `InferenceLinear` removes the parameter `weight`. It is computed from the packed weight when it is
    asked for: as an attribute, or among the parameters of the module, for example to save, move or train them.
    """

    def __init__(self, layer: nn.Linear, dtype: str = "float32", nonnegative: bool = False):
        super(nn.Linear, self).__init__()
        self.inference = InferenceLinear([self], dtype, nonnegative)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = layer.weight
        self.register_parameter("bias", layer.bias)
        self._requires_grad = layer.weight.requires_grad
        self.train(layer.training)

    @property
    def _parameters(self) -> dict[str, nn.Parameter | None]:  # where torch looks for parameters
        self.inference.give()
        return self.__dict__["_parameters"]

    @_parameters.setter
    def _parameters(self, parameters: dict[str, nn.Parameter | None]) -> None:
        self.__dict__["_parameters"] = parameters

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            self.inference.give()
        return super().__getattr__(name)

    def __getstate__(self) -> dict:
        self.inference.restore()
        return self.__dict__

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        if torch.is_grad_enabled() or len(self.inference.layers) > 1:
            return super().forward(x)
        return self.inference(x)

    def release_weight(self) -> None:
        """Remove the weight, unless anyone else holds it."""
        parameters = self.__dict__["_parameters"]
        self._requires_grad = parameters["weight"].requires_grad
        held = weakref.ref(parameters["weight"])
        parameters["weight"] = None  # its place in the order of parameters
        parameters["weight"] = held()

    def restore_weight(self, weight: Tensor) -> None:
        """Set the weight if it was removed."""
        parameters = self.__dict__["_parameters"]
        if parameters["weight"] is None:
            with torch.inference_mode(False):  # a tensor made in inference mode cannot be trained
                parameters["weight"] = nn.Parameter(weight.clone(), requires_grad=self._requires_grad)


def join_linears(module: nn.Module, names: Sequence[str], dtype: str) -> InferenceLinear | None:
    """Join linear layers of a module, which have the same input, into one for inference; see `pack_linears`.

    Return None if a layer is parametrised, quantised or has hooks.
    """
    layers = [getattr(module, name) for name in names]
    if not all(map(is_plain, layers)):
        return None
    if not _can_be_packed(dtype, *(layer.weight for layer in layers)):
        return InferenceLinear(layers)
    packed = InferenceLinear([PackedLinear(layer) for layer in layers], dtype)
    for name, layer in zip(names, packed.layers, strict=True):
        layer.inference = packed  # type: ignore[assignment]
        setattr(module, name, layer)
    del layers  # they hold the weights
    packed.release()
    return packed


def _obstacle(model: nn.Module, dtype: str) -> str | None:
    """Return why a model cannot compute in a data type, None if it can."""
    first = next(model.parameters())
    if dtype == "float32":
        return None
    if first.device.type != "cpu":
        return f"the model is on {first.device.type}, but {dtype} inference needs a CPU: pass --cpu"
    if first.dtype != torch.float32:
        found = str(first.dtype).removeprefix("torch.")
        return f"the weights are {found}, but {dtype} inference needs float32: convert them, or leave out {dtype}"
    if dtype == "bfloat16":
        missing = "this processor has neither AMX nor AVX512_BF16, or torch cannot use them: use float32 or int8"
        return None if kernels.multiplies_bfloat16() else missing
    return None if kernels.int8_range() else "this torch has no int8 multiplication for this processor: use float32"


def usable_dtype(model: nn.Module, dtype: str) -> str:
    """Return `dtype`, or, with a warning, "float32" where the model cannot compute in it."""
    obstacle = _obstacle(model, dtype)
    if obstacle:
        logger.warning(f"inference dtype {dtype} is not used: {obstacle}")
    return "float32" if obstacle else dtype


def reduced_precision(model: Any) -> str:
    """Return the data type of inference that a model is set to, if it is less precise than float32, else ""."""
    dtype = getattr(model, "inference_dtype", "float32")
    return "" if dtype == "float32" else dtype


def set_precision(model: Any, chosen: str | None) -> str:
    """Set the precision of inference of a model, one of `DTYPES`, None for its own. Return `reduced_precision`.

    Raise ValueError if the chosen one is not possible; log a warning if the model's own is not.
    """
    if chosen is not None:
        model.inference_dtype = chosen
        if obstacle := _obstacle(model, model.inference_dtype):
            raise ValueError(f"--inference-dtype {chosen} is not possible: {obstacle}")
    model.inference_dtype = usable_dtype(model, model.inference_dtype)
    return reduced_precision(model)


def without_effect(model: Any) -> str:
    """Prepare a model for bfloat16 or int8, if it is set to it. Return a message if its linear layers are too small."""
    dtype = reduced_precision(model)
    if not dtype:
        return ""
    model.make_generation_fast_()
    layers = (layer for layer in model.modules() if isinstance(layer, PackedLinear))
    if _obstacle(model, dtype) or any(layer.inference.dtype != "float32" for layer in layers):
        return ""
    done = {"bfloat16": "rounded", "int8": "quantised"}[dtype]
    return f"{dtype} has no effect: no linear layer of the model is large enough to be {done}"


def pack_linears(model: nn.Module, dtype: str = "float32") -> None:
    """Replace the large linear layers of a model on a CPU by `PackedLinear`, in place, under the same names.

    The memory of a weight is released, unless another module or variable refers to the same `Parameter`. Tensors that
    share its memory, such as those of an earlier `state_dict()`, no longer share memory with the model then. Layers
    with hooks are not replaced.

    Args:
        model: a model in single precision; others stay as they are
        dtype: one of `DTYPES`; "int8" quantises weights and activations, "bfloat16" rounds them
    """
    track_parameters(model)
    _return_freed_memory()  # of loading, so that the packed weights do not add to it
    _replace_linears(model, dtype)  # when it returns, nothing refers to the layers that it replaced
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.inference.release()
    _return_freed_memory()


def _replace_linears(model: nn.Module, dtype: str) -> None:
    for module in list(model.modules()):
        is_layer = type(module).__module__ == TransformerEncoderLayer.__module__ and hasattr(module, "fc2")
        in_block = is_layer or isinstance(module, MultiheadAttention)
        form = "rounded" if dtype == "bfloat16" and not in_block else dtype
        normed = getattr(module, "ffn_layernorm", None) is not None
        after_relu = is_layer and module.activation_fn is F.relu and not normed  # the inputs of fc2
        for name, layer in list(module.named_children()):
            if is_plain(layer) and _can_be_packed(dtype, layer.weight):
                setattr(module, name, PackedLinear(layer, form, dtype == "int8" and name == "fc2" and after_relu))
        if is_layer and not normed:
            stay_in_bfloat16(module.fc1, module.fc2)  # type: ignore[arg-type]


def stay_in_bfloat16(*layers: nn.Module) -> None:
    """Let linear layers return bfloat16, except the last, which reads what becomes of it, if all have such weights."""
    if all(isinstance(layer, PackedLinear) and layer.inference.dtype == "bfloat16" for layer in layers):
        for layer in layers[:-1]:
            layer.inference.output = torch.bfloat16  # type: ignore[union-attr]


def output_dtype(layer: nn.Module, dtype: torch.dtype) -> torch.dtype:
    """Return the data type of the results of a linear layer for inputs of `dtype` in inference."""
    return layer.inference.output if isinstance(layer, PackedLinear) and dtype == torch.float32 else dtype


def _return_freed_memory() -> None:
    """Return freed memory to the system. glibc keeps it, about 100 MB after loading."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries do not have it
        if trim is not None:
            trim(0)


def is_plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a layer is a linear layer of torch without hooks."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return type(layer) is nn.Linear and not any(hooks)


def _own(layer: nn.Linear, name: str) -> Tensor | None:
    """Return a parameter of a layer; None if the layer has none, or if it was released."""
    return layer.__dict__["_parameters"][name]


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """Concatenate parameters along their rows; they become views of the result."""
    if len(parameters) == 1:
        return parameters[0].detach()
    concatenated = torch.cat([parameter.data for parameter in parameters])
    for parameter, rows in zip(parameters, concatenated.split([len(p) for p in parameters]), strict=True):
        parameter.data = rows
    return concatenated


def worth_packing(dtype: str) -> int:
    """Return the elements of a weight from which it is packed.

    Measured with 4 to 1,600 rows, time relative to F.linear. AMD EPYC with AVX2, two cores: 128 x 512: up to 2;
    512 x 512 and larger: 0.3 to 1.15; in int8, 128 x 512: 0.4 to 4, 512 x 512: 0.4 to 1.3. Intel Xeon with AVX512, one
    and two cores, up to 500 rows: 512 x 512: 0.9 to 1.4; 512 x 1024: 0.8 to 1.2; 512 x 2048: 0.5 to 1.1.
    """
    fast = dtype == "float32" and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return 6 * WORTH_PACKING if fast else WORTH_PACKING


def _can_be_packed(dtype: str, *weights: Tensor) -> bool:
    """Return whether the weights, joined, can be packed, and are large enough for it."""
    if not all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights):
        return False
    if sum(weight.numel() for weight in weights) < worth_packing(dtype):
        return False
    return kernels.int8_range() > 0 if dtype == "int8" else kernels.can_pack()
