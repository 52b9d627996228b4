#!/usr/bin/env python3
"""Time and memory of relevance propagation, per explained target token, beside a forward pass.

    python benchmarks/relevance_speed.py [--size small|base] [--layers N] [--length N] [--batch N ...] [--device cuda]

A model with random weights explains every position of random sentences without padding. Reported are the time of the
fastest round per target token (what else runs on the machine only adds to it), and the most memory that torch's
allocator has handed out at one time, parameters not counted.
"""

import argparse
import json

import torch
from bench_models import SIZES, machine, make_args, make_task, peak_bytes, seconds_of
from fairseq.models.transformer import TransformerModel

from fairseq_headgates.relevance import RULES, explain


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    model = make_model(options)
    rows = [measure(options, model, batch, rule) for batch in options.batch for rule in options.rule]
    width, ffn, _, heads = SIZES[options.size]
    print(f"\n{machine(options.device)}; width {width}, feed-forward {ffn}, {options.layers}+{options.layers} layers,")
    print(
        f"{heads} heads, {options.vocabulary} words, {options.length} tokens on each side; forward pass in brackets\n"
    )
    print(f"{'batch':>5}  {'rule':16}{'ms/token':>18}{'MB':>20}{'times forward':>16}{'conserved':>12}")
    for row in rows:
        time = f"{row['ms']:.2f} ({row['forward_ms']:.2f})"
        memory = f"{row['bytes'] / 1e6:.1f} ({row['forward_bytes'] / 1e6:.1f})"
        ratio = row["bytes"] / row["forward_bytes"]
        print(f"{row['batch']:>5}  {row['rule']:16}{time:>18}{memory:>20}{ratio:>16.1f}{row['conserved']:>12.4f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--layers", type=int, default=6, help="on each side (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--length", type=int, default=15, help="tokens on each side (default: %(default)s)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="sentences (default: 1 and 8)")
    parser.add_argument("--rule", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--rounds", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    return parser.parse_args()


def make_model(options: argparse.Namespace) -> TransformerModel:
    args = make_args(options.size)
    args.encoder_layers = args.decoder_layers = options.layers
    torch.manual_seed(0)
    return TransformerModel.build_model(args, make_task(options.vocabulary)).to(options.device).eval()


def measure(options: argparse.Namespace, model: TransformerModel, sentences: int, rule: str) -> dict:
    """The fastest round in milliseconds per target token and the peak in bytes, of explaining and of a forward pass."""
    shape = (sentences, options.length)
    source, prefix = (torch.randint(4, options.vocabulary, shape, device=options.device) for _ in range(2))
    lengths = torch.full(shape[:1], options.length, device=options.device)
    batch = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": prefix}

    def forward() -> None:
        with torch.no_grad():
            model(**batch)

    work = {"": lambda: explain(model, batch, rule), "forward_": forward}
    row = {"batch": sentences, "rule": rule, "conserved": explain(model, batch, rule).conserved.min().item()}
    for name, run in work.items():
        run()
        seconds = min(seconds_of(run, options.device) for _ in range(options.rounds))
        row[f"{name}ms"] = 1000 * seconds / (sentences * options.length)
        row[f"{name}bytes"] = peak_bytes(run, options.device)
    return row


if __name__ == "__main__":
    main()
