#!/usr/bin/env python3
"""Show where the time of a translation on a CPU goes: arithmetic, memory traffic, fairseq's search, Python.

    python benchmarks/profile_generation.py --size base --vocabulary 8000 --remove 0.5 0.75 --threads 2

The models, with the same weights where the shapes allow it:

    stock   fairseq's own `transformer`
    full    this plugin's model, without gates
    pruned  the same without the share --remove of the heads of every layer, chosen at random

Each translates --batch sentences of --length tokens with fairseq's SequenceGenerator, prepared as in
`fairseq-generate`, to exactly --length tokens and </s>: --length + 1 steps. A translation has these parts:

    encoder     one pass over the batch
    decoder     the decoder with its output layer and log-softmax, at every step
    reordering  of the cache before every step but the first, and of the encoder states before every step
    search      the rest: fairseq's choice of hypotheses, and the sorting of the results

The rows within a part are the self times of operators (without the operators that they call), as torch.profiler
measures them, and `Python`: the time in which no operator runs. `views, allocation` are operators that compute and copy
nothing. An operator that this file does not list is in `unknown`, and named below the table.

In every repetition each model translates once without and once with the profiler. The overhead of the profiler per
operator is measured, and subtracted from the self time of the calling operator. Then the rows of a part (medians over
repetitions) are scaled by one factor, so that they sum to the time of the part without the profiler (a median, too).
`profile / run` is the profiled time of the translation before scaling / its time without the profiler: far from 1, the
figures are unreliable.

The table has ms per encoder pass and per step and, in percent, the share of a row in its part and of a part in the
translation. The
second table compares the matrix multiplications with bounds: the FLOP/s of one large multiplication, and the bytes/s
of one large copy (read and written), with the same threads. Their FLOPs and bytes are computed from the shapes of
their inputs; bytes are weights, keys and values, each read once. Weights that fit the caches of the processor can be
read faster than a copy.
"""

import argparse
import gc
import json
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import bench_variants
import torch
from bench_models import SIZES, check_least, machine, make_generator
from bench_profile import (
    ATTENTION,
    MULTIPLICATIONS,
    PARTS,
    PYTHON,
    ROWS,
    UNKNOWN,
    Cost,
    Result,
    best_seconds,
    recording_seconds,
    run_profile,
    run_times,
)
from fairseq.sequence_generator import SequenceGenerator
from generation_speed import beam_search
from torch import nn
from tqdm import tqdm

from fairseq_headgates.files import write_whole
from fairseq_headgates.messages import fail
from fairseq_headgates.report.tables import text_table


def main() -> None:
    options = parse()
    check(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    models, peak, bandwidth = build(options), peak_flops(), copy_bandwidth()
    works = {name: make_generator(options, model) for name, model in models.items()}
    results = measure(options, works)
    print(
        f"{machine('cpu')}, torch {torch.__version__}: {peak / 1e9:.1f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s\n"
        f"{options.size}, vocabulary {options.vocabulary:,}, {options.batch} sentences, {options.length} tokens in and "
        f"out, beam {options.beam}\n"
    )
    print(time_table(results) + "\n\n" + bounds_table(results, peak, bandwidth))
    if options.operators:
        print("\n" + operator_table(results, options.operators))
    for line in unknown_operators(results):
        print(line)
    if options.json:
        signature = {"machine": machine("cpu"), "torch": torch.__version__, "threads": torch.get_num_threads()}
        limits = {"peak_flops_per_s": peak, "copy_bytes_per_s": bandwidth}
        figures = {name: result.figures() for name, result in results.items()}
        text = json.dumps({**signature, **limits, "options": vars(options), "models": figures}, indent=1)
        write_whole(options.json, text + "\n", force=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", choices=SIZES, default="small", help="(default: %(default)s)")
    add("--vocabulary", type=int, default=8000, help="joint vocabulary (default: %(default)s)")
    add("--remove", type=float, nargs="*", default=[0.5, 0.75], help="shares of heads to remove (default: 0.5 0.75)")
    add("--batch", type=int, default=32, help="sentences in a batch (default: %(default)s)")
    add("--beam", type=int, default=4, help="hypotheses for a sentence (default: %(default)s)")
    add("--length", type=int, default=25, help="tokens of a sentence, source and target (default: %(default)s)")
    add("--repetitions", type=int, default=3, help="measured repetitions of each model (default: %(default)s)")
    add("--seed", type=int, default=1, help="seed of weights, sentences and removed heads (default: %(default)s)")
    add("--threads", type=int, help="threads on the CPU (default: torch's)")
    add("--operators", type=int, default=0, metavar="N", help="also print the N slowest operators (default: 0)")
    add("--json", metavar="FILE", help="also write all figures to FILE")
    return parser.parse_args(namespace=argparse.Namespace(device="cpu"))


def check(options: argparse.Namespace) -> None:
    """Exit with one line and code 2 for a number that cannot be used."""
    wrong = partial(fail, Path(__file__).name)
    check_least(Path(__file__).name, options, {"batch": 1, "beam": 1, "length": 2, "repetitions": 1, "operators": 0})
    if options.threads is not None and options.threads < 1:
        wrong(f"--threads is {options.threads}: it must be at least 1")
    if options.length > 1000:
        wrong(f"--length is {options.length}: it must be at most 1000")
    if options.vocabulary < 2 * options.beam + 4:
        least = 2 * options.beam + 4
        wrong(f"--vocabulary is {options.vocabulary}: with --beam {options.beam} it must be at least {least}")
    for share in options.remove:
        if not 0 < share <= 1:
            wrong(f"--remove has {share:g}: a share of heads must be above 0 and at most 1")
    if options.json and not Path(options.json).absolute().parent.is_dir():
        wrong(f"--json {options.json}: there is no such folder")


def build(options: argparse.Namespace) -> dict[str, nn.Module]:
    models = bench_variants.build(options, options.vocabulary)
    return {name: model for name, model in models.items() if name.split()[0] in ("stock", "full", "pruned")}


def peak_flops(size: int = 2048) -> float:
    """Return the FLOP/s of a large matrix multiplication in single precision."""
    x, result = torch.ones(size, size), torch.empty(size, size)
    return 2 * size**3 / best_seconds(partial(torch.mm, x, x, out=result))


def copy_bandwidth(size: int = 2**26) -> float:
    """Return the bytes/s, read and written, of a copy of `size` numbers, far more than the caches hold."""
    x, result = torch.ones(size), torch.empty(size)
    result.copy_(x)
    return 2 * x.nbytes / best_seconds(partial(result.copy_, x))


def measure(options: argparse.Namespace, generators: Mapping[str, SequenceGenerator]) -> dict[str, Result]:
    """Translate with all models in turn, once more than measured: the first time is a warm-up."""
    works = {name: beam_search(options, generator, options.batch) for name, generator in generators.items()}
    results = {name: Result(options.length + 1) for name in works}
    names = list(works)
    recording = recording_seconds()
    for i in tqdm(range(options.repetitions + 1), leave=False):
        for name in names[i % len(names) :] + names[: i % len(names)]:  # no model is always first
            gc.collect()  # the events of the last profile: now, not while a translation is timed
            run = run_times(generators[name], works[name])
            if i:
                results[name].runs.append(run)
                results[name].profiles.append(run_profile(generators[name], works[name], recording))
    return results


def time_table(results: Mapping[str, Result]) -> str:
    """Return ms and shares of all parts and their rows."""
    rows = {name: result.rows() for name, result in results.items()}
    lines = []
    for part in PARTS:
        cells = [share(r.wall(part) / r.units(part), r.total() / r.units(part)) for r in results.values()]
        lines.append([f"{part}, ms", *cells])
        for row in ROWS:
            seconds = [rows[name][part, row].seconds for name in results]
            if any(seconds):
                whole = [r.wall(part) / r.units(part) for r in results.values()]
                lines.append([f"  {row}", *map(share, seconds, whole)])
    lines.append(["translation, ms", *(f"{1000 * result.total():.0f}     " for result in results.values())])
    ratios = [sum(map(result.profiled, PARTS)) / result.total() for result in results.values()]
    lines.append(["profile / run", *(f"{ratio:.2f}     " for ratio in ratios)])
    return text_table(["", *(f"{name}  " for name in results)], lines)


def share(seconds: float, whole: float) -> str:
    return f"{1000 * seconds:.2f} {seconds / whole:4.0%}"


def bounds_table(results: Mapping[str, Result], peak: float, bandwidth: float) -> str:
    """Return the matrix multiplications of a step, and of the encoder, beside the rates of the machine."""
    columns = []
    for result in results.values():
        rows = result.rows()
        encoder = [rows["encoder", row] for row in MULTIPLICATIONS]
        step = {row: rows["decoder", row] for row in MULTIPLICATIONS}
        column = {"encoder, GFLOP/s": rate(sum(c.flops for c in encoder), sum(c.seconds for c in encoder), peak)}
        seconds, flops = (sum(getattr(cost, key) for cost in step.values()) for key in ("seconds", "flops"))
        cache = step[ATTENTION].bytes
        weights = sum(cost.bytes for cost in step.values()) - cache
        column["step, GFLOP/s"] = rate(flops, seconds, peak)
        for row, cost in step.items():
            column[f"  {row}"] = rate(cost.flops, cost.seconds, peak)
        column |= {"step, GFLOP": f"{flops / 1e9:.3f}     "}
        column |= {"  weights, MB": f"{weights / 1e6:.1f}     ", "  keys and values, MB": f"{cache / 1e6:.1f}     "}
        column["  GB/s"] = rate(weights + cache, seconds, bandwidth)
        column["  measured, ms"] = f"{1000 * seconds:.2f}     "
        column["  bound by arithmetic, ms"] = f"{1000 * flops / peak:.2f}     "
        column["  bound by memory, ms"] = f"{1000 * (weights + cache) / bandwidth:.2f}     "
        columns.append(column)
    lines = [[row, *(column[row] for column in columns)] for row in columns[0]]
    return text_table(["matrix multiplications", *(f"{name}  " for name in results)], lines)


def rate(amount: float, seconds: float, limit: float) -> str:
    """Return an amount in 1e9/s, and its share in the limit."""
    return f"{amount / seconds / 1e9:.1f} {amount / seconds / limit:4.0%}" if seconds else ""


def operator_table(results: Mapping[str, Result], number: int) -> str:
    """Return ms and calls of the slowest operators, for one encoder pass or one step."""
    costs = {name: result.costs() for name, result in results.items()}
    longest: dict[tuple, float] = defaultdict(float)
    for name, result in results.items():
        for key, cost in costs[name].items():
            longest[key] = max(longest[key], cost.seconds / result.units(key[0]))
    lines = []
    for key in sorted(longest, key=lambda key: -longest[key])[:number]:
        found = [(costs[name].get(key, Cost()), result.units(key[0])) for name, result in results.items()]
        cells = [f"{1000 * cost.seconds / units:.3f} x{cost.calls / units:.0f}" for cost, units in found]
        lines.append([f"{key[0]}  {PYTHON if key[1] == PYTHON else key[2]}  ({key[1]})", *cells])
    return text_table(["operator, ms x calls", *results], lines)


def unknown_operators(results: Mapping[str, Result]) -> list[str]:
    """Return a line for every operator that is in no row."""
    names = sorted({name for result in results.values() for _, row, name in result.costs() if row == UNKNOWN})
    return [f"unknown operator: {name}" for name in names]


if __name__ == "__main__":
    main()
