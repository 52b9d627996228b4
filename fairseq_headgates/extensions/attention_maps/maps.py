"""The attention weights of chosen heads for single sentences, with their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fairseq_headgates.analysis.sentences import symbols_of
from fairseq_headgates.attention.hooks import observe
from fairseq_headgates.attention.sites import evaluating, gate_values, head_sites
from fairseq_headgates.evaluation.losses import Sample, outputs
from fairseq_headgates.heads import AttentionMap, HeadId


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
