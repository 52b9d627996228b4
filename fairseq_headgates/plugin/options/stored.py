"""Copy the options that a transformer is built from, out of those that a checkpoint stores.

Only options of the types that fairseq and this plugin declare are accepted; all others are dropped.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer.transformer_config import DecoderConfig, EncDecBaseConfig, QuantNoiseConfig
from fairseq.models.transformer_lm import TransformerLanguageModel

from fairseq_headgates.messages import quoted
from fairseq_headgates.plugin.options.declared import OPTIONS, Number
from fairseq_headgates.safety.checkpoint import stored_options
from fairseq_headgates.safety.literals import EVALUATED, NUMBERS, is_literal

# Options that this plugin reads besides its own and those of fairseq's transformer.
FURTHER_OPTIONS: dict[str, tuple[type, ...]] = {
    "arch": (str,),
    "_name": (str,),
    "lang_tok_replacing_bos_eos": (bool, int),
    "relu_dropout": Number,
    # of the task or the training, which language models read
    "add_bos_token": (bool, int),
    "tokens_per_sample": (int,),
    "tpu": (bool, int),
    # of RoBERTa
    "max_positions": (int,),
    "pooler_activation_fn": (str,),
    "pooler_dropout": Number,
    "untie_weights_roberta": (bool, int),
    "spectral_norm_classification_head": (bool, int),
    # of the all-attention model
    "persistent_vectors": (int,),
    "mem_len": (int,),
}
INLINE = ("alive_heads", "ffn_dims")  # which may name a file on the command line: no file is opened for a checkpoint
LAYERS_TO_KEEP = ("encoder_layers_to_keep", "decoder_layers_to_keep")
OF_FILES = re.compile(r"path|file|checkpoint(?!_activations)|_from|_dir|regex|freeze")
NESTED = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}
# Numbers that fairseq's parser stores as text, because their default is another option.
AS_TEXT = ("decoder_input_dim", "decoder_output_dim")


def model_options(stored: Mapping[str, Any], model: Any = None) -> argparse.Namespace:
    """Copy the options that a transformer is built from, checked by name and type; drop all others.

    Args:
        stored: the options of a checkpoint; see `flat_options`
        model: class of the model, whose own options are copied, too; None for no others

    Raises:
        ValueError: for an option of a wrong type
    """
    types = transformer_options() if model is None else {**declared_options(model), **transformer_options()}
    options = argparse.Namespace()
    for name, value in flat_options(stored).items():
        if name in types:
            setattr(options, name, _checked(name, value, types[name]))
    return options


def l0_end(state: Mapping[str, Any]) -> dict[str, int]:
    """Return {option: the update at which the warm-up of lambda ends}, by the criterion that a checkpoint stores."""
    stored = stored_options(state, "criterion")
    parts = (stored.get(name) for name in ("l0_start_update", "l0_warmup_updates"))
    return {"--l0-warmup-updates": sum(part for part in parts if isinstance(part, int))}


def flat_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored options by their flat names: `encoder: {layers: 2}`, as hydra stores it, is `encoder_layers`.

    fairseq reads the options of such a group from it alone: an option that the group leaves open has the default of the
    group, whatever its flat name says.

    Raises:
        ValueError: for an unknown option in a group
    """
    options = dict(stored)
    for group, config in NESTED.items():
        inner = options.get(group)
        if not isinstance(inner, Mapping):
            continue
        del options[group]
        names = [field.name for field in dataclasses.fields(config) if field.name != "_name"]
        unknown = {key: value for key, value in inner.items() if key not in {*names, "_name"}}
        if unknown:
            raise ValueError(f"the stored option {group} has keys that fairseq does not know: {quoted(unknown)}")
        values = config(**inner)
        options.update({f"{group}_{name}": getattr(values, name) for name in names})
    return options


@cache
def transformer_options() -> dict[str, tuple[type, ...]]:
    """Return the options of fairseq's transformers and of this plugin: {flat name: allowed types}."""
    own = {name: each.types for name, each in OPTIONS.items() if each.types}
    declared = declared_options(TransformerLanguageModel) | declared_options(TransformerModel)
    return declared | own | FURTHER_OPTIONS | dict.fromkeys(AS_TEXT, (int,))


def declared_options(model: Any) -> dict[str, tuple[type, ...]]:
    """Return the options that a model of fairseq declares for the command line, {name: allowed types}.

    Options that name files or are regular expressions are left out: nothing is opened because a checkpoint says so.
    """
    parser = argparse.ArgumentParser(add_help=False)
    model.add_args(parser)
    return {action.dest: _types_of(action) for action in parser._actions if not OF_FILES.search(action.dest)}


def _types_of(action: argparse.Action) -> tuple[type, ...]:
    if action.nargs in ("*", "+") or isinstance(action.nargs, int) and action.nargs > 0:
        return (list, str)
    if isinstance(action.const, bool) or action.type is int:
        return (int,)
    if action.type is float:
        return Number
    return (str,) if action.type in (None, str) else (str, list, *Number)  # a function of fairseq converts the text


def _checked(name: str, value: Any, types: tuple[type, ...]) -> Any:
    if value is None:
        return None
    if name in AS_TEXT and isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        value = int(value)
    if not isinstance(value, types) or (isinstance(value, float) and value != value):
        allowed = " or ".join(kind.__name__ for kind in types)
        raise ValueError(f"the stored option {name} is {quoted(value)}: it must be of type {allowed}")
    if name in INLINE and value and not str(value).lstrip().startswith("{"):
        raise ValueError(f"the stored option {name} is {quoted(value)}: it must be inline JSON")
    if name in LAYERS_TO_KEEP:  # fairseq's parser makes a list, its models split text
        value = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(value, str) and name in EVALUATED and not is_literal(value, EVALUATED[name]):
        raise ValueError(f"the stored option {name} is {quoted(value)}: it must be {EVALUATED[name]}")
    if isinstance(value, str) and EVALUATED.get(name) == NUMBERS:
        value = ast.literal_eval(value.strip())
        value = list(value) if isinstance(value, (tuple, list, set)) else [value]
    if isinstance(value, list) and not all(isinstance(element, Number) for element in value):
        raise ValueError(f"the stored option {name} is {quoted(value)}: it must be a list of numbers")
    return value
