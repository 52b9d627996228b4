#!/usr/bin/env python3
"""Measure the cost of scoring all heads of a model, relative to training steps and forward passes.

    python benchmarks/importance_speed.py [--size small|base] [--parts gradient confidence ablation relevance]
        [--device cpu|cuda] [--json FILE]

Everything runs in one process on the same batch, in turn, so that changes in the speed of the machine affect all of it.
The table has medians, and the median of the ratios of single rounds:

  gradient     relative to forward, loss and backward of a training step of fairseq's transformer
  confidence   relative to its forward pass
  ablation     the loss without each head, relative to one forward pass for each head; and the naive loop
  relevance    milliseconds for a target position, and the peak memory as torch counts it, both relative to a forward
               pass, for every rule
"""

import argparse
import json
import statistics
from functools import partial

import torch
from bench_models import (
    batch_options,
    machine,
    make_args,
    make_task,
    median_ratio,
    peak_bytes,
    time_works,
    training_batches,
)
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models.transformer import TransformerModel

from fairseq_headgates import HeadTable, masked, use_head_attention
from fairseq_headgates.analysis.importance import score
from fairseq_headgates.analysis.relevance.explaining import OTHERS, explain
from fairseq_headgates.analysis.relevance.rules import RULES
from fairseq_headgates.attention.modules import head_counts
from fairseq_headgates.files import write_whole

PARTS = ("gradient", "confidence", "ablation", "relevance")


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = {"options": vars(options), "machine": machine(options.device), "torch": torch.__version__}
    print(f"{results['machine']}, torch {torch.__version__}, {options.size}, vocabulary {options.vocabulary}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        bench = Bench(options)
    for part in options.parts:
        results[part] = getattr(bench, part)()
        for row in results[part]:
            print(
                "  ".join(
                    f"{key}: {value:,.3f}" if isinstance(value, float) else f"{value}" for key, value in row.items()
                )
            )
    if options.json:
        write_whole(options.json, json.dumps(results, indent=1) + "\n", force=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    batch_options(parser, vocabulary=8000, sentences=32)
    parser.add_argument("--relevance-sentences", type=int, nargs="+", default=[1, 8], help="(default: 1 and 8)")
    parser.add_argument("--relevance-length", type=int, default=15, help="tokens on each side (default: %(default)s)")
    parser.add_argument("--relevance-layers", type=int, default=6, help="layers on each side (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--threads", type=int, help="threads on the CPU (default: torch's)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    return parser.parse_args()


class Bench:
    """fairseq's model, this plugin's with the same weights, and one batch."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.task = make_task(options.vocabulary)
        args = make_args(options.size, 0.1, 0.0)
        self.stock = TransformerModel.build_model(args, self.task).to(options.device)
        self.ours = TransformerModel.build_model(args, self.task).to(options.device)
        self.ours.load_state_dict(self.stock.state_dict())
        self.ours = use_head_attention(self.ours).eval()
        self.criterion = LabelSmoothedCrossEntropyCriterion(self.task, False, 0.1)
        self.batch = self._batch(options.sentences, options.length)

    def _batch(self, sentences: int, length: int) -> dict:
        return next(training_batches(sentences, length, self.options.vocabulary, self.options.device))

    def training(self) -> None:
        self.stock.train()
        self.stock.zero_grad()
        loss, size, _ = self.criterion(self.stock, self.batch)
        (loss / size).backward()

    @torch.no_grad()
    def forward(self) -> None:
        self.stock.eval()
        self.stock(**self.batch["net_input"])

    def score(self, method: str) -> None:
        score(self.ours, self.task, [self.batch], method)

    @torch.no_grad()
    def naive_ablation(self) -> None:
        """Do a whole forward pass for every head."""
        sizes = head_counts(self.ours)
        for attention_type, (layers, heads) in sizes.items():
            for layer in range(layers):
                for head in range(heads):
                    rows = [[int((i, j) != (layer, head)) for j in range(heads)] for i in range(layers)]
                    with masked(self.ours, HeadTable({attention_type: rows})):
                        self.criterion(self.ours, self.batch)

    def compare(self, works: dict, base: str, times: float = 1, rounds: int | None = None) -> list[dict]:
        """Return medians in milliseconds, and ratios to `times` times `base`."""
        seconds = time_works(works, rounds or self.options.rounds, self.options.device)
        return [
            {
                "what": f"{name:28}",
                "ms": 1000 * statistics.median(seconds[name]),
                "ratio": median_ratio(seconds, name, base) / (1 if name == base else times),
            }
            for name in works
        ]

    def gradient(self) -> list[dict]:
        works = {"training step": self.training, "gradient": partial(self.score, "gradient")}
        return self.compare(works, "training step")

    def confidence(self) -> list[dict]:
        works = {"forward pass": self.forward, "confidence": partial(self.score, "confidence")}
        return self.compare(works, "forward pass")

    def ablation(self) -> list[dict]:
        heads = sum(layers * heads for layers, heads in head_counts(self.ours).values())
        works = {
            "10 forward passes": lambda: [self.forward() for _ in range(10)],
            f"ablation of {heads} heads": partial(self.score, "ablation"),
            "the same, naively": self.naive_ablation,
        }
        return self.compare(works, "10 forward passes", heads / 10, max(1, self.options.rounds // 2))

    def relevance(self) -> list[dict]:
        """Explain every position of sentences without padding, with --relevance-layers layers on each side."""
        args = make_args(self.options.size)
        args.encoder_layers = args.decoder_layers = self.options.relevance_layers
        model = TransformerModel.build_model(args, self.task).to(self.options.device).eval()
        return [
            self._explained(model, sentences, rule)
            for sentences in self.options.relevance_sentences
            for rule in (*OTHERS, *RULES)
        ]

    def _explained(self, model: TransformerModel, sentences: int, rule: str) -> dict:
        length, device = self.options.relevance_length, self.options.device
        source, prefix = (
            torch.randint(4, self.options.vocabulary, (sentences, length), device=device) for _ in range(2)
        )
        lengths = torch.full((sentences,), length, device=device)
        batch = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": prefix}
        works = {"forward": torch.no_grad()(partial(model, **batch)), "explain": partial(explain, model, batch, rule)}
        forward, explained = self.compare(works, "forward")
        return {
            "what": f"{rule}, {sentences} x {length}".ljust(28),
            "ms a position": explained["ms"] / (sentences * length),
            "forward": forward["ms"] / (sentences * length),
            "MB": peak_bytes(works["explain"], device) / 1e6,
            "forward MB": peak_bytes(works["forward"], device) / 1e6,
            "conserved": works["explain"]().conserved.min().item(),
        }


if __name__ == "__main__":
    main()
