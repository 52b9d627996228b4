"""Check that a RoBERTa checkpoint of fairseq fits its dictionary and the sizes of classification.sh.

    python3 recipes/lib training.check_roberta CHECKPOINT DICT

The sizes are the settings EMBED, FFN, LAYERS, HEADS and MAX_POSITIONS. Prints nothing if all fit.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from commands import ArgumentParser, Refused
from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.plugin.models.roberta import RobertaHeadGatesModel

SIZES = ("EMBED", "FFN", "LAYERS", "HEADS", "MAX_POSITIONS")
ENCODER = "encoder.sentence_encoder."


def sizes_of(state: dict[str, Any]) -> dict[str, int]:
    """Return the sizes of a RoBERTa, and SYMBOLS, those of its embeddings. Raise KeyError for another model."""
    weights = RobertaHeadGatesModel.current_names(state["model"])
    symbols, embed = weights[f"{ENCODER}embed_tokens.weight"].shape
    options = (state.get("cfg") or {}).get("model") or state["args"]
    return {
        "EMBED": embed,
        "FFN": weights[f"{ENCODER}layers.0.fc1.weight"].shape[0],
        "LAYERS": len({found[1] for name in weights if (found := re.search(r"layers\.(\d+)\.", name))}),
        "HEADS": int(options.encoder_attention_heads),
        "MAX_POSITIONS": weights[f"{ENCODER}embed_positions.weight"].shape[0] - 2,  # after the padding symbol, 1
        "SYMBOLS": symbols,
    }


def work(args: argparse.Namespace) -> None:
    try:
        found = sizes_of(load_checkpoint(str(args.checkpoint)))
    except (KeyError, AttributeError, TypeError):
        raise Refused(
            f"PRETRAINED={args.checkpoint} is no RoBERTa of fairseq: give one (roberta.base), or none"
        ) from None
    other = [name for name in SIZES if os.environ.get(name) != str(found[name])]
    if other:
        raise Refused(
            f"PRETRAINED={args.checkpoint} has other sizes: set {' '.join(f'{name}={found[name]}' for name in other)}"
        )
    dictionary = Dictionary.load(str(args.dictionary))
    dictionary.add_symbol("<mask>")  # as the task does
    if len(dictionary) != found["SYMBOLS"]:
        raise Refused(
            f"{args.dictionary} has {len(dictionary)} symbols with <mask>, the model {found['SYMBOLS']}: set "
            "PRETRAINED_DICT to the dictionary that PRETRAINED was trained with"
        )


def main(argv: list[str]) -> None:
    parser = ArgumentParser(__name__, __doc__)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("dictionary", type=Path, metavar="DICT")
    work(parser.parse_args(argv))
