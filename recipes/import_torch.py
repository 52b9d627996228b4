#!/usr/bin/env python3
"""Convert an encoder-decoder made of torch.nn.Transformer to a checkpoint of fairseq's transformer.

    python3 recipes/import_torch.py WEIGHTS VOCABULARY OUT_DIR --heads 8 --embedding embed --positions embed.table \
        --output projection [--text FILE ...]

WEIGHTS is a state dict, which is loaded without running code from it, VOCABULARY a JSON object of symbols and their
numbers. Into OUT_DIR, replacing files that exist, the program writes model.pt, dict.src.txt, dict.tgt.txt, and for
every FILE, with a sentence in each line, FILE.src, the source text for fairseq. Symbols are characters; ▁ is a blank.

A state dict does not say how its model computes. The program expects:

- torch.nn.Transformer with its defaults (post-norm, ReLU, layer_norm_eps 1e-5), and a norm after both stacks;
- one embedding for both sides, times the square root of its dimension, plus a table of positions; a linear output;
- sources `<s> text </s> <pad> <pad> ...`, as long as the table of positions, whose padding is *not* masked;
- targets `<s> text </s>`; the special symbols are <pad>, <s>, </s> and <unk>.

fairseq has no norm after post-norm layers, and no bias of the output layer. So each stack gets another layer, whose
heads and neurons are 0 and whose last norm is that of the stack. The bias is added to the last norm of the decoder.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.models.transformer import base_architecture
from torch import Tensor

from fairseq_headgates.checkpoints import build_model, save_checkpoint
from fairseq_headgates.files import write_whole
from huggingface.model import FIRST, OFFSET, checkpoint

END, BLANK = "<end>", "<blank>"  # </s> and <pad> as symbols of a source: fairseq appends its </s> and masks its <pad>
MODULES = {  # of the layers of torch, and their names in fairseq
    "encoder": {"norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"},
    "decoder": {"norm1": "self_attn_layer_norm", "norm2": "encoder_attn_layer_norm", "norm3": "final_layer_norm"},
}
OTHERS = {"linear1": "fc1", "linear2": "fc2", "multihead_attn": "encoder_attn"}


def layers(weights: dict[str, Tensor], root: str, stack: str) -> dict[str, Tensor]:
    """Take the layers of a stack and its norm out of `weights`. Return those of fairseq, one more."""
    found: dict[str, Tensor] = {}
    start = f"{root}{stack}.layers."
    for name in [name for name in weights if name.startswith(start)]:
        number, module, rest = name.removeprefix(start).split(".", 2)
        new = f"{stack}.layers.{number}.{(MODULES[stack] | OTHERS).get(module, module)}."
        if rest.startswith("in_proj_"):
            parts = zip("qkv", weights.pop(name).chunk(3), strict=True)
            found |= {f"{new}{x}_proj.{rest.removeprefix('in_proj_')}": part for x, part in parts}
        else:
            found[new + rest] = weights.pop(name)
    last = max(int(name.split(".")[2]) for name in found)
    old, new = f"{stack}.layers.{last}.", f"{stack}.layers.{last + 1}."
    found |= {new + name.removeprefix(old): torch.zeros_like(found[name]) for name in list(found) if old in name}
    # Norms of what is normalised change it by eps alone, and not even by that if they keep the variance v of the first
    # input: two scale by 1 / sqrt(v + eps (v + eps) / v), one by 1 / sqrt(v + eps).
    weight, bias = (found[f"{old}final_layer_norm.{kind}"] for kind in ("weight", "bias"))
    for name in MODULES[stack].values():
        found[f"{new}{name}.weight"] += (weight.pow(2).mean() + bias.var(correction=0)).sqrt()
    for kind in ("weight", "bias"):
        found[f"{new}final_layer_norm.{kind}"] = weights.pop(f"{root}{stack}.norm.{kind}")
    return found


def convert(weights: dict[str, Tensor], vocabulary: dict[str, int], args: Namespace) -> dict[str, Tensor]:
    """Return the weights of fairseq's transformer. Raise LookupError or ValueError if the model is another."""
    roots = [name for name in weights if name.endswith("encoder.layers.0.linear1.bias")]
    if len(roots) != 1:
        raise ValueError(f"it has {len(roots)} modules torch.nn.Transformer, and must have one")
    root = roots[0].removesuffix("encoder.layers.0.linear1.bias")
    encoder, decoder = (layers(weights, root, stack) for stack in MODULES)
    embedding, table = weights.pop(f"{args.embedding}.weight"), weights.pop(args.positions)
    output, bias = (weights.pop(f"{args.output}.{kind}") for kind in ("weight", "bias"))
    if weights:
        raise ValueError(f"it has weights that would be lost: {', '.join(weights)}")
    rows = list(vocabulary.values())
    if sorted(rows) != list(range(len(embedding))):
        raise ValueError(f"its embedding has {len(embedding)} rows, which the vocabulary must number from 0")
    begin, pad, end = (vocabulary[symbol] for symbol in FIRST[:3])
    source, target = embedding[[*rows, end, pad]], embedding[rows]
    source[2], target[2] = embedding[pad], embedding[begin]  # fairseq's </s> ends its sources, and begins its targets
    source[1] = target[1] = 0  # fairseq's <pad>
    # The bias is the product of the output layer and `shift`, where there are not more symbols than dimensions.
    shift = torch.linalg.lstsq(output.double(), bias.double()[:, None], driver="gelsd").solution[:, 0]
    if (output.double() @ shift - bias).abs().max() > 1e-6:
        raise ValueError(f"the bias of its {len(bias)} outputs cannot be made of {len(shift)} dimensions")
    final = [name for name in decoder if name.endswith("final_layer_norm.bias")][-1]
    decoder[final] = (decoder[final] + shift).float()
    size = table.shape[-1]
    positions = torch.cat([torch.zeros(OFFSET, size), table.reshape(-1, size)])
    found = encoder | decoder | {"decoder.output_projection.weight": output[rows]}
    for stack, words in zip(MODULES, (source, target), strict=True):
        found |= {f"{stack}.embed_tokens.weight": words, f"{stack}.embed_positions.weight": positions}
    return found


def options_of(model: dict[str, Tensor], heads: int) -> Namespace:
    """Return the options of fairseq's transformer."""
    options: dict[str, Any] = {"arch": "transformer", "task": "translation", "source_lang": "src", "target_lang": "tgt"}
    positions, size = model["encoder.embed_positions.weight"].shape
    for stack in MODULES:
        number = sum(name.startswith(f"{stack}.layers.") and name.endswith(".fc1.bias") for name in model)
        options |= {f"{stack}_layers": number, f"{stack}_attention_heads": heads, f"{stack}_learned_pos": True}
        options |= {f"{stack}_embed_dim": size, f"{stack}_ffn_embed_dim": len(model[f"{stack}.layers.0.fc1.bias"])}
    options |= {"max_source_positions": positions - OFFSET, "max_target_positions": positions - OFFSET}
    args = Namespace(**options, criterion="cross_entropy", optimizer="adam", lr_scheduler="fixed", lr=[1e-4])
    base_architecture(args)
    return args


def encode(line: str, positions: int) -> str:
    """Return the symbols of a source, but the last one, which fairseq appends."""
    symbols = [FIRST[0], *line.replace(" ", "▁"), END]
    if len(symbols) >= positions:
        raise ValueError(f"a sentence has {len(line)} characters, more than {positions - 3}: {line}")
    return " ".join(symbols + [BLANK] * (positions - 1 - len(symbols)))


def work(args: Namespace) -> None:
    given = json.loads(args.vocabulary.read_text("utf-8"))
    vocabulary = {symbol: given.pop(symbol) for symbol in FIRST} | given
    if wrong := [s for s in given if len(s) != 1 or s == "▁" or (s.isspace() and s != " ")]:
        raise ValueError(f"{args.vocabulary}: {wrong[0]!r} is not one character that can be seen, or a blank")
    weights = torch.load(args.weights, map_location="cpu", weights_only=True)
    model = convert({name: weight.float() for name, weight in weights.items()}, vocabulary, args)
    state = checkpoint(options_of(model, args.heads), model)
    build_model(state)  # raises ValueError if a weight is missing or of another size
    target = "".join(f"{'▁' if symbol == ' ' else symbol} 1\n" for symbol in given)
    files = {"dict.src.txt": f"{target}{END} 1\n{BLANK} 1\n", "dict.tgt.txt": target}
    for path in args.text:
        lines = path.read_text("utf-8").splitlines()
        files[f"{path.name}.src"] = "".join(f"{encode(x, state['args'].max_source_positions)}\n" for x in lines)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_whole(args.out / name, text, force=True)
    save_checkpoint(state, str(args.out / "model.pt"), force=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser("import_torch.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("weights", metavar="WEIGHTS", type=Path, help="state dict (.pt)")
    parser.add_argument("vocabulary", metavar="VOCABULARY", type=Path, help="symbols and their numbers (.json)")
    parser.add_argument("out", metavar="OUT_DIR", type=Path, help="folder to write, made if missing")
    parser.add_argument("--heads", type=int, required=True, help="number of heads of every layer")
    for name in ("embedding", "positions", "output"):
        parser.add_argument(
            f"--{name}", required=True, help=f"name of the {name} in the state dict, without .weight and .bias"
        )
    parser.add_argument("--text", metavar="FILE", type=Path, nargs="+", default=[], help="sentences to encode")
    args = parser.parse_args(argv)
    try:
        work(args)
    except OSError as error:
        parser.exit(2, f"import_torch.py: {error}\n")
    except Exception as error:  # torch and wrong files raise errors of many types
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        parser.exit(2, f"import_torch.py: {args.weights} cannot be converted ({why})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
