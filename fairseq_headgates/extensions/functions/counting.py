"""Count what every head attends to, in one pass over a corpus.

Shapes: B batch, T target length (queries), S source length (keys), L layers, H heads, R relations in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.hooks import hooked
from fairseq_headgates.attention.sites import HeadSite, evaluating, head_sites, use_head_attention
from fairseq_headgates.evaluation.corpus import Corpus
from fairseq_headgates.evaluation.losses import Sample, at_least_single, outputs
from fairseq_headgates.evaluation.workers import all_reduce, gather
from fairseq_headgates.extensions.functions.layout import (
    FREQUENT,
    SELF_ATTENTION,
    Layout,
    Links,
    MatchedTrees,
    Side,
    Words,
    frequency_ranks,
    layouts,
    on,
    positions,
    sides_of,
)
from fairseq_headgates.extensions.functions.trees import Tree, directions

MISMATCHED = 0.05  # share of sentences that may differ from their trees
# Sums over queries, by their row in `HeadCounts.sums`.
STATISTICS = ("entropy", "confidence", "eos", "first", "itself", "same form")


@dataclass(frozen=True)
class Annotations:
    """What is known of a corpus, sentence by sentence in its order.

    Attributes:
        trees: trees of a side, by "source" and "target"
        relations: which relations are looked for
        links: word alignments, pairs of source and target word
        rare: whether rare tokens are looked for
        subwords: kind of subwords, an element of `symbols.SUBWORDS`; empty to read it off the dictionaries
    """

    trees: Mapping[str, Sequence[Tree]] = field(default_factory=dict)
    relations: Sequence[str] = ()
    links: Sequence[frozenset[tuple[int, int]]] | None = None
    rare: bool = True
    subwords: str = ""


@dataclass
class HeadCounts:
    """Counts of one attention layer. Statistics that an attention type does not have are 0 of 0.

    Attributes:
        site: the attention layer; H counts its remaining heads
        offsets: how often the maximum is at each offset from the query, [H, 2 M + 1]: the column M is the offset 0
        sums: sums of each of `STATISTICS`, [6, H]
        rare: how often the maximum is on the rarest token, and on one of the two rarest: [2, H]
        pairs: how often the maximum of a pair's query word is on its key word, by relation: [R, H]
        linked: how often the maximum of an aligned target word is on a word it is aligned with: [H]
        monotonic: how often the maximum does not move left from one target token to the next: [H]
    """

    site: HeadSite
    offsets: Tensor
    sums: Tensor
    rare: Tensor
    pairs: Tensor
    linked: Tensor
    monotonic: Tensor

    @classmethod
    def zeros(cls, site: HeadSite, longest: int, relations: int) -> HeadCounts:
        """Return counts of 0."""
        heads = site.attention.num_heads
        sizes = ((heads, 2 * longest + 1), (len(STATISTICS), heads), (2, heads), (relations, heads), (heads,), (heads,))
        return cls(site, *(torch.zeros(size, dtype=torch.double) for size in sizes))


@dataclass
class TypeCounts:
    """Counts of one attention type, the same for all its heads.

    Attributes:
        statistics: what each of `STATISTICS` is divided by, [6]
        exists: number of queries with a key at each offset, [2 M + 1]: the column M is the offset 0
        rare: number of queries in sentences with a rare token
        pairs: number of pairs, by relation: [R]
        offsets: number of pairs by relation and offset, [R, 2 M + 1]: the column M is the offset 0
        linked: number of aligned target words
        linked_offsets: number of links by offset from the target word, [2 M + 1]
        steps: number of target tokens after the first
    """

    statistics: Tensor
    exists: Tensor
    rare: Tensor
    pairs: Tensor
    offsets: Tensor
    linked: Tensor
    linked_offsets: Tensor
    steps: Tensor

    @classmethod
    def zeros(cls, longest: int, relations: int) -> TypeCounts:
        """Return counts of 0."""
        span = 2 * longest + 1
        sizes = ((len(STATISTICS),), (span,), (1,), (relations,), (relations, span), (1,), (span,), (1,))
        return cls(*(torch.zeros(size, dtype=torch.double) for size in sizes))


@dataclass
class FunctionCounts:
    """The counts of a model on a corpus.

    Attributes:
        heads: counts of every attention layer
        type_counts: counts of every attention type
        matched: by side, numbers of sentences, words, words found in the text, pairs, and pairs with both words found
        relations: names of the relations in both directions
        linked: with word alignments, numbers of sentences, and of those that are left out
    """

    heads: list[HeadCounts]
    type_counts: dict[str, TypeCounts]
    matched: dict[str, list[int]]
    relations: list[str]
    linked: list[int] | None = None


def check_annotations(annotations: Annotations, sentences: int) -> None:
    """Raise ValueError unless there is one tree and one alignment for every sentence of a subset."""
    numbers = {f"{side} trees": len(trees) for side, trees in annotations.trees.items()}
    if annotations.links is not None:
        numbers["lines of word alignments"] = len(annotations.links)
    for what, number in numbers.items():
        if number != sentences:
            raise ValueError(
                f"there are {number} {what} for {sentences} sentences: give one for every sentence of the subset, in "
                "its order (for a language model, with --sample-break-mode eos)"
            )


def count_functions(
    model: nn.Module,
    corpus: Corpus,
    annotations: Annotations,
    progress: Callable[[Iterable], Iterable] = iter,
) -> FunctionCounts:
    """Count what every head attends to. The batches are those of this worker, the counts those of all workers.

    Raises:
        ValueError: if trees or alignments do not match the corpus, or a dictionary has no counts
    """
    corpus.objective.check_text("headgates functions")
    use_head_attention(model)
    pass_ = _Pass(model, corpus, annotations)
    with evaluating(model), torch.no_grad(), hooked(model, pass_.see, weights=True):
        for sample in progress(corpus.batches):
            pass_.begin(sample)
            outputs(model, sample)
    return pass_.result()


class _Pass:
    """One pass over a corpus."""

    def __init__(self, model: nn.Module, corpus: Corpus, annotations: Annotations):
        self.corpus, self.annotations = corpus, annotations
        self.texts = {side: Side(corpus.task, side, annotations.subwords) for side in SELF_ATTENTION}
        sites = head_sites(model)
        attention_types = dict.fromkeys(site.attention_type for site in sites)
        rare = annotations.rare and attention_types.keys() != {"dec-self"}  # which has no statistics of rare tokens
        self.ranks = frequency_ranks(corpus.task.source_dictionary, "source") if rare else None
        self.sides = {side: MatchedTrees(trees, annotations.relations) for side, trees in annotations.trees.items()}
        self.links = None
        if annotations.links is not None:
            self.links = Links(annotations.links, any(text.subwords != "none" for text in self.texts.values()))
        self.relations = directions(annotations.relations)
        self.longest = self._longest()
        if self.links is not None and "dec-enc" not in attention_types:
            raise ValueError("the model has no decoder-encoder attention: leave the word alignments out")
        for side in self.sides:
            if SELF_ATTENTION[side] not in attention_types:
                raise ValueError(
                    f"the model has no {SELF_ATTENTION[side]} heads: leave the trees of the {side} out (decoder "
                    "self-attention takes --target-conllu)"
                )
        self.heads = {site: HeadCounts.zeros(site, self.longest, len(self.relations)) for site in sites}
        self.type_counts = {each: TypeCounts.zeros(self.longest, len(self.relations)) for each in attention_types}
        self.layouts: dict[str, Layout] = {}

    def _longest(self) -> int:
        """Return a bound of all offsets: the largest number of tokens or words of a sentence, over all workers.

        Tokens before the first word of a source have negative positions: those after one of them are added.
        """
        tokens = []
        for sample in self.corpus.batches:
            source = sample["net_input"]["src_tokens"]
            first = positions(source, self.corpus.words(source, "source"), self.corpus.pad).min()
            tokens.append(max(source.size(1), sample["target"].size(1)) + max(0, -1 - int(first)))
        words = [len(tree.forms) for trees in self.annotations.trees.values() for tree in trees]
        return max(gather({max([1, *tokens, *words]): None}))

    def begin(self, sample: Sample) -> None:
        """Prepare a batch, and count what does not depend on a head."""
        self.layouts = layouts(sample, self.corpus, self.ranks)
        ids = sample["id"].tolist()
        source, inputs = sides_of(sample, self.corpus)
        rows = {"source": source, "target": inputs}
        for side, trees in self.sides.items():
            tokens: Any = rows[side]
            sentences = self.texts[side].sentences(tokens)
            words = trees.words(sentences, ids, tokens.size(1), causal=side == "target")
            self.layouts[SELF_ATTENTION[side]].pairs = words
        if self.links is not None:
            assert source is not None
            sides = (("source", source), ("target", sample["target"]))
            sources, targets = (self.texts[side].sentences(tokens) for side, tokens in sides)
            self.layouts["dec-enc"].pairs = self.links.words(sources, targets, sample)
        on(sample["net_input"]["src_tokens"].device, self.layouts)
        for attention_type, counts in self.type_counts.items():
            self._count(counts, self.layouts[attention_type])
            counts.exists += self._exists(self.layouts[attention_type], causal=attention_type == "dec-self")

    def _exists(self, layout: Layout, causal: bool) -> Tensor:
        """Return how many queries have a key at each offset: [2 M + 1]."""
        offset = layout.key_positions[:, None, :] - layout.query_positions[:, :, None]
        there = layout.counted[:, :, None] & layout.real[:, None, :]
        if causal:
            there &= offset.le(0)
        return self._by_offset(offset[there])[0]

    def _by_offset(self, offsets: Tensor, rows: Tensor | int = 0, number: int = 1) -> Tensor:
        """Return how often each offset occurs in each of so many rows: [number, 2 M + 1]."""
        span = 2 * self.longest + 1
        places = rows * span + offsets + self.longest
        return torch.bincount(places, minlength=number * span).view(number, span).cpu()

    def _count(self, counts: TypeCounts, layout: Layout) -> None:
        counted = layout.counted
        queries, none = counted.sum(), counted.new_zeros(())
        itself, same = (none, none) if layout.earlier is None else (queries, layout.earlier.ge(0).sum())
        numbers = [queries, layout.inputs.sum(), queries, queries, itself, same]
        counts.statistics += torch.stack(numbers).double().cpu()
        counts.steps += (counted[:, 1:] & counted[:, :-1]).sum().cpu()
        if layout.rank is not None:
            counts.rare += (counted & _rare_sentences(layout.rank)[:, None]).sum().cpu()
        words = layout.pairs
        if words is None:
            return
        counts.pairs += torch.bincount(words.what, minlength=len(self.relations)).cpu()
        counts.offsets += self._by_offset(words.offset, words.what, len(self.relations))
        if words.allowed is not None:
            counts.linked += words.allowed.any(-1).sum().cpu()
            _, query, key = words.allowed.nonzero(as_tuple=True)
            counts.linked_offsets += self._by_offset(key - query)[0]

    def see(self, site: HeadSite, weights: Tensor | None, _: Tensor) -> None:
        """Hook on every attention layer: count what its heads [B, H, T, S] attend to."""
        assert weights is not None
        layout, counts = self.layouts[site.attention_type], self.heads[site]
        if weights.size(-1) != layout.real.size(1):
            raise ValueError("the functions of heads cannot be counted with --cross-self-attention")
        weights = at_least_single(weights)
        counted = layout.counted[:, None, :].expand(weights.shape[:3])
        best = weights.argmax(-1)
        largest, best_word = weights.masked_fill(~layout.words[:, None, None, :], -1.0).max(-1)
        counts.offsets += self._offsets(layout, best, counted)
        counts.sums += _statistics(layout, weights, largest.clamp_min(0), counted).cpu()
        if layout.rank is not None:
            counts.rare += _rare(layout.rank, best_word, counted).cpu()
        if layout.pairs is not None:
            self._pairs(counts, layout.pairs, weights)
        if site.attention_type == "dec-enc":
            stays = best_word.diff(dim=-1).ge(0) & counted[..., 1:] & counted[..., :-1]
            counts.monotonic += stays.sum((0, 2)).double().cpu()

    def _offsets(self, layout: Layout, best: Tensor, counted: Tensor) -> Tensor:
        """Return how often the maximum of each head is at each offset: [H, 2 M + 1]."""
        heads = best.size(1)
        at = layout.key_positions[:, None, :].expand(-1, heads, -1).gather(2, best)
        rows = torch.arange(heads, device=best.device)[:, None].expand_as(best)
        return self._by_offset((at - layout.query_positions[:, None, :])[counted], rows[counted], heads)

    def _pairs(self, counts: HeadCounts, words: Words, weights: Tensor) -> None:
        """Count the pairs: to a word the weights on its pieces are added, from a word those of its pieces averaged."""
        queries, keys = (part[:, None].to(weights) for part in (words.queries, words.keys))
        on_words = queries @ (weights @ keys)  # [B, H, W, W]
        exists = words.keys.any(1)[:, None, None, :]
        best = on_words.masked_fill(~exists, -1.0).argmax(-1)  # [B, H, W]
        sentence, query, key = words.where
        hits = best[sentence, :, query].eq(key[:, None]).cpu().double()
        counts.pairs.index_add_(0, words.what.cpu(), hits)
        if words.allowed is not None:
            allowed = words.allowed[:, None].expand(-1, best.size(1), -1, -1)
            counts.linked += allowed.gather(-1, best[..., None]).sum((0, 2, 3)).double().cpu()

    def result(self) -> FunctionCounts:
        """Return the counts of all workers."""
        counted = [*self.heads.values(), *self.type_counts.values(), *self.sides.values(), self.links]
        parts = [part for each in counted if each for part in vars(each).values() if isinstance(part, Tensor)]
        sums = all_reduce(torch.cat([part.flatten() for part in parts]))
        for part, total in zip(parts, sums.split([part.numel() for part in parts]), strict=True):
            part.copy_(total.view_as(part))
        self._check_trees()
        self._check_links()
        matched = {side: [int(number) for number in trees.counts] for side, trees in self.sides.items()}
        linked = None if self.links is None else [int(number) for number in self.links.counts]
        return FunctionCounts(list(self.heads.values()), self.type_counts, matched, self.relations, linked)

    def _check_trees(self) -> None:
        for side, trees in self.sides.items():
            wrong = sorted(gather(dict.fromkeys(trees.mismatched)))
            if len(wrong) > MISMATCHED * trees.counts[0]:
                shown = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
                raise ValueError(
                    f"{len(wrong)} trees of the {side} are not those of its sentences (number {shown}): "
                    "give the trees of the same text, one for every line"
                )

    def _check_links(self) -> None:
        wrong = gather(self.links.wrong) if self.links is not None else {}
        if wrong:
            number = min(wrong)
            raise ValueError(
                f"the alignment of sentence {number} has {wrong[number]}: align the text from before subword "
                "segmentation"
            )


def _statistics(layout: Layout, weights: Tensor, largest: Tensor, counted: Tensor) -> Tensor:
    """Return the sums of `STATISTICS`: [6, H]."""
    keys = layout.real & ~layout.words  # EOS, and others that are no words

    def on_keys(mask: Tensor) -> Tensor:
        return (weights * mask[:, None, None, :]).sum(-1)

    none = torch.zeros_like(largest)
    itself = same = none
    if layout.earlier is not None:
        itself = weights.diagonal(dim1=2, dim2=3)
        there = layout.earlier[:, None, :, None].expand(*largest.shape, 1)
        same = weights.gather(-1, there.clamp_min(0)).squeeze(-1) * there.ge(0).squeeze(-1)
    entropy = torch.special.entr(weights).sum(-1) / torch.log(torch.tensor(2.0))
    rows = [entropy, largest, on_keys(keys), on_keys(layout.first), itself, same]
    inputs = layout.inputs[:, None, :].expand_as(counted)
    masks = [counted, inputs, *[counted] * 4]
    return torch.stack([(row * mask).sum((0, 2)) for row, mask in zip(rows, masks, strict=True)]).double()


def _rare_sentences(rank: Tensor) -> Tensor:
    """Return which sentences [B] have a token beyond the `FREQUENT` most frequent ones."""
    return rank.amax(1) >= FREQUENT


def _rare(rank: Tensor, best: Tensor, counted: Tensor) -> Tensor:
    """Return how often the maximum is on the rarest token, and on one of the two rarest: [2, H].

    Tokens are compared by their form: two tokens of the rarest form both count.
    """
    rarest = rank.amax(1, keepdim=True)
    second = rank.masked_fill(rank.eq(rarest), -1).amax(1, keepdim=True)
    one = rank.eq(rarest)
    two = one | (rank.eq(second) & second.ge(0))
    asked = counted & _rare_sentences(rank)[:, None, None]
    hits_of_both = [mask[:, None, :].expand(-1, best.size(1), -1).gather(2, best) & asked for mask in (one, two)]
    return torch.stack([hits.sum((0, 2)) for hits in hits_of_both]).double()
