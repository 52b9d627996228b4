"""Explain predictions: the relevance of heads and tokens by one of several methods.

Shapes: B sentences, N predictions of a sentence, S source, T target length, L layers, H heads.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import layers_of
from fairseq_headgates.attention.features import model_features
from fairseq_headgates.attention.modules import evaluating, use_head_attention
from fairseq_headgates.scores.relevance.alti import alti
from fairseq_headgates.scores.relevance.attnlrp import attnlrp
from fairseq_headgates.scores.relevance.predictions import Predictions, Relevance
from fairseq_headgates.scores.relevance.rules import RULES, Rule
from fairseq_headgates.scores.relevance.walk import propagate

logger = logging.getLogger(__name__)

TOLERANCE = 0.1  # share of relevance that may be lost without a warning; with the eps of RULES it is about 0.01
OTHERS: Mapping[str, Callable[[Any, Predictions], Relevance]] = {"attnlrp": attnlrp, "alti": alti}

# Features of a model that relevance can be propagated through; see attention/features.py.
SUPPORTED = (
    "gates",
    "fixed-heads",
    "no-encoder",
    "no-decoder",
    "no-positions",
    "adaptive-input",
    "character-input",
    "decoder-dims",
    "lang-tok",
)
ALL_ATTENTION = "class AllAttentionDecoder"  # the rules of RULES have none for its persistent vectors


class NotFiniteError(RuntimeError, ValueError):
    """Relevance is infinite or NaN. It is also a ValueError, which the commands report in one line."""


def head_relevance(
    model: nn.Module,
    net_input: Mapping[str, Tensor],
    rule: str | Rule = "story-of-heads",
    classification_head: str | None = None,
) -> dict[str, Tensor]:
    """Return the relevance of every head for the top-1 logit: {type: [B, N, L, H]}; see `explain`."""
    return explain(model, net_input, rule, classification_head=classification_head).heads


def token_contributions(
    model: nn.Module, net_input: Mapping[str, Tensor], rule: str | Rule = "story-of-heads"
) -> tuple[Tensor, Tensor]:
    """Return the relevance of source [B, N, S] and target tokens [B, N, T] for the top-1 logit; see `explain`."""
    relevance = explain(model, net_input, rule)
    return relevance.source, relevance.target


@torch.no_grad()
def explain(
    model: Any,
    net_input: Mapping[str, Tensor],
    method: str | Rule = "attnlrp",
    predicted: Tensor | None = None,
    instead_of: Tensor | None = None,
    classification_head: str | None = None,
    positions: Sequence[int] | None = None,
) -> Relevance:
    """Explain predictions of a model by the relevance of heads and tokens for their logits.

    A model with a decoder makes N = T predictions, one at every target position; an encoder with a classification head
    predicts one class, N = 1.

    Args:
        model: a fairseq transformer, encoder-decoder or language model (that of all-attention layers with "attnlrp" and
            "alti"), or RoBERTa with a classification head, evaluated without dropout; its attention modules become
            `HeadAttention`. Heads whose gate or mask is 0 have no relevance.
        net_input: the input of the model: src_tokens [B, S] and prev_output_tokens [B, T], or src_tokens [B, T] of a
            language model
        method: layer-wise relevance propagation by a rule, a name in `RULES` or a `Rule`; "attnlrp" (Achtibat et al.
            2024); or "alti", ALTI+ (Ferrando et al. 2022), which has no relevance of heads, and does not depend on what
            is predicted
        predicted: tokens or classes [B, N] whose logits are explained, by default those with the highest logits
        instead_of: other tokens or classes [B, N]: explain by how much the logit is above theirs (contrastive
            explanation, Yin & Neubig 2022)
        classification_head: name of the classification head of an encoder; None for its only one
        positions: positions from 0 of the predictions to explain, by default all; the others have no relevance

    Raises:
        ValueError: with every reason, for a model that is not supported
        RuntimeError: if relevance is not finite
    """
    if isinstance(method, str) and method in OTHERS:
        chosen = OTHERS[method]
    else:
        chosen = partial(propagate, rule=RULES[method] if isinstance(method, str) else method)
    if method == "alti" and instead_of is not None:
        raise ValueError(
            "alti does not depend on what is predicted: choose another method for instead_of (--instead-of)"
        )
    _check(model, method)
    with evaluating(model):
        predictions = Predictions.of(model, net_input, predicted, instead_of, classification_head, positions)
        relevance = chosen(model, predictions)
    real = predictions.real
    for values in (*relevance.heads.values(), relevance.source, relevance.target, relevance.conserved):
        values.masked_fill_(~real.view(*real.shape, *[1] * (values.dim() - 2)), 0)
    lost = (relevance.conserved - 1)[real].abs().amax().item() if real.any() else 0.0
    if not math.isfinite(lost):
        raise NotFiniteError("relevance is not finite: check the weights for inf and NaN, or leave out --fp16")
    if lost > TOLERANCE and method not in OTHERS:
        logger.warning(
            "up to %.0f %% of the relevance of a logit is lost in rescaling: use a `Rule` with a rescale_eps below %g",
            100 * lost,
            (method if isinstance(method, Rule) else RULES[method]).rescale_eps,
        )
    return relevance


def _check(model: Any, method: str | Rule) -> None:
    """Raise ValueError, with every reason, if relevance cannot be propagated through a model."""
    features = model_features(model)
    supported = (*SUPPORTED, ALL_ATTENTION) if method in OTHERS else SUPPORTED
    reasons = [description for name, description in features.items() if name not in supported]
    foreign = any(name.startswith("class ") and name != ALL_ATTENTION for name in features)
    if not foreign and "no-decoder" not in features:
        output = model.decoder.output_projection if model.decoder.adaptive_softmax is None else None
        if output is not None and not isinstance(output, nn.Linear):
            reasons.append(f"an output projection of class {type(output).__name__}")
        if output is None and ALL_ATTENTION in features:  # of other models it is a feature
            reasons.append("an adaptive softmax (--adaptive-softmax-cutoff)")
    if method == "attnlrp" and not reasons and any("forward" in vars(layer) for layer in layers_of(model)):
        reasons.append("activation checkpointing (--checkpoint-activations)")
    if reasons:
        raise ValueError(
            "relevance cannot be propagated through this model: it has "
            + ", ".join(reasons)
            + "; choose another method"
        )
    use_head_attention(model)
