#!/usr/bin/env python3
"""Measure the speed of the all-attention language model: of one layer at the published size, and of the small preset.

    python benchmarks/all_attention_speed.py [--device cpu|cuda] [--part layer|model]

Compared are the whole layer or model, the same without half of the heads of every layer, and a Transformer-XL-style
one: the same attention without persistent vectors, and a feed-forward block with as many parameters as these (four
times the size of embeddings). A training step is a forward and a backward pass; evaluation is a forward pass that reads
the keys and values of the memory. Weights and inputs are random.
"""

import argparse
import statistics
from functools import partial

import torch
from bench_models import DTYPES, machine, machine_options, make_task, median_ratio, time_works
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor, nn

from fairseq_headgates import prune
from fairseq_headgates.attention.modules import attention_modules
from fairseq_headgates.extensions.all_attention.layer import AllAttention, distance_encodings
from fairseq_headgates.extensions.all_attention.model import TransformerLMAllAttentionModel

PUBLISHED = (512, 8, 2048, 192)  # size of embeddings, heads, vectors, tokens of a block and of the memory
ROWS = 32  # of a batch of the model


class Layer(nn.Module):
    """A pre-norm layer of all-attention, or, with a feed-forward block, of Transformer-XL."""

    def __init__(self, dim: int, heads: int, vectors: int, feed_forward: int = 0):
        super().__init__()
        self.attention, self.norm = AllAttention(dim, heads, vectors), nn.LayerNorm(dim)
        self.feed_forward = None
        if feed_forward:
            parts = (nn.LayerNorm(dim), nn.Linear(dim, feed_forward), nn.ReLU(), nn.Linear(feed_forward, dim))
            self.feed_forward = nn.Sequential(*parts)

    def forward(self, x: Tensor, positions: Tensor, masked: Tensor, memory: Tensor | None, past: object) -> tuple:
        memory = None if memory is None else self.norm(memory)
        y, pairs = self.attention(self.norm(x), positions, masked, memory, past)
        x = x + y
        return (x if self.feed_forward is None else x + self.feed_forward(x)), pairs


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    torch.manual_seed(1)
    print(f"{machine(options.device)}, torch {torch.__version__}, {options.dtype}, {torch.get_num_threads()} threads")
    for part in ("layer", "model") if options.part is None else (options.part,):
        (layer if part == "layer" else model)(options)


def layer(options: argparse.Namespace) -> None:
    """Time a training step and evaluation of one layer at the published size."""
    dim, heads, vectors, length = PUBLISHED
    settings = {"device": options.device, "dtype": DTYPES[options.dtype]}
    layers = {"all-attention": Layer(dim, heads, vectors), "Transformer-XL": Layer(dim, heads, 0, 4 * dim)}
    layers["half the heads"] = prune_layer(layers["all-attention"], heads // 2)
    x, memory = torch.randn(2, length, options.batch, dim, **settings)
    positions = distance_encodings(2 * length, dim, x)
    masked = torch.ones(1, length, 2 * length, dtype=torch.bool, device=options.device).triu(length + 1)
    for module in layers.values():
        module.to(**settings)
    steps = {name: partial(step, module, x, positions, masked, memory) for name, module in layers.items()}
    sizes = f"{dim} dimensions, {heads} heads, {vectors} vectors, block and memory {length}, batch {options.batch}"
    print(f"\none layer: {sizes}")
    show("training step", steps, layers, options)
    passes = {}
    for name, module in layers.items():
        with torch.no_grad():
            past = module(memory, positions[length:], masked[..., length:], None, None)[1]
        passes[name] = partial(evaluate, module, x, positions, masked, past)
    show("evaluation", passes, layers, options)


def prune_layer(whole: Layer, kept: int) -> Layer:
    """Return the layer with the first heads only."""
    holder = nn.Module()
    holder.decoder = nn.Module()
    holder.decoder.layers = nn.ModuleList([nn.ModuleDict({"self_attn": whole.attention})])
    mask = {"dec-self": [[int(head < kept) for head in range(whole.attention.heads)]]}
    smaller = Layer(whole.attention.embed_dim, 1, 1)
    smaller.attention = attention_modules(prune(holder, mask))[0].attention
    smaller.norm = whole.norm
    return smaller


def step(module: nn.Module, *inputs: Tensor) -> None:
    module.zero_grad()
    module(*inputs, None)[0].square().sum().backward()


@torch.no_grad()
def evaluate(module: nn.Module, x: Tensor, positions: Tensor, masked: Tensor, past: tuple) -> None:
    module(x, positions, masked, None, past)


def model(options: argparse.Namespace) -> None:
    """Time the evaluation of the whole small preset, with memory and output layer."""
    args = argparse.Namespace(tokens_per_sample=64, max_target_positions=64)
    ARCH_CONFIG_REGISTRY["transformer_lm_all_attention_small"](args)
    task = make_task(options.vocabulary)
    task.consecutive = True
    whole = TransformerLMAllAttentionModel.build_model(args, task).to(options.device, DTYPES[options.dtype]).eval()
    heads = args.decoder_attention_heads
    half = prune(whole, {"dec-self": [[int(head < heads // 2) for head in range(heads)]] * args.decoder_layers})
    models = {"all-attention": whole, "half the heads": half}
    tokens = torch.randint(4, options.vocabulary, (4, ROWS, args.tokens_per_sample), device=options.device)
    print(f"\nwhole model: transformer_lm_all_attention_small, {options.vocabulary} symbols, 4 blocks, batch {ROWS}")
    show("evaluation", {name: partial(read, each, tokens) for name, each in models.items()}, models, options)


@torch.no_grad()
def read(each: nn.Module, tokens: Tensor) -> None:
    for number, block in enumerate(tokens):
        each(block, blocks=torch.tensor([[row, number] for row in range(len(block))], device=block.device))


def show(what: str, works: dict, modules: dict[str, nn.Module], options: argparse.Namespace) -> None:
    seconds = time_works(works, options.rounds, options.device)
    print(f"{what:16}{'parameters':>12}{'ms':>10}{'speed':>8}")
    for name, module in modules.items():
        number = sum(parameter.numel() for parameter in module.parameters())
        speed = median_ratio(seconds, "all-attention", name)
        print(f"{name:16}{number:12,}{1000 * statistics.median(seconds[name]):10.1f}{speed:8.2f}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("layer", "model"), help="time only this (default: both)")
    parser.add_argument("--batch", type=int, default=4, help="rows of a batch of the layer (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=2000, help="symbols of the model (default: %(default)s)")
    machine_options(parser, rounds=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
