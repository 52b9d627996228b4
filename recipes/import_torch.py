#!/usr/bin/env python3
"""Convert an encoder-decoder made of torch.nn.Transformer to a checkpoint of fairseq's transformer.

    python3 recipes/import_torch.py WEIGHTS VOCABULARY OUT_DIR --heads 8 --embedding embed --positions embed.table \
        --output projection [--text FILE ...]

WEIGHTS is a state dict, which torch.load reads without running code, VOCABULARY a JSON object of symbols and their
numbers. Into OUT_DIR, replacing files that exist, the program writes model.pt, dict.src.txt and dict.tgt.txt, and for
every FILE, with a sentence in a line, FILE.src, for fairseq-preprocess. A symbol is a character; a blank is written ▁.

A state dict does not say how the model computes. The program expects:

- torch.nn.Transformer with its defaults (post-norm, ReLU, layer_norm_eps 1e-5), and norms after both stacks;
- one embedding of both sides, times the square root of its dimension, plus a table of positions; a linear output layer;
- sources `<s> text </s> <pad> <pad> ...`, as many symbols as the table has positions, *not* masked: padding is seen;
- targets `<s> text </s>`; the special symbols are <pad>, <s>, </s> and <unk>.

fairseq has no norm after post-norm layers, and no bias of the output layer. Each stack gets one more layer, of zeros,
whose last norm is that of the stack; the bias is a part of the last norm of the decoder.
"""

from __future__ import annotations

import io
import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel, base_architecture
from torch import Tensor

from fairseq_headgates.checkpoints import save_checkpoint
from fairseq_headgates.files import check_writable, write_whole

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first symbols of fairseq's dictionaries
END, BLANK = "<end>", "<blank>"  # </s> and visible <pad> of sources: fairseq's own ends each source, and is not the same
STACKS = {  # attention and norms of a layer, and their names in torch
    "encoder": ({"self_attn": "self_attn"}, {"self_attn_layer_norm": "norm1", "final_layer_norm": "norm2"}),
    "decoder": (
        {"self_attn": "self_attn", "encoder_attn": "multihead_attn"},
        {"self_attn_layer_norm": "norm1", "encoder_attn_layer_norm": "norm2", "final_layer_norm": "norm3"},
    ),
}


class Weights:
    """The weights of a state dict, each to be taken once."""

    def __init__(self, path: Path, args: Namespace):
        try:
            self.left = {name: w.float() for name, w in torch.load(path, "cpu", weights_only=True).items()}
        except Exception as error:  # torch raises errors of many types
            why = " ".join(str(error).split())[:200]
            raise ValueError(f"{path} is no state dict that torch.load reads ({why})") from None
        marks = [name for name in self.left if name.endswith("encoder.layers.0.self_attn.in_proj_weight")]
        if len(marks) != 1:
            raise ValueError(f"{path} has {len(marks)} modules torch.nn.Transformer, and must have one")
        self.root = marks[0].removesuffix("encoder.layers.0.self_attn.in_proj_weight")
        self.embedding, self.output = self.take(f"{args.embedding}.weight"), self.linear(args.output, args.output)
        self.positions = self.take(args.positions)
        self.positions = self.positions.reshape(-1, self.positions.shape[-1])

    def take(self, name: str) -> Tensor:
        if name not in self.left:
            raise ValueError(f"the weight {name} is missing: there are {', '.join(sorted(self.left))}"[:1000])
        return self.left.pop(name)

    def linear(self, old: str, new: str) -> dict[str, Tensor]:
        return {f"{new}.{kind}": self.take(f"{old}.{kind}") for kind in ("weight", "bias")}

    def layers(self, stack: str) -> dict[str, Tensor]:
        """Take the layers of a stack, and add the one that holds its norm."""
        found: dict[str, Tensor] = {}
        attention, norms = STACKS[stack]
        number = sum(name.startswith(f"{self.root}{stack}.") and name.endswith("linear1.bias") for name in self.left)
        for i in range(number):
            old, new = f"{self.root}{stack}.layers.{i}", f"{stack}.layers.{i}"
            for ours, theirs in attention.items():
                for kind in ("weight", "bias"):
                    parts = self.take(f"{old}.{theirs}.in_proj_{kind}").chunk(3)
                    found |= {f"{new}.{ours}.{x}_proj.{kind}": part for x, part in zip("qkv", parts, strict=True)}
                found |= self.linear(f"{old}.{theirs}.out_proj", f"{new}.{ours}.out_proj")
            for ours, theirs in {**norms, "fc1": "linear1", "fc2": "linear2"}.items():
                found |= self.linear(f"{old}.{theirs}", f"{new}.{ours}")
        last, added = f"{stack}.layers.{number - 1}.", f"{stack}.layers.{number}."
        found |= {
            name.replace(last, added): torch.zeros_like(w) for name, w in found.items() if name.startswith(last)
        }
        # A norm without weights changes no normalised x but by epsilon: with outputs of about the variance of its
        # inputs v, x / sqrt(v + eps) and the same again have the variance that one norm has.
        final = f"{stack}.layers.{number - 1}.final_layer_norm."
        variance = found[f"{final}weight"].pow(2).mean() + found[f"{final}bias"].var(correction=0)
        for name in norms:
            found[f"{added}{name}.weight"] += variance.sqrt()
        return found | self.linear(f"{self.root}{stack}.norm", f"{added}final_layer_norm")


def convert(weights: Weights, vocabulary: dict[str, int], characters: list[str]) -> dict[str, Tensor]:
    """Return the weights of fairseq's transformer. Raise ValueError if the model is another."""
    rows = [vocabulary[symbol] for symbol in (*SPECIAL, *characters)]
    start, pad, end = (vocabulary[symbol] for symbol in SPECIAL[:3])
    found = weights.layers("encoder") | weights.layers("decoder")
    if weights.left:
        raise ValueError(f"the model has weights that are not converted: {', '.join(sorted(weights.left))}"[:1000])
    # fairseq's sources end, and its targets begin, with its own </s>.
    source, target = (weights.embedding[[*rows, end, pad]], weights.embedding[rows])
    source[2], target[2] = weights.embedding[pad], weights.embedding[start]
    source[1] = target[1] = 0  # fairseq's padding, which is masked
    positions = torch.cat([torch.zeros(2, weights.positions.shape[1]), weights.positions])  # numbered from 2
    weight, bias = (x[rows] for x in weights.output.values())
    last = max(name for name in found if name.startswith("decoder.") and name.endswith("final_layer_norm.bias"))
    shift = torch.linalg.lstsq(weight.double(), bias.double()[:, None], driver="gelsd").solution[:, 0]
    if (weight.double() @ shift - bias).abs().max() > 1e-6:
        raise ValueError(f"the bias of the {len(bias)} outputs is no product of the {len(shift)} dimensions")
    found[last] = (found[last] + shift).float()
    found |= {"encoder.embed_tokens.weight": source, "decoder.embed_tokens.weight": target}
    found |= {f"{stack}.embed_positions.weight": positions for stack in STACKS}
    return found | {"decoder.output_projection.weight": weight}


def options_of(model: dict[str, Tensor], heads: int) -> Namespace:
    options: dict[str, Any] = {"arch": "transformer", "task": "translation", "source_lang": "src", "target_lang": "tgt"}
    positions, size = model["encoder.embed_positions.weight"].shape
    for stack in STACKS:
        layers = sum(name.startswith(f"{stack}.") and name.endswith(".fc1.bias") for name in model)
        options |= {f"{stack}_layers": layers, f"{stack}_embed_dim": size, f"{stack}_attention_heads": heads}
        options |= {f"{stack}_ffn_embed_dim": len(model[f"{stack}.layers.0.fc1.bias"]), f"{stack}_learned_pos": True}
    options |= {"max_source_positions": positions - 2, "max_target_positions": positions - 2}
    args = Namespace(**options, criterion="cross_entropy", optimizer="adam", lr_scheduler="fixed", lr=[1e-4])
    base_architecture(args)
    return args


def checkpoint(args: Namespace, found: dict[str, Tensor], dictionaries: list[str]) -> dict[str, Any]:
    """Return what fairseq-train saves, before the first update and without the state of an optimizer."""
    read = [Dictionary(), Dictionary()]
    for dictionary, text in zip(read, dictionaries, strict=True):
        dictionary.add_from_file(io.StringIO(text))
    task = Namespace(source_dictionary=read[0], target_dictionary=read[1])
    TransformerModel.build_model(Namespace(**vars(args)), task).load_state_dict(dict(found))  # names and sizes
    history = {"criterion_name": "CrossEntropyCriterion", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
    state = {"args": args, "model": found, "optimizer_history": [history | {"num_updates": 0}]}
    return state | {"extra_state": {"train_iterator": {"epoch": 1}}, "last_optimizer_state": None}


def encode(line: str, positions: int) -> str:
    """Return the symbols of a sentence as the model reads them, but the last, which fairseq adds."""
    symbols = [SPECIAL[0], *line.replace(" ", "▁"), END]
    if len(symbols) >= positions:
        raise ValueError(f"a sentence has {len(line)} characters, and at most {positions - 3} can be read: {line}")
    return " ".join([*symbols, *[BLANK] * (positions - 1 - len(symbols))])


def work(args: Namespace) -> None:
    vocabulary = json.loads(args.vocabulary.read_text(encoding="utf-8"))
    characters = sorted(vocabulary.keys() - {*SPECIAL}, key=vocabulary.__getitem__)
    if wrong := [s for s in characters if len(s) != 1 or (s.isspace() and s != " ") or s == "▁"]:
        raise ValueError(f"{args.vocabulary}: {wrong[0]!r} is no character that can be converted")
    if missing := [symbol for symbol in SPECIAL if symbol not in vocabulary]:
        raise ValueError(f"{args.vocabulary} lacks {', '.join(missing)}")
    weights = Weights(args.weights, args)
    positions = len(weights.positions)
    target = "".join(f"{'▁' if symbol == ' ' else symbol} 1\n" for symbol in characters)
    source = f"{target}{END} 1\n{BLANK} 1\n"
    model = convert(weights, vocabulary, characters)
    texts = {
        f"{path.name}.src": "".join(f"{encode(line, positions)}\n" for line in path.read_text("utf-8").splitlines())
        for path in args.text
    }
    state = checkpoint(options_of(model, args.heads), model, [source, target])
    args.out.mkdir(parents=True, exist_ok=True)
    texts |= {"dict.src.txt": source, "dict.tgt.txt": target}
    for name in (*texts, "model.pt"):
        check_writable(args.out / name, force=True)
    for name, text in texts.items():
        write_whole(args.out / name, text)
    save_checkpoint(state, str(args.out / "model.pt"), force=True)
    print(f"wrote {', '.join([*texts, 'model.pt'])} to {args.out}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser("import_torch.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("weights", metavar="WEIGHTS", type=Path, help="state dict (.pt)")
    parser.add_argument("vocabulary", metavar="VOCABULARY", type=Path, help="symbols and their numbers (.json)")
    parser.add_argument("out", metavar="OUT_DIR", type=Path, help="folder to write, made if missing")
    parser.add_argument("--heads", type=int, required=True, help="number of heads of every layer")
    parser.add_argument("--embedding", required=True, help="name of the embedding in the model")
    parser.add_argument("--positions", required=True, help="name of the table of positions")
    parser.add_argument("--output", required=True, help="name of the output layer")
    parser.add_argument("--text", metavar="FILE", nargs="+", type=Path, default=[], help="sentences to encode")
    try:
        work(parser.parse_args(argv))
    except (OSError, ValueError, RuntimeError) as error:
        parser.exit(2, f"import_torch.py: {' '.join(str(error).split())[:1000]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
