"""Second moments of the inputs of linear layers, and of the gradients at their outputs, over a corpus.

Shapes: B batch, T target length, N inputs and E outputs of a linear layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import Block
from fairseq_headgates.attention.modules import evaluating
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.workers import all_reduce
from fairseq_headgates.messages import Progress, check_finite
from fairseq_headgates.scores.derivatives import differentiable, gradients

RIDGE = 1e-4  # times the mean variance of the inputs


@dataclass(frozen=True)
class Moments:
    """Second moments of one linear layer, in double precision.

    Attributes:
        inputs: sum over positions of (x, 1) (x, 1)^T, x the inputs: [N + 1, N + 1]
        gradients: sum of g g^T, g the derivative of the loss in nats with respect to the output: [E, E]
    """

    inputs: Tensor
    gradients: Tensor

    @property
    def positions(self) -> float:
        """Number of positions."""
        return float(self.inputs[-1, -1])

    def covariance(self, centred: bool = True) -> Tensor:
        """Covariance of the inputs, or their uncentred second moment, plus `RIDGE` times the mean variance: [N, N]."""
        moments = self.inputs / self.inputs[-1, -1].clamp(min=1)
        mean = moments[:-1, -1]
        spread = moments[:-1, :-1] - (torch.outer(mean, mean) if centred else 0)
        smallest = torch.finfo(spread.dtype).tiny
        return spread + torch.eye(len(spread)).to(spread) * (RIDGE * spread.diagonal().mean()).clamp(min=smallest)


def moments(
    model: nn.Module, corpus: Corpus, blocks: Sequence[Block], sampled: bool = False, progress: Progress = iter
) -> dict[str, Moments]:
    """Return the moments of the last linear layer of each block, {module name: `Moments`}, over all workers' data.

    Memory does not depend on the number of sentences. Padding does not count, except in an encoder of speech, which has
    no tokens.

    Args:
        model: a model without gates
        corpus: the data
        blocks: the blocks
        sampled: take the loss of targets drawn from the model's own distribution, whose second moments of gradients are
            the Fisher information, instead of the targets of the data, whose gradients vanish where a model has
            converged
        progress: wraps the iterable of batches

    Raises:
        ValueError: for sums that are not finite
    """
    layers: dict[str, Any] = {block.linear: model.get_submodule(block.linear) for block in blocks}
    types = {block.linear: block.attention_type for block in blocks}
    sums = {name: [_square(each.in_features + 1), _square(each.out_features)] for name, each in layers.items()}
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    with evaluating(model), differentiable(model), torch.enable_grad(), ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.callback(layer.register_forward_hook(partial(_see, seen, name)).remove)
        for sample in progress(corpus.batches):
            seen.clear()
            losses = corpus.losses(model, sample, sampled)
            slopes = gradients(losses, [inserted for _, inserted in seen.values()])
            for (name, (inputs, _)), slope in zip(seen.items(), slopes, strict=True):
                real = corpus.positions(sample, types[name], inputs)
                rows, slope = inputs[real].double(), slope[real].double()
                rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
                for total, vectors in zip(sums[name], (rows, slope), strict=True):
                    total += (vectors.T @ vectors).cpu()
    found = {name: Moments(*map(all_reduce, of_layer)) for name, of_layer in sums.items()}
    for name, of_layer in found.items():
        check_finite(f"activations at {name}", of_layer.inputs, of_layer.gradients)
    return found


def _square(size: int) -> Tensor:
    return torch.zeros(size, size, dtype=torch.double)


def _see(seen: dict, name: str, _: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
    inserted = torch.zeros_like(output, requires_grad=True)
    seen[name] = inputs[0].detach(), inserted
    return output + inserted


def targets_of(corpus: Corpus) -> int:
    """Return the number of targets that count, over all workers."""
    counts = sum((corpus.counted(sample).sum().cpu() for sample in corpus.batches), torch.tensor(0))
    return max(1, int(all_reduce(counts)))
