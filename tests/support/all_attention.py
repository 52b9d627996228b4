"""A small all-attention language model."""

import argparse

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
