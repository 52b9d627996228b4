#!/usr/bin/env python3
"""Measure the speed of a RoBERTa classifier of base size without half of its heads (Michel et al. 2019, table 4).

    python benchmarks/roberta_speed.py [--device cpu|cuda] [--batches 1,4,16,64]

Compared are fairseq's `roberta`, `roberta_head_gates` with all heads, and the same without half of the heads of every
layer, in examples per second. The gain is over the model with all heads. Weights and sentences are random.
"""

import argparse
import statistics
from functools import partial

import torch
from bench_models import DTYPES, machine, machine_options, make_task, median_ratio, time_works
from fairseq.models.roberta import RobertaModel
from torch import Tensor, nn

from fairseq_headgates import prune
from fairseq_headgates.plugin.models.roberta import RobertaHeadGatesModel

HEAD = "classes"
WHOLE, HALF = "all heads", "half the heads"


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    torch.manual_seed(1)
    print(f"{machine(options.device)}, torch {torch.__version__}, {options.dtype}, {torch.get_num_threads()} threads")
    models = classifiers(options)
    sizes = ", ".join(f"{name} {sum(p.numel() for p in model.parameters()):,}" for name, model in models.items())
    print(f"parameters: {sizes}; {options.length} tokens\n")
    print(f"{'batch':>5}  {'model':16}{'examples/s':>12}{'gain':>9}")
    for batch in map(int, options.batches.split(",")):
        tokens = torch.randint(4, options.vocabulary, (batch, options.length), device=options.device)
        works = {name: partial(classify, model, tokens) for name, model in models.items()}
        seconds = time_works(works, options.rounds, options.device)
        for name in works:
            gain = 100 * (median_ratio(seconds, WHOLE, name) - 1)
            print(f"{batch:5}  {name:16}{batch / statistics.median(seconds[name]):12.1f}{gain:+8.1f}%")


def classifiers(options: argparse.Namespace) -> dict[str, nn.Module]:
    """Return the models by name, with equal weights."""
    task = make_task(options.vocabulary)
    built = {}
    for name, model_class in (("fairseq", RobertaModel), (WHOLE, RobertaHeadGatesModel)):
        args = argparse.Namespace(max_positions=512)  # the other sizes are those of roberta_base
        built[name] = model_class.build_model(args, task)
        built[name].register_classification_head(HEAD, num_classes=3)
    built[WHOLE].load_state_dict(built["fairseq"].state_dict())
    layers, heads = args.encoder_layers, args.encoder_attention_heads
    built[HALF] = prune(built[WHOLE], {"enc-self": [[int(head < heads // 2) for head in range(heads)]] * layers})
    return {name: model.to(options.device, DTYPES[options.dtype]).eval() for name, model in built.items()}


@torch.no_grad()
def classify(model: nn.Module, tokens: Tensor) -> Tensor:
    return model(tokens, classification_head_name=HEAD)[0]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="1,4,16,64", help="sizes of batches (default: %(default)s)")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sentence (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=50000, help="symbols (default: %(default)s)")
    machine_options(parser, rounds=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
