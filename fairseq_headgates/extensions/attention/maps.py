"""The attention maps of heads for single sentences."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fairseq_headgates.attention.anatomy import attention_modules
from fairseq_headgates.attention.hooks import observe
from fairseq_headgates.attention.modules import evaluating, gate_values
from fairseq_headgates.data.losses import Sample, outputs
from fairseq_headgates.data.sentences import symbols_of
from fairseq_headgates.heads import AttentionMap, HeadId
from fairseq_headgates.messages import check_finite


def attention_maps(model: nn.Module, task: Any, sample: Sample, heads: Sequence[HeadId]) -> list[AttentionMap]:
    """Return the attention weights of `heads` for a sample of one sentence without padding."""
    with evaluating(model), torch.no_grad(), observe(model) as seen:
        outputs(model, sample)
    sides = symbols_of(sample, task)
    gates = gate_values(model)
    kept = {(module.attention_type, module.layer): tuple(module.attention.kept) for module in attention_modules(model)}
    maps = []
    for head in heads:
        queries, keys = sides[head.attention_type]
        remaining = kept[head.attention_type, head.layer]
        if head.head not in remaining:
            maps.append(AttentionMap(head, None, queries, keys, []))
            continue
        weights = seen[head.attention_type][head.layer].weights[0, remaining.index(head.head)].float()
        if weights.size(-1) != len(keys):
            raise ValueError("attention maps of models with --cross-self-attention cannot be drawn")
        check_finite(f"the attention weights of {head}", weights)
        gate = float(gates[head.attention_type][head.layer, head.head])
        maps.append(AttentionMap(head, gate, queries, keys, weights.tolist()))
    return maps
