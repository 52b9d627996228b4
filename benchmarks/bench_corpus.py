"""Translation of a corpus of random sentences, with random models whose sentences end at different times."""

import argparse
import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
from bench_models import make_generator
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

LENGTHS = {"max_len_a": 1.2, "max_len_b": 10, "min_len": 1}
EOS, PAD = 2, 1  # fairseq's </s> and padding
SEARCHED = 32  # sentences that are translated to find the bias of </s>
BIASES = (0.0, 6.0)


def make_corpus(options: argparse.Namespace, symbols: int, sentences: int, batch: int) -> list[dict[str, Tensor]]:
    """Return batches of sentences of 4 to 2 * --length words and </s>, as in fairseq-generate from short to long."""
    chance = torch.Generator().manual_seed(options.seed)
    lengths = torch.randint(4, 2 * options.length + 1, (sentences,), generator=chance).sort().values + 1
    source = torch.randint(4, symbols, (sentences, int(lengths[-1])), generator=chance)
    source[:, -1] = EOS
    source[torch.arange(source.size(1)) < source.size(1) - lengths[:, None]] = PAD
    return [
        {"src_tokens": rows[:, -int(longest[-1]) :].to(options.device), "src_lengths": longest.to(options.device)}
        for rows, longest in zip(source.split(batch), lengths.split(batch), strict=True)
    ]


def end_sentences(options: argparse.Namespace, models: list[nn.Module]) -> None:
    """Give models that compute the same an output projection with a bias on </s>, in place.

    With it their translations are about as long as the sources, on average.
    """
    torch.manual_seed(options.seed)
    symbols, width = models[0].decoder.embed_tokens.weight.shape
    layer = nn.Linear(width, symbols)
    nn.init.normal_(layer.weight, std=width**-0.5)
    nn.init.zeros_(layer.bias)
    batches = make_corpus(options, symbols, SEARCHED, SEARCHED // 2)
    wanted = sum(int(batch["src_lengths"].sum()) for batch in batches)
    low, high = BIASES
    for _ in range(5):
        bias = layer.bias.data[EOS] = (low + high) / 2
        model = copy.deepcopy(models[-1])
        model.decoder.output_projection = copy.deepcopy(layer)
        search = partial(best_lengths, make_generator(options, model.to(options.device), **LENGTHS))
        too_long = sum(sum(search(batch)) for batch in batches) > wanted
        low, high = (bias, high) if too_long else (low, bias)
    for model in models:
        model.decoder.output_projection = copy.deepcopy(layer)


def best_lengths(generator: SequenceGenerator, batch: dict[str, Tensor]) -> list[int]:
    """Return the number of tokens of the best translation of each sentence, with </s>."""
    found = generator.generate([generator.model.single_model], {"net_input": batch})
    return [len(hypotheses[0]["tokens"]) for hypotheses in found]


def best_lengths_exported(model, options: argparse.Namespace, batch: dict[str, Tensor]) -> list[int]:
    """Return the same of a model in CTranslate2."""
    longest = int(LENGTHS["max_len_a"] * batch["src_tokens"].size(1) + LENGTHS["max_len_b"])
    found = model.search(options, batch["src_tokens"].tolist(), LENGTHS["min_len"], longest)()
    return [len(hypotheses[0]) + 1 for hypotheses in found]


def translate_corpus(
    options: argparse.Namespace,
    generators: Mapping[str, SequenceGenerator],
    exported: dict,
    batch: int,
    turns: Callable,
) -> dict[str, tuple[int, list[float]]]:
    """Return the tokens of the translations of each variant, and the seconds per token in each round.

    Models are copied: in the first round no buffers are there yet, and no graphs.
    """
    fresh = {name: copy.deepcopy(generator.model.single_model) for name, generator in generators.items()}
    searches = {name: partial(best_lengths, make_generator(options, model, **LENGTHS)) for name, model in fresh.items()}
    searches |= {name: partial(best_lengths_exported, model, options) for name, model in exported.items()}
    symbols = next(iter(generators.values())).vocab_size
    batches = make_corpus(options, symbols, options.corpus, batch)
    tokens: dict[str, int] = {}

    def translate(name: str) -> None:
        tokens[name] = sum(number for each in batches for number in searches[name](each))

    ready = {name: partial(partial, translate, name) for name in searches}
    seconds = turns(ready, rounds=options.repetitions + 1, warm_up=0)
    return {name: (tokens[name], [each / tokens[name] for each in seconds[name]]) for name in searches}
