"""A small all-attention language model, and the same as loops over queries, keys and heads."""

import argparse
import math

import torch

from fairseq_headgates.extensions.all_attention.model import TransformerLMAllAttentionModel
from support.models import VOCABULARY, make_task

SIZES = {"decoder_layers": 2, "decoder_embed_dim": 8, "decoder_input_dim": 8, "decoder_output_dim": 8}
SIZES |= {"decoder_attention_heads": 2, "persistent_vectors": 3, "tokens_per_sample": 4, "max_target_positions": 64}


def make_model(seed=0, **options):
    args = argparse.Namespace(**{**SIZES, "dropout": 0.0, "arch": "transformer_lm_all_attention", **options})
    TransformerLMAllAttentionModel.set_defaults(args)
    torch.manual_seed(seed)
    task = make_task()
    task.consecutive = True
    return TransformerLMAllAttentionModel.build_model(args, task).eval()


def make_blocks():
    """Four batches of two rows of four tokens, with stream and place of the blocks."""
    tokens = torch.randint(4, VOCABULARY, (4, 2, 4), generator=torch.Generator().manual_seed(0))
    # The second row begins a new stream in the third batch.
    numbers = [[[0, 0], [1, 0]], [[0, 1], [1, 1]], [[0, 2], [2, 0]], [[0, 3], [2, 1]]]
    return [(each, torch.tensor(number)) for each, number in zip(tokens, numbers, strict=True)]


class NaiveModel:
    """The model with one row, query, head and key at a time. Memory is a list of states by row and layer."""

    def __init__(self, model, mem_len):
        self.model, self.mem_len = model, mem_len
        self.last, self.memory = {}, {}

    def __call__(self, tokens, blocks):
        return torch.stack(
            [self.row(i, row, block.tolist()) for i, (row, block) in enumerate(zip(tokens, blocks, strict=True))]
        )

    def row(self, row, tokens, block):
        decoder = self.model.decoder
        stream, place = block
        if self.last.get(row) != (stream, place - 1):
            self.memory[row] = [[] for _ in decoder.layers]
        self.last[row] = (stream, place)
        states = list(decoder.embed_scale * decoder.embed_tokens(tokens))
        for number, layer in enumerate(decoder.layers):
            before = self.memory[row][number]
            self.memory[row][number] = (
                ([*before, *(x.detach() for x in states)])[-self.mem_len :] if self.mem_len else []
            )
            states = self.layer(layer, before, states)
        return decoder.output_layer(torch.stack([decoder.layer_norm(x) for x in states]))

    def layer(self, layer, before, states):
        every = [layer.self_attn_layer_norm(x) for x in [*before, *states]]
        found = []
        for i, x in enumerate(states):
            at = len(before) + i
            found.append(x + self.attention(layer.self_attn, every, at))
        return found

    def attention(self, attention, every, at):
        size = attention.head_dim
        heads = []
        for head in range(attention.num_heads):
            rows = slice(head * size, (head + 1) * size)
            query = attention.q_proj.weight[rows] @ every[at]
            b, c = attention.query_bias.content[head], attention.query_bias.position[head]
            scores, values = [], []
            for j in range(at + 1):
                key = attention.k_proj.weight[rows] @ every[j]
                distance = attention.position_proj.weight[rows] @ encoding(at - j, attention.embed_dim)
                scores.append(((query + b) @ key + (query + c) @ distance) / math.sqrt(size))
                values.append(attention.v_proj.weight[rows] @ every[j])
            vectors = attention.persistent.key.size(1)
            for n in range(vectors):
                scores.append((query + b) @ (math.sqrt(size) * attention.persistent.key[head, n]) / math.sqrt(size))
                values.append(math.sqrt(vectors) * attention.persistent.value[head, n])
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(w * v for w, v in zip(weights, values, strict=True)))
        return attention.out_proj.weight @ torch.cat(heads)


def encoding(distance, dim):
    """The sine and the cosine of the distance at dim / 2 rates."""
    angles = [distance / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.double)
