"""Which symbols of a vocabulary a model keeps, and its checkpoint with their rows alone.

Shapes: V symbols, V' kept ones, N target tokens, E model size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.losses import at_least_single, outputs, rows_at_a_time, takes_features_only
from fairseq_headgates.data.objectives import Classes, MaskedTokens
from fairseq_headgates.data.symbols import MARKS, subwords_of
from fairseq_headgates.safety.checkpoint import as_mapping

FILLER = re.compile("madeupword[0-9]+")  # with which fairseq-preprocess fills a dictionary up to a multiple of 8
# Weights with a row for each symbol: embeddings and output layers, by the stack that has them.
ROWS = re.compile(
    r"(?:(encoder|decoder)\.)(?:sentence_encoder\.)?"
    r"(?:embed_tokens\.weight|embed_out|output_projection\.(?:weight|bias)|lm_head\.(?:weight|bias))"
)
BYTE = re.compile("<0x[0-9A-F]{2}>")  # by which SentencePiece writes characters that have no symbol
SPLIT = re.compile(
    r"adaptive_softmax\.|embed_tokens\.(embeddings\.|symbol_embeddings)"
)  # vocabularies in parts, or of characters
GPT2_BYTES = 256  # the first symbols of the BPE of GPT-2, whose symbols are numbers
AVERAGES = ("ema", "ema_fp32_params")  # moving averages of the weights, in the extra state


def always_kept(dictionary: Dictionary, no_words: Iterable[int], stored: int) -> Tensor:
    """Return which symbols are kept whatever the data have [V].

    These are special symbols, language tags, single characters, with which every word can be written, and all
    that the task adds to the `stored` symbols of the file.

    Args:
        dictionary: the dictionary of the task
        no_words: special symbols, language tags and fillers; see `data.symbols.no_words`
        stored: number of symbols of the file of the dictionary, special symbols included
    """
    mark = MARKS.get(subwords_of(dictionary.symbols))
    of_gpt2 = sum(map(str.isdecimal, dictionary.symbols)) > len(dictionary) / 2
    kept = torch.zeros(len(dictionary), dtype=torch.bool)
    kept[list(no_words)] = True
    kept[: dictionary.nspecial] = True
    for number, symbol in enumerate(dictionary.symbols):
        text = symbol
        if mark and mark.on(symbol):
            text = symbol.removeprefix(mark.text) if mark.first else symbol.removesuffix(mark.text)
        is_byte = symbol.isdecimal() and int(symbol) < GPT2_BYTES if of_gpt2 else BYTE.fullmatch(text)
        if is_byte or (len(text) == 1 and not of_gpt2):
            kept[number] = True
        elif FILLER.fullmatch(symbol):
            kept[number] = False
    kept[stored:] = True
    return kept


def chosen(counts: Tensor, always: Tensor, size: int | None) -> Tensor:
    """Return the numbers of the symbols to keep, in their order [V'].

    Args:
        counts: how often each symbol occurs in the data [V]
        always: which are kept whatever the data have [V]
        size: keep at most so many, the most frequent ones (default: all that occur)

    Raises:
        ValueError: if more symbols are always kept
    """
    kept = always | counts.gt(0)
    if size is not None and kept.sum() > size:
        room = size - int(always.sum())
        if room < 0:
            raise ValueError(
                f"--size is {size}: special symbols, languages and single characters alone are {int(always.sum())}"
            )
        # Of equally frequent symbols, the first ones: the sort is stable.
        order = counts.masked_fill(always, -1).argsort(descending=True, stable=True)
        kept = always.index_fill(0, order[:room], True)
    return kept.nonzero().view(-1)


def trim_checkpoint(state: Mapping[str, Any], kept: Mapping[str, Tensor], symbols: Mapping[str, int]) -> dict[str, Any]:
    """Return a checkpoint without the rows of other symbols, and without the optimiser state.

    Tensors that share memory share it afterwards, so that they are stored once.

    Args:
        state: a checkpoint; it is not changed
        kept: the numbers of the symbols that the "encoder" and the "decoder" keep [V']
        symbols: how many they have now

    Raises:
        ValueError: for a vocabulary whose rows are split: adaptive softmax, adaptive input, embeddings of characters
    """
    weights = state["model"]
    if found := next((name for name in weights if SPLIT.search(name)), None):
        raise ValueError(f"the vocabulary of the checkpoint cannot be trimmed: it has {found} (adaptive or characters)")
    done: dict[tuple, Tensor] = {}

    def trimmed(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: rows(name, tensor) for name, tensor in tensors.items()}

    def rows(name: str, tensor: Any) -> Any:
        match = ROWS.fullmatch(name)
        stack = match[1] if match and match[1] in kept else next(iter(kept))
        if not match or len(tensor) != symbols[stack]:
            return tensor
        place = (tensor.data_ptr(), tensor.dtype, id(kept[stack]))
        if place not in done:
            done[place] = tensor[kept[stack]]
        return done[place]

    extra = {
        name: trimmed(value) if name in AVERAGES else value
        for name, value in as_mapping(state.get("extra_state")).items()
    }
    return {**state, "model": trimmed(weights), "extra_state": extra, "last_optimizer_state": None}


@torch.no_grad()
def removed_probability(model: Any, corpus: Corpus, kept: Tensor) -> float | None:
    """Return the mean probability that a model gives to removed symbols, over all target tokens; None for classifiers.

    The log-probabilities of the kept symbols rise by -ln(1 - p) where that of the removed ones was p.
    """
    if isinstance(corpus.objective, Classes):
        return None
    removed, total, number = torch.ones(len(corpus.task.target_dictionary), dtype=torch.bool), 0.0, 0
    removed[kept] = False
    for sample in corpus.batches:
        if isinstance(corpus.objective, MaskedTokens):
            layer, features = nn.Identity(), corpus.objective.logits(model, sample)
        else:
            layer = model.decoder.output_layer if takes_features_only(model) else nn.Identity()
            features = outputs(model, sample)[corpus.counted(sample)]
        number += len(features)
        for x in features.split(rows_at_a_time(features, len(removed))):
            total += float(at_least_single(layer(x)).softmax(-1)[:, removed].sum())
    return total / number
