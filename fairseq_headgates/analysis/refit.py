"""Repair after removal: refit output projections to the heads that are left, in closed form.

The output of an attention layer is y = sum_i W_i c_i + b, with the contexts c_i of its heads, and the columns W_i of
the output projection, times the gates. If the heads R are removed and the heads K remain, the best affine predictor is

    sum_K (W_K + W_R C_RK C_KK^-1) (c_K - mean) + mean(y)

with the covariances C of the contexts, by least squares. It needs no output of the layer and no gradient: one pass over
the data sums the second moments of the contexts. Ridge regression towards W_K bounds the change where the contexts
of K are almost linearly dependent.

Choosing heads for this: `removal_scores`, an optimal brain surgeon (Hassibi & Stork 1993) for heads.

Shapes: B batch, T target length, H remaining heads of a layer, D head size, E model size, N = H D.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.analysis.derivatives import differentiable, gradients
from fairseq_headgates.evaluation import Corpus, Sample, all_reduce
from fairseq_headgates.heads import HeadTable, Mask
from fairseq_headgates.inference.attention_cache import merge_heads
from fairseq_headgates.surgery import (
    HeadSite,
    evaluating,
    head_factors,
    head_positions,
    head_sites,
    hooked,
    prune,
    site_table,
    use_head_attention,
)

RIDGE = 1e-4  # times the mean variance of the contexts
Progress = Callable[[Iterable], Iterable]


@dataclass
class Moments:
    """Second moments of the contexts of one layer, in double precision.

    Attributes:
        contexts: mean over positions of (c, 1) (c, 1)^T, before gates: [N + 1, N + 1]
        gradients: mean of g g^T, g the derivative of the loss in nats with respect to the contexts: [N, N], or empty
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


def refit(model: nn.Module, mask: Mask, task: Any, batches: Sequence[Sample], progress: Progress = iter) -> nn.Module:
    """Return a pruned copy of a model, with refitted output projections.

    A layer that keeps no head returns its bias, which becomes its mean output. Nothing is trained. Use training data,
    not those of the evaluation.

    Args:
        model: a fairseq model; its attention modules become `HeadAttention`, its parameters do not change
        mask: a mask in any form of `heads.as_mask`
        task: the fairseq task of the model
        batches: samples of the task, those of this worker if several share the data
        progress: wraps the iterable of batches, e.g. `tqdm`

    Raises:
        ValueError: if the mask has another shape than the model, or there are too few tokens to fit
    """
    return refitting(use_head_attention(model), Corpus(task, batches), progress)(mask)


def refitting(model: nn.Module, corpus: Corpus, progress: Progress = iter) -> Callable[[Mask], nn.Module]:
    """Return a function that does what `refit` does for any mask. The data are read once, here."""
    moments = context_moments(model, corpus, progress)

    def remove(mask: Mask) -> nn.Module:
        pruned = prune(model, mask)
        replace_parameters(pruned, refitted(model, pruned, moments))
        return pruned

    return remove


def replace_parameters(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy tensors into the parameters with their names."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)


def context_moments(
    model: nn.Module, corpus: Corpus, progress: Progress = iter, with_gradients: bool = False
) -> dict[str, Moments]:
    """Return the moments of every attention layer with heads, {module name: `Moments`}, over the data of all workers.

    Memory does not depend on the number of sentences. Padding does not count, except in an encoder of speech, which has
    no tokens. Raise ValueError for sums that are not finite.
    """
    sites = {site.name: site for site in head_sites(model) if site.attention.num_heads}
    sums = {name: _zeros(site, with_gradients) for name, site in sites.items()}
    seen: list[tuple[str, Tensor, Tensor]] = []
    tokens: dict[str, Tensor] = {}

    def see(site: HeadSite, _: Tensor | None, context: Tensor) -> Tensor | None:
        queries = tokens[site.kind]
        merged = merge_heads(context.detach())
        if queries.shape != merged.shape[:2]:  # speech: its encoder has no tokens
            queries = torch.ones_like(merged[..., 0], dtype=torch.bool)
        real = merged[queries].double()
        real = torch.cat([real, real.new_ones(len(real), 1)], 1)
        sums[site.name][0].add_((real.T @ real).cpu())
        if not with_gradients:
            return None
        inserted = torch.zeros_like(context, requires_grad=True)
        seen.append((site.name, queries, inserted))
        return context + inserted

    with evaluating(model), differentiable(model), torch.set_grad_enabled(with_gradients), hooked(model, see):
        for sample in progress(corpus.batches):
            seen.clear()
            tokens = _queries(sample["net_input"], corpus.pad)
            if not with_gradients:
                model(**sample["net_input"], features_only=True)
                continue
            losses = corpus.losses(model, sample)
            if seen:
                found = gradients(losses, [inserted for *_, inserted in seen])
                for (name, queries, _), gradient in zip(seen, found, strict=True):
                    real = merge_heads(gradient)[queries].double()
                    sums[name][1].add_((real.T @ real).cpu())
    shared = {name: tuple(map(all_reduce, pair)) for name, pair in sums.items()}
    for name, pair in shared.items():
        if not all(total.isfinite().all() for total in pair):
            raise ValueError(
                f"contexts of {name} are not finite: check the weights for inf and NaN, or leave out --fp16"
            )
    return {name: _moments(*pair) for name, pair in shared.items()}


def _zeros(site: HeadSite, with_gradients: bool) -> tuple[Tensor, Tensor]:
    size = site.attention.num_heads * site.attention.head_dim
    of_gradients = size if with_gradients else 0
    return torch.zeros(size + 1, size + 1).double(), torch.zeros(of_gradients, of_gradients).double()


def _moments(contexts: Tensor, gradients: Tensor) -> Moments:
    positions = contexts[-1, -1].clamp(min=1)
    return Moments(contexts / positions, gradients / positions, float(contexts[-1, -1]))


def _queries(net_input: Mapping[str, Tensor], pad: int) -> dict[str, Tensor]:
    """Return which queries of each attention type are no padding: [T, B]."""
    source = net_input["src_tokens"].ne(pad).transpose(0, 1)
    target = net_input["prev_output_tokens"].ne(pad).transpose(0, 1) if "prev_output_tokens" in net_input else source
    return {"enc-self": source, "dec-self": target, "dec-enc": target}


def refitted(model: nn.Module, pruned: nn.Module, moments: Mapping[str, Moments]) -> dict[str, Tensor]:
    """Return the output projections that make up for removed heads, {parameter of `pruned`: value}.

    Args:
        model: the model before the removal
        pruned: `prune(model, mask)`
        moments: of `context_moments(model)`

    Raises:
        ValueError: if there are fewer positions than unknowns
    """
    factors = head_factors(model)
    values: dict[str, Tensor] = {}
    for site, left in zip(head_sites(model), head_sites(pruned), strict=True):
        before, after = site.attention, left.attention
        factor = factors[site.kind][site.layer].cpu().double()[list(before.kept)]
        keep = [i for i, head in enumerate(before.kept) if head in after.kept and factor[i] > 0]
        removed = [i for i in range(before.num_heads) if i not in keep and factor[i] > 0]
        if not removed:
            continue
        positions = [after.kept.index(before.kept[i]) for i in keep]
        _check_enough(site, len(keep) * before.head_dim + 1, moments[site.name].positions)
        weight = before.out_proj.weight.detach().cpu().double() * factor.repeat_interleave(before.head_dim)
        change, shift = _best_change(
            weight, moments[site.name], head_positions(keep, before.head_dim), head_positions(removed, before.head_dim),
            after.out_proj.bias is not None,
        )  # fmt: skip
        name = f"{left.name}.out_proj"
        smaller = after.out_proj.weight.detach().cpu().double()
        columns = head_positions(positions, before.head_dim)
        values[f"{name}.weight"] = smaller.index_add(1, columns, change)
        if after.out_proj.bias is not None:
            values[f"{name}.bias"] = after.out_proj.bias.detach().cpu().double() + shift
    return values


def _check_enough(site: HeadSite, unknowns: int, positions: float) -> None:
    if positions < unknowns:
        raise ValueError(
            f"{site.kind} layer {site.layer} has {unknowns} unknowns for each output, and the data have "
            f"{positions:.0f} tokens: refit on more sentences"
        )


def _best_change(
    weight: Tensor, moments: Moments, keep: Tensor, removed: Tensor, with_bias: bool
) -> tuple[Tensor, Tensor]:
    """Return what to add to the weights of the columns `keep`, [E, len(keep)], and to the bias, [E]."""
    mean = moments.mean
    spread = moments.covariance if with_bias else moments.contexts[:-1, :-1]
    lost = weight[:, removed]
    change = torch.linalg.solve(_with_ridge(spread)[keep][:, keep], spread[keep][:, removed] @ lost.T).T
    return change, lost @ mean[removed] - change @ mean[keep]


def _with_ridge(spread: Tensor) -> Tensor:
    """Add `RIDGE` times the mean of the diagonal to the diagonal."""
    smallest = torch.finfo(spread.dtype).tiny
    return spread + torch.eye(len(spread)).to(spread) * (RIDGE * spread.diagonal().mean()).clamp(min=smallest)


# --- choosing heads -------------------------------------------------------------------------------------------------


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
    moments = context_moments(model, corpus, progress, with_gradients=True)
    counts = sum((corpus.counted(sample).sum().cpu() for sample in corpus.batches), torch.tensor(0))
    targets = max(1, int(all_reduce(counts)))
    factors = head_factors(model)
    layers = [
        _Layer(site, moments[site.name], factors[site.kind][site.layer].cpu(), targets)
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
        opened = [i for i, head in enumerate(site.attention.kept) if factor[head] > 0]
        self.left, self.removed, self.lost = opened, list[int](), 0.0
        # Without a bias the mean of the contexts cannot be moved to it.
        spread = moments.contexts[:-1, :-1] if site.attention.out_proj.bias is None else moments.covariance
        columns = head_positions(opened, site.attention.head_dim)
        self.places = {head: i for i, head in enumerate(opened)}
        self.precision = torch.linalg.inv(_with_ridge(spread[columns][:, columns])) if opened else spread
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
