#!/usr/bin/env python3
"""Measure the speed of translation: stock fairseq, CTranslate2, and this plugin with and without all heads.

    python benchmarks/generation_speed.py --size base --remove 0.5 --batch 1 32 --parts step beam

The variants:

    stock        fairseq's own `transformer`
    full         this plugin's model, without gates
    gated        with gates on all attention types; the share --remove of the gates is closed
    pruned       without these heads
    compressed   like `pruned`, and without the same share of the neurons of every feed-forward block
    bfloat16     in bfloat16 (--inference-dtype bfloat16), on a CPU
    int8         in int8 (--inference-dtype int8), on a CPU
    ctranslate2  in CTranslate2, on a GPU with --dtype, on a CPU in single precision: `beam` alone
    ctranslate2-int8   the same with weights in int8

The last four are made of those of `full`, `pruned` and `compressed` that are measured, too. CTranslate2 is left out
where it is not installed or cannot use the GPU. Variants without heads are measured for each --remove: a share of the
heads, chosen at random, the same number in every layer; and for each --alive: the heads of a mask file, or the open
heads of a checkpoint.

These parts are timed for each batch size; all sentences have --length tokens, there is no padding:

    step   decoder steps, the cache reordered before each: the mean over the --length steps of a sentence
    beam   translation as in `fairseq-generate`, with its SequenceGenerator and its preparation of models; exactly
           --length tokens per sentence, and </s>

The variants run in turn. `/stock` and `/full` are the speed relative to them. On a GPU, `kernels` are those of a step,
and `peak MiB` is the memory of the parameters and the peak of other tensors in `beam`; on a CPU,
benchmarks/memory.py measures processes.
"""

import argparse
import copy
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import torch
from bench_ctranslate2 import Translator, words
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_generator import SequenceGenerator
from harness import (
    DTYPES,
    EOS,
    SIZES,
    begin,
    finish,
    make_args,
    make_parser,
    make_task,
    peak_bytes,
    random_mask,
    timed,
)
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import profile

from fairseq_headgates import HeadTable, attention_modules, prune
from fairseq_headgates.heads import TYPES, check_shape
from fairseq_headgates.plugin.models.building import read_mask
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel

SMALLER = ["gated", "pruned", "compressed"]  # one of each for every share of removed heads
COMPUTE_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # of CTranslate2
VARIANTS = ["stock", "full", *SMALLER, "bfloat16", "int8", "ctranslate2", "ctranslate2-int8"]
MIB = 2**20


def main() -> None:
    options = parse()
    begin(options)
    tables: dict[str, dict[str, dict]] = {part: {} for part in ("model", *options.parts)}
    with TemporaryDirectory() as folder:
        models = build(options)
        exported = export(options, models, folder)
        generators = {}
        for name, model in models.items():
            model.to(options.device, DTYPES[options.dtype])
            tables["model"][name] = {
                "parameters": sum(p.numel() for p in model.parameters()),
                "MiB": sum(p.nbytes for p in model.parameters()) / MIB,
            }
            generators[name] = make_generator(options, model)
        for batch in options.batch:
            if "step" in options.parts:
                add_steps(tables["step"], options, generators, batch)
            if "beam" in options.parts:
                add_searches(tables["beam"], options, generators, exported, batch)
    finish(options, {f"{title}, {options.dtype}": rows for title, rows in tables.items()})


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, "--repetitions", length=25, rounds=10)
    add = parser.add_argument
    add("--remove", type=float, nargs="+", default=[0.5, 0.75], help="shares of heads to remove")
    add("--alive", nargs="+", default=[], metavar="MASK", help="also these heads: mask files, or checkpoints")
    add("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="what to measure")
    add("--parts", nargs="+", choices=["step", "beam"], default=["step", "beam"], help="what to time")
    add("--batch", type=int, nargs="+", default=[1, 8, 32, 64], help="sentences in a batch")
    add("--beam", type=int, default=4, help="hypotheses for a sentence")
    add("--dtype", choices=DTYPES, default="fp32", help="data type of the weights")
    return parser.parse_args()


# --- models -----------------------------------------------------------------------------------------------------------


def build(options: argparse.Namespace) -> dict[str, nn.Module]:
    """Return the models of fairseq that are measured, in single precision on the CPU."""
    task = make_task(options.vocabulary)
    torch.manual_seed(1)
    full = TransformerHeadGatesModel.build_model(make_args(options.size), task).eval()
    models = {"stock": TransformerModel.build_model(make_args(options.size), task).eval(), "full": full}
    for share, mask in masks(options).items():
        gated = TransformerHeadGatesModel.build_model(make_args(options.size, gate_heads=",".join(TYPES)), task).eval()
        rows = {each.name: mask.layers[each.attention_type][each.layer] for each in attention_modules(gated)}
        log_alpha = {f"{name}.gate.log_alpha": 20.0 * torch.tensor(row) - 10 for name, row in rows.items()}
        gated.load_state_dict({**gated.state_dict(), **log_alpha})
        smaller = (gated, prune(full, mask), prune(full, mask, neurons(options.size, mask)))
        models |= {f"{kind} {share}": model for kind, model in zip(SMALLER, smaller, strict=True)}
    models = {name: model for name, model in models.items() if name.split()[0] in options.variants}
    originals = sources(models) if options.device == "cpu" and options.dtype == "fp32" else {}
    for dtype, (name, model) in product(("bfloat16", "int8"), originals.items()):
        if dtype in options.variants:
            models[f"{dtype} {name}".removesuffix(" full")] = rounded = copy.deepcopy(model)
            rounded.inference_dtype = dtype
    return models


def masks(options: argparse.Namespace) -> dict[str, HeadTable]:
    """Return {share of removed heads: mask}: a random mask for each of --remove, and those of --alive."""
    found = {f"{100 * share:g}%": random_mask(options.size, share) for share in options.remove}
    _, _, layers, heads = SIZES[options.size]
    for text in options.alive:
        mask = read_mask(text)
        check_shape(mask, dict.fromkeys(TYPES, (layers, heads)))
        mask = HeadTable({each: mask.layers.get(each, [[1] * heads] * layers) for each in TYPES})
        found[f"{100 - 100 * kept(mask):.0f}% {'inline' if text.startswith('{') else Path(text).stem}"] = mask
    return found


def kept(mask: HeadTable) -> float:
    """Return the share of heads that a mask keeps."""
    values = [value for _, value in mask.items()]
    return sum(values) / len(values)


def neurons(size: str, mask: HeadTable) -> dict[str, range]:
    """Return the neurons of every feed-forward block that `compressed` keeps."""
    _, ffn, layers, _ = SIZES[size]
    return {
        f"{side}.layers.{i}": range(round(ffn * kept(mask))) for side in ("encoder", "decoder") for i in range(layers)
    }


def sources(models: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the models that bfloat16, int8 and CTranslate2 are made of."""
    return {name: model for name, model in models.items() if name.split()[0] in ("full", "pruned", "compressed")}


def export(options: argparse.Namespace, models: dict[str, nn.Module], folder: str) -> dict[str, Translator]:
    """Return models in CTranslate2 under the names of their variants, if it can run them on the device."""
    basic = COMPUTE_TYPES[options.dtype] if options.device == "cuda" else "float32"
    types = {"ctranslate2": basic, "ctranslate2-int8": f"int8_{basic}"}
    wanted = product(types if "beam" in options.parts else (), sources(models).items())
    found = {}
    try:
        for kind, (name, model) in wanted:
            if kind in options.variants:
                dictionary, output = model.decoder.dictionary, f"{folder}/{kind} {name}"
                translator = Translator(model, dictionary, dictionary, output, types[kind], options.device)
                translator.translate([[dictionary[4]]], 1, 1)  # fails where libraries of the GPU are missing
                found[f"{kind} {name}".removesuffix(" full")] = translator
    except (ValueError, OSError, RuntimeError) as error:
        print(f"generation_speed.py: without CTranslate2: {error}", file=sys.stderr)
        return {}
    return found


# --- what is timed ----------------------------------------------------------------------------------------------------


def make_generator(options: argparse.Namespace, model: nn.Module) -> SequenceGenerator:
    """Return a beam search for outputs of --length tokens, with the model prepared as in fairseq-generate."""
    model.prepare_for_inference_(SimpleNamespace(generation=GenerationConfig(beam=options.beam)))
    lengths = {"max_len_b": options.length, "min_len": options.length}
    return SequenceGenerator([model], model.decoder.dictionary, beam_size=options.beam, **lengths)


def make_source(options: argparse.Namespace, batch: int) -> dict[str, Tensor]:
    """Return random sentences without padding, the same for every variant."""
    source = torch.randint(4, options.vocabulary, (batch, options.length), generator=torch.Generator().manual_seed(1))
    source[:, -1] = EOS
    lengths = torch.full((batch,), options.length)
    return {"src_tokens": source.to(options.device), "src_lengths": lengths.to(options.device)}


@torch.no_grad()
def decoding(options: argparse.Namespace, model: nn.Module, batch: int) -> Callable[[], None]:
    """Return the decoding of --beam * batch hypotheses of random tokens, the same for every variant."""
    chance = torch.Generator().manual_seed(1)
    sentence = torch.arange(batch).repeat_interleave(options.beam)
    order = sentence * options.beam + torch.randint(options.beam, sentence.shape, generator=chance)
    tokens = torch.randint(4, options.vocabulary, (len(sentence), options.length), generator=chance)
    order, tokens = order.to(options.device), tokens.to(options.device)
    encoded = model.encoder(**make_source(options, batch))
    encoded = model.encoder.reorder_encoder_out(encoded, sentence.to(options.device))

    @torch.no_grad()
    def run() -> None:
        state: dict = {}
        for i in range(options.length):
            model.decoder.reorder_incremental_state_scripting(state, order)  # as beam search does
            model.decoder(tokens[:, : i + 1], encoder_out=encoded, incremental_state=state)

    return run


def kernels(work: Callable[[], None]) -> int:
    """Count the kernels of `work` on the GPU."""
    with profile() as profiler:
        work()
        torch.cuda.synchronize()
    found = [event.name for event in profiler.events() if event.device_type == DeviceType.CUDA]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in found)


def add_steps(rows: dict[str, dict], options: argparse.Namespace, generators: dict, batch: int) -> None:
    """Time decoder steps; add columns of one batch size to the rows of the variants."""
    works = {name: decoding(options, each.model.single_model, batch) for name, each in generators.items()}
    seconds = timed(works, options)
    for name, work in works.items():
        row = rows.setdefault(name, {})
        row |= {f"{batch}: ms": 1000 * seconds[name] / options.length, **ratios(seconds, name, batch)}
        if options.device == "cuda":
            row[f"{batch}: kernels"] = round(kernels(work) / options.length)


def add_searches(
    rows: dict[str, dict], options: argparse.Namespace, generators: dict, exported: dict[str, Translator], batch: int
) -> None:
    """Time beam searches; add columns of one batch size to the rows of the variants."""
    source, length = make_source(options, batch), options.length
    searches = {
        name: partial(each.generate, [each.model.single_model], {"net_input": source})
        for name, each in generators.items()
    }
    exact = {"longest": length, "min_decoding_length": length, "num_hypotheses": options.beam}
    dictionary = make_task(options.vocabulary).source_dictionary
    sentences = [words(dictionary, row) for row in source["src_tokens"]]
    exports = {name: partial(each.translate, sentences, options.beam, **exact) for name, each in exported.items()}
    seconds = timed({**searches, **exports}, options)
    for name in seconds:
        row = rows.setdefault(name, {})
        row |= {f"{batch}: tokens/s": batch * length / seconds[name], **ratios(seconds, name, batch)}
        if options.device == "cuda" and name in searches:
            held = sum(p.nbytes for p in generators[name].model.parameters())
            row[f"{batch}: peak MiB"] = (held + peak_bytes(searches[name], options.device)) / MIB


def ratios(seconds: dict[str, float], name: str, batch: int) -> dict[str, float]:
    """Return the speed relative to stock and to full."""
    return {f"{batch}: /{base}": seconds[base] / seconds[name] for base in ("stock", "full") if base in seconds}


if __name__ == "__main__":
    main()
