#!/usr/bin/env python3
"""Measure the cost of scoring all heads of a model, relative to training steps and forward passes.

    python benchmarks/importance_speed.py [--size small|base|big] [--device cpu|cuda]
        [--parts gradient confidence ablation relevance]

Everything runs on the same batch, in turn:

    gradient     relative to forward, loss and backward of a training step of fairseq's transformer
    confidence   relative to its forward pass
    ablation     the loss without each head, relative to one forward pass for each head; and the naive loop
    relevance    for every rule: milliseconds for a target position, relative to a forward pass; the peak memory of
                 tensors, and that of a forward pass
"""

import argparse
from functools import partial

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models.transformer import TransformerModel
from harness import begin, finish, make_args, make_parser, make_task, peak_bytes, timed, training_batch

from fairseq_headgates import HeadTable, masked, use_head_attention
from fairseq_headgates.attention.modules import head_counts
from fairseq_headgates.scores.importance import score
from fairseq_headgates.scores.relevance.explaining import OTHERS, explain
from fairseq_headgates.scores.relevance.rules import RULES

PARTS = ("gradient", "confidence", "ablation", "relevance")


def main() -> None:
    options = parse()
    begin(options)
    torch.manual_seed(1)
    bench = Bench(options)
    finish(options, {part: getattr(bench, part)() for part in options.parts})


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, "--rounds", length=26, rounds=7)
    add = parser.add_argument
    add("--sentences", type=int, default=32, help="sentences of the batch; the shortest has half of --length tokens")
    add("--relevance-sentences", type=int, nargs="+", default=[1, 8], help="sentences whose relevance is computed")
    add("--relevance-length", type=int, default=15, help="tokens on each side of these")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    return parser.parse_args()


class Bench:
    """fairseq's model, this plugin's, and one batch."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.task, args = options, make_task(options.vocabulary), make_args(options.size)
        self.stock = TransformerModel.build_model(args, self.task).to(options.device)
        self.ours = use_head_attention(TransformerModel.build_model(args, self.task)).to(options.device).eval()
        self.criterion = LabelSmoothedCrossEntropyCriterion(self.task, False, 0.1)
        self.batch = training_batch(options)

    def training(self) -> None:
        self.stock.train().zero_grad()
        loss, size, _ = self.criterion(self.stock, self.batch)
        (loss / size).backward()

    @torch.no_grad()
    def forward(self) -> None:
        self.stock.eval()(**self.batch["net_input"])

    def score(self, method: str) -> None:
        score(self.ours, self.task, [self.batch], method)

    @torch.no_grad()
    def naive_ablation(self) -> None:
        """Do a whole forward pass for every head."""
        for attention_type, (layers, heads) in head_counts(self.ours).items():
            for number in range(layers * heads):
                rows = (torch.arange(layers * heads) != number).int().view(layers, heads).tolist()
                with masked(self.ours, HeadTable({attention_type: rows})):
                    self.criterion(self.ours, self.batch)

    def compared(self, works: dict, times: float = 1) -> dict[str, dict]:
        """Return milliseconds, and ratios to `times` times the first work."""
        seconds = timed(works, self.options)
        first, *others = seconds
        base = {first: seconds[first], **dict.fromkeys(others, times * seconds[first])}
        return {name: {"ms": 1000 * each, "ratio": each / base[name]} for name, each in seconds.items()}

    def gradient(self) -> dict[str, dict]:
        return self.compared({"training step": self.training, "gradient": partial(self.score, "gradient")})

    def confidence(self) -> dict[str, dict]:
        return self.compared({"forward pass": self.forward, "confidence": partial(self.score, "confidence")})

    def ablation(self) -> dict[str, dict]:
        heads = sum(layers * heads for layers, heads in head_counts(self.ours).values())
        scored = {
            f"ablation of {heads} heads": partial(self.score, "ablation"),
            "the same, naively": self.naive_ablation,
        }
        return self.compared({"forward pass": self.forward, **scored}, heads)

    def relevance(self) -> dict[str, dict]:
        """Explain every position of sentences without padding."""
        model, rows, length = self.stock.eval(), {}, self.options.relevance_length
        for sentences in self.options.relevance_sentences:
            tokens = torch.randint(4, self.options.vocabulary, (2, sentences, length), device=self.options.device)
            lengths = torch.full((sentences,), length, device=self.options.device)
            batch = {"src_tokens": tokens[0], "src_lengths": lengths, "prev_output_tokens": tokens[1]}
            works = {"forward pass": torch.no_grad()(partial(model, **batch))}
            works |= {rule: partial(explain, model, batch, rule) for rule in (*OTHERS, *RULES)}
            for name, row in self.compared(works).items():
                position = {"ms a position": row["ms"] / (sentences * length), "ratio": row["ratio"]}
                peak = peak_bytes(works[name], self.options.device) / 1e6
                rows[f"{name}, {sentences} x {length}"] = {**position, "MB": peak}
        return rows


if __name__ == "__main__":
    main()
