#!/usr/bin/env python3
"""Compute what heads cost in a transformer, and what removing them saves, on devices known by their data sheets.

    python benchmarks/roofline.py [--part heads step encoder] [--device EPYC-7763 A100 H100] [--length 512]

All figures are computed; nothing is measured. A roofline (Williams et al. 2009) is a lower bound of the time,
max(FLOPs / peak FLOP/s, bytes / memory bandwidth). It has no overhead: no kernel launches, no search.

The model is a pre-norm transformer with H heads of 64 dimensions in each attention layer, model size E = 64 H,
feed-forward size 4 E, biases, and one embedding matrix [V, E] for source, target and output. The same number of heads
is removed from every layer.

    heads     parameters and arithmetic of one head, and the share of all heads in the model
    step      one step of the decoder in the middle of a beam search with a key/value cache
    encoder   the encoder on source sentences without padding

Columns: `limit` is what bounds the time, FLOPs or, if it is the memory bandwidth, the largest part of the bytes
(weights, keys and values, or activations between operations). `-50%` is the speed-up by removing 50% of the heads.
`memory`: parameters and cache at the end of the search do not fit the memory of the device; `fits`: they fit after the
removal.

Shapes: B sentences, K hypotheses of each (the beam), R = B K rows, t positions of a hypothesis, S source tokens,
E model size, W = 64 x remaining heads, V vocabulary.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

from fairseq_headgates.heads import number_of_heads
from fairseq_headgates.messages import fail
from fairseq_headgates.report.tables import text_table

HEAD_SIZE = 64
PARTS = ("heads", "step", "encoder")


@dataclass(frozen=True)
class Device:
    """Peak rates of a device.

    Attributes:
        name: as its data sheet names it
        dtype: type of weights, cache and activations
        itemsize: bytes of a number
        peak: FLOP/s for dense matrices
        bandwidth: bytes/s of the memory
        memory: bytes of the memory; None if it can be extended
    """

    name: str
    dtype: str
    itemsize: int
    peak: float
    bandwidth: float
    memory: float | None = None


DEVICES = {
    # AMD, EPYC 7763 product page: 64 cores, 2.45 GHz base clock, 8 channels of DDR4-3200. A core (AMD, Software
    # Optimization Guide for family 19h) starts two 256-bit FMA instructions in a cycle: 2 x 8 x 2 FLOPs in fp32.
    "EPYC-7763": Device("AMD EPYC 7763", "fp32", 4, 64 * 2.45e9 * 2 * 8 * 2, 204.8e9),
    # NVIDIA, A100 Tensor Core GPU data sheet, A100 80GB SXM.
    "A100": Device("NVIDIA A100 80GB SXM", "bf16", 2, 312e12, 2039e9, 80e9),
    # NVIDIA, H100 Tensor Core GPU data sheet, H100 SXM: 1,979 TFLOP/s with sparsity, half of it without.
    "H100": Device("NVIDIA H100 SXM", "bf16", 2, 989.5e12, 3350e9, 80e9),
}


@dataclass(frozen=True)
class Cost:
    """What a computation does: floating-point operations, and the numbers that it moves from and to the memory.

    Attributes:
        flops: multiplications and additions of matrix products; all other operations are not counted
        weights: parameters that it reads, each once
        keys_values: keys and values that attention reads, each once
        activations: inputs and outputs of linear layers, queries and contexts. Norms, residual connections, activation
            functions and softmax are taken to be fused with them, and attention scores to stay on the chip.
    """

    flops: int = 0
    weights: int = 0
    keys_values: int = 0
    activations: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __rmul__(self, factor: int) -> Cost:
        return Cost(*(factor * number for number in vars(self).values()))

    @property
    def moved(self) -> dict[str, int]:
        """The numbers that are moved, by what they are."""
        return {"weights": self.weights, "keys/values": self.keys_values, "activations": self.activations}

    def bytes(self, itemsize: int) -> int:
        """Return the bytes that are moved."""
        return itemsize * sum(self.moved.values())


@dataclass(frozen=True)
class Model:
    """Sizes of a transformer: heads of each layer, of them remaining, layers of encoder and of decoder, vocabulary."""

    heads: int
    kept: int
    layers: int
    vocabulary: int

    @property
    def size(self) -> int:
        """E, the model size."""
        return HEAD_SIZE * self.heads

    @property
    def width(self) -> int:
        """W, the size of the remaining heads of a layer together."""
        return HEAD_SIZE * self.kept


# --- the parts of a layer --------------------------------------------------------------------------------------------


def linear(rows: int, inputs: int, outputs: int, bias: bool = True) -> Cost:
    """Return the cost of x W + b for x [rows, inputs], W [inputs, outputs].

    Each of the rows x outputs results is a sum of `inputs` products: 2 FLOPs for each term.
    """
    return Cost(2 * rows * inputs * outputs, (inputs + bias) * outputs, 0, rows * (inputs + outputs))


def attention(queries: int, keys: int, stored: int, width: int) -> Cost:
    """Return the cost of softmax(Q K^T) V for `queries` rows Q that attend to `keys` keys each.

    A score is a sum over the dimensions of a head, 2 FLOPs for each; for all heads 2 x width. A context is a sum over
    the keys of a value, again 2 x width FLOPs for each key. `stored` keys and values [width] are in the memory, which
    several queries may share.
    """
    return Cost(4 * queries * keys * width, 0, 2 * stored * width, 2 * queries * width)


def feed_forward(model: Model, rows: int) -> Cost:
    """Return the cost of a feed-forward block with inner size 4 E: 16 E^2 FLOPs for each row."""
    return linear(rows, model.size, 4 * model.size) + linear(rows, 4 * model.size, model.size)


def norms(model: Model, number: int) -> Cost:
    """Return the weights of layer norms: a factor and a bias each."""
    return Cost(weights=2 * number * model.size)


# --- the model -------------------------------------------------------------------------------------------------------


def decoder_step(model: Model, batch: int, beam: int, position: int, source: int) -> Cost:
    """Return the cost of decoding position number `position` (1, 2, ...) of R = B K hypotheses.

    - Self-attention: queries, keys and values of the new position in one product, E -> 3 W; attention; output W -> E.
      This plugin's search keeps the keys of all K hypotheses of a sentence together, K t, and every hypothesis attends
      to all of them, those of other hypotheses masked. So it reads R t keys, and computes R K t scores for each head.
      (When entries are removed that no hypothesis continues, it is less.)
    - Encoder-decoder attention: queries E -> W, attention to the S source tokens, output. Keys and values are computed
      once in a search, not in this step, and stored once for the K hypotheses of a sentence.
    - Feed-forward block and three norms; after the last layer a norm, and logits E -> V.
    """
    rows, size, width = batch * beam, model.size, model.width
    own = linear(rows, size, 3 * width) + attention(rows, beam * position, rows * position, width)
    cross = linear(rows, size, width) + attention(rows, source, batch * source, width)
    layer = own + cross + 2 * linear(rows, width, size) + feed_forward(model, rows) + norms(model, 3)
    return model.layers * layer + norms(model, 1) + linear(rows, size, model.vocabulary, bias=False)


def encoder_pass(model: Model, batch: int, source: int) -> Cost:
    """Return the cost of the encoder on B sentences of S tokens: B S rows, each attends to S keys."""
    rows, size, width = batch * source, model.size, model.width
    heads = linear(rows, size, 3 * width) + attention(rows, source, rows, width) + linear(rows, width, size)
    return model.layers * (heads + feed_forward(model, rows) + norms(model, 2)) + norms(model, 1)


def head_parameters(model: Model) -> int:
    """Return the parameters of a head: 64 rows of the query, key and value projections, 64 columns of the output."""
    return HEAD_SIZE * (3 * (model.size + 1) + model.size)


def parameters(model: Model) -> int:
    """Return the parameters: 3 attentions (heads, output bias), 2 feed-forward blocks, 5 norms a layer; embeddings."""
    layer = 3 * (model.kept * head_parameters(model) + model.size)
    layer += (2 * feed_forward(model, 0) + norms(model, 5)).weights
    return model.layers * layer + norms(model, 2).weights + model.vocabulary * model.size


def cache_numbers(model: Model, batch: int, beam: int, position: int, source: int) -> int:
    """Return the cached keys and values of the decoder when hypotheses have `position` positions."""
    return decoder_step(model, batch, beam, position, source).keys_values


def seconds(cost: Cost, device: Device) -> float:
    """Return the lower bound of the time."""
    return max(cost.flops / device.peak, cost.bytes(device.itemsize) / device.bandwidth)


def limit(cost: Cost, device: Device) -> str:
    """Return what bounds the time: FLOPs, or the largest part of the bytes."""
    if cost.flops / device.peak >= cost.bytes(device.itemsize) / device.bandwidth:
        return "FLOPs"
    return max(cost.moved, key=cost.moved.__getitem__)


# --- tables ----------------------------------------------------------------------------------------------------------


def main() -> None:
    options = parse()
    tables = []
    if "heads" in options.part:
        title = f"one head of a self-attention layer; all heads of {options.layers}+{options.layers} layers (computed)"
        tables.append(f"{title}\n{head_table(options)}")
    for part, name in product((p for p in PARTS[1:] if p in options.part), options.device):
        tables.append(f"{described(options, part, DEVICES[name])}\n{cost_table(options, part, DEVICES[name])}")
    print("\n\n".join(tables))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = partial(fail, "roofline.py")  # type: ignore[method-assign]
    add = parser.add_argument
    add("--part", nargs="+", choices=PARTS, default=list(PARTS), help="tables to print (default: all)")
    add("--device", nargs="+", choices=DEVICES, default=list(DEVICES), help="devices to compute (default: all)")
    add("--heads", type=int, nargs="+", default=[8, 16, 32, 64, 128], help="heads per layer (default: 8 16 32 64 128)")
    add("--batch", type=int, nargs="+", default=[1, 32, 1024], help="sentences in a batch (default: 1 32 1024)")
    add("--remove", type=float, nargs="+", default=[0.5, 0.75], help="shares of heads to remove (default: 0.5 0.75)")
    add("--layers", type=int, default=6, help="layers on each side (default: %(default)s)")
    add("--vocabulary", type=int, default=32000, help="(default: %(default)s)")
    add("--beam", type=int, default=4, help="hypotheses for a sentence (default: %(default)s)")
    add("--length", type=int, default=25, help="tokens of a sentence, source and target (default: %(default)s)")
    options = parser.parse_args()
    for name in ("heads", "batch", "layers", "vocabulary", "beam", "length"):
        given = getattr(options, name)
        for number in given if isinstance(given, list) else [given]:
            if number < 1:
                parser.error(f"--{name} is {number}: it must be at least 1")
    for share in options.remove:
        if not 0 < share < 1:
            parser.error(f"--remove is {share:g}: it must be above 0 and below 1")
    return options


def described(options: argparse.Namespace, part: str, device: Device) -> str:
    """Return the title of a table: what is computed, and the rates of the device."""
    rates = f"{device.name}, {device.dtype}: {device.peak / 1e12:.4g} TFLOP/s, {device.bandwidth / 1e9:,.4g} GB/s"
    what = f"encoder, {options.length} tokens"
    if part == "step":
        what = f"decoder step {middle(options)} of {options.length}, beam {options.beam}"
    return f"{what} (computed) - {rates}"


def middle(options: argparse.Namespace) -> int:
    """Return the number of the step in the middle of a search, as in benchmarks/generation_speed.py."""
    return options.length // 2 + 1


def model_of(options: argparse.Namespace, heads: int, removed: float = 0) -> Model:
    """Return the sizes of the model without a share of its heads."""
    return Model(heads, number_of_heads(1 - removed, heads), options.layers, options.vocabulary)


def head_table(options: argparse.Namespace) -> str:
    """Return the table of one head, for each number of heads."""
    rows = []
    for heads in options.heads:
        model = model_of(options, heads)
        head, every = head_parameters(model), 3 * options.layers * heads * head_parameters(model)
        flops = 8 * HEAD_SIZE * model.size + 4 * HEAD_SIZE * options.length
        rows.append([heads, model.size, f"{parameters(model) / 1e6:,.1f}", f"{every / parameters(model):.1%}", head])
        rows[-1] += [f"{flops / 1e6:.3f}", 2 * HEAD_SIZE]
    header = "heads,model size,M parameters,in heads,parameters of one,MFLOP/token,cached numbers/token".split(",")
    return text_table(header, [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows])


def cost_table(options: argparse.Namespace, part: str, device: Device) -> str:
    """Return the table of a part on a device, for each number of heads and batch size."""
    cost_of: dict[str, Callable[[Model, int], Cost]] = {
        "step": lambda model, batch: decoder_step(model, batch, options.beam, middle(options), options.length),
        "encoder": lambda model, batch: encoder_pass(model, batch, options.length),
    }
    header = ["heads", "batch", "GFLOP", "GB", "FLOP/byte", "ms", "limit", *(f"-{s:.0%}" for s in options.remove)]
    rows = []
    for heads, batch in product(options.heads, options.batch):
        pruned = [model_of(options, heads, share) for share in options.remove]
        full, *smaller = [cost_of[part](model, batch) for model in (model_of(options, heads), *pruned)]
        moved = full.bytes(device.itemsize)
        totals = [f"{full.flops / 1e9:,.2f}", f"{moved / 1e9:,.3f}", f"{full.flops / moved:,.1f}"]
        row = [f"{heads}", f"{batch:,}", *totals]
        if fits(options, model_of(options, heads), batch, device):
            faster = [f"{seconds(full, device) / seconds(cost, device):.2f}" for cost in smaller]
            row += [f"{1000 * seconds(full, device):,.3f}", limit(full, device), *faster]
        else:
            row += ["-", "memory", *("fits" if fits(options, model, batch, device) else "-" for model in pruned)]
        rows.append(row)
    return text_table(header, rows)


def fits(options: argparse.Namespace, model: Model, batch: int, device: Device) -> bool:
    """Return whether the model and its cache at the end of a search fit the memory of the device."""
    numbers = parameters(model) + cache_numbers(model, batch, options.beam, options.length, options.length)
    return device.memory is None or device.itemsize * numbers <= device.memory


if __name__ == "__main__":
    main()
