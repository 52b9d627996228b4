"""Check options stored in a checkpoint, before fairseq uses them.

fairseq passes some stored options to Python's `eval`. `check_evaluated` accepts them only as literals of the right
type.
"""

from __future__ import annotations

import argparse
import ast
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import ListConfig

from fairseq_headgates.messages import quoted

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
DEEPEST = 30  # levels of containers and objects in a file
MOST_VALUES = 2_000_000  # in a file, over all levels; 10,000 tensors and their optimiser take about 600,000
TEXT_OF_A_VALUE = 100  # characters that count as one value

Number = (int, float)


def check_nesting(value: Any) -> None:
    """Raise ValueError if nested values are too many or too deep, or if one holds itself.

    A value that occurs several times counts each time, as for whoever walks through it, but is visited once.
    """
    sizes: dict[int, tuple[int, int]] = {}  # of the containers that were visited, by id: values, levels

    def size(value: Any, depth: int) -> tuple[int, int]:
        inner = _inner(value)
        if not inner:
            return 1 + (len(value) // TEXT_OF_A_VALUE if isinstance(value, (str, bytes)) else 0), 0
        if id(value) not in sizes and depth < DEEPEST:
            found = [size(element, depth + 1) for element in inner]
            sizes[id(value)] = 1 + sum(count for count, _ in found), 1 + max(levels for _, levels in found)
        count, levels = sizes.get(id(value), (1, 1))
        if depth + levels > DEEPEST:
            raise ValueError(f"stored values are nested more than {DEEPEST} levels deep")
        if count > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} values are stored")
        return count, levels

    size(value, 0)


def _inner(value: Any) -> list[Any]:
    """Return what a container holds: keys, values, elements and attributes."""
    attributes = list(vars(value).values()) if isinstance(value, (argparse.Namespace, OrderedDict)) else []
    if isinstance(value, dict):
        return [*value, *value.values(), *attributes]
    return [*value] if isinstance(value, (list, tuple)) else attributes


def plain(value: Any) -> Any:
    """Copy nested dictionaries, lists and tuples. Raise ValueError if they are nested too deeply, or too large."""
    check_nesting(value)

    def copied(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: copied(element) for key, element in value.items()}
        if isinstance(value, (list, tuple)):
            elements = [copied(element) for element in value]
            return elements if isinstance(value, list) else tuple(elements)
        return value

    return copied(value)


def check_evaluated(options: Mapping[str, Any]) -> None:
    """Raise ValueError if an option that fairseq evaluates as Python is not a literal of its type.

    Options in nested dictionaries, lists and namespaces are checked, too, and those in attributes of a dictionary.
    """
    check_nesting(options)
    for name, value in nested(options):
        kind = EVALUATED.get(name)
        if kind and not (is_literal(value, kind) if isinstance(value, str) else is_plain(value)):
            raise ValueError(
                f"the stored option {name} is {quoted(value)}: it must be {kind}, because fairseq passes it to eval"
            )


def nested(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a value and all that it holds, each with its key or the name of its attribute; None in lists."""
    pending: list[tuple[Any, Any]] = [(None, value)]
    while pending:
        name, value = pending.pop()
        yield name, value
        if isinstance(value, (argparse.Namespace, OrderedDict)):
            pending.extend(vars(value).items())
        if isinstance(value, Mapping):
            pending.extend(value.items())
        elif isinstance(value, (list, tuple)):
            pending.extend((None, element) for element in value)


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a truth value, text or None, or made of those."""
    if isinstance(value, (list, tuple, ListConfig)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, [*value, *value.values()]))
    return value is None or type(value) in (bool, int, float, str)


def is_literal(text: str, kind: str) -> bool:
    """Return whether a text is a literal of the kind `NUMBERS` or `LITERAL`."""
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
