"""What models of fairseq have in common: dictionaries, options, checkpoints."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from fairseq import options as parsers
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor, nn

FIRST = ("<s>", "<pad>", "</s>", "<unk>")  # of every dictionary
OFFSET = 2  # the number of the first position: positions begin after the number of <pad>
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_accurate", "gelu_pytorch_tanh": "gelu_accurate", "relu": "relu"}
ACTIVATIONS |= {"swish": "swish", "silu": "swish"}


class Model(NamedTuple):
    """A model of fairseq: its options, weights, other files and their contents, and what to say about it."""

    options: Namespace
    weights: dict[str, Tensor]
    files: dict[str, str]
    said: str


class Symbols(NamedTuple):
    """A dictionary of fairseq: all symbols, and the rows of the model that they have, -1 for one that it has not."""

    names: list[str]
    rows: list[int]

    @property
    def lines(self) -> str:
        """The content of dict.txt: all but the first symbols, which fairseq adds."""
        return "".join(f"{name} 1\n" for name in self.names[len(FIRST) :])

    def of(self, table: Tensor) -> Tensor:
        """Return the rows of the symbols [V, E]; zeros for symbols that the model has not."""
        rows = torch.tensor(self.rows)
        return table[rows.clamp(min=0)] * rows.ge(0)[:, None]


def arranged(
    vocabulary: Mapping[str, int],
    size: int,
    special: Sequence[str],
    required: Sequence[str],
    spelled: Callable[[str], str] = str,
) -> Symbols:
    """Return the symbols in fairseq's order: the special ones, then the others by their numbers.

    Args:
        vocabulary: the symbols of the model and their numbers
        size: number of rows of its embeddings; those without a symbol, and symbols with blanks, get a filler
        special: its symbols for those of `FIRST`
        required: symbols that it must have
        spelled: what fairseq calls a symbol

    Raises:
        ValueError: if a required symbol is missing, another one has the name of a special one, or rows are too few
    """
    if missing := [symbol for symbol in required if symbol not in vocabulary]:
        raise ValueError(f"the vocabulary lacks {', '.join(missing)}: it must be that of the model")
    if (largest := max(vocabulary.values())) >= size:
        raise ValueError(f"the vocabulary has the number {largest}, and the embeddings {size} rows")
    symbols = {number: symbol for symbol, number in vocabulary.items()}
    rows = [vocabulary.get(symbol, -1) for symbol in special]
    names, fillers = list(FIRST), 0
    for row in sorted(set(range(size)) - set(rows)):
        name = spelled(symbols.get(row, ""))
        if name in FIRST:
            raise ValueError(f"the vocabulary has {name!r}, which means something else in fairseq's dictionary")
        while name.split() != [name]:
            filler, fillers = f"madeupword{fillers:04d}", fillers + 1
            name = filler if filler not in vocabulary else ""
        names.append(name)
        rows.append(row)
    return Symbols(names, rows)


def activation(config: Mapping[str, Any], name: str) -> str:
    if config.get(name) not in ACTIVATIONS:
        raise ValueError(
            f"config.json: {name} is {str(config.get(name))!r}, and must be one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[config[name]]


def stripped(weights: Mapping[str, Tensor], *prefixes: str) -> dict[str, Tensor]:
    """Return weights by the names without a prefix; published files have names of old versions."""
    found = {}
    for name, weight in weights.items():
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        found[name.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias")] = weight
    return found


def fairseq_options(*words: str) -> Namespace:
    """Return the options of fairseq-train, defaults included."""
    found = parsers.parse_args_and_arch(parsers.get_training_parser(), [".", *words])
    del found.data
    return found


def new_model(options: Namespace, *dictionaries: str) -> nn.Module:
    """Return a new model of fairseq, for the contents of its dictionaries."""
    found = [Dictionary() for _ in dictionaries]
    for each, lines in zip(found, dictionaries, strict=True):
        each.add_from_file(io.StringIO(lines))
        if options.arch == "roberta":
            each.add_symbol("<mask>")
    torch.manual_seed(1)
    task = Namespace(source_dictionary=found[0], target_dictionary=found[-1])
    return ARCH_MODEL_REGISTRY[options.arch].build_model(Namespace(**vars(options)), task)


def checkpoint(options: Namespace, model: dict[str, Tensor]) -> dict[str, Any]:
    """Return what fairseq-train saves, before the first update and without the state of an optimizer."""
    history = {"criterion_name": "Import", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 0}
    state = {"args": options, "model": model, "optimizer_history": [history]}
    return state | {"extra_state": {"train_iterator": {"epoch": 1}}, "last_optimizer_state": None}
