"""Supported versions of torch and fairseq, and the differences between fairseq 0.12.2 and its fork fairseq-fixed.

The rest of the package does not ask for a version. Importing this module imports neither torch nor fairseq.
"""

from __future__ import annotations

import _codecs
import importlib.util
import re
from argparse import Namespace
from collections.abc import Callable, Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

OLDEST_TORCH = "2.4"  # the first that loads files with an allow-list of classes
OLDEST_FAIRSEQ = "0.12.2"

# Parameters that encoder layers of fairseq 0.12.2 have besides those of their modules: copies of these for an inference
# shortcut, zero until a checkpoint is loaded. They are in its checkpoints.
COPIES = tuple(
    f"{module}_{parameter}" for module in ("in_proj", "out_proj", "fc1", "fc2") for parameter in ("weight", "bias")
)
COPY = re.compile(rf"layers\.\d+\.({'|'.join(COPIES)})$")


def unsupported() -> str | None:
    """Return what to install, in one line, if torch or fairseq is missing or too old; otherwise None."""
    if importlib.util.find_spec("torch") is None:
        return f"torch is missing: install torch {OLDEST_TORCH} or later"
    if importlib.util.find_spec("fairseq") is None:
        return f"fairseq is missing: install fairseq {OLDEST_FAIRSEQ} on Python 3.10, fairseq-fixed on later versions"
    torch, fairseq = _installed("torch"), _installed("fairseq-fixed") or _installed("fairseq")
    if torch and _numbers(torch) < _numbers(OLDEST_TORCH):
        return f"torch {torch} is too old: install torch {OLDEST_TORCH} or later"
    if fairseq and _numbers(fairseq) < _numbers(OLDEST_FAIRSEQ):
        return (
            f"fairseq {fairseq} is too old: install fairseq {OLDEST_FAIRSEQ}, or fairseq-fixed on Python 3.11 or later"
        )
    return None


def _installed(package: str) -> str | None:
    """Return the version of a package, None for one that is not installed with pip."""
    from importlib.metadata import PackageNotFoundError, version  # takes longer than the rest of the start

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0]))[:3]


def allowed_later() -> list[Any]:
    """Return what a later version of torch allows in every file, and numbers of numpy need: torch 2.4 does not."""
    import torch

    return [_codecs.encode] if _numbers(torch.__version__) < (2, 6) else []


def configuration(value: Any) -> Any:
    """Make a configuration that may hold objects. omegaconf 2.0, which fairseq 0.12.2 needs, has no flag for this."""
    from omegaconf import OmegaConf

    try:
        return OmegaConf.create(value, flags={"allow_objects": True})
    except TypeError:
        from fairseq.dataclass.utils import omegaconf_no_object_check

        with omegaconf_no_object_check():
            return OmegaConf.create(value)


def complete(preset: Callable[[Any], Any], args: Any) -> None:
    """Set the options that `args` leaves open, by a preset of fairseq.

    Presets use `getattr(args, name, default)`, which never returns the default for a configuration of omegaconf 2.0:
    there, an option that is missing is None. A configuration is therefore completed as a namespace. It also gets
    `base_layers`, which fairseq's trainer compares with a number.
    """
    from omegaconf import OmegaConf

    if not OmegaConf.is_config(args):
        preset(args)
        return
    filled = Namespace(**{name: args[name] for name in args if name in args and args[name] is not None})
    preset(filled)
    for name, value in {"base_layers": 0, **vars(filled)}.items():
        if name not in args or args[name] != value:
            args[name] = value


def mend_swish(model: nn.Module) -> None:
    """Let a model compute --activation-fn swish (Marian), in place: fairseq gives its layers a class, no function."""
    from torch.nn import SiLU
    from torch.nn.functional import silu

    for module in model.modules():
        if getattr(module, "activation_fn", None) is SiLU:
            module.activation_fn = silu  # type: ignore[assignment]


def without_shortcut(layer: nn.Module) -> None:
    """Remove the inference shortcut of an encoder layer of fairseq 0.12.2, in place. Other layers are left as they are.

    The shortcut computes a post-norm layer in one function of torch, which bypasses the attention module, and fails
    with torch 2.0 and later. Without it the copies of the weights are not needed, and loading does not ask for
    projections that a layer without heads does not have.
    """
    from torch import nn

    if not hasattr(layer, "can_use_fastpath") or not hasattr(layer, COPIES[0]):
        return
    layer.can_use_fastpath = False  # type: ignore[assignment]
    for name in COPIES:
        delattr(layer, name)
    # Its own method copies the weights of a checkpoint.
    layer._load_from_state_dict = MethodType(nn.Module._load_from_state_dict, layer)  # type: ignore[method-assign]


def remove_copies(weights: dict[str, Any]) -> None:
    """Remove the copies of an encoder layer's weights from the weights of a checkpoint of fairseq 0.12.2, in place."""
    for name in copies(weights):
        del weights[name]


def copies(names: Iterable[str]) -> set[str]:
    """Return the names of the copies, such as `encoder.layers.0.fc1_weight`."""
    return set(filter(COPY.search, names))
