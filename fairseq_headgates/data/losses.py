"""The loss of a model on a batch. Shapes: B batch, T target length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqLanguageModel
from torch import Tensor

Sample = Mapping[str, Any]

LN2 = math.log(2)
LOGITS = {"cpu": 2**20, "cuda": 2**26}  # so many are computed at a time


def token_losses(model: Any, sample: Sample, counted: Tensor, sampled: bool = False) -> Tensor:
    """Return -log2 p of the target tokens that are `counted`, as fairseq logs `nll_loss`, 0 for the others: [B, T].

    With `sampled`, they are those of tokens that are drawn from the distribution of the model.
    """
    decoder, features = model.decoder, outputs(model, sample)[counted]
    words = drawn_tokens(model, features, uniforms(sample, counted)) if sampled else sample["target"][counted]
    adaptive = getattr(decoder, "adaptive_softmax", None)
    if adaptive is not None:  # the output layer of such a decoder returns the features
        found = _adaptive_cross_entropies(adaptive, features, words) / LN2
    elif takes_features_only(model):
        found = _cross_entropies(decoder, features, words) / LN2
    else:
        found = F.cross_entropy(at_least_single(features), words, reduction="none") / LN2
    return found.new_zeros(counted.shape).masked_scatter(counted, found)


def outputs(model: Any, sample: Sample) -> Tensor:
    """Run a model on a batch: its features before the output layer, or its logits if it does not return features."""
    options = {"features_only": True} if takes_features_only(model) else {}
    return model(**sample["net_input"], **options)[0]


def takes_features_only(model: Any) -> bool:
    """Return whether `forward` of a model has the option `features_only`, which saves the output layer."""
    return isinstance(model, FairseqLanguageModel) or "features_only" in signature(model.forward).parameters


def rows_at_a_time(features: Tensor, symbols: int) -> int:
    """Return for how many features [N, E] the logits of so many symbols are computed at a time."""
    return max(1, LOGITS[features.device.type] // symbols)


def _cross_entropies(decoder: Any, features: Tensor, words: Tensor) -> Tensor:
    """Return -ln p of `words` [N] from the features [N, E] of the last decoder layer."""
    # Few logits at a time: many are slow to write to memory and to read again.
    rows = rows_at_a_time(features, len(decoder.output_layer(features[:1])[0]))
    parts = [
        F.cross_entropy(at_least_single(decoder.output_layer(x)), y, reduction="none")
        for x, y in zip(features.split(rows), words.split(rows), strict=True)
    ]
    return torch.cat(parts)


def _adaptive_cross_entropies(adaptive: Any, features: Tensor, words: Tensor) -> Tensor:
    """Return -ln p of `words` [N] under an adaptive softmax: of the word's cluster, plus of the word within it.

    fairseq's `get_log_prob` writes in place, which breaks a backward pass.
    """
    logits, targets = adaptive(features, words)
    found = F.cross_entropy(at_least_single(logits[0]), targets[0], reduction="none")
    _, places = adaptive.adapt_target(words)
    for x, y, place in zip(logits[1:], targets[1:], places, strict=True):
        if place is not None:
            found = found.index_add(0, place, F.cross_entropy(at_least_single(x), y, reduction="none"))
    return found


@torch.no_grad()
def drawn_tokens(model: Any, features: Tensor, uniform: Tensor) -> Tensor:
    """Return tokens drawn from the distribution of a model: [N].

    Args:
        model: the model
        features: what `outputs` returns for the tokens: [N, E]
        uniform: numbers from 0 to 1: [N]
    """
    decoder = model.decoder
    adaptive = getattr(decoder, "adaptive_softmax", None)
    if adaptive is None and not takes_features_only(model):
        return draw(features, uniform)
    layer = decoder.output_layer if adaptive is None else lambda x: adaptive.get_log_prob(x[None], None)[0]
    rows = rows_at_a_time(features, len(layer(features[:1])[0]))
    parts = zip(features.split(rows), uniform.split(rows), strict=True)
    return torch.cat([draw(layer(x), numbers) for x, numbers in parts])


def uniforms(sample: Sample, counted: Tensor) -> Tensor:
    """Return a random number from 0 to 1 for each target that is `counted` [B, T], on the CPU: [N].

    Those of a sentence depend on its number in the data alone, not on the batch.
    """
    generator, numbers = torch.Generator(), zip(sample["id"].tolist(), counted.sum(1).tolist(), strict=True)
    return torch.cat([torch.rand(n, generator=generator.manual_seed(sentence)).double() for sentence, n in numbers])


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return a number for each row of `logits` [N, V], drawn from their softmax by inversion on the CPU: [N]."""
    sums = at_least_single(logits).softmax(-1).cpu().double().cumsum(-1)
    return torch.searchsorted(sums, uniform[:, None] * sums[:, -1:], right=True).view(-1).to(logits.device)


def at_least_single(x: Tensor) -> Tensor:
    """Convert to single precision, except from double."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
