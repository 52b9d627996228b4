"""Check options stored in a checkpoint by name and type, before fairseq uses them.

fairseq passes some stored options to Python's `eval`. `check_evaluated` accepts them only as literals of the right
type. `model_options` copies the options that a transformer is built from, of the types that fairseq declares, and drops
all others.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import typing
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_config import DecoderConfig, EncDecBaseConfig, QuantNoiseConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import ListConfig

from fairseq_headgates.messages import shown

NUMBERS = "a number or a list of numbers"
LITERAL = "a Python literal"
# Options that fairseq 0.12 passes to eval, eval_str_list, eval_str_dict or eval_bool, and what they may be.
EVALUATED = {
    **dict.fromkeys(
        "adam_betas adamax_betas lamb_betas adafactor_eps adaptive_input_cutoff adaptive_softmax_cutoff "
        "decoder_kernel_size_list encoder_kernel_size_list pipeline_balance pipeline_devices pipeline_decoder_balance "
        "pipeline_decoder_devices pipeline_encoder_balance pipeline_encoder_devices".split(),
        NUMBERS,
    ),
    **dict.fromkeys(
        "character_filters conv_aggregator_layers conv_feature_layers decoder_attention decoder_layers "
        "decoder_xformers_att_config downsample encoder_attention encoder_layers encoder_xformers_att_config "
        "feature_encoder_spec gated_attention left_pad_source left_pad_target override_encoder_layers pretrained "
        "project_input self_attention wer_args xformers_att_config".split(),
        LITERAL,
    ),
}
LONGEST_LITERAL = 10_000  # characters; Python's parser needs far more memory than the text
MOST_ELEMENTS = 10_000  # that products such as "[(512, 3)] * 20" may make
DEEPEST = 20  # levels of dictionaries and lists among stored options
MOST_VALUES = 1_000_000  # of stored options, over all levels

Number = (int, float)


def plain(value: Any) -> Any:
    """Copy nested dictionaries, lists and tuples. Raise ValueError if they are nested too deeply, or too large."""
    budget = [MOST_VALUES]

    def copied(value: Any, depth: int) -> Any:
        budget[0] -= 1
        if depth > DEEPEST or budget[0] < 0:
            raise ValueError(f"stored options are nested more than {DEEPEST} levels deep, or there are too many")
        if isinstance(value, dict):
            return {key: copied(element, depth + 1) for key, element in value.items()}
        if isinstance(value, (list, tuple)):
            elements = [copied(element, depth + 1) for element in value]
            return elements if isinstance(value, list) else tuple(elements)
        return value

    return copied(value, 0)


def check_evaluated(options: Mapping[str, Any]) -> None:
    """Raise ValueError if an option that fairseq evaluates as Python is not a literal of its type.

    Options in nested dictionaries, lists and namespaces are checked, too, and those in attributes of a dictionary.
    """
    for name, value in _named_values(options):
        kind = EVALUATED.get(name)
        if kind and not (_is_literal(value, kind) if isinstance(value, str) else is_plain(value)):
            raise ValueError(
                f"the stored option {name} is {shown(value)}: it must be {kind}, because fairseq passes it to eval"
            )


def _named_values(options: Any) -> Iterator[tuple[str, Any]]:
    """Yield every (name, value) of nested options. Raise ValueError if they are nested too deeply, or too many."""
    pending: list[tuple[Any, int]] = [(options, 0)]
    count = 0
    while pending:
        container, depth = pending.pop()
        if depth > DEEPEST:
            raise ValueError(f"stored options are nested more than {DEEPEST} levels deep")
        items = container.items() if isinstance(container, Mapping) else ((None, value) for value in container)
        for name, value in items:
            count += 1
            if count > MOST_VALUES:
                raise ValueError(f"more than {MOST_VALUES:,} options are stored")
            if isinstance(name, str):
                yield name, value
            if isinstance(value, (argparse.Namespace, OrderedDict)):
                pending.append((vars(value), depth + 1))
            if isinstance(value, (Mapping, list, tuple)):
                pending.append((value, depth + 1))


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a truth value, text or None, or made of those."""
    if isinstance(value, (list, tuple, ListConfig)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, [*value, *value.values()]))
    return value is None or type(value) in (bool, int, float, str)


def _is_literal(text: str, kind: str) -> bool:
    if len(text) > LONGEST_LITERAL:
        return False
    try:
        with warnings.catch_warnings():  # Python warns of odd escapes, on standard error
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
        _elements(tree, numbers_only=kind == NUMBERS)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # what the parser raises for odd text
        return False
    return True


def _elements(node: ast.expr, numbers_only: bool) -> int:
    """How many elements the value of a literal has. Raises ValueError for anything but a literal."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, Number) or (not numbers_only and isinstance(node.value, (str, bytes, type(None)))):
            return 1
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        if isinstance(node.operand, ast.Constant) and isinstance(node.operand.value, Number):
            return 1
    elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return _bounded(1 + sum(_elements(child, numbers_only) for child in node.elts))
    elif isinstance(node, ast.Dict) and not numbers_only:
        keys = [key for key in node.keys if key is not None]
        if len(keys) == len(node.values):  # not so for {**other}
            return _bounded(1 + sum(_elements(child, False) for child in [*keys, *node.values]))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _bounded(_elements(node.left, numbers_only) + _elements(node.right, numbers_only))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for sequence, times in ((node.left, node.right), (node.right, node.left)):
            if isinstance(times, ast.Constant) and isinstance(times.value, int) and abs(times.value) <= MOST_ELEMENTS:
                return _bounded(_elements(sequence, numbers_only) * max(1, abs(times.value)))
    raise ValueError("not a literal")


def _bounded(count: int) -> int:
    if count > MOST_ELEMENTS:
        raise ValueError("a literal of too many elements")
    return count


# --- the options of a transformer ------------------------------------------------------------------------------------

# Options of this plugin's models besides those of fairseq's transformer. `freeze_params` is not one of them: a regular
# expression from a file could search without end.
OWN_OPTIONS: dict[str, tuple[type, ...]] = {
    "gate_heads": (str,),
    "alive_heads": (str,),
    "remove_heads": (bool, int),
    "gate_temperature": Number,
    "gate_stretch": (str,),
    "gate_init": (str, *Number),
    "gate_lr_scale": Number,
    "sparsity_method": (str,),
    "target_heads": (str,),
    "sparsity_warmup_updates": (int,),
    "fix_gates_after": (int,),
    "gate_hard": (bool, int),
    "gate_output_scale": (bool, int),
    "stop_when_settled": (int,),
    "inference_dtype": (str,),
    "arch": (str,),
    "_name": (str,),
    "lang_tok_replacing_bos_eos": (bool, int),
    "relu_dropout": Number,
    # of RoBERTa
    "max_positions": (int,),
    "pooler_activation_fn": (str,),
    "pooler_dropout": Number,
    "untie_weights_roberta": (bool, int),
    "spectral_norm_classification_head": (bool, int),
    # of speech, which the task knows from its data
    "input_feat_per_channel": (int,),
    "input_channels": (int,),
    # of the all-attention model
    "persistent_vectors": (int,),
    "mem_len": (int,),
}
# Files of embeddings; the weights hold them.
IGNORED = ("encoder_embed_path", "decoder_embed_path", "embed_path")
LAYERS_TO_KEEP = ("encoder_layers_to_keep", "decoder_layers_to_keep")
OF_FILES = re.compile(r"path|file|checkpoint|_from|_dir|regex|freeze")
LAYER_NUMBERS = re.compile(r"\d{1,4}(,\d{1,4})*")
NESTED = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}
# Options whose default is another option, "${...}": fairseq's parser stores their value as text.
LINKED = {
    prefix + field.name
    for prefix, config in (("decoder_", DecoderConfig), ("", TransformerLanguageModelConfig))
    for field in dataclasses.fields(config)
    if str(field.default).startswith("${")
}


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


def flat_options(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored options by their flat names: `encoder: {layers: 2}`, as hydra stores it, is `encoder_layers`.

    fairseq reads the options of such a group from it alone: an option that the group leaves open has the default of the
    group, whatever its flat name says.

    Raises:
        ValueError: for an unknown option in a group
    """
    found = dict(stored)
    for group, config in NESTED.items():
        inner = found.get(group)
        if not isinstance(inner, Mapping):
            continue
        del found[group]
        names = [name for name, _ in _fields(config)]
        unknown = {key: value for key, value in inner.items() if key not in {*names, "_name"}}
        if unknown:
            raise ValueError(f"the stored option {group} has keys that fairseq does not know: {shown(unknown)}")
        values = config(**inner)
        found.update({f"{group}_{name}": getattr(values, name) for name in names})
    return found


def transformer_options() -> dict[str, tuple[type, ...]]:
    """Return the options of fairseq's transformers and of this plugin: {flat name: allowed types}."""
    types: dict[str, tuple[type, ...]] = dict(OWN_OPTIONS)
    for name, hint in _fields(TransformerConfig):
        if name not in NESTED:
            types[name] = _types(hint)
    for prefix, config in NESTED.items():
        types.update({f"{prefix}_{name}": _types(hint) for name, hint in _fields(config)})
    for name, hint in _fields(TransformerLanguageModelConfig):
        types.setdefault(name, _types(hint))
    for name in LAYERS_TO_KEEP:
        types[name] = (str, list)  # fairseq's parser makes a list, its models split text
    return {name: kinds for name, kinds in types.items() if name not in IGNORED and not name.endswith("_embed_path")}


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


def _fields(config: type) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(config)
    return ((field.name, hints[field.name]) for field in dataclasses.fields(config) if field.name != "_name")


def _types(hint: Any) -> tuple[type, ...]:
    """Return the types of a declared option: `Optional[int]` -> (int,), `List[int]` -> (list, str), ..."""
    arguments = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    origin = typing.get_origin(hint)
    if origin is typing.Union:
        return _types(arguments[0])
    if origin is list:
        return (list, str)  # text where fairseq evaluates it
    if hint is float:
        return Number
    if hint in (bool, int):
        return (int,)  # bool is one
    return (str,)


def _checked(name: str, value: Any, types: tuple[type, ...]) -> Any:
    if value is None:
        return None
    if name in LINKED and isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        value = int(value)
    if not isinstance(value, types) or (isinstance(value, float) and value != value):
        allowed = " or ".join(kind.__name__ for kind in types)
        raise ValueError(f"the stored option {name} is {shown(value)}: it must be of type {allowed}")
    if name in LAYERS_TO_KEEP and isinstance(value, list):
        value = ",".join(map(str, value))
    if name in LAYERS_TO_KEEP and str(value) and not LAYER_NUMBERS.fullmatch(str(value)):
        raise ValueError(f"the stored option {name} is {shown(value)}: it must be numbers of layers, as in '0,2,4'")
    if isinstance(value, str) and name in EVALUATED and not _is_literal(value, EVALUATED[name]):
        raise ValueError(f"the stored option {name} is {shown(value)}: it must be {EVALUATED[name]}")
    if isinstance(value, str) and EVALUATED.get(name) == NUMBERS:
        value = ast.literal_eval(value.strip())
        value = list(value) if isinstance(value, (tuple, list, set)) else [value]
    if isinstance(value, list) and not all(isinstance(element, Number) for element in value):
        raise ValueError(f"the stored option {name} is {shown(value)}: it must be a list of numbers")
    return value
