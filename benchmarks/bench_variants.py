"""The variants of a translation model that generation_speed.py compares, and the models that agree."""

import argparse
import json
import sys
from itertools import product

import torch
from bench_models import SIZES, changed, make_args, make_task, masks
from fairseq.models.transformer import TransformerModel
from torch import Tensor, nn

from fairseq_headgates import HeadTable, attention_modules, prune
from fairseq_headgates.heads import TYPES, mask_to_json
from fairseq_headgates.inference.device_search import DeviceSearch
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel

WHOLE = ["stock", "full"]
SMALLER = ["gated", "masked", "pruned", "native", "compressed"]  # one of each for every share of removed heads
COPIES = {  # what a copy of a model has instead
    "int8": {"inference_dtype": "int8"},
    "graph": {"inference_mode": "graph"},
    "device": {"inference_mode": "graph", "search_class": DeviceSearch},
}
EXPORTED = ["ctranslate2", "ctranslate2-int8"]
VARIANTS = [*WHOLE, *SMALLER, *COPIES, *EXPORTED]
SOURCES = ["full", "pruned", "compressed"]  # of copies, and of models in CTranslate2
COMPUTE_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # of CTranslate2 on a GPU


def build(options: argparse.Namespace, vocabulary: int) -> dict[str, nn.Module]:
    """Return the models of fairseq in single precision on the CPU."""
    task = make_task(vocabulary)

    def make(kind=TransformerHeadGatesModel, **gates) -> nn.Module:
        torch.manual_seed(options.seed)
        return kind.build_model(make_args(options.size, **gates), task).eval()

    models = {"stock": make(TransformerModel), "full": make()}
    weights = models["stock"].state_dict()
    models["full"].load_state_dict(dict(weights))
    for share, mask in masks(options).items():
        inline = mask_to_json(mask, one_line=True)
        gated, masked = make(gate_heads=",".join(TYPES)), make(alive_heads=inline)
        masked.load_state_dict(dict(weights))
        gated.load_state_dict({**weights, **gate_weights(gated, mask)})
        native = make(alive_heads=inline, remove_heads=True)
        compressed = make(alive_heads=inline, remove_heads=True, ffn_dims=kept_neurons(options.size, mask))
        built = zip(SMALLER, [gated, masked, prune(gated), native, compressed], strict=True)
        models |= {f"{kind} {share}": model for kind, model in built}
    return models


def gate_weights(gated: nn.Module, mask: HeadTable) -> dict[str, Tensor]:
    """Return the parameters of gates that are exactly 0 or exactly 1."""
    alive = {
        f"{module.name}.gate.log_alpha": mask.layers[module.attention_type][module.layer]
        for module in attention_modules(gated)
    }
    return {name: 20.0 * torch.tensor(row) - 10 for name, row in alive.items()}


def kept_neurons(size: str, mask: HeadTable) -> str:
    """Return the option --ffn-dims: in every layer, the share of neurons that `mask` keeps of all heads."""
    _, ffn, layers, _ = SIZES[size]
    kept = [value for _, value in mask.items()]
    number = round(ffn * sum(kept) / len(kept))
    return json.dumps({side: [number] * layers for side in ("encoder", "decoder")})


def sources(options: argparse.Namespace, models: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the measured models that have copies and are exported."""
    kinds = set(SOURCES) & set(options.variants)
    return {name: model for name, model in models.items() if name.split()[0] in kinds}


def copies(options: argparse.Namespace, models: dict[str, nn.Module], dtype: str) -> dict[str, nn.Module]:
    """Return the variants that are copies of models; int8 is for single precision on a CPU."""
    int8 = options.device == "cpu" and dtype == "fp32"
    kinds = [kind for kind in COPIES if kind in options.variants and (int8 or kind != "int8")]
    pairs = product(kinds, sources(options, models).items())
    return {copy_name(kind, name): changed(model, **COPIES[kind]) for kind, (name, model) in pairs}


def copy_name(kind: str, source: str) -> str:
    return f"{kind} {source}".removesuffix(" full")


def groups(models: dict[str, nn.Module]) -> list[list[str]]:
    """Return the names of all models, those that must generate the same tokens in one list."""
    found = [WHOLE]
    for share in (name.removeprefix("native ") for name in models if name.startswith("native ")):
        found += [[f"{kind} {share}" for kind in ("gated", "masked", "pruned")], [f"native {share}"]]
        found += [[f"compressed {share}"]]
    static = [[copy_name(kind, names[-1]) for kind in ("graph", "device")] for names in found]
    return [[*names, *(name for name in more if name in models)] for names, more in zip(found, static, strict=True)]


def export(options: argparse.Namespace, models: dict[str, nn.Module], dtype: str, folder: str) -> dict:
    """Return models in CTranslate2 under the names of their variants, without those that cannot run on the device."""
    kinds = [kind for kind in EXPORTED if kind in options.variants and {"beam", "corpus"} & set(options.parts)]
    if not kinds:
        return {}
    basic = COMPUTE_TYPES[dtype] if options.device == "cuda" else "float32"
    types = dict(zip(EXPORTED, (basic, f"int8_{basic}"), strict=True))
    try:
        from bench_ctranslate2 import Exported

        found = {
            copy_name(kind, name): Exported(model, f"{folder}/{kind} {name}", types[kind], options.device)
            for kind, (name, model) in product(kinds, sources(options, models).items())
        }
        for model in found.values():
            model.search(options, [[4, 2]], 1, 1)()  # fails where libraries of the GPU are missing
    except (ModuleNotFoundError, OSError, EOFError) as error:
        print(f"generation_speed.py: without CTranslate2: {str(error) or 'its process has ended'}", file=sys.stderr)
        return {}
    return found
