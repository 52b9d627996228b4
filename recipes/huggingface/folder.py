"""What a local folder of Hugging Face holds: configuration, weights, vocabulary. No code of the folder runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from huggingface.model import FIRST

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # whole, or in parts, which NAME.index.json lists


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: give the folder of a model of Hugging Face")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): download it again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no JSON object: download it again")
    return found


def read_if_any(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights in single precision, by the names of the file."""
    names = [name for name in WEIGHTS if (folder / name).is_file() or (folder / f"{name}.index.json").is_file()]
    if not names:
        raise ValueError(f"{folder} has no {' and no '.join(WEIGHTS)}: download one of them")
    files = [names[0]]
    if not (folder / files[0]).is_file():
        files = sorted(
            {Path(part).name for part in read_json(folder / f"{files[0]}.index.json")["weight_map"].values()}
        )
    load: Callable[[Path], dict[str, Tensor]] = partial(torch.load, map_location="cpu", weights_only=True)
    if names[0].endswith(".safetensors"):
        from safetensors.torch import load_file

        load = load_file
    found: dict[str, Tensor] = {}
    for file in files:
        try:
            found |= load(folder / file)
        except Exception as error:  # the packages raise errors of many types
            why = str(error).partition("\n")[0]
            raise ValueError(f"{folder / file} cannot be read ({why}): download it again") from None
    return {name: weight.float() for name, weight in found.items()}


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """Return the content of tokenizer.json, made of vocab.txt if need be, without padding and truncation."""
    if (folder / "tokenizer.json").is_file() or not (folder / "vocab.txt").is_file():
        found = read_json(folder / "tokenizer.json")
    else:
        from tokenizers import BertWordPieceTokenizer

        lowercase = read_if_any(folder / "tokenizer_config.json").get("do_lower_case", True)
        found = json.loads(BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lowercase).to_str())
    return found | {"padding": None, "truncation": None}


def vocabulary_of(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Return the symbols of a tokenizer.json and their numbers."""
    found = tokenizer["model"]["vocab"]
    if isinstance(found, list):  # of Unigram: pieces and their log-probabilities
        found = {piece: number for number, (piece, _) in enumerate(found)}
    return found | {each["content"]: each["id"] for each in tokenizer.get("added_tokens") or []}


def read_vocabulary(folder: Path, name: str = "vocab.json") -> dict[str, int]:
    """Return the symbols of an encoder-decoder and their numbers, language tags included."""
    if (folder / "tokenizer.json").is_file() and not (folder / "source.spm").is_file():
        return vocabulary_of(read_tokenizer(folder))
    model = folder / "sentencepiece.bpe.model"
    if (folder / name).is_file():
        found = read_json(folder / name)
    elif model.is_file():
        from sentencepiece import SentencePieceProcessor

        pieces = SentencePieceProcessor(model_file=str(model))
        found = {symbol: number for number, symbol in enumerate(FIRST)}  # not <unk>, <s>, </s> of the model
        found |= {pieces.id_to_piece(number): number + 1 for number in range(3, pieces.get_piece_size())}
    else:
        raise ValueError(f"{folder} has no tokenizer.json, {name} or {model.name}: download one of them")
    options = read_if_any(folder / "special_tokens_map.json") | read_if_any(folder / "tokenizer_config.json")
    listed = options.get("extra_special_tokens") or options.get("additional_special_tokens") or []
    names = [each["content"] if isinstance(each, dict) else each for each in [*listed, options.get("mask_token")]]
    for number, token in sorted(options.get("added_tokens_decoder", {}).items(), key=lambda each: int(each[0])):
        found.setdefault(token["content"], int(number))
    for token in filter(None, names):  # numbered in this order
        found.setdefault(token, len(found))
    return found
