"""Costs of heads in translation: parameters, cache, and time on this machine.

The time of an attention layer is measured with every number of heads, from none to all: what the next head saves
depends on how many are left, and a layer without heads computes nothing.

Shapes: B sentences, K hypotheses of each (the beam), S tokens of each, source and target, E model size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_headgates.inference import pack_linears
from fairseq_headgates.modules import HeadAttention
from fairseq_headgates.surgery import HeadSite, head_sites, with_heads

ROUNDS = 7  # measured repetitions, after one that is not measured


@dataclass(frozen=True)
class Translation:
    """Shape of a translation: B sentences, S source and S target tokens, beam K."""

    sentences: int = 32
    beam: int = 5
    length: int = 25


@dataclass(frozen=True)
class LayerCost:
    """Costs of an attention layer.

    Attributes:
        attention_type: attention type
        layer: number of the layer
        heads: number of heads that it has
        head_parameters: parameters of a head
        head_cache_bytes: keys and values of a head, in bytes for each token and hypothesis (dec-self), or for each
            source token and sentence (dec-enc); 0 for enc-self
        seconds: time of the layer in a translation, with 0, 1, 2, ... heads
    """

    attention_type: str
    layer: int
    heads: int
    head_parameters: int
    head_cache_bytes: int
    seconds: tuple[float, ...]


def layer_costs(model: nn.Module, translation: Translation = Translation(), rounds: int = ROUNDS) -> list[LayerCost]:
    """Return the costs of every attention layer of a model, ordered by type and layer.

    Layers of the same type and size are measured once, with random weights.

    Args:
        model: a fairseq transformer, with or without removed heads; it is not changed
        translation: what is translated
        rounds: measured repetitions; the times are medians

    Raises:
        ValueError: if the model has no heads, or attention of another class than fairseq's `MultiheadAttention`
    """
    measured: dict[tuple, tuple[float, ...]] = {}
    costs = []
    for site in head_sites(model):
        attention = site.attention
        if type(attention) not in (MultiheadAttention, HeadAttention):
            raise ValueError(f"the time of {type(attention).__name__} is not measured: leave out --by-speed")
        key = (site.attention_type, *_dimensions(attention))
        if key not in measured:
            measured[key] = _seconds_by_heads(site, translation, rounds)
        costs.append(_cost(site, measured[key]))
    if not costs:
        raise ValueError(f"{type(model).__name__} has no heads whose time can be measured: leave out --by-speed")
    return costs


def _dimensions(attention: MultiheadAttention) -> tuple[int, ...]:
    heads = getattr(attention, "heads", attention.num_heads)
    return attention.embed_dim, attention.kdim, attention.vdim, heads, attention.head_dim


def _cost(site: HeadSite, seconds: tuple[float, ...]) -> LayerCost:
    attention = site.attention
    size, bias = attention.head_dim, attention.out_proj.bias is not None
    inputs = attention.embed_dim + attention.kdim + attention.vdim + 3 * bias  # of queries, keys and values
    itemsize = attention.out_proj.weight.element_size()
    cached = 0 if site.attention_type == "enc-self" else 2 * size * itemsize
    parameters = size * (inputs + attention.embed_dim)
    return LayerCost(site.attention_type, site.layer, attention.num_heads, parameters, cached, seconds)


@torch.no_grad()
def _seconds_by_heads(site: HeadSite, translation: Translation, rounds: int) -> tuple[float, ...]:
    """Return the median time of a layer in a translation with 0, 1, ... heads; all numbers are measured in turn."""
    like = site.attention.out_proj.weight
    whole = _random_layer(site.attention, site.attention_type).to(like)
    run = {"enc-self": _encode, "dec-self": _decode, "dec-enc": _attend_to_encoder}[site.attention_type]
    layers = [_prepared(with_heads(whole, range(number)), translation) for number in range(whole.num_heads + 1)]
    seconds: list[list[float]] = [[] for _ in layers]
    for _ in range(rounds + 1):
        for layer, times in zip(layers, seconds, strict=True):
            times.append(run(layer, translation, like))
    return tuple(statistics.median(times[1:]) for times in seconds)


def _random_layer(attention: MultiheadAttention, attention_type: str) -> HeadAttention:
    """Return a layer of the same dimensions with all heads and random weights. torch's random numbers stay the same."""
    dim, kdim, vdim, heads, size = _dimensions(attention)
    assert dim == heads * size
    cross = attention_type == "dec-enc"
    with torch.random.fork_rng(devices=[]):
        stock = MultiheadAttention(
            dim, heads, kdim=kdim, vdim=vdim, self_attention=not cross, encoder_decoder_attention=cross
        )
    return HeadAttention(stock).eval()


def _prepared(attention: HeadAttention, translation: Translation) -> HeadAttention:
    """Prepare a layer for inference, in place, as fairseq's commands do."""
    attention.set_beam_size(translation.beam)
    attention.make_generation_fast_()
    pack_linears(attention)
    return attention


def _encode(attention: HeadAttention, translation: Translation, like: Tensor) -> float:
    """Return the seconds to encode the sentences."""
    x = like.new_ones(translation.length, translation.sentences, attention.embed_dim)
    return _seconds(like.device, lambda: attention(x, x, x, need_weights=False))


def _decode(attention: HeadAttention, translation: Translation, like: Tensor) -> float:
    """Return the seconds of a search in which hypotheses continue others of their sentence at random.

    What all layers of a decoder share is done by another layer first, whose time does not count.
    """
    generator = torch.Generator().manual_seed(1)
    first = torch.arange(translation.sentences).repeat_interleave(translation.beam) * translation.beam
    other = _prepared(_random_layer(attention, "dec-self").to(like), translation)
    x = like.new_ones(1, len(first), attention.embed_dim)
    state: dict = {}

    def step(layer: HeadAttention) -> object:
        return layer(x, x, x, incremental_state=state, need_weights=False)

    seconds = 0.0
    for _ in range(translation.length):
        order = (first + torch.randint(translation.beam, first.shape, generator=generator)).to(x.device)
        step(other)
        seconds += _seconds(like.device, partial(step, attention))
        other.reorder_incremental_state(state, order)
        seconds += _seconds(like.device, partial(attention.reorder_incremental_state, state, order))
    return seconds


def _attend_to_encoder(attention: HeadAttention, translation: Translation, like: Tensor) -> float:
    """Return the seconds of the steps of a search, the first of which computes keys and values."""
    rows = translation.sentences * translation.beam
    x = like.new_ones(1, rows, attention.embed_dim)
    encoded = like.new_ones(translation.length, rows, attention.kdim)
    state: dict = {}

    def steps() -> None:
        for _ in range(translation.length):
            attention(x, encoded, encoded, incremental_state=state, static_kv=True, need_weights=False)

    return _seconds(like.device, steps)


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Return the seconds of work, on a GPU including all kernels that it launches."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start
