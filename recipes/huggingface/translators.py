"""Encoder-decoders: Marian, M2M-100 and NLLB, mBART, BART."""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel
from huggingface.folder import read_if_any, read_vocabulary, read_weights
from huggingface.model import FIRST, OFFSET, Model, Symbols, activation, arranged, fairseq_options, new_model, stripped

NEVER = -1000.0  # the logit of a symbol that the model does not have


class Translator(NamedTuple):
    """An encoder-decoder: its architecture in fairseq, and how it differs from the others.

    Attributes:
        arch: the architecture in fairseq
        pre_norm: LayerNorm before each block, and after the last one
        positions: "learned", or sinusoids: "fairseq", "marian" (which has other frequencies)
        normed: LayerNorm of the embeddings
        token: how fairseq writes symbols of languages, "" for a model of one pair
        language: what they look like, where Hugging Face writes them in another way
    """

    arch: str
    pre_norm: bool
    positions: str
    normed: bool
    token: str = ""
    language: str = ""

    def spelled(self, symbol: str) -> str:
        """Return what fairseq calls a symbol."""
        return self.token.format(symbol) if self.language and re.fullmatch(self.language, symbol) else symbol


TRANSLATORS = {
    "marian": Translator("transformer_wmt_en_de", False, "marian", False),
    "m2m_100": Translator("transformer_wmt_en_de_big", True, "fairseq", False, "__{}__", "[a-z]{3}_[A-Z][a-z]{3}"),
    "mbart": Translator("bart_large", True, "learned", True, "[{}]", "[a-z]{2}_[A-Z]{2}"),
    "bart": Translator("bart_large", False, "learned", True),
}
STORED = {"encoder", "decoder", "shared", "lm_head", "final_logits_bias"}
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")


def translator_options(config: Mapping[str, Any], task: Sequence[str]) -> Namespace:
    """Return the options of an encoder-decoder, as fairseq-train stores them. Raise ValueError for another form."""
    kind = TRANSLATORS[config["model_type"]]
    values: dict[str, Any] = {"activation_fn": activation(config, "activation_function")}
    values["no_scale_embedding"] = not config.get("scale_embedding", config["model_type"] == "m2m_100")
    values["layernorm_embedding"] = kind.normed
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        values[f"{stack}_embed_dim"] = config["d_model"]
        values[f"{stack}_ffn_embed_dim"] = config[f"{stack}_ffn_dim"]
        values[f"{stack}_layers"] = config[f"{stack}_layers"]
        values[f"{stack}_attention_heads"] = config[f"{stack}_attention_heads"]
        values[f"{stack}_normalize_before"] = kind.pre_norm
        values[f"{stack}_learned_pos"] = kind.positions != "fairseq"
        values[f"max_{side}_positions"] = config["max_position_embeddings"]
    values |= {"decoder_input_dim": config["d_model"], "decoder_output_dim": config["d_model"]}
    values |= {name: config.get(name, 0.0) for name in DROPOUTS}
    found = fairseq_options("--arch", kind.arch, "--criterion", "label_smoothed_cross_entropy", *task)
    vars(found).update(values)
    return found


def translator_weights(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], source: Symbols, target: Symbols, options: Namespace
) -> dict[str, Tensor]:
    """Return the weights of fairseq's model, and set the options that say which embeddings are one.

    The decoder of fairseq starts with </s>, which stands nowhere else in its input. If the model starts with another
    symbol, such as <pad>, the difference of both embeddings is added to the first position.
    """
    kind, start, end = TRANSLATORS[config["model_type"]], config["decoder_start_token_id"], target.rows[2]
    encoder, decoder, output = embeddings(config, weights)
    # Weights of layers have the names of fairseq.
    found = {name: each for name, each in weights.items() if re.match(r"(en|de)coder\.(?!embed_)", name)}
    # The layout of fairseq's weights: without it, it takes them for old ones that have no last LayerNorm.
    found |= {f"{stack}.version": torch.tensor([3.0]) for stack in ("encoder", "decoder")}
    if kind.positions != "fairseq":
        tables = {stack: positions(config, weights, stack) for stack in ("encoder", "decoder")}
        if start != end and not kind.token:  # with languages, fairseq's task knows how to start
            scale = 1.0 if options.no_scale_embedding else math.sqrt(config["d_model"])
            tables["decoder"][OFFSET] += scale * (decoder[start] - decoder[end])
        found |= {f"{stack}.embed_positions.weight": table for stack, table in tables.items()}
    elif start != end:
        raise ValueError(f"config.json: decoder_start_token_id is {start}, and must be that of </s>, {end}")
    embedded = source.of(encoder)
    found["encoder.embed_tokens.weight"] = embedded
    embedded = embedded if encoder is decoder else target.of(decoder)
    found["decoder.embed_tokens.weight"] = embedded
    found["decoder.output_projection.weight"] = embedded if decoder is output else target.of(output)
    bias = weights.get("final_logits_bias", torch.zeros(1, len(output)))[0][target.rows].clamp(min=NEVER)
    bias[torch.tensor(target.rows) < 0] = NEVER
    if bias.any():
        last = "layer_norm" if kind.pre_norm else f"layers.{config['decoder_layers'] - 1}.final_layer_norm"
        add_output_bias(found, bias, f"decoder.{last}")
    options.share_decoder_input_output_embed = decoder is output and not bias.any()
    options.share_all_embeddings = encoder is decoder and options.share_decoder_input_output_embed
    return found


def embeddings(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return those of encoder and decoder and the output layer; the same tensor where they are tied."""
    tied, joint = (config.get(name, True) for name in ("tie_word_embeddings", "share_encoder_decoder_embeddings"))
    every = ["encoder.embed_tokens", "decoder.embed_tokens", "lm_head"]
    groups = [["shared", *every]] * 3 if tied and joint else [["encoder.embed_tokens"], every[1:], every[1:]]
    if not tied:
        groups = [["encoder.embed_tokens", "shared"], ["decoder.embed_tokens", "shared"], ["lm_head"]]
    found = []
    for names in groups:
        if not (stored := [f"{name}.weight" for name in names if f"{name}.weight" in weights]):
            raise LookupError(f"{names[0]}.weight is missing")
        found.append(weights[stored[0]])
    return found[0], found[1], found[2]


def positions(config: Mapping[str, Any], weights: Mapping[str, Tensor], stack: str) -> Tensor:
    """Return a table of positions for fairseq's learned positions. Marian's sinusoids are rarely in the file."""
    name, number, size = f"{stack}.embed_positions.weight", config["max_position_embeddings"], config["d_model"]
    if config["model_type"] != "marian":
        return weights[name].clone()
    frequencies = 10000 ** (-2 * torch.arange(size // 2, dtype=torch.double) / size)
    angles = torch.arange(number, dtype=torch.double)[:, None] * frequencies
    table = weights.get(name, torch.cat([angles.sin(), angles.cos()], 1).float())
    return torch.cat([torch.zeros(OFFSET, size), table])


def add_output_bias(found: dict[str, Tensor], bias: Tensor, last: str) -> None:
    """Add a bias to the logits of a model whose output layer has none, in place.

    With the output W [V, E], the bias b [V], and weight g and bias h of the last LayerNorm, the logits are
    W (g z + h) + b, and the entries of z have the mean 0. So the LayerNorm may give z + 1, whose mean is 1: the
    logits are W' (z + 1) with W' = W diag(g) + (W (h - g) + b) 1' / E.
    """
    name = "decoder.output_projection.weight"
    output, weight, old = (found[each].double() for each in (name, f"{last}.weight", f"{last}.bias"))
    constant = output @ (old - weight) + bias.double()
    found[name] = (output * weight + constant[:, None] / len(weight)).float()
    found |= {f"{last}.{kind}": torch.ones(len(weight)) for kind in ("weight", "bias")}


def import_translator(folder: Path, config: dict[str, Any], pair: Sequence[str | None]) -> Model:
    kind, weights = TRANSLATORS[config["model_type"]], stripped(read_weights(folder), "model.")
    encoder, decoder, _ = embeddings(config, weights)
    required = FIRST[config["model_type"] == "marian" :]  # which has no <s>
    source = target = arranged(read_vocabulary(folder), len(encoder), FIRST, required, kind.spelled)
    if encoder is not decoder and (folder / "target_vocab.json").is_file():
        target = arranged(read_vocabulary(folder, "target_vocab.json"), len(decoder), FIRST, required)
    usual = {"marian": target.rows[1], "mbart": -1}  # the first mBART starts with the language
    config.setdefault("decoder_start_token_id", usual.get(config["model_type"], target.rows[2]))
    languages = languages_of(folder, kind, pair, source.names)
    task = task_of(config, languages, target.rows[2])
    options = translator_options(config, task)
    model = translator_weights(config, weights, source, target, options)
    new_model(options, source.lines, target.lines).load_state_dict(dict(model))  # checks names and shapes
    if options.activation_fn == "swish":  # which layers of fairseq's own architectures do not compute
        options.arch = TransformerHeadGatesModel.gated_architecture(options.arch)
    lines = zip(languages, (source.lines, target.lines), strict=True)
    files = {f"dict.{language}.txt": text for language, text in lines} | {"task.txt": " ".join(task) + "\n"}
    said = f"options of the task, for fairseq's commands:\n{' '.join(task)}\n"
    if others := sorted({name.split(".")[0] for name in weights} - STORED):
        said += f"left out: {', '.join(others)}\n"
    return Model(options, model, files, said)


def languages_of(folder: Path, kind: Translator, pair: Sequence[str | None], symbols: Sequence[str]) -> list[str]:
    """Return the source and the target language: those given, or those of the tokenizer. Raise ValueError."""
    stored = read_if_any(folder / "tokenizer_config.json")
    named = [stored.get("source_lang") or "source", stored.get("target_lang") or "target"]
    if not kind.token:
        return [given or name for given, name in zip(pair, named, strict=True)]
    first, last = kind.token.split("{}")
    known = [
        symbol[len(first) : -len(last)] for symbol in symbols if symbol.startswith(first) and symbol.endswith(last)
    ]
    if not known:
        raise ValueError("the files of the tokenizer list no languages: download special_tokens_map.json as well")
    for given in pair:
        if given not in known:
            raise ValueError(
                f"{given!r} is no language of the model: give two of its {len(known)} with --source-lang and "
                f"--target-lang: {', '.join(known[:8])}, ..."
            )
    return [str(given) for given in pair]


def task_of(config: Mapping[str, Any], pair: Sequence[str], end: int) -> list[str]:
    """Return the options of fairseq's task. mBART-50 starts with </s>, and the first mBART with the language."""
    source, target = pair
    named = ["--source-lang", source, "--target-lang", target]
    several = ["--langs", f"{source},{target}"]
    if not TRANSLATORS[config["model_type"]].token:
        return ["--task", "translation", *named]
    if config["model_type"] == "mbart" and config["decoder_start_token_id"] != end:
        return ["--task", "translation_from_pretrained_bart", *several, *named]
    style = ["--lang-tok-style", "mbart"] * (config["model_type"] == "mbart")
    several += ["--lang-pairs", f"{source}-{target}", "--encoder-langtok", "src", "--decoder-langtok"]
    return ["--task", "translation_multi_simple_epoch", *several, *named, *style]
