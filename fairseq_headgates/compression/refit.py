"""Repair after removal: refit the linear layers that write to the residual stream, in closed form.

A block of a layer, attention or feed-forward, adds its output y to the residual stream r. In the pruned model the
stream r' differs, and so do the inputs c' of the last linear layer of the block (`out_proj`, `fc2`). One after another,
in the order of the computation, each of these linear layers is refitted so that it brings the stream back to that of
the original model, by ridge regression:

    minimise over W and b:  E |(r' + W c' + b) - (r + y)|^2 + mu |W - W'|^2

with mu = `RIDGE` times the mean of E c'_i^2 over the inputs i. So a block also makes up for the errors of the blocks
before it. W' is the weight before the refit. In a block that loses heads, it is instead the least-squares predictor of
y from the contexts of the kept heads, both of the original model. This needs neither gradients nor labels, only second
moments, summed over the data. Blocks before the first one that loses heads do not change. In post-norm layers the
stream is that before the LayerNorm of the block.

Shapes: T length, B batch, E model size, N inputs of a linear layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import Block, attention_modules, blocks_of
from fairseq_headgates.attention.cuts import head_positions, prune
from fairseq_headgates.attention.hooks import Recorded, recorded, replaced_forward
from fairseq_headgates.attention.modules import evaluating, refuse_shared
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.losses import Sample, outputs
from fairseq_headgates.data.workers import all_reduce
from fairseq_headgates.heads import Mask
from fairseq_headgates.messages import Progress, check_finite, warn_once
from fairseq_headgates.scores.derivatives import differentiable

RIDGE = 0.1
ROWS = 10  # with fewer for each unknown there is a warning
SMALL_RIDGE = 1e-4  # for W': contexts may be almost linearly dependent


def refit(model: nn.Module, mask: Mask, task: Any, batches: Sequence[Sample], progress: Progress = iter) -> nn.Module:
    """Return a copy of a model without the heads that `mask` removes, with refitted `out_proj` and `fc2` layers.

    Nothing is trained. Use training data, not evaluation data.

    Args:
        model: a fairseq model; it does not change
        mask: a mask in any form of `heads.as_mask`
        task: the fairseq task of the model
        batches: samples of the task, those of this worker if several share the data
        progress: wraps the list of layers, e.g. `tqdm`

    Raises:
        ValueError: if the mask has another shape than the model, if there are too few tokens to fit, or if activations
            are not finite
    """
    pruned = prune(model, mask)
    refit_to(model, pruned, Corpus(task, batches), progress)
    return pruned


def refit_to(
    model: nn.Module,
    pruned: nn.Module,
    corpus: Corpus,
    progress: Progress = iter,
    neurons: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> dict[str, Tensor]:
    """Refit `pruned` to `model` in place. Return the parameters that may have changed, by name.

    The outputs of a layer are kept for all batches, so that it is not computed again for every layer after it. Memory:
    up to eight tensors of the size of the residual stream, [T, B, E] for each batch.

    Args:
        model: the original model; it does not change
        pruned: `prune(model, mask, neurons)`
        corpus: the data
        progress: wraps the list of layers
        neurons: the neurons of `model` that feed-forward blocks keep, by the name of the layer
    """
    model = prune(model)  # closed heads removed, gates folded: a linear layer sees the inputs that it multiplies
    # The inputs, in `model`, that are kept by blocks that lose some
    lost = {f"{layer}.fc2": torch.tensor(kept, dtype=torch.long) for layer, kept in neurons.items()}
    for module, left in zip(attention_modules(model), attention_modules(pruned), strict=True):
        before, after = module.attention.kept, left.attention.kept
        if before != after:
            lost[module.name] = head_positions(map(before.index, after), module.attention.head_dim)
    if not lost:
        return {}
    refuse_shared(pruned, [block.linear for block in blocks_of(pruned)])
    layers = {layer: list(blocks) for layer, blocks in groupby(blocks_of(pruned), lambda block: block.layer)}
    whole, smaller = _Passes(model, corpus), _Passes(pruned, corpus)
    refitted = set[str]()
    with evaluating(model), evaluating(pruned), differentiable(model), differentiable(pruned), torch.no_grad():
        for layer in progress(list(layers)):
            targets = _targets(whole, layer, layers[layer], pruned, lost)
            for block in layers[layer]:
                if refitted or block.name in lost:
                    _refit_block(smaller, block, targets[block.name])
                    refitted |= {f"{block.linear}.weight", f"{block.linear}.bias"}
            smaller.finish(layer)
    return {name: parameter.detach() for name, parameter in pruned.named_parameters() if name in refitted}


# --- passes over the data -------------------------------------------------------------------------------------------


class _Stop(Exception):
    """The rest of a forward pass is not needed."""


def _streams(seen: Recorded, block: Block) -> tuple[Tensor | float, Tensor, Tensor]:
    """Return r, y and r + y of a block in a forward pass; r is 0 where it is not known."""
    output = seen.outputs[block.name]
    y = output[0] if isinstance(output, tuple) else output  # that of attention is a pair with its weights
    if block.norm is None:
        return 0.0, y, y
    stream = seen.inputs[block.norm]
    return (stream, y, stream + y) if block.pre_norm else (stream - y, y, stream)


class _Passes:
    """Forward passes of a model over a corpus that end early, and return stored outputs of finished layers.

    A model with a memory of earlier batches needs whole passes: it is not run `in_parts`.
    """

    def __init__(self, model: nn.Module, corpus: Corpus):
        self.model, self.corpus = model, corpus
        self.in_parts = not any(getattr(module, "mem_len", 0) for module in model.modules())
        self.finished: dict[str, list[str]] = {}  # {stack: its finished layers}
        self.outputs: dict[str, list[Any]] = {}  # {stack: output of the last of them for each batch}

    def until(self, last: str, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Iterator[Recorded]:
        """Yield what was seen of modules in the pass of each batch, which ends after the module `last`."""
        modules = {name: self.model.get_submodule(name) for name in {*inputs, *outputs, last}}
        chosen = ({name: modules[name] for name in names} for names in (inputs, outputs))
        with recorded(*chosen) as seen, ExitStack() as hooks:
            if self.in_parts:
                hooks.callback(modules[last].register_forward_hook(_stop).remove)
            for number, sample in enumerate(self.corpus.batches):
                self._run(number, sample)
                yield seen

    def finish(self, layer: str, outputs: list[Any] | None = None) -> None:
        """Compute a layer and those before it no more: later passes return its `outputs`, one for each batch."""
        if self.in_parts:
            stack = layer.rpartition(".")[0]
            self.outputs[stack] = outputs or [seen.outputs[layer] for seen in self.until(layer, outputs=[layer])]
            self.finished.setdefault(stack, []).append(layer)

    def _run(self, number: int, sample: Sample) -> None:
        with ExitStack() as replaced:
            for stack, layers in self.finished.items():
                output = self.outputs[stack][number]
                for name in layers:  # only what the last one returns is read
                    layer = self.model.get_submodule(name)
                    replaced.enter_context(replaced_forward(layer, lambda *_, output=output, **__: output))
            with suppress(_Stop):
                outputs(self.model, sample)


def _stop(*_: Any) -> None:
    raise _Stop


# --- least squares --------------------------------------------------------------------------------------------------


class _LeastSquares:
    """Second moments of the inputs and of the targets of a linear layer, in double precision.

    Args:
        model: the model with the layer, whose weight and bias are refitted
        name: the name of the layer
    """

    def __init__(self, model: nn.Module, name: str):
        linear: Any = model.get_submodule(name)
        self.linear, self.name = linear, name
        outputs, number = linear.weight.shape
        size = number + (linear.bias is not None)
        self.of_inputs = torch.zeros(size, size).double()
        self.of_targets = torch.zeros(outputs, size).double()
        self.rows = torch.zeros(()).double()

    def add(self, inputs: Tensor, targets: Tensor) -> None:
        """Add rows: inputs [rows, N] and targets [rows, E]."""
        inputs, targets = inputs.double(), targets.double()
        if self.linear.bias is not None:
            inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
        self.of_inputs += (inputs.T @ inputs).cpu()
        self.of_targets += (targets.T @ inputs).cpu()
        self.rows += len(inputs)

    def solve(self, ridge: float) -> None:
        """Set weight and bias to what minimises E |W x + b - t|^2 + ridge m |W - W_before|^2, over all workers.

        m is the mean square of the inputs x; the bias is not penalised. With few rows, log a warning.

        Raises:
            ValueError: if there are fewer rows than unknowns, or sums are not finite
        """
        of_inputs, of_targets, rows = map(all_reduce, (self.of_inputs, self.of_targets, self.rows))
        if rows < len(of_inputs):
            raise ValueError(
                f"{self.name} has {len(of_inputs)} unknowns for each output, and the data have {int(rows)} tokens: "
                "refit on more sentences"
            )
        if rows < ROWS * len(of_inputs):
            warn_once(
                f"a refit has fewer than {ROWS} tokens for each unknown, and may raise the loss on other data: "
                "refit on more sentences"
            )
        check_finite(f"activations at {self.name}", of_inputs, of_targets)
        linear, before, number = self.linear, self.linear.weight, self.linear.weight.size(1)
        if linear.bias is not None:
            before = torch.cat([before, linear.bias[:, None]], 1)
        before = before.cpu().double()
        penalty = torch.zeros(len(of_inputs)).double()
        if number:
            mean_square = (of_inputs.diagonal()[:number] / rows).mean()
            penalty[:number] = rows * (ridge * mean_square).clamp(min=torch.finfo(penalty.dtype).tiny)
        after = before + torch.linalg.solve(of_inputs + penalty.diag(), (of_targets - before @ of_inputs).T).T
        linear.weight.copy_(after[:, :number])
        if linear.bias is not None:
            linear.bias.copy_(after[:, -1])


def _targets(
    whole: _Passes, layer: str, blocks: Sequence[Block], pruned: nn.Module, lost: Mapping[str, Tensor]
) -> dict[str, list[Tensor]]:
    """Run a layer of the original model; where heads are lost, set the weight of the pruned model to W'.

    Return r + y of the blocks of the layer, {block: [T, B, E] for each batch}.
    """
    streams: dict[str, list[Tensor]] = {block.name: [] for block in blocks}
    fits = {block: _LeastSquares(pruned, block.linear) for block in blocks if block.name in lost}
    inputs = [*(block.norm for block in blocks if block.norm), *(block.linear for block in fits)]
    outputs = []
    passes = whole.until(layer, inputs, [*streams, layer])
    for sample, seen in zip(whole.corpus.batches, passes, strict=True):
        outputs.append(seen.outputs[layer])
        for block in blocks:
            streams[block.name].append(_streams(seen, block)[2])
        for block, fit in fits.items():
            _, y, _ = _streams(seen, block)
            real = whole.corpus.positions(sample, block.attention_type, y)
            fit.add(seen.inputs[block.linear][..., lost[block.name].to(y.device)][real], y[real])
    whole.finish(layer, outputs)
    for fit in fits.values():
        fit.solve(SMALL_RIDGE)
    return streams


def _refit_block(smaller: _Passes, block: Block, targets: Sequence[Tensor]) -> None:
    """Refit the last linear layer of a block, so that r' + y' is close to `targets`, [T, B, E] for each batch."""
    fit = _LeastSquares(smaller.model, block.linear)
    norms = [block.norm] if block.norm else []
    last = block.norm if block.norm and not block.pre_norm else block.name
    passes = smaller.until(last, [block.linear, *norms], [block.name])
    for sample, target, seen in zip(smaller.corpus.batches, targets, passes, strict=True):
        real = smaller.corpus.positions(sample, block.attention_type, target)
        difference = target - _streams(seen, block)[0]
        fit.add(seen.inputs[block.linear][real], difference[real])
    fit.solve(RIDGE)
