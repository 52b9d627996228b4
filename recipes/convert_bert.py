#!/usr/bin/env python3
"""Convert a BERT of Hugging Face to a checkpoint of fairseq's roberta.

    python3 recipes/convert_bert.py MODEL_DIR OUT_DIR

MODEL_DIR is a local folder with config.json (model_type bert), model.safetensors or pytorch_model.bin, and
tokenizer.json or vocab.txt. Into OUT_DIR, replacing files that exist, the program writes model.pt, dict.txt and
tokenizer.json, which encodes text. It prints what a configuration of recipes/workflow/classification.smk
says about the model.

[CLS], [PAD], [SEP] and [UNK] become <s>, <pad>, </s> and <unk> of fairseq's dictionary, the other WordPieces keep their
order, and [MASK] is last, as <mask>. fairseq's roberta has no token types: the embedding of type 0 is added to those of
the positions, so the second sentence of a pair is encoded with type 0 as well. Needs the packages safetensors (for
model.safetensors) and tokenizers (for vocab.txt, and to encode text).
"""

from __future__ import annotations

import io
import json
import math
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel
from torch import Tensor

from fairseq_headgates.checkpoints import save_checkpoint
from fairseq_headgates.files import check_writable, write_whole

FILES = ("dict.txt", "tokenizer.json", "model.pt")
SPECIAL, MASK = ("[CLS]", "[PAD]", "[SEP]", "[UNK]"), "[MASK]"
FORM = {"model_type": "bert", "position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_accurate", "gelu_pytorch_tanh": "gelu_accurate", "relu": "relu"}
SIZES = {  # options of fairseq, and their names in config.json
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "max_positions": "max_position_embeddings",
}
ENCODER, LM_HEAD, LM = "encoder.sentence_encoder.", "encoder.lm_head.", "cls.predictions."
LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
# fairseq's LayerNorm adds EPSILON to variances, BERT's less. Those of the embeddings are small (0.004): the embeddings
# are multiplied by a power of 2, which changes no digits, so that the difference is as small as in the layers.
EPSILON, USUAL_EPSILON, LARGEST_FACTOR = 1e-5, 1e-12, 16.0


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: MODEL_DIR must be the folder of a BERT of Hugging Face")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): download it again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no JSON object: download it again")
    return found


def options_of(config: dict[str, Any], path: Path) -> Namespace:
    """Return the options of fairseq's roberta for a BERT. Raise ValueError for another form of model."""
    for name, value in FORM.items():
        found = config.get(name, None if name == "model_type" else value)
        if found != value:
            raise ValueError(f"{path}: {name} is {str(found)!r}, and only {value!r} can be converted")
    if config.get("hidden_act") not in ACTIVATIONS:
        found = repr(str(config.get("hidden_act")))
        raise ValueError(f"{path}: hidden_act is {found}, and must be one of {', '.join(ACTIVATIONS)}")
    if not 0 < config.get("layer_norm_eps", USUAL_EPSILON) <= EPSILON:
        raise ValueError(f"{path}: layer_norm_eps is {config['layer_norm_eps']}, and must be at most {EPSILON}")
    sizes = {option: int(config[name]) for option, name in SIZES.items()}
    training = {"task": "masked_lm", "criterion": "masked_lm", "optimizer": "adam", "lr_scheduler": "fixed"}
    return Namespace(
        arch="roberta",
        activation_fn=ACTIVATIONS[config["hidden_act"]],
        tokens_per_sample=sizes["max_positions"],
        lr=[1e-5],
        **sizes,
        **training,
    )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights by their names in BertModel; those of the output layer begin with `cls.predictions.`."""
    path = next((folder / n for n in ("model.safetensors", "pytorch_model.bin") if (folder / n).is_file()), None)
    if path is None:
        raise ValueError(f"{folder} has no model.safetensors and no pytorch_model.bin: download one of them")
    load: Callable[[Path], dict[str, Tensor]] = partial(torch.load, map_location="cpu", weights_only=True)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        load = load_file
    try:
        weights = load(path)
    except Exception as error:  # the packages raise errors of many types
        raise ValueError(f"{path} cannot be read ({str(error).partition(chr(10))[0]}): download it again") from None
    # Published files have names of an old version.
    names = {old: old.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias") for old in weights}
    return {names[old].removeprefix("bert."): weight.float() for old, weight in weights.items()}


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Return the content of tokenizer.json, made from vocab.txt if need be, without padding and truncation."""
    if (folder / "tokenizer.json").is_file() or not (folder / "vocab.txt").is_file():
        found = read_json(folder / "tokenizer.json")
    else:
        from tokenizers import BertWordPieceTokenizer

        options = folder / "tokenizer_config.json"
        lowercase = read_json(options).get("do_lower_case", True) if options.is_file() else True
        found = json.loads(BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lowercase).to_str())
    if found.get("model", {}).get("type") != "WordPiece":
        raise ValueError(f"{folder}/tokenizer.json has no WordPieces (model.type): it must be the tokenizer of a BERT")
    return found | {"padding": None, "truncation": None}


def symbols_of(vocabulary: dict[str, int], folder: Path) -> list[str]:
    """Return the WordPieces in the order of fairseq: the special ones, the others by their numbers, the mask."""
    if missing := [symbol for symbol in (*SPECIAL, MASK) if symbol not in vocabulary]:
        raise ValueError(f"{folder}: the vocabulary lacks {', '.join(missing)}: it must be that of a BERT")
    others = sorted(vocabulary.keys() - {*SPECIAL, MASK}, key=vocabulary.__getitem__)
    for symbol in others:
        if symbol in ("<s>", "<pad>", "</s>", "<unk>", "<mask>") or len(symbol.split()) != 1:
            raise ValueError(f"{folder}: the vocabulary has {symbol!r}, which fairseq's dictionary cannot hold")
    return [*SPECIAL, *others, MASK]


def convert(weights: dict[str, Tensor], rows: list[int], epsilon: float, model: RobertaModel) -> dict[str, Tensor]:
    """Return the weights of fairseq's roberta. Raise LookupError or RuntimeError if they do not fit the model.

    Args:
        weights: those of `read_weights`
        rows: the row of each symbol of fairseq's dictionary in BERT's word embeddings
        epsilon: layer_norm_eps of BERT
        model: a new model of the same form; its output layer is kept where BERT has none
    """
    factor = min(2.0 ** round(math.log2(EPSILON / epsilon) / 2), LARGEST_FACTOR)
    words = weights["embeddings.word_embeddings.weight"][rows] * factor
    words[1] = 0  # <pad>
    types = weights["embeddings.token_type_embeddings.weight"]
    positions = (weights["embeddings.position_embeddings.weight"] + types[0]) * factor
    # fairseq numbers positions from 2, after the number of <pad>.
    positions = torch.cat([torch.zeros(2, positions.shape[1]), positions])
    found = model.state_dict() | {f"{LM_HEAD}weight": words}
    found |= {f"{ENCODER}embed_tokens.weight": words, f"{ENCODER}embed_positions.weight": positions}
    names = {"embeddings.LayerNorm": f"{ENCODER}layernorm_embedding"}
    for i in range(model.args.encoder_layers):
        names |= {f"encoder.layer.{i}.{old}": f"{ENCODER}layers.{i}.{new}" for old, new in LAYER.items()}
    if f"{LM}bias" in weights:
        names |= {f"{LM}transform.dense": f"{LM_HEAD}dense", f"{LM}transform.LayerNorm": f"{LM_HEAD}layer_norm"}
        found[f"{LM_HEAD}bias"] = weights[f"{LM}bias"][rows]
    for old, ours in names.items():
        found |= {f"{ours}.{kind}": weights[f"{old}.{kind}"] for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):  # of what is multiplied by the words
        found[f"{LM_HEAD}layer_norm.{kind}"] = found[f"{LM_HEAD}layer_norm.{kind}"] / factor
    model.load_state_dict(found)
    return found


def new_model(options: Namespace, dictionary: str) -> RobertaModel:
    symbols = Dictionary()
    symbols.add_from_file(io.StringIO(dictionary))
    symbols.add_symbol("<mask>")
    torch.manual_seed(1)
    return RobertaModel.build_model(Namespace(**vars(options)), Namespace(source_dictionary=symbols))


def checkpoint(options: Namespace, model: dict[str, Tensor]) -> dict[str, Any]:
    """Return what fairseq-train saves, before the first update and without the state of an optimizer."""
    history = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FairseqAdam", "lr_scheduler_state": {}}
    state = {"args": options, "model": model, "optimizer_history": [history | {"num_updates": 0}]}
    return state | {"extra_state": {"train_iterator": {"epoch": 1}}, "last_optimizer_state": None}


def work(folder: Path, out: Path) -> None:
    config = read_json(folder / "config.json")
    options = options_of(config, folder / "config.json")
    tokenizer = read_tokenizer(folder)
    vocabulary = tokenizer["model"]["vocab"]
    symbols = symbols_of(vocabulary, folder)
    weights = read_weights(folder)
    rows, epsilon = [vocabulary[symbol] for symbol in symbols], config.get("layer_norm_eps", USUAL_EPSILON)
    dictionary = "".join(f"{symbol} 1\n" for symbol in symbols[len(SPECIAL) : -1])  # fairseq adds the others
    model = convert(weights, rows, epsilon, new_model(options, dictionary))
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        check_writable(out / name)
    write_whole(out / "dict.txt", dictionary)
    write_whole(out / "tokenizer.json", json.dumps(tokenizer, ensure_ascii=False))
    save_checkpoint(checkpoint(options, model), str(out / "model.pt"))
    sizes = "".join(f"  {option.replace('_', '-')}: {getattr(options, option)}\n" for option in SIZES)
    files = {"checkpoint": "model.pt", "dict": "dict.txt", "codes": "tokenizer.json"}
    print(f"wrote {', '.join(FILES)} to {out}; for the configuration of a recipe:\npretrained:")
    print("".join(f"  {key}: {out / name}\n" for key, name in files.items()) + f"model:\n{sizes}", end="")
    if f"{LM}bias" not in weights:
        print(f"the output layer of masked words is new and untrained: the model has no {LM}*")
    if others := sorted({name.split(".")[0] for name in weights} - {"embeddings", "encoder", "cls"}):
        print(f"left out: {', '.join(others)}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser("convert_bert.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL_DIR", type=Path, help="local folder of a BERT of Hugging Face")
    parser.add_argument("out", metavar="OUT_DIR", type=Path, help="folder to write, made if missing")
    args = parser.parse_args(argv)
    try:
        work(args.model, args.out)
    except ModuleNotFoundError as error:
        parser.exit(2, f"convert_bert.py: the package {error.name} is missing: pip install safetensors tokenizers\n")
    except (OSError, ValueError) as error:
        parser.exit(2, f"convert_bert.py: {error}\n")
    except (LookupError, TypeError, AttributeError, RuntimeError, AssertionError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        parser.exit(2, f"convert_bert.py: {args.model} is no whole BERT ({why}): download it again\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
