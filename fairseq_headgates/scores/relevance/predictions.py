"""What is explained: predictions of a model on a batch, and the result, relevance of heads and tokens.

Shapes: B sentences, S source length, T target length, N predictions of a sentence: T of a decoder, 1 of a classifier;
L layers, H heads, E size of the features, C number of classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import stacks_of
from fairseq_headgates.attention.hooks import recorded
from fairseq_headgates.attention.modules import head_counts
from fairseq_headgates.messages import quoted


@dataclass(frozen=True)
class Relevance:
    """Relevance of heads and tokens for each prediction; 0 at padding.

    Attributes:
        heads: {type: [B, N, L, H]}, the sum of absolute relevance at the input of the output projection, over tokens
            and the D numbers of a head, for the H heads that the model was trained with; empty with ALTI+
        source: [B, N, S], the sum of relevance at the input of the first encoder layer, by prediction and token; S is 0
            for a language model
        target: [B, N, T], the same for the decoder; T is 0 for an encoder
        predicted: [B, N], the token or class whose logit is explained
        conserved: [B, N], of LRP rules the sum of absolute relevance at the inputs of the first layers of encoder and
            decoder: 1 minus the share lost to eps. Of AttnLRP, the sum of relevance divided by the logit: the rest is
            that of biases and, in the all-attention model, of persistent vectors and the memory. Of ALTI+ 1, or less
            where no token contributed to the output of a block.
    """

    heads: dict[str, Tensor]
    source: Tensor
    target: Tensor
    predicted: Tensor
    conserved: Tensor

    def contributions(self) -> Tensor:
        """Return the relevance of source and prefix tokens, divided by the sum of absolute values: [B, N, S + T]."""
        both = torch.cat([self.source, self.target], -1)
        return both / both.abs().sum(-1, keepdim=True).clamp(min=torch.finfo(both.dtype).tiny)

    def source_share(self) -> Tensor:
        """Return the share of the source in the absolute relevance of all tokens (Voita et al. 2021): [B, N]."""
        return self.contributions()[..., : self.source.size(-1)].abs().sum(-1)


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model on a batch.

    Attributes:
        net_input: the input of the model
        sources: tokens of the encoder [B, S]
        targets: input tokens of the decoder [B, T]
        pad: number of the padding symbol
        predicted: tokens, or classes, whose logits are explained [B, N]
        instead_of: others whose logits are subtracted [B, N], or None
        head: name of the classification head; None for a decoder
        positions: positions of the predictions that are explained, None for all
    """

    net_input: Mapping[str, Tensor]
    sources: Tensor
    targets: Tensor
    pad: int
    predicted: Tensor
    instead_of: Tensor | None
    head: str | None
    positions: Sequence[int] | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        net_input: Mapping[str, Tensor],
        predicted: Tensor | None,
        instead_of: Tensor | None,
        head: str | None,
        positions: Sequence[int] | None,
    ) -> Predictions:
        """Return the predictions to explain, by default those with the highest logits. Raise ValueError."""
        sides, tokens = stacks_of(model), net_input["src_tokens"]
        sources = tokens if "encoder" in sides else tokens[:, :0]
        targets = net_input.get("prev_output_tokens", tokens) if "decoder" in sides else tokens[:, :0]
        head, pad = None if "decoder" in sides else chosen_head(model, head), next(iter(sides.values())).padding_idx
        if predicted is None:
            options = {} if head is None else {"features_only": True, "classification_head_name": head}
            with _memory_kept(model):
                predicted = model(**net_input, **options)[0].argmax(-1).view(len(tokens), -1)
        predictions = cls(net_input, sources, targets, pad, predicted, instead_of, head, positions)
        shape = (len(tokens), targets.size(1) if head is None else 1)
        for name, chosen in (("predicted", predicted), ("instead_of", instead_of)):
            if chosen is not None and chosen.shape != shape:
                raise ValueError(f"{name} has the shape {tuple(chosen.shape)}: it must be {shape}")
        return predictions

    @property
    def there(self) -> Tensor:
        """Which predictions are not at padding: [B, N]."""
        return torch.ones_like(self.predicted, dtype=torch.bool) if self.head else self.targets != self.pad

    @property
    def real(self) -> Tensor:
        """Which of these are explained, those that are chosen and not compared with themselves: [B, N]."""
        explained = self.there if self.instead_of is None else self.there & (self.predicted != self.instead_of)
        if self.positions is not None:
            chosen = torch.zeros_like(explained)
            chosen[:, list(self.positions)] = True
            explained = explained & chosen
        return explained

    def places(self, row: int) -> tuple[Tensor, Tensor]:
        """Return the positions of a sentence without padding: [S'] in the source and [T'] in the target."""
        return tuple((side[row] != self.pad).nonzero()[:, 0] for side in (self.sources, self.targets))  # type: ignore[return-value]

    def readout(self, model: Any) -> tuple[Tensor, Tensor | None]:
        """Return weight [B, N, E] and bias [B, N], or None, of the logits, or differences of logits, to explain."""
        layer = model.decoder.output_projection if self.head is None else model.classification_heads[self.head].out_proj

        def rows(of: Tensor) -> Tensor:
            of_predicted = of[self.predicted]
            return of_predicted if self.instead_of is None else of_predicted - of[self.instead_of]

        return rows(layer.weight), None if layer.bias is None else rows(layer.bias)

    def empty(self, model: nn.Module, like: Tensor) -> Relevance:
        """Return a result that is filled with zeros, with the device and data type of a tensor."""
        shape = self.predicted.shape
        return Relevance(
            heads={each: like.new_zeros(*shape, *size) for each, size in head_counts(model).items()},
            source=like.new_zeros(*shape, self.sources.size(1)),
            target=like.new_zeros(*shape, self.targets.size(1)),
            predicted=self.predicted.masked_fill(~self.there, self.pad),
            conserved=like.new_zeros(shape),
        )


def chosen_head(model: Any, name: str | None) -> str:
    """Return the name of a classification head of an encoder, by default of its only one. Raise ValueError."""
    names = list(getattr(model, "classification_heads", {}))
    if not names:
        raise ValueError(
            "relevance of an encoder is that for a class, and the model has no classification head: fine-tune it with "
            "--criterion sentence_prediction"
        )
    if name not in (names if len(names) > 1 else [*names, None]):
        raise ValueError(f"there is no classification head {quoted(name)}: choose from {', '.join(map(quoted, names))}")
    chosen = name or names[0]
    if model.classification_heads[chosen].out_proj._forward_pre_hooks:
        raise ValueError("the classification head has spectral norm, which relevance does not support")
    return chosen


@contextmanager
def _memory_kept(model: Any) -> Iterator[None]:
    """Within the context, a forward pass does not change the memory of an all-attention model."""
    memories = getattr(getattr(model, "decoder", None), "memories", {})
    before = dict(memories)
    try:
        yield
    finally:
        memories.clear()
        memories.update(before)


def layer_states(model: Any, net_input: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """Run a model. Return the inputs of all layers and the output of the last: {side: [T, B, E] each}."""
    stacks = {side: list(stack.layers) for side, stack in stacks_of(model).items()}
    inputs = {(side, i): layer for side, layers in stacks.items() for i, layer in enumerate(layers)}
    with recorded(inputs, {side: layers[-1] for side, layers in stacks.items()}) as seen:
        model(**net_input, features_only=True)
    states: dict[str, list[Tensor]] = {side: [] for side in stacks}
    for (side, _), x in seen.inputs.items():
        states[side].append(x)
    for side, y in seen.outputs.items():  # decoder layers return a tuple
        states[side].append(y if isinstance(y, Tensor) else y[0])
    return states
