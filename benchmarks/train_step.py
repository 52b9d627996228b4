#!/usr/bin/env python3
"""Measure the time of an update: fairseq's `transformer`, and this plugin without gates and with each gating method.

    python benchmarks/train_step.py [--size small|base] [--device cpu|cuda] [--dtype fp32 bf16 fp16] [--json FILE]

The models train in one process on the same batches, one update of each in turn, so that changes in the speed of the
machine affect all of them. Gates are on all attention types. The table has medians, and the median of the ratio to
stock of single updates. An update is forward, label-smoothed cross-entropy (with the penalty of the gating method),
backward, gradient clipping, Adam.
"""

import argparse
import json
import statistics
from functools import partial

import torch
from bench_models import (
    DTYPES,
    batch_options,
    machine,
    make_args,
    make_task,
    median_ratio,
    next_update,
    take_turns,
    training_batches,
    training_update,
)
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models.transformer import TransformerModel
from tqdm import tqdm

from fairseq_headgates.files import write_whole
from fairseq_headgates.heads import TYPES
from fairseq_headgates.plugin.criterions.losses import PENALISED
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel

VARIANTS = {
    "stock": {},
    "no gates": {},
    "l0": {},
    "lagrangian": {"sparsity_method": "lagrangian", "target_heads": "0.5"},
    "subset": {"sparsity_method": "subset", "target_heads": "0.5"},
}


def main() -> None:
    options = parse()
    results = [measure(options, dtype) for dtype in options.dtype]
    for result in results:
        print(f"\n{result['machine']}, {options.size}, {result['tokens']} target tokens an update, {result['dtype']}")
        print(f"{'':20}{'ms/update':>12}{'ratio to stock':>17}")
        for name, row in result["variants"].items():
            print(f"{name:20}{row['ms']:>12.1f}{row['ratio']:>17.3f}")
    if options.json:
        write_whole(options.json, json.dumps(results, indent=1) + "\n", force=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    batch_options(parser, vocabulary=6000, sentences=96)
    parser.add_argument("--dropout", type=float, default=0.1, help="residual dropout (default: %(default)s)")
    parser.add_argument("--attention-dropout", type=float, default=0.0, help="(default: %(default)s, fairseq's)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["fp32"])
    parser.add_argument("--updates", type=int, default=30, help="measured updates of each model (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=3, help="updates that are not measured (default: %(default)s)")
    return parser.parse_args()


def measure(options: argparse.Namespace, dtype: str) -> dict:
    """Train all variants in turn; return medians in milliseconds, and ratios."""
    updates = {name: make_update(options, name, DTYPES[dtype]) for name in VARIANTS}
    batch_of = partial(training_batches, options.sentences, options.length, options.vocabulary, options.device)
    ready = {name: partial(next_update, update, batch_of()) for name, update in updates.items()}
    with tqdm(total=options.warm_up + options.updates, desc=dtype, leave=False) as bar:
        seconds = take_turns(ready, options.updates, options.warm_up, options.device, bar)
    rows = {
        name: {"ms": 1000 * statistics.median(seconds[name]), "ratio": median_ratio(seconds, name, "stock")}
        for name in VARIANTS
    }
    return {
        **vars(options),
        "machine": machine(options.device),
        "torch": torch.__version__,
        "dtype": dtype,
        "tokens": next(batch_of())["ntokens"],
        "variants": rows,
    }


def make_update(options: argparse.Namespace, name: str, dtype: torch.dtype):
    """Return a function that does one update of one variant on a batch."""
    task = make_task(options.vocabulary)
    args = partial(make_args, options.size, options.dropout, options.attention_dropout)
    criterion = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)
    torch.manual_seed(1)
    if name == "stock":
        model = TransformerModel.build_model(args(), task)
    elif name == "no gates":
        model = TransformerHeadGatesModel.build_model(args(), task)
    else:
        model = TransformerHeadGatesModel.build_model(args(gate_heads=",".join(TYPES), **VARIANTS[name]), task)
        criterion = PENALISED["label_smoothed_cross_entropy"](task, False, 0.1)
        criterion.set_l0("0.01" if name == "l0" else "0")
    return training_update(model, criterion, options.device, dtype)


if __name__ == "__main__":
    main()
