#!/usr/bin/env python3
"""Measure speed, memory and size of translation: stock fairseq, and this plugin with gated, masked and removed heads.

    python benchmarks/generation_speed.py --size base --vocabulary 8000 32000 --remove 0.5 0.75 --device cuda \
        --dtype fp32 bf16 --parts encoder step beam train --json generation.json

The variants, with the same weights where the shapes allow it:

    stock        fairseq's own `transformer`
    full         this plugin's model, without gates
    gated        with gates on all attention types; the share --remove of the gates is closed
    masked       with the same heads masked (--alive-heads)
    pruned       the result of `prune` on `gated`
    native       built without these heads (--alive-heads, --remove-heads): random weights
    compressed   built like `native`, and without the same share of the neurons of every feed-forward block
    int8         in int8 (--inference-dtype int8), on a CPU with --dtype fp32
    graph        with decoder steps in buffers of fixed shapes, on a GPU from CUDA graphs (--inference-mode graph)
    device       the same with `DeviceSearch` instead of fairseq's SequenceGenerator; its `step` is that of `graph`
    ctranslate2  in CTranslate2, on a GPU with --dtype, on a CPU in single precision: `beam` and `corpus` alone
    ctranslate2-int8   the same with weights in 8 bits

The last five are copies of those of `full`, `pruned` and `compressed` that are measured, too. CTranslate2 is left out
where it is not installed or cannot use the GPU.

Variants without heads are measured for each --remove: a share of the heads, chosen at random, the same number in every
layer; and for each --alive: the heads of a mask file, or the open heads of a checkpoint.

These parts are timed for each batch size:

    encoder   the encoder
    step      one decoder step in the middle of a beam search: the first half of every hypothesis is decoded, then
              reordering the cache and decoding one more token are timed, each time after the same tokens
    beam      translation as in `fairseq-generate`, with its SequenceGenerator and its preparation of models; exactly
              --length tokens per sentence, and </s>
    corpus    translation of --corpus sentences of 4 to twice --length tokens, sorted by length and cut into batches as
              in `fairseq-generate`; see below
    train     (once, not for each batch size) an update, as in benchmarks/train_step.py; --dtype is autocast there

All source sentences have --length tokens, except in `corpus`: there is no padding. For `corpus` the output projection
has a bias on </s>: sentences end at different times, and are on average about as long as their sources. Its tokens are
those of the best hypotheses. `first` is the speed of the first round, in which graphs are captured.

The variants run in one process in turn, in a rotating order, so that changes in the speed of the machine affect all of
them. The tables have medians, and the speed relative to stock (`/stock`) and to full (`/full`): the median of the
ratios of single repetitions. First, variants that must agree (stock and full; gated, masked and pruned; `graph` and
`device` with their sources) have to generate the same tokens in single precision: if not, the exit code is 2.

Memory: `cache` is the memory of the decoder's cache at the end of the generation of a batch; `peak`, on a GPU, is the
memory of the parameters and the peak of other tensors in `beam`. On a CPU, benchmarks/memory.py measures processes.
On a GPU, `kernels` are the kernels of a step, `launches` those of kernels and graphs by the host, and `waits` how often
it waits for the GPU; with `beam` these are of a whole translation, divided by its steps. FLOPs of a step are computed
from the shapes. Bytes are decoder weights and cached keys and values, each read once. With the peak rates of a device
they give a lower bound of the time of a step.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from bench_corpus import end_sentences, translate_corpus
from bench_models import (
    DTYPES,
    SIZES,
    Decoding,
    launches,
    machine,
    make_generator,
    make_source,
    make_task,
    median_ratio,
    next_update,
    peak_bytes,
    table,
    take_turns,
    tensor_bytes,
    training_batches,
    training_update,
)
from bench_variants import VARIANTS, build, copies, export, groups
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_headgates import attention_modules
from fairseq_headgates.files import write_whole
from fairseq_headgates.heads import TYPES
from fairseq_headgates.messages import fail

TRAINED = ["stock", "full", "pruned"]
PARTS = ["encoder", "step", "beam", "corpus", "train"]
PEAK_TFLOPS = {"fp32": 67, "bf16": 989, "fp16": 989}  # H200 SXM, NVIDIA data sheet: dense, fp32 without TF32
BANDWIDTH_GBS = 4800  # the same
MIB = 2**20

RATIOS = [("/stock", "speed_to_stock", 1, ".2f"), ("/full", "speed_to_full", 1, ".2f")]

# Tables: header, keys of the figure, unit, format; a column without figures is left out.
MODELS = [
    ("parameters", "parameters", 1, ",d"),
    ("MiB", "bytes", MIB, ".1f"),
    ("train ms", "train ms", 1, ".1f"),
    *((header, f"train {key}", unit, form) for header, key, unit, form in RATIOS),
]
SPEED = {  # unit, key of the figure, format
    "encoder": ("tokens/s", "tokens_per_s", ",.0f"),
    "step": ("ms", "ms", ".2f"),
    "beam": ("tokens/s", "tokens_per_s", ",.0f"),
    "corpus": ("tokens/s", "tokens_per_s", ",.0f"),
}
# In figures: name and colour, by the beginning of the variant.
ENGINES = {"stock": ("fairseq", "0.65"), "ctranslate2": ("CTranslate2", "C0"), "": ("fairseq-headgates", "C1")}
OF_CORPUS = [("first", "first_tokens_per_s", 1, ",.0f"), ("tokens", "tokens", 1, ",d")]
COSTS = [
    ("cache MiB", "cache_bytes", MIB, ".2f"),
    ("peak MiB", "peak_bytes", MIB, ".1f"),
    ("step GFLOP", "arithmetic flops", 1e9, ".3f"),
    ("weights MB", "arithmetic weight_bytes", 1e6, ".1f"),
    ("cache MB", "arithmetic cache_bytes", 1e6, ".2f"),
    ("kernels", "arithmetic kernels", 1, "d"),
    ("launches", "arithmetic launches", 1, "d"),
    ("waits", "arithmetic waits", 1, "d"),
    *((f"beam {name}", f"beam {name}", 1, ".1f") for name in ("kernels", "launches", "waits")),
    ("FLOP bound ms", "arithmetic flops_bound_ms", 1, ".4f"),
    ("byte bound ms", "arithmetic bytes_bound_ms", 1, ".4f"),
    ("step ms", "step ms", 1, ".3f"),
]


def main() -> None:
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    signature = {"machine": machine(options.device), "torch": torch.__version__, "threads": torch.get_num_threads()}
    print(f"{signature['machine']}, torch {torch.__version__}, {options.size}, {options.length} tokens in and out")
    results = []
    for vocabulary, dtype in product(options.vocabulary, options.dtype):
        results.append(measure(options, vocabulary, dtype))
        print_tables(results[-1])
    if options.json:
        text = json.dumps({**signature, "options": vars(options), "results": results}, indent=1)
        write_whole(options.json, text + "\n", force=True)
    if options.plot:
        plot(results[0], options.plot)
    if not all(found["same_tokens"] for result in results for found in result["agreement"].values()):
        fail(Path(__file__).name, "variants that must agree generate different tokens: see above")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--size", choices=SIZES, default="small", help="(default: %(default)s)")
    add("--vocabulary", type=int, nargs="+", default=[8000], help="joint vocabularies (default: 8000)")
    add("--remove", type=float, nargs="+", default=[0.5, 0.75], help="shares of heads to remove (default: 0.5 0.75)")
    add("--alive", nargs="+", default=[], metavar="MASK", help="also these heads: mask files, or checkpoints")
    add("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="what to measure (default: all)")
    add("--parts", nargs="+", choices=PARTS, default=PARTS[:3], help="(default: all but corpus and train)")
    add("--batch", type=int, nargs="+", default=[1, 8, 32, 64], help="sentences in a batch (default: 1 8 32 64)")
    add("--beam", type=int, default=4, help="hypotheses for a sentence (default: %(default)s)")
    add("--length", type=int, default=25, help="tokens of a sentence, source and target (default: %(default)s)")
    add("--corpus", type=int, default=3000, help="sentences of the part corpus (default: %(default)s)")
    add("--sentences", type=int, default=96, help="sentences in a training batch (default: %(default)s)")
    add("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    add("--dtype", nargs="+", choices=DTYPES, default=["fp32"], help="data type of the weights (default: fp32)")
    add("--repetitions", type=int, default=10, help="measured repetitions of each variant (default: %(default)s)")
    add("--warm-up", type=int, default=2, help="repetitions that are not measured (default: %(default)s)")
    add("--seed", type=int, default=1, help="seed of weights, sentences and removed heads (default: %(default)s)")
    add("--threads", type=int, help="threads on the CPU (default: torch's)")
    add("--peak-tflops", type=float, help="for the lower bounds (default on CUDA: H200, 989; fp32 67)")
    add("--bandwidth-gbs", type=float, help="for the lower bounds (default on CUDA: H200, 4800)")
    add("--json", metavar="FILE", help="also write all figures to FILE")
    add("--plot", metavar="FILE", help="also draw the speed of the part beam (.png, .pdf, .svg; needs matplotlib)")
    return parser.parse_args()


def measure(options: argparse.Namespace, vocabulary: int, dtype: str) -> dict:
    """Build, check and time all variants for one vocabulary and data type."""
    models = build(options, vocabulary)
    for names in groups(models) if "corpus" in options.parts else []:
        if {name.split()[0] for name in names} & set(options.variants):
            end_sentences(options, [models[name] for name in names])
    models |= copies(options, models, dtype)
    agreement = check(options, models)
    parts = len(options.batch) * len(set(options.parts) - {"corpus", "train"}) + ("train" in options.parts)
    total = parts * (options.warm_up + options.repetitions)
    total += len(options.batch) * ("corpus" in options.parts) * (1 + options.repetitions)
    with TemporaryDirectory() as folder, tqdm(desc=f"{vocabulary} {dtype}", total=total, leave=False) as bar:
        turns = partial(take_turns, device=options.device, bar=bar)
        exported = export(options, models, dtype, folder)
        models = {name: model for name, model in models.items() if name.split()[0] in options.variants}
        training = train(options, models, vocabulary, dtype, turns) if "train" in options.parts else {}
        sizes, generators = {}, {}
        for name, model in models.items():
            model.to(options.device, DTYPES[dtype])
            sizes[name] = {**size(model), **training.get(name, {})}
            generators[name] = make_generator(options, model)
        batches = {batch: measure_batch(options, generators, exported, sizes, batch, turns) for batch in options.batch}
    described = {"size": options.size, "vocabulary": vocabulary, "dtype": dtype, "beam": options.beam}
    return {**described, "agreement": agreement, "models": sizes, "batches": batches}


def check(options: argparse.Namespace, models: dict[str, nn.Module]) -> dict:
    """Return whether variants that must agree generate the same tokens, and their largest logit difference."""
    agreement = {}
    for names in (names for names in groups(models) if len(names) > 1):
        (tokens, logits), *others = [translate(options, copy.deepcopy(models[name])) for name in names]
        difference = max(float((other - logits).abs().max()) for _, other in others)
        same = all(other == tokens for other, _ in others)
        agreement[", ".join(names)] = {"same_tokens": same, "largest_logit_difference": difference}
    return agreement


def translate(options: argparse.Namespace, model: nn.Module) -> tuple[list[list[int]], Tensor]:
    """Return all hypotheses of the smallest batch size, and the logits of a step in the middle."""
    generator = make_generator(options, model.to(options.device))
    sentences = beam_search(options, generator, min(options.batch))()
    tokens = [hypothesis["tokens"].tolist() for hypotheses in sentences for hypothesis in hypotheses]
    assert {len(row) for row in tokens} == {options.length + 1}, "the hypotheses do not have the length asked for"
    return tokens, half_decoded(options, generator, min(options.batch)).step()


def encoder_pass(options: argparse.Namespace, generator: SequenceGenerator, batch: int) -> Callable:
    source = make_source(options, generator, batch)
    return torch.no_grad()(partial(generator.model.single_model.encoder, **source))


def half_decoded(options: argparse.Namespace, generator: SequenceGenerator, batch: int) -> Decoding:
    return Decoding(options, generator, batch).steps(options.length // 2)


def beam_search(options: argparse.Namespace, generator: SequenceGenerator, batch: int) -> Callable:
    sample = {"net_input": make_source(options, generator, batch)}
    return partial(generator.generate, [generator.model.single_model], sample)


def measure_batch(
    options: argparse.Namespace, generators: dict, exported: dict, sizes: dict, batch: int, turns: Callable
) -> dict:
    """Return {variant: {part: times, ...memory and arithmetic}} for one batch size."""
    rows: dict[str, dict] = {name: {} for name in (*generators, *exported)}
    timed = partial(turns, rounds=options.repetitions, warm_up=options.warm_up)
    tokens = batch * options.length
    if "encoder" in options.parts:
        works = {name: encoder_pass(options, generator, batch) for name, generator in generators.items()}
        add_times(rows, "encoder", timed({name: lambda work=work: work for name, work in works.items()}), tokens)
    if "step" in options.parts:
        others = {name: generator for name, generator in generators.items() if not name.startswith("device")}
        halves = {name: partial(half_decoded, options, generator, batch) for name, generator in others.items()}
        add_times(rows, "step", timed({name: lambda half=half: half().step for name, half in halves.items()}))
        for name, half in halves.items():
            rows[name]["arithmetic"] = arithmetic(options, sizes[name], half())
    if "beam" in options.parts:
        works = {name: beam_search(options, generator, batch) for name, generator in generators.items()}
        source = make_source(options, next(iter(generators.values())), batch)["src_tokens"].tolist()
        lengths = (options.length, options.length)
        translations = {name: model.search(options, source, *lengths) for name, model in exported.items()}
        ready = {name: lambda work=work: work for name, work in {**works, **translations}.items()}
        add_times(rows, "beam", timed(ready), tokens)
        for name, work in works.items():
            rows[name]["cache_bytes"] = cache_bytes(options, generators[name], batch)
            if options.device == "cuda":
                kept = rows[name]["cache_bytes"] if name.startswith(("graph", "device")) else 0  # between searches
                rows[name]["peak_bytes"] = sizes[name]["bytes"] + kept + peak_bytes(work, options.device)
                rows[name]["beam"] |= {key: n / (options.length + 1) for key, n in launches(work).items()}
    if "corpus" in options.parts:
        found = translate_corpus(options, generators, exported, batch, turns)
        add_times(rows, "corpus", {name: seconds[1:] for name, (_, seconds) in found.items()}, 1)
        for name, (number, seconds) in found.items():
            rows[name]["corpus"] |= {"tokens": number, "first_tokens_per_s": 1 / seconds[0]}
    return rows


def cache_bytes(options: argparse.Namespace, generator: SequenceGenerator, batch: int) -> int:
    """Return the memory of the decoder's cache at the end of a generation, without keeping it."""
    return tensor_bytes(Decoding(options, generator, batch).steps(options.length + 1).state)


def train(options: argparse.Namespace, models: dict, vocabulary: int, dtype: str, turns: Callable) -> dict:
    """Time updates of copies of the variants that are trained."""
    criterion = LabelSmoothedCrossEntropyCriterion(make_task(vocabulary), False, 0.1)
    ready = {}
    for name in (name for name in models if name.split()[0] in TRAINED):
        update = training_update(copy.deepcopy(models[name]), criterion, options.device, DTYPES[dtype])
        batches = training_batches(options.sentences, options.length, vocabulary, options.device)
        ready[name] = partial(next_update, update, batches)
    rows: dict[str, dict] = {name: {} for name in ready}
    add_times(rows, "train", turns(ready, options.repetitions, options.warm_up) if ready else {})
    return rows


def add_times(rows: dict[str, dict], part: str, seconds: dict[str, list[float]], tokens: int = 0) -> None:
    """Return medians, speeds, speeds relative to stock and full, and all times."""
    for name in seconds:
        median = statistics.median(seconds[name])
        speed = {"tokens_per_s": tokens / median} if tokens else {}
        references = [name for name in ("stock", "full") if name in seconds]
        ratios = {f"speed_to_{other}": median_ratio(seconds, other, name) for other in references}
        rows[name][part] = {"ms": 1000 * median, **speed, **ratios, "seconds": seconds[name]}


def size(model: nn.Module) -> dict:
    """Count the parameters, and those that a decoder step uses; before any preparation for inference."""
    once = ("encoder_attn.k_proj", "encoder_attn.v_proj")  # for all steps together
    used = [p for name, p in model.decoder.layers.named_parameters() if not any(part in name for part in once)]
    used.append(model.decoder.output_projection.weight)
    widths = dict.fromkeys(TYPES, 0)  # heads * head size, over all layers
    for module in attention_modules(model):
        widths[module.attention_type] += module.attention.out_proj.weight.size(1)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": sum(p.nbytes for p in model.parameters()),
        "step_weight_bytes": sum(p.nbytes for p in used),
        "step_multiplications": sum(p.numel() for p in used if p.dim() == 2),  # for each hypothesis, in projections
        "widths": widths,
    }


def arithmetic(options: argparse.Namespace, size: dict, half: Decoding) -> dict:
    """Return what the next step of `half` computes and reads, and lower bounds of its time."""
    rows = len(half.tokens)
    own, source = size["widths"]["dec-self"] * (half.position + 1), size["widths"]["dec-enc"] * options.length
    flops = rows * (2 * size["step_multiplications"] + 4 * (own + source))  # 4: multiply, add; scores, context
    copies = rows // half.model.decoder.layers[0].encoder_attn.beam_size  # of the keys of a source sentence
    itemsize = next(half.model.parameters()).dtype.itemsize
    cache = 2 * itemsize * (rows * own + copies * source)
    result = {"flops": flops, "weight_bytes": size["step_weight_bytes"], "cache_bytes": cache}
    on_gpu = options.device == "cuda"
    tflops = options.peak_tflops or (PEAK_TFLOPS["fp32" if itemsize == 4 else "bf16"] if on_gpu else None)
    bandwidth = options.bandwidth_gbs or (BANDWIDTH_GBS if on_gpu else None)
    result["flops_bound_ms"] = flops / tflops / 1e9 if tflops else None
    result["bytes_bound_ms"] = (result["weight_bytes"] + cache) / bandwidth / 1e6 if bandwidth else None
    return {**result, **(launches(half.step) if on_gpu else {})}


def print_tables(result: dict) -> None:
    described = f"{result['size']}, vocabulary {result['vocabulary']}, {result['dtype']}"
    print(f"\n=== {described}")
    for names, found in result["agreement"].items():
        tokens, difference = "same" if found["same_tokens"] else "DIFFERENT", found["largest_logit_difference"]
        print(f"{tokens} tokens: {names} (largest logit difference {difference:.1e})")
    print("\n" + table("variant", result["models"], MODELS))
    for part, (unit, key, form) in SPEED.items():
        rows = by_batch(part, result["batches"])
        columns = [
            (header, f"{batch} {name}", *shown)
            for batch in result["batches"]
            for header, name, *shown in ((f"{batch}:", key, 1, form), *RATIOS, *OF_CORPUS)
        ]
        if rows:
            print("\n" + table(f"{part}, {unit}", rows, columns))
    rows = {f"{batch:>5} {name}": row for batch, part in result["batches"].items() for name, row in part.items()}
    rows = {name: row for name, row in rows.items() if {"cache_bytes", "arithmetic"} & set(row)}
    if rows:
        print("\n" + table("batch variant", rows, COSTS))


def plot(result: dict, file: str) -> None:
    """Draw the speed of each variant at the first batch size, the slowest first."""
    from matplotlib.figure import Figure

    batch, found = next(iter(result["batches"].items()))
    rows = sorted(((name, row["beam"]) for name, row in found.items()), key=lambda each: each[1]["tokens_per_s"])
    figure = Figure(figsize=(9, 0.7 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (name, row) in enumerate(rows):
        axes.barh(place, row["tokens_per_s"], color=engine(name)[1])
        relative = f" ({row['speed_to_stock']:.2f} x)" if "speed_to_stock" in row else ""
        axes.text(row["tokens_per_s"], place, f" {row['tokens_per_s']:,.0f}{relative}", va="center")
    axes.set_yticks(range(len(rows)), [engine(name)[0] for name, _ in rows])
    axes.set(xlabel=f"tokens per second, {batch} sentences, beam {result['beam']}", ylim=(len(rows) - 0.4, -0.6))
    axes.margins(x=0.18)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def engine(variant: str) -> tuple[str, str]:
    """Return how a figure names a variant, and its colour."""
    name, color = next(found for prefix, found in ENGINES.items() if variant.startswith(prefix))
    *kinds, share = variant.split()
    units = {"compressed": "heads and neurons", "pruned": "the heads"}
    removed = [f"without {share} of {units[kind]}" for kind in kinds if kind in units]
    return ", ".join([name, *["8 bits"] * ("int8" in variant), *removed]), color


def by_batch(part: str, batches: dict[int, dict]) -> dict[str, dict]:
    """Return {variant: {batch: figures of one part}} of the variants that have it."""
    names = [name for name, row in next(iter(batches.values())).items() if part in row]
    return {name: {str(batch): rows[name][part] for batch, rows in batches.items()} for name in names}


if __name__ == "__main__":
    main()
