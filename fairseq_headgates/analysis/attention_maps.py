"""The attention weights of chosen heads for single sentences, with their tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fairseq_headgates.analysis.sentences import symbols_of
from fairseq_headgates.evaluation.losses import Sample, outputs
from fairseq_headgates.heads import TYPES, AttentionMap, HeadId
from fairseq_headgates.messages import shown
from fairseq_headgates.surgery.hooks import observe
from fairseq_headgates.surgery.sites import evaluating, gate_values, head_sites


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
            raise ValueError(f"{option} has {shown(part)}: it must be TYPE:LAYER.HEAD, TYPE:LAYER.* or TYPE:*")
        attention_type, _, layer, head = match.groups()
        if attention_type not in sizes:
            raise ValueError(f"{option} has {shown(part)}, but only {', '.join(sizes)} can be named")
        layers, heads = sizes[attention_type]
        chosen = range(layers) if layer is None else [int(layer)]
        numbers = range(heads) if head in (None, "*") else [int(head)]
        if (layer and int(layer) >= layers) or (numbers and numbers[-1] >= heads):
            raise ValueError(
                f"{option} has {shown(part)}: {attention_type} has {layers} layers of {heads} heads, counted from 0"
            )
        heads_chosen |= {HeadId(attention_type, i, j): None for i in chosen for j in numbers}
    return sorted(heads_chosen, key=lambda each: (TYPES.index(each.attention_type), each.layer, each.head))


def attention_maps(model: nn.Module, task: Any, sample: Sample, heads: Sequence[HeadId]) -> list[AttentionMap]:
    """Return the attention weights of `heads` for a sample of one sentence without padding."""
    with evaluating(model), torch.no_grad(), observe(model) as seen:
        outputs(model, sample)
    sides = symbols_of(sample, task)
    gates = gate_values(model)
    kept = {(site.attention_type, site.layer): tuple(site.attention.kept) for site in head_sites(model)}
    maps = []
    for head in heads:
        queries, keys = sides[head.attention_type]
        there = kept[head.attention_type, head.layer]
        if head.head in there:
            weights = seen[head.attention_type][head.layer].weights[0, there.index(head.head)].float()
            if weights.size(-1) != len(keys):
                raise ValueError("attention maps of models with --cross-self-attention cannot be drawn")
            if not weights.isfinite().all():
                raise ValueError(
                    f"the attention weights of {head} are not finite: check the weights of the model for inf and NaN"
                )
            gate = float(gates[head.attention_type][head.layer, head.head])
            maps.append(AttentionMap(head, gate, queries, keys, weights.tolist()))
        else:
            maps.append(AttentionMap(head, None, queries, keys, []))
    return maps
