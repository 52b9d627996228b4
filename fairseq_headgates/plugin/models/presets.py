"""Names and defaults of fairseq's architectures, and the names of their counterparts in this plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_REGISTRY

Preset = Callable[[Any], Any]


def stock_name(stock: type) -> str:
    """Return the name of a model in fairseq's registry: `BARTModel` -> "bart"."""
    return next(name for name, model in MODEL_REGISTRY.items() if model is stock)


def gated_name(architecture: str, model: str) -> str:
    """Return the name with gates of an architecture of a model: "bart_large" of "bart" -> "bart_head_gates_large"."""
    gated = f"{model}_head_gates"
    return architecture.replace(model, gated, 1) if model in architecture else f"{architecture}_head_gates"


def presets_of(stock: type) -> dict[str, Preset]:
    """Return {architecture: function that sets the options that the command line leaves open} of a model of fairseq."""
    presets = {name: ARCH_CONFIG_REGISTRY[name] for name, model in ARCH_MODEL_REGISTRY.items() if model is stock}
    options = getattr(stock, "__dataclass", None)
    return {name: partial(with_defaults, preset, options) if options else preset for name, preset in presets.items()}


def base_preset(stock: type) -> Preset:
    """Return the preset of the architecture with the name of the model, the first one where there is none."""
    presets = presets_of(stock)
    return presets.get(stock_name(stock)) or next(iter(presets.values()))


def preset_of(stock: type, architecture: str) -> Preset:
    """Return the preset of an architecture of a model, with gates or without, as fairseq does when it loads it.

    For another name, return that of the architecture with the name of the model.
    """
    return presets_of(stock).get(architecture.replace("_head_gates", "")) or base_preset(stock)


def with_defaults(preset: Preset, options: type, args: Any) -> None:
    """Set what `args` leaves open: by a preset, then by the defaults of the options of the model, a dataclass.

    Options whose default is an option of the task or of the training are left to these.
    """
    preset(args)
    for field in fields(options):
        linked = isinstance(field.default, str) and field.default.startswith("${")
        if not field.name.startswith("_") and not linked and not hasattr(args, field.name):
            setattr(args, field.name, field.default)
    if not hasattr(args, "max_target_positions"):  # with fairseq-hydra-train it is an option of the task alone
        args.max_target_positions = None
