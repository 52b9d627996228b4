"""The score `refit`: remove heads one after another, always the one that costs least after refitting; `removal_scores`.

Shapes: B batch, T target length, H remaining heads of a layer, D head size, N = H D.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_headgates.analysis.derivatives import differentiable, gradients
from fairseq_headgates.evaluation import Corpus, all_reduce
from fairseq_headgates.heads import HeadTable
from fairseq_headgates.inference.attention_cache import merge_heads
from fairseq_headgates.surgery import (
    HeadSite,
    evaluating,
    head_factors,
    head_positions,
    head_sites,
    hooked,
    site_table,
)

RIDGE = 1e-4  # times the mean variance of the contexts
Progress = Callable[[Iterable], Iterable]


@dataclass
class Moments:
    """Second moments of the contexts of one layer, in double precision.

    Attributes:
        contexts: mean over positions of (c, 1) (c, 1)^T, before gates: [N + 1, N + 1]
        gradients: mean of g g^T, g the derivative of the loss in nats with respect to the contexts: [N, N]
        positions: number of positions
    """

    contexts: Tensor
    gradients: Tensor
    positions: float

    @property
    def mean(self) -> Tensor:
        """Mean of the contexts: [N]."""
        return self.contexts[:-1, -1]

    @property
    def covariance(self) -> Tensor:
        """Covariance of the contexts: [N, N]."""
        return self.contexts[:-1, :-1] - torch.outer(self.mean, self.mean)


def context_moments(model: nn.Module, corpus: Corpus, progress: Progress = iter) -> dict[str, Moments]:
    """Return the moments of every attention layer with heads, {module name: `Moments`}, over the data of all workers.

    Memory does not depend on the number of sentences. Padding does not count, except in an encoder of speech, which has
    no tokens. Raise ValueError for sums that are not finite.
    """
    sites = {site.name: site for site in head_sites(model) if site.attention.num_heads}
    sums = {name: _zeros(site) for name, site in sites.items()}
    seen: list[tuple[str, Tensor, Tensor]] = []

    def see(site: HeadSite, _: Tensor | None, context: Tensor) -> Tensor:
        inserted = torch.zeros_like(context, requires_grad=True)
        seen.append((site.name, merge_heads(context.detach()), inserted))
        return context + inserted

    with evaluating(model), differentiable(model), torch.enable_grad(), hooked(model, see):
        for sample in progress(corpus.batches):
            seen.clear()
            losses = corpus.losses(model, sample)
            layer_gradients = gradients(losses, [inserted for *_, inserted in seen]) if seen else []
            for (name, contexts, _), gradient in zip(seen, layer_gradients, strict=True):
                real = corpus.positions(sample, sites[name].attention_type, contexts)
                rows, slopes = contexts[real].double(), merge_heads(gradient)[real].double()
                rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
                sums[name][0].add_((rows.T @ rows).cpu())
                sums[name][1].add_((slopes.T @ slopes).cpu())
    shared = {name: tuple(map(all_reduce, pair)) for name, pair in sums.items()}
    for name, pair in shared.items():
        if not all(total.isfinite().all() for total in pair):
            raise ValueError(
                f"contexts of {name} are not finite: check the weights for inf and NaN, or leave out --fp16"
            )
    return {name: _moments(*pair) for name, pair in shared.items()}


def _zeros(site: HeadSite) -> tuple[Tensor, Tensor]:
    size = site.attention.num_heads * site.attention.head_dim
    return torch.zeros(size + 1, size + 1).double(), torch.zeros(size, size).double()


def _moments(contexts: Tensor, gradients: Tensor) -> Moments:
    positions = contexts[-1, -1].clamp(min=1)
    return Moments(contexts / positions, gradients / positions, float(contexts[-1, -1]))


def _with_ridge(spread: Tensor) -> Tensor:
    """Add `RIDGE` times the mean of the diagonal to the diagonal."""
    smallest = torch.finfo(spread.dtype).tiny
    return spread + torch.eye(len(spread)).to(spread) * (RIDGE * spread.diagonal().mean()).clamp(min=smallest)


def removal_scores(model: nn.Module, corpus: Corpus, progress: Progress = iter) -> HeadTable:
    """Remove the heads one after another, always the one that costs least after refitting, and score each by the cost.

    The cost of the removed heads R of a layer is the second-order estimate of the increase of the loss,

        1/2 E[(g_R^T r_R)^2]  ~  1/2 trace(E[g_R g_R^T] E[r_R r_R^T])

    with the gradient g_R with respect to their contexts, and the residual r_R of the least-squares regression of their
    contexts on those of the other heads (Hassibi & Stork 1993; the second step takes gradients and residuals as
    independent, as K-FAC does, Martens & Grosse 2015). The covariance of r_R is the inverse of the block R of the
    inverse covariance of all contexts. Costs of layers are summed.

    Returns:
        For each head the estimated increase of the loss, in bits per target, when it and all heads with lower scores
        are removed; NaN for removed heads
    """
    moments = context_moments(model, corpus, progress)
    counts = sum((corpus.counted(sample).sum().cpu() for sample in corpus.batches), torch.tensor(0))
    targets = max(1, int(all_reduce(counts)))
    factors = head_factors(model)
    layers = [
        _Layer(site, moments[site.name], factors[site.attention_type][site.layer].cpu(), targets)
        for site in head_sites(model)
        if site.attention.num_heads
    ]
    total = 0.0
    queue = [(*layer.cheapest(), number) for number, layer in enumerate(layers) if layer.left]
    heapq.heapify(queue)
    while queue:
        cost, head, number = heapq.heappop(queue)
        total += max(0.0, cost)
        layers[number].remove(head, total)
        if layers[number].left:
            heapq.heappush(queue, (*layers[number].cheapest(), number))
    return site_table(model, {layer.site: layer.scores for layer in layers})


class _Layer:
    """A layer whose heads are removed one after another; a closed head costs nothing."""

    def __init__(self, site: HeadSite, moments: Moments, factor: Tensor, targets: int):
        self.site = site
        self.scores = torch.zeros(site.attention.num_heads).double()
        open_heads = [i for i, head in enumerate(site.attention.kept) if factor[head] > 0]
        self.left, self.removed, self.lost = open_heads, list[int](), 0.0
        # Without a bias the mean of the contexts cannot be moved to it.
        spread = moments.contexts[:-1, :-1] if site.attention.out_proj.bias is None else moments.covariance
        columns = head_positions(open_heads, site.attention.head_dim)
        self.places = {head: i for i, head in enumerate(open_heads)}
        self.precision = torch.linalg.inv(_with_ridge(spread[columns][:, columns])) if open_heads else spread
        self.gradients = moments.gradients[columns][:, columns]
        self.scale = moments.positions / targets / (2 * math.log(2))

    def cost(self, heads: Sequence[int]) -> float:
        """Return the estimated increase of the loss without these heads, in bits per target."""
        block = head_positions([self.places[head] for head in heads], self.site.attention.head_dim)
        of_residual = torch.linalg.solve(self.precision[block][:, block], self.gradients[block][:, block])
        return float(of_residual.trace()) * self.scale

    def cheapest(self) -> tuple[float, int]:
        """Return the smallest cost of a further head, and this head."""
        return min((self.cost([*self.removed, head]) - self.lost, head) for head in self.left)

    def remove(self, head: int, total: float) -> None:
        """Remove a head, with its score."""
        self.left.remove(head)
        self.removed.append(head)
        self.lost, self.scores[head] = self.cost(self.removed), total
