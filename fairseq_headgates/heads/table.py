"""Attention types, heads, and tables of heads.

A `HeadTable` holds a number for every head: gates, scores, or a mask of 0 and 1. Whatever measures heads returns one;
whatever removes or prints heads takes one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from fairseq_headgates.messages import printable, quoted

# The parts of a signature that name the data, besides options, subsets and their numbers of sentences.
DATA = ("data", "langs", "block", "mask", "head")
# Encoder self-, decoder self-, cross-attention.
AttentionType = Literal["enc-self", "dec-self", "dec-enc"]
TYPES: tuple[str, ...] = get_args(AttentionType)


class HeadId(NamedTuple):
    """Identifies a head: attention type, layer and head, both counted from 0. Its text is 'dec-enc 5 0'."""

    attention_type: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.attention_type} {self.layer} {self.head}"

    @classmethod
    def parse(cls, text: str) -> HeadId:
        """Parse the text of a head: 'dec-enc 5 0'."""
        attention_type, layer, head = text.split()
        return cls(attention_type, int(layer), int(head))


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one head for one sentence.

    Attributes:
        head: the head
        gate: its evaluation gate; None for a removed head, which has no weights
        queries: query tokens: of the source (enc-self), of the input of the decoder (dec-self), or the tokens that the
            decoder predicts (dec-enc)
        keys: key tokens
        weights: attention weights [queries][keys]
    """

    head: HeadId
    gate: float | None
    queries: list[str]
    keys: list[str]
    weights: list[list[float]]


@dataclass(frozen=True)
class Contributions:
    """How much each token contributes to the predictions of one sentence.

    Attributes:
        positions: numbers of the predictions, counted from 1
        predicted: the tokens, or the class, that are predicted
        source: source tokens; none of a language model
        prefix: input tokens of the decoder; none of an encoder
        shares: relevance of each source and then of each prefix token, divided by the absolute relevance of all,
            [predicted][tokens]
        instead_of: token that the predictions are compared with
    """

    positions: list[int]
    predicted: list[str]
    source: list[str]
    prefix: list[str]
    shares: list[list[float]]
    instead_of: str | None = None

    @property
    def tokens(self) -> list[str]:
        """All tokens that contribute: source, then prefix."""
        return [*self.source, *self.prefix]

    @property
    def largest(self) -> float:
        """The largest absolute share; 1 if all are 0."""
        return max((abs(share) for row in self.shares for share in row), default=0.0) or 1.0

    def of_source(self) -> list[float]:
        """Return the share of the source in the absolute relevance, for each prediction (Voita et al. 2021)."""
        return [sum(map(abs, row[: len(self.source)])) for row in self.shares]


@dataclass(frozen=True)
class Signature:
    """Describes how a result was computed; its text is 'method|name:value|name:value'.

    `method` may be empty, or several words with '|' between them. Values may hold colons, names and values no '|'.
    """

    parts: Mapping[str, str]
    method: str = ""

    def __str__(self) -> str:
        parts = (f"{name}:{value}" for name, value in self.parts.items())
        return printable("|".join([*filter(None, [self.method]), *parts]))

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Parse the text of a signature."""
        fields = [part.partition(":") for part in text.split("|")]
        method = "|".join(name for name, colon, _ in fields if not colon)
        return cls({name: value for name, colon, value in fields if colon}, method)

    def data(self, subset: str) -> dict[str, str]:
        """Return the parts that name the data of one of the subsets, with the number of its sentences."""
        subsets, numbers = (self.parts.get(name, "").split(",") for name in ("split", "sents"))
        found = {name: self.parts[name] for name in DATA if name in self.parts}
        if number := dict(zip(subsets, numbers, strict=False)).get(subset):
            found["sents"] = number
        return {**found, "options": self.parts.get("options", "fairseq's defaults"), "split": subset}

    def with_parts(self, parts: Mapping[str, object]) -> Signature:
        """Return the signature with other values of some parts, and new parts at the end."""
        return Signature({**self.parts, **{name: str(value) for name, value in parts.items()}}, self.method)

    def of_method(self, method: str, parts: Mapping[str, object]) -> Signature:
        """Return the signature of a method, whose own `parts` come first."""
        return Signature({**{name: str(value) for name, value in parts.items()}, **self.parts}, method)


@dataclass(frozen=True)
class HeadTable(Mapping[HeadId, float]):
    """A number for every head, a mapping: `table[HeadId("dec-enc", 5, 0)]`.

    Iteration is by type, in the order of `TYPES`, then by layer and head: `max(table, key=table.get)` is the head with
    the highest value. `layers[type][layer][head]` holds the numbers as nested lists. `name` says what they are (a
    method, "gate", "alive"), `signature` how they were computed.
    """

    layers: Mapping[str, list[list[float]]]
    name: str = ""
    signature: str = ""

    def __post_init__(self) -> None:
        ordered = {each: [list(layer) for layer in self.layers[each]] for each in TYPES if each in self.layers}
        object.__setattr__(self, "layers", ordered)
        for name in ("name", "signature"):  # of a file, whose lines nobody shall forge
            object.__setattr__(self, name, printable(getattr(self, name)))

    @property
    def types(self) -> tuple[str, ...]:
        """The attention types, in the order of `TYPES`."""
        return tuple(self.layers)

    def __getitem__(self, head: HeadId) -> float:
        with suppress(TypeError, ValueError, LookupError):
            attention_type, layer, number = head
            if layer >= 0 and number >= 0:
                return self.layers[attention_type][layer][number]
        raise KeyError(head)

    def __iter__(self) -> Iterator[HeadId]:
        for attention_type, layers in self.layers.items():
            for layer, row in enumerate(layers):
                for head in range(len(row)):
                    yield HeadId(attention_type, layer, head)

    def __len__(self) -> int:
        return sum(len(row) for layers in self.layers.values() for row in layers)

    def heads(self, attention_type: str) -> list[float]:
        """Return all values of one type, layer after layer."""
        return [value for layer in self.layers[attention_type] for value in layer]

    def rows(self) -> dict[str, list[list[float | None]]]:
        """Return the values for JSON, with None for NaN."""
        return {
            attention_type: [[None if math.isnan(value) else value for value in layer] for layer in layers]
            for attention_type, layers in self.layers.items()
        }

    def map(self, function: Callable[[float], float], name: str = "") -> HeadTable:
        """Return the table with `function` applied to every value."""
        changed = {each: [[function(v) for v in layer] for layer in rows] for each, rows in self.layers.items()}
        return HeadTable(changed, name or self.name, self.signature)

    def count(self, attention_type: str) -> tuple[int, int]:
        """Return how many heads of a type have a value above 0, and the number of all."""
        values = self.heads(attention_type)
        return sum(value > 0 for value in values), len(values)


def parse_types(text: str | None) -> tuple[str, ...]:
    """Parse attention types: 'dec-enc,enc-self' -> ('enc-self', 'dec-enc').

    Raise ValueError for an unknown type.
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in TYPES:
            raise ValueError(f"unknown attention type {quoted(name)}: choose from {', '.join(TYPES)}")
    return tuple(attention_type for attention_type in TYPES if attention_type in names)


def check_shape(table: HeadTable, sizes: Mapping[str, tuple[int, int]], what: str = "the mask") -> None:
    """Raise ValueError, with every reason, unless `table` fits a model with `sizes[type] = (layers, heads)`."""
    reasons = []
    for attention_type, rows in table.layers.items():
        if attention_type not in sizes:
            reasons.append(f"the model has no {attention_type} attention")
            continue
        layers, heads = sizes[attention_type]
        if len(rows) != layers:
            reasons.append(f"{attention_type} has {len(rows)} layers, the model has {layers}")
        reasons += [
            f"{attention_type} layer {i} has {len(row)} heads, the model has {heads}"
            for i, row in enumerate(rows)
            if len(row) != heads
        ]
    if reasons:
        raise ValueError(f"{what} does not fit the model: " + "; ".join(reasons))


def parse_heads(text: str, sizes: Mapping[str, tuple[int, int]], option: str = "--heads") -> list[HeadId]:
    """Parse heads: 'enc-self:0.3,dec-enc:*,dec-self:1.*', types with layer and head, '*' for all.

    Args:
        text: the heads, separated by commas, or 'all'
        sizes: {type: (layers, heads per layer)} of the model
        option: what errors call it

    Raises:
        ValueError: for heads that the model does not have
    """
    heads_chosen: dict[HeadId, None] = {}
    for part in [f"{attention_type}:*" for attention_type in sizes] if text == "all" else text.split(","):
        match = re.fullmatch(r"\s*([a-z-]+):(\*|(\d{1,9})\.(\*|\d{1,9}))\s*", part)
        if match is None:
            raise ValueError(f"{option} has {quoted(part)}: it must be TYPE:LAYER.HEAD, TYPE:LAYER.* or TYPE:*")
        attention_type, _, layer, head = match.groups()
        if attention_type not in sizes:
            raise ValueError(f"{option} has {quoted(part)}, but only {', '.join(sizes)} can be named")
        layers, heads = sizes[attention_type]
        chosen = range(layers) if layer is None else [int(layer)]
        numbers = range(heads) if head in (None, "*") else [int(head)]
        if (layer and int(layer) >= layers) or (numbers and numbers[-1] >= heads):
            raise ValueError(
                f"{option} has {quoted(part)}: {attention_type} has {layers} layers of {heads} heads, counted from 0"
            )
        heads_chosen |= {HeadId(attention_type, i, j): None for i in chosen for j in numbers}
    return sorted(heads_chosen, key=lambda each: (TYPES.index(each.attention_type), each.layer, each.head))
