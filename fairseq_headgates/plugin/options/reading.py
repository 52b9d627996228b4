"""Read the options of this plugin's models: from the command line, from hydra, or stored in a checkpoint."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from fairseq_headgates.messages import PROGRAM, fail, quoted
from fairseq_headgates.plugin.options.declared import DEFAULTS, OPTIONS, HeadOptions

logger = logging.getLogger(__name__)


def read_options(args: Any) -> HeadOptions:
    """Parse and check the options of a model.

    Args:
        args: a namespace of the command line or of a checkpoint, or a configuration of hydra, in which `gate_heads` and
            `gate_stretch` may be lists and the mask a mapping

    Raises:
        ValueError: for a value that cannot be used, or options that contradict each other
    """
    if OmegaConf.is_config(args):
        refuse_misspelt(args)
    values = {}
    for name, declaration in OPTIONS.items():
        value = getattr(args, name, None)
        value = DEFAULTS[name] if value is None else value
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        try:
            values[name] = declaration.parse(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"--{name.replace('_', '-')}: {error}") from None
    by_layer = [name for name in ("alive_heads", "ffn_dims", "target_heads") if values[name] is not None]
    if by_layer and (getattr(args, "encoder_layers_to_keep", None) or getattr(args, "decoder_layers_to_keep", None)):
        raise ValueError(
            f"LayerDrop (--encoder-layers-to-keep, --decoder-layers-to-keep) cannot be combined with --"
            f"{by_layer[0].replace('_', '-')}: leave one of them out"
        )
    return HeadOptions(**values)


def refuse_misspelt(args: Mapping[str, Any]) -> None:
    """Raise ValueError for a key of hydra's `model` that is almost an option of this plugin.

    A checkpoint that was trained with such a key loads with a warning.
    """
    for key in args:
        name = likely_option(str(key))
        if name is None:
            continue
        if HydraConfig.initialized():
            raise ValueError(f"unknown option {quoted(key)} of the model: did you mean {name}?")
        logger.warning(f"unknown option {quoted(key)} of the model is ignored: did you mean {name}?")


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
