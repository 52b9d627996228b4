"""The options of this plugin's models: from the command line, from hydra, or stored in a checkpoint.

`HeadOptions.of` parses and checks them once, when a model is built. `HeadOptions.store` writes what checkpoints hold.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from fairseq_headgates.gates import (
    METHODS,
    OPEN,
    GateMethod,
    HardConcrete,
    HeadGates,
    SubsetGates,
    Target,
    TargetGates,
    check_lr_scale,
    parse_stretch,
    parse_target,
)
from fairseq_headgates.gates.distribution import LARGEST
from fairseq_headgates.heads import HeadTable, as_mask, mask_to_json, parse_types
from fairseq_headgates.inference import DTYPES
from fairseq_headgates.messages import PROGRAM, fail, shown
from fairseq_headgates.options.arguments import DEFAULTS
from fairseq_headgates.options.layerdrop import layers_to_keep, mask_of_layers
from fairseq_headgates.options.stored_mask import read_mask

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeadOptions:
    """The options of this plugin for one model, parsed and checked.

    Attributes:
        gate_types: attention types that get stochastic gates
        mask: heads to keep, or None for all
        remove: remove the other heads from the weights, instead of masking them
        distribution: temperature and stretch of the gates
        init: initial log_alpha, or "glorot"
        lr_scale: factor on the learning rate of the gates
        sparsity_method: name of the gating method
        target: numbers of heads to keep, for the methods that have a target
        warmup: updates of the method's warm-up
        fix_after: updates after which the gates are fixed, 0 for never
        hard: round training gates to 0 or 1
        output_scale: multiply the gates of a layer by H / (number of its gates that are not 0)
        stop_when_settled: validations without a change of the gates after which training ends, 0 for never
        freeze_params: regular expression of parameters to freeze, or None
        freeze_dropout: turn off dropout in frozen modules
        inference_dtype: precision of linear layers in inference on a CPU
        drops_layers: whether layers are removed from a model that is loaded (--encoder-layers-to-keep): `target` may be
            of more heads than stay
    """

    gate_types: tuple[str, ...] = ()
    mask: HeadTable | None = None
    remove: bool = False
    distribution: HardConcrete = HardConcrete()
    init: float | str = OPEN
    lr_scale: float = DEFAULTS["gate_lr_scale"]
    sparsity_method: str = DEFAULTS["sparsity_method"]
    target: Target | None = None
    warmup: int = 0
    fix_after: int = 0
    hard: bool = False
    output_scale: bool = False
    stop_when_settled: int = 0
    freeze_params: str | None = None
    freeze_dropout: bool = False
    inference_dtype: str = DEFAULTS["inference_dtype"]
    drops_layers: bool = False

    def __post_init__(self) -> None:
        if self.remove and self.mask is None:
            raise ValueError("--remove-heads without --alive-heads: name the heads to keep")
        with_target = issubclass(METHODS[self.sparsity_method], TargetGates)
        if with_target and self.gate_types and self.target is None:
            raise ValueError(f"--sparsity-method {self.sparsity_method} needs --target-heads: give a number of heads")
        if self.target is not None and not with_target:
            raise ValueError("--target-heads needs a --sparsity-method other than l0")
        if self.output_scale and issubclass(METHODS[self.sparsity_method], SubsetGates) and not self.hard:
            raise ValueError(
                f"--gate-output-scale with --sparsity-method {self.sparsity_method} needs --gate-hard: without it no "
                "training gate is 0"
            )
        if self.target is not None and not self.gate_types:
            raise ValueError("--target-heads needs gates: add --gate-heads, e.g. --gate-heads enc-self")
        for kind in self.gate_types:
            if self.mask is not None and kind in self.mask.values and not self.remove:
                raise ValueError(
                    f"{kind} is in --gate-heads and in --alive-heads: a type has either gates or a constant mask; "
                    "with --remove-heads the remaining heads can have gates"
                )

    @classmethod
    def of(cls, args: Any) -> HeadOptions:
        """Parse the options of a model.

        Args:
            args: a namespace of the command line or of a checkpoint, or a configuration of hydra, in which
                `gate_heads` and `gate_stretch` may be lists and `alive_heads` a mapping

        Raises:
            ValueError: for a value that cannot be used, or options that contradict each other
        """
        if OmegaConf.is_config(args):
            refuse_misspelt(args)
        low, high = _parsed(args, "gate_stretch", lambda value: parse_stretch(_comma_separated(value)))
        return cls(
            gate_types=_parsed(args, "gate_heads", lambda value: parse_types(_comma_separated(value))),
            mask=_parsed(args, "alive_heads", partial(_mask, args)),
            remove=_parsed(args, "remove_heads", _switch),
            distribution=_parsed(args, "gate_temperature", lambda value: HardConcrete(_number(value), low, high)),
            init=_parsed(args, "gate_init", parse_init),
            lr_scale=_parsed(args, "gate_lr_scale", lambda value: check_lr_scale(_number(value))),
            sparsity_method=_parsed(args, "sparsity_method", parse_method),
            target=_parsed(args, "target_heads", lambda value: parse_target(_comma_separated(value))),
            warmup=_parsed(args, "sparsity_warmup_updates", _count("updates")),
            fix_after=_parsed(args, "fix_gates_after", _count("updates")),
            hard=_parsed(args, "gate_hard", _switch),
            output_scale=_parsed(args, "gate_output_scale", _switch),
            stop_when_settled=_parsed(args, "stop_when_settled", _count("validations")),
            freeze_params=getattr(args, "freeze_params", None) or None,
            freeze_dropout=_parsed(args, "freeze_dropout", _switch),
            inference_dtype=_parsed(args, "inference_dtype", parse_inference_dtype),
            drops_layers=bool(layers_to_keep(args)),
        )

    def store(self, args: Any) -> None:
        """Write the options to `args` as checkpoints hold them: text, numbers, true and false, the mask as JSON.

        A checkpoint must not depend on a mask file. Options that are None in `args` keep their default.
        """
        stored = {
            "gate_heads": ",".join(self.gate_types),
            "alive_heads": self.mask and mask_to_json(self.mask, one_line=True),
            "remove_heads": self.remove,
            "gate_temperature": self.distribution.temperature,
            "gate_stretch": f"{self.distribution.low!r},{self.distribution.high!r}",
            "gate_init": self.init if isinstance(self.init, str) else repr(self.init),
            "gate_lr_scale": self.lr_scale,
            "sparsity_method": self.sparsity_method,
            "target_heads": str(self.target or ""),
            "sparsity_warmup_updates": self.warmup,
            "fix_gates_after": self.fix_after,
            "gate_hard": self.hard,
            "gate_output_scale": self.output_scale,
            "stop_when_settled": self.stop_when_settled,
            "freeze_params": self.freeze_params,
            "freeze_dropout": self.freeze_dropout,
            "inference_dtype": self.inference_dtype,
        }
        for name, value in stored.items():
            if getattr(args, name, None) is not None:
                setattr(args, name, value)

    def method(self, layers: Sequence[HeadGates], kinds: Sequence[str]) -> GateMethod:
        """Make the gating method for the gates and the attention type of each layer. Raise ValueError."""
        settings: dict[str, Any] = {
            "fix_after": self.fix_after,
            "hard": self.hard,
            "output_scale": self.output_scale,
            "stop_when_settled": self.stop_when_settled,
        }
        if self.target is not None:
            heads = Counter(kind for layer, kind in zip(layers, kinds, strict=True) for _ in layer.theta)
            target = self.target.at_most(heads) if self.drops_layers else self.target
            try:
                settings["target"] = target.counts(heads)
            except ValueError as error:
                raise ValueError(f"--target-heads: {error}") from None
            settings["warmup"] = self.warmup
        return METHODS[self.sparsity_method](layers, kinds, **settings)


def _parsed(args: Any, name: str, parse: Callable[[Any], Any]) -> Any:
    """Parse an option, or its default; an error names the option."""
    value = getattr(args, name, None)
    value = DEFAULTS[name] if value is None else value
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"--{name.replace('_', '-')}: {error}") from None


def parse_init(value: Any) -> float | str:
    """Parse an initial log_alpha: '2.5' -> 2.5, 'glorot' -> 'glorot'. Raise ValueError."""
    if value == "glorot":
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) <= LARGEST:
        raise ValueError(
            f"the initial log_alpha is {shown(value)}: it must be 'glorot' or a number from {-LARGEST:g} to {LARGEST:g}"
        )
    return number


def parse_method(value: Any) -> str:
    """Check the name of a gating method. Raise ValueError."""
    if value not in METHODS:
        raise ValueError(f"unknown method {shown(value)}: choose from {', '.join(METHODS)}")
    return value


def parse_inference_dtype(value: Any) -> str:
    """Check a precision of inference. Raise ValueError."""
    if value not in DTYPES:
        raise ValueError(f"unknown inference dtype {shown(value)}: choose from {', '.join(DTYPES)}")
    return value


def _count(things: str) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = -1
        if number < 0:
            raise ValueError(f"{shown(value)} is not a number of {things}: it must be a whole number from 0")
        return number

    return parse


def _comma_separated(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _mask(args: Any, value: Any) -> HeadTable | None:
    if value is None:
        return None
    if isinstance(value, str):
        return mask_of_layers(read_mask(value), args)
    if isinstance(value, Mapping):
        return mask_of_layers(as_mask(value), args)
    raise ValueError(f"the mask is {shown(value)}: it must be a file, inline JSON, a checkpoint or a mapping")


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{shown(value)} is not a number") from None


def _switch(value: Any) -> bool:
    if value not in (True, False):
        raise ValueError(f"{shown(value)} is neither true nor false")
    return bool(value)


def refuse_misspelt(args: Mapping[str, Any]) -> None:
    """Raise ValueError for a key of hydra's `model` that is almost an option of this plugin.

    A checkpoint that was trained with such a key loads with a warning.
    """
    for key in args:
        name = likely_option(str(key))
        if name is None:
            continue
        if HydraConfig.initialized():
            raise ValueError(f"unknown option {shown(key)} of the model: did you mean {name}?")
        logger.warning(f"unknown option {shown(key)} of the model is ignored: did you mean {name}?")


def likely_option(key: str) -> str | None:
    """Return the option of this plugin that `key` is a misspelling of, if any."""
    if key in DEFAULTS:
        return None
    return next(iter(difflib.get_close_matches(key.lower().replace("-", "_"), DEFAULTS, 1, 0.85)), None)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Within the context, a ValueError ends fairseq's command with one line and exit code 2."""
    try:
        yield
    except ValueError as error:
        fail(PROGRAM, str(error))
