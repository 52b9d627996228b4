#!/usr/bin/env python3
"""Time per update: fairseq's `transformer`, ours without gates, and ours with gates on all attention types.

    python benchmarks/train_step.py [--size small|base] [--device cpu|cuda] [--dtype fp32 bf16 fp16] [--json FILE]

The models train in one process on the same batches, one update of each in turn, so that a machine whose speed
drifts slows all of them alike. Reported are medians, and the median of the ratio to stock update by update.
One update is: forward, label-smoothed cross-entropy (with the L0 penalty where there are gates), backward,
gradient clipping, Adam.
"""

import argparse
import json
import platform
import statistics
import time
from types import SimpleNamespace

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture
from tqdm import tqdm

from fairseq_headgates.criterions import LabelSmoothedCrossEntropyL0Criterion
from fairseq_headgates.heads import TYPES
from fairseq_headgates.models import TransformerHeadGatesModel

SIZES = {  # width, feed-forward width, layers on each side, heads
    "small": (128, 512, 3, 8),
    "base": (512, 2048, 6, 8),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
VARIANTS = ("stock", "no gates", "gates on all types")


def main() -> None:
    options = parse()
    results = [measure(options, dtype) for dtype in options.dtype]
    for result in results:
        print(f"\n{result['machine']}, {options.size}, {result['tokens']} target tokens an update, {result['dtype']}")
        print(f"{'':20}{'ms/update':>12}{'ratio to stock':>17}")
        for name, row in result["variants"].items():
            print(f"{name:20}{row['ms']:>12.1f}{row['ratio']:>17.3f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--vocabulary", type=int, default=6000)
    parser.add_argument("--sentences", type=int, default=96, help="sentences in a batch (default: %(default)s)")
    parser.add_argument(
        "--length", type=int, default=26, help="longest sentence; the shortest is half (default: %(default)s)"
    )
    parser.add_argument("--dropout", type=float, default=0.1, help="residual dropout (default: %(default)s)")
    parser.add_argument("--attention-dropout", type=float, default=0.0, help="(default: %(default)s, fairseq's)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["fp32"])
    parser.add_argument("--updates", type=int, default=30, help="measured updates of each model (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=3, help="updates before the clock starts (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    return parser.parse_args()


def measure(options: argparse.Namespace, dtype: str) -> dict:
    """Trains all variants in turn and returns medians in milliseconds and ratios."""
    updates = {name: make_update(options, name, DTYPES[dtype]) for name in VARIANTS}
    generator = torch.Generator().manual_seed(0)
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    tokens = 0
    for i in tqdm(range(options.warm_up + options.updates), desc=dtype, leave=False):
        sample = make_sample(options, generator)
        tokens = sample["ntokens"]
        order = VARIANTS[i % 3 :] + VARIANTS[: i % 3]  # nobody is always first
        for name in order:
            seconds = timed(updates[name], sample, options.device)
            if i >= options.warm_up:
                times[name].append(seconds)
    rows = {
        name: {
            "ms": 1000 * statistics.median(times[name]),
            "ratio": statistics.median(a / b for a, b in zip(times[name], times["stock"], strict=True)),
        }
        for name in VARIANTS
    }
    machine = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    return {
        "machine": machine,
        "torch": torch.__version__,
        "dtype": dtype,
        "tokens": tokens,
        **vars(options),
        "variants": rows,
    }


def make_update(options: argparse.Namespace, name: str, dtype: torch.dtype):
    """A function that does one update of one variant on a batch."""
    task = make_task(options.vocabulary)
    torch.manual_seed(1)
    if name == "stock":
        model = TransformerModel.build_model(make_args(options), task)
        criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    elif name == "no gates":
        model = TransformerHeadGatesModel.build_model(make_args(options), task)
        criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    else:
        model = TransformerHeadGatesModel.build_model(make_args(options, gate_heads=",".join(TYPES)), task)
        criterion = LabelSmoothedCrossEntropyL0Criterion(task, False, 0.1, l0_weight=0.01, l0_reduction="sum")
    model.to(options.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def update(sample: dict) -> None:
        optimizer.zero_grad()
        with torch.autocast(options.device, dtype, enabled=dtype != torch.float32):
            loss, size, _ = criterion(model, sample)
        (loss / size).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return update


def make_task(vocabulary: int) -> SimpleNamespace:
    dictionary = Dictionary()
    for i in range(vocabulary):
        dictionary.add_symbol(str(i))
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def make_args(options: argparse.Namespace, **gates: str) -> argparse.Namespace:
    width, ffn, layers, heads = SIZES[options.size]
    sizes = {
        "embed_dim": width,
        "ffn_embed_dim": ffn,
        "layers": layers,
        "attention_heads": heads,
        "normalize_before": True,
    }
    args = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sizes.items()}
    dropout = {"dropout": options.dropout, "attention_dropout": options.attention_dropout}
    namespace = argparse.Namespace(**args, **dropout, share_all_embeddings=True, **gates)
    base_architecture(namespace)
    return namespace


def make_sample(options: argparse.Namespace, generator: torch.Generator) -> dict:
    """A batch of random sentences of different lengths, padded as fairseq pads: source left, target right."""
    shape = (options.sentences, options.length)
    lengths = torch.randint(options.length // 2, options.length + 1, shape[:1], generator=generator)
    positions = torch.arange(options.length)
    source = torch.randint(4, options.vocabulary, shape, generator=generator)
    source[positions < options.length - lengths[:, None]] = 1
    target = torch.randint(4, options.vocabulary, shape, generator=generator)
    target[positions >= lengths[:, None]] = 1
    net_input = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": target.roll(1, 1)}
    net_input = {key: value.to(options.device) for key, value in net_input.items()}
    return {
        "net_input": net_input,
        "target": target.to(options.device),
        "ntokens": int(lengths.sum()),
        "nsentences": len(target),
    }


def timed(update, sample: dict, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    update(sample)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
