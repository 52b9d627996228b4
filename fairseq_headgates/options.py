"""The options of this plugin's models: on fairseq's command line, from hydra, or stored in a checkpoint."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from fairseq_headgates.arguments import fail, shown
from fairseq_headgates.gates import LARGEST, OPEN, HardConcrete, check_lr_scale, parse_stretch
from fairseq_headgates.heads import TYPES, as_mask, mask_to_json, parse_types
from fairseq_headgates.stored_heads import read_mask

logger = logging.getLogger(__name__)

# The one place of every default; those of the distribution stand with it in gates.py. The first log_alpha is one
# at which a gate is exactly 1 at evaluation: a warm-started model is the baseline at step 0. A gate has to
# travel about 5 in log_alpha against the noise of its own sampling: 50 times a rate of 0.001 gives it 0.05 a step,
# so that it can close within an epoch or two of a small corpus, near the 0.1 of Golden Stick and CoFi.
DEFAULTS: dict[str, Any] = {
    "gate_heads": "",
    "alive_heads": None,
    "remove_heads": False,
    "gate_temperature": HardConcrete.temperature,
    "gate_stretch": f"{HardConcrete.low:g},{HardConcrete.high:g}",
    "gate_init": f"{OPEN:g}",
    "gate_lr_scale": 50.0,
    "freeze_params": None,
    "freeze_dropout": False,
}


def add_head_gate_args(parser: Any) -> None:
    """Adds the options of this plugin, for any architecture. A bad value ends the command with one line."""

    def add(name: str, **settings: Any) -> None:
        if name in CHECKS:
            settings["type"] = one_line_type(name, CHECKS[name])
        parser.add_argument("--" + name.replace("_", "-"), default=DEFAULTS[name], **settings)

    add("gate_heads", metavar="TYPES",
        help=f"attention types with stochastic gates, comma-separated: {', '.join(TYPES)} (default: none)")  # fmt: skip
    add("alive_heads", metavar="MASK",
        help="fixed heads: a mask file, the same JSON inline, or a checkpoint of this plugin whose heads are taken; "
        "1 alive, 0 removed")  # fmt: skip
    add("remove_heads", action="store_true",
        help="remove heads that are not alive from the weights, not just multiply them by 0: smaller")  # fmt: skip
    add("gate_temperature", metavar="T", help="temperature of the Hard Concrete distribution (default: %(default)s)")
    add("gate_stretch", metavar="LOW,HIGH",
        help="its stretch, LOW < 0 and HIGH > 1; write --gate-stretch=LOW,HIGH (default: %(default)s)")  # fmt: skip
    add("gate_init", metavar="LOG_ALPHA",
        help="first log_alpha of every gate, or 'glorot' as in Voita's code (default: %(default)s, open)")  # fmt: skip
    add("gate_lr_scale", metavar="S",
        help="gates learn S times as fast as other parameters (default: %(default)s)")  # fmt: skip
    add("freeze_params", metavar="REGEX",
        help=r"freeze parameters whose name matches (re.search), e.g. '^decoder\.' (default: none)")  # fmt: skip
    add("freeze_dropout", action="store_true", help="no dropout inside fully frozen modules")


def one_line_type(name: str, check: Callable[[Any], Any]) -> Callable[[str], Any]:
    """An argparse type that reports a bad value in one line; argparse itself would print fairseq's usage first."""

    def parse(text: str) -> Any:
        try:
            return check(text)
        except ValueError as error:
            fail("fairseq-headgates", f"argument --{name.replace('_', '-')}: {error}")

    return parse


def parse_init(text: str) -> float | str:
    """'2.5' -> 2.5, 'glorot' -> 'glorot'. Raises ValueError."""
    if text == "glorot":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= LARGEST:
        raise ValueError(
            f"the first log_alpha is {shown(text)}: it must be a number or 'glorot', the number from "
            f"{-LARGEST:g} to {LARGEST:g}"
        )
    return value


# What an option may be: from text, as on the command line, or from a number, list or mapping, as from YAML, to what is
# stored in checkpoints: text, numbers, true and false. Each raises ValueError.


def _types(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    parse_types(text)
    return text


def _mask(value: Any) -> str:
    """The mask as inline JSON: a checkpoint must not depend on a file."""
    if isinstance(value, str):
        mask = read_mask(value)
    elif isinstance(value, Mapping):
        mask = as_mask(value)
    else:
        raise ValueError(f"the mask is {shown(value)}: it must be a file, inline JSON, a checkpoint or a mapping")
    return mask_to_json(mask, one_line=True)


def _stretch(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    parse_stretch(text)
    return text


def _init(value: Any) -> str:
    parse_init(str(value))
    return str(value)


def _number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"the {what} is {shown(value)}: it must be a number") from None


def _temperature(value: Any) -> float:
    return HardConcrete(_number(value, "gate temperature")).temperature


def _lr_scale(value: Any) -> float:
    return check_lr_scale(_number(value, "learning rate scale of the gates"))


CHECKS: dict[str, Callable[[Any], Any]] = {
    "gate_heads": _types,
    "alive_heads": _mask,
    "gate_temperature": _temperature,
    "gate_stretch": _stretch,
    "gate_init": _init,
    "gate_lr_scale": _lr_scale,
}
SWITCHES = [name for name, default in DEFAULTS.items() if default is False]


def option(args: Any, name: str) -> Any:
    """An option of a model: a namespace from the command line, a config from hydra, or stored in a checkpoint."""
    value = getattr(args, name, None)
    return DEFAULTS[name] if value is None else value


def settle_options(args: Any) -> None:
    """Checks the options of a model and makes them what checkpoints store, in place.

    YAML may hold lists for `gate_heads` and `gate_stretch` and a mapping for `alive_heads`. Raises ValueError.
    """
    if OmegaConf.is_config(args):
        refuse_misspelt(args)
    for name in DEFAULTS:
        value = getattr(args, name, None)
        if value is None or (name == "alive_heads" and not value):
            continue
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        if name in CHECKS:
            value = CHECKS[name](value)
        elif name in SWITCHES and value not in (True, False):
            raise ValueError(f"{name} is {shown(value)}: it must be true or false")
        setattr(args, name, value)


def refuse_misspelt(args: Mapping[str, Any]) -> None:
    """Raises ValueError for a key of hydra's `model` that is almost an option of this plugin.

    A checkpoint that was trained with such a key is loaded as before, with a warning.
    """
    for key in args:
        name = likely_option(str(key))
        if name is None:
            continue
        if HydraConfig.initialized():
            raise ValueError(f"unknown option {shown(key)} of the model: write {name}")
        logger.warning(f"unknown option {shown(key)} of the model is ignored: it should be {name}")


def likely_option(key: str) -> str | None:
    """The option of this plugin that `key` is a misspelling of, if it is one."""
    if key in DEFAULTS:
        return None
    return next(iter(difflib.get_close_matches(key.lower().replace("-", "_"), DEFAULTS, 1, 0.85)), None)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """A mistake in the options ends one of fairseq's commands with one line and exit code 2, without a traceback."""
    try:
        yield
    except ValueError as error:
        fail("fairseq-headgates", str(error))
