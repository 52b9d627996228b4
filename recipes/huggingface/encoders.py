"""Encoders: BERT and RoBERTa."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from huggingface.folder import read_tokenizer, read_weights, vocabulary_of
from huggingface.model import FIRST, OFFSET, Model, activation, arranged, fairseq_options, new_model, stripped


class Encoder(NamedTuple):
    """A BERT or a RoBERTa.

    Attributes:
        special: its symbols for <s>, <pad>, </s>, <unk>
        mask: its symbol for <mask>
        offset: number of its first position
        output: its names of fairseq's `lm_head.dense`, `lm_head.layer_norm` and `lm_head.bias`
    """

    special: Sequence[str]
    mask: str
    offset: int
    output: tuple[str, str, str]


LM = "cls.predictions."
ROBERTA = Encoder(FIRST, "<mask>", OFFSET, ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"))
ENCODERS = {
    "bert": Encoder(
        ("[CLS]", "[PAD]", "[SEP]", "[UNK]"),
        "[MASK]",
        0,
        (f"{LM}transform.dense", f"{LM}transform.LayerNorm", f"{LM}bias"),
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
}
FORM = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
SIZES = {  # options of fairseq, and their names in config.json
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "max_positions": "max_position_embeddings",
}
PRETRAINED = "".join(
    f"  {key}: OUT/{name}\n"
    for key, name in {"checkpoint": "model.pt", "dict": "dict.txt", "codes": "tokenizer.json"}.items()
)
SENTENCE_ENCODER, LM_HEAD = "encoder.sentence_encoder.", "encoder.lm_head."
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


def encoder_options(config: Mapping[str, Any]) -> Namespace:
    """Return the options of fairseq's roberta. Raise ValueError for another form of model."""
    for name, value in FORM.items():
        if (found := config.get(name, value)) != value:
            raise ValueError(f"config.json: {name} is {str(found)!r}, and only {value!r} can be converted")
    if not 0 < config.get("layer_norm_eps", USUAL_EPSILON) <= EPSILON:
        raise ValueError(f"config.json: layer_norm_eps is {config['layer_norm_eps']}, and must be at most {EPSILON}")
    sizes = {option: int(config[name]) for option, name in SIZES.items()}
    sizes["max_positions"] -= ENCODERS[config["model_type"]].offset
    training = ["--optimizer", "adam", "--lr", "1e-5", "--tokens-per-sample", str(sizes["max_positions"])]
    found = fairseq_options("--arch", "roberta", "--task", "masked_lm", "--criterion", "masked_lm", *training)
    vars(found).update(sizes, activation_fn=activation(config, "hidden_act"))
    return found


def encoder_weights(config: Mapping[str, Any], weights: Mapping[str, Tensor], rows: Sequence[int], model: Any) -> Any:
    """Return the weights of fairseq's roberta.

    Args:
        config: of config.json
        weights: those of `read_weights`
        rows: the row of each symbol of fairseq's dictionary in the word embeddings
        model: a new model of the same form; its output layer is kept where `weights` have none
    """
    kind, epsilon = ENCODERS[config["model_type"]], config.get("layer_norm_eps", USUAL_EPSILON)
    factor = min(2.0 ** round(math.log2(EPSILON / epsilon) / 2), LARGEST_FACTOR)
    words = weights["embeddings.word_embeddings.weight"][rows] * factor
    table = weights["embeddings.position_embeddings.weight"][kind.offset :]
    table = (table + weights["embeddings.token_type_embeddings.weight"][0]) * factor
    table = torch.cat([torch.zeros(OFFSET, table.shape[1]), table])
    found = model.state_dict() | {f"{LM_HEAD}weight": words}
    found |= {f"{SENTENCE_ENCODER}embed_tokens.weight": words, f"{SENTENCE_ENCODER}embed_positions.weight": table}
    names = {"embeddings.LayerNorm": f"{SENTENCE_ENCODER}layernorm_embedding"}
    for i in range(model.args.encoder_layers):
        names |= {f"encoder.layer.{i}.{old}": f"{SENTENCE_ENCODER}layers.{i}.{new}" for old, new in LAYER.items()}
    dense, norm, bias = kind.output
    if bias in weights:
        names |= {dense: f"{LM_HEAD}dense", norm: f"{LM_HEAD}layer_norm"}
        found[f"{LM_HEAD}bias"] = weights[bias][rows]
    for old, ours in names.items():
        found |= {f"{ours}.{each}": weights[f"{old}.{each}"] for each in ("weight", "bias")}
    for each in ("weight", "bias"):  # of what is multiplied by the words
        found[f"{LM_HEAD}layer_norm.{each}"] = found[f"{LM_HEAD}layer_norm.{each}"] / factor
    return found


def import_encoder(folder: Path, config: dict[str, Any]) -> Model:
    kind, options, tokenizer = ENCODERS[config["model_type"]], encoder_options(config), read_tokenizer(folder)
    vocabulary, weights = vocabulary_of(tokenizer), stripped(read_weights(folder), "bert.", "roberta.")
    symbols = arranged(
        vocabulary, len(weights["embeddings.word_embeddings.weight"]), kind.special, (*kind.special, kind.mask)
    )
    at = symbols.names.index(kind.mask)  # fairseq adds it as the last one
    symbols.rows.append(symbols.rows.pop(at))
    del symbols.names[at]
    new = new_model(options, symbols.lines)
    model = encoder_weights(config, weights, symbols.rows, new)
    new.load_state_dict(dict(model))  # checks names and shapes
    files = {"dict.txt": symbols.lines, "task.txt": "--task masked_lm\n"}
    said = "".join(f"  {option.replace('_', '-')}: {getattr(options, option)}\n" for option in SIZES)
    said = f"for the configuration of a recipe:\npretrained:\n{PRETRAINED}model:\n{said}"
    if kind.output[2] not in weights:
        said += f"the output layer of masked words is new and untrained: the model has no {kind.output[2]}\n"
    if others := sorted({name.split(".")[0] for name in weights} - {"embeddings", "encoder", "cls", "lm_head"}):
        said += f"left out: {', '.join(others)}\n"
    return Model(options, model, files, said)
