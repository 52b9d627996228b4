"""Count what every head attends to, in one pass over a corpus.

Shapes: B batch, T target length (queries), S source length (keys), H heads, R relations in both directions and
"alignment", M largest offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import AttentionModule, attention_modules
from fairseq_headgates.attention.hooks import hooked
from fairseq_headgates.attention.modules import evaluating, use_head_attention
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.losses import Sample, at_least_single, outputs
from fairseq_headgates.data.workers import all_reduce, gather
from fairseq_headgates.extensions.functions.layout import (
    SELF_ATTENTION,
    STATISTICS,
    Layout,
    Links,
    MatchedTrees,
    Side,
    Words,
    frequency_ranks,
    layouts,
    sides_of,
)
from fairseq_headgates.extensions.functions.trees import Tree, directions
from fairseq_headgates.messages import Progress

MISMATCHED = 0.05  # share of sentences that may differ from their trees


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
    """Counts of one attention layer with H remaining heads. Statistics that an attention type does not have are 0 of 0.

    Attributes:
        offsets: how often the maximum is at each offset from the query, [H, 2 M + 1]: the column M is the offset 0
        sums: sums of each of `STATISTICS`, [9, H]
        pairs: how often the maximum of a pair's query word is on its key word, by relation: [R, H]
    """

    offsets: Tensor
    sums: Tensor
    pairs: Tensor


@dataclass
class TypeCounts:
    """Counts of one attention type, the same for all its heads.

    Attributes:
        statistics: what each of `STATISTICS` is divided by, [9]
        exists: number of queries with a key at each offset, [2 M + 1]: the column M is the offset 0
        pairs: number of pairs, by relation, or of aligned target words: [R]
        offsets: number of pairs by relation and offset, [R, 2 M + 1]: the column M is the offset 0
    """

    statistics: Tensor
    exists: Tensor
    pairs: Tensor
    offsets: Tensor


def _zeros(*sizes: tuple[int, ...]) -> list[Tensor]:
    return [torch.zeros(size, dtype=torch.double) for size in sizes]


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
    progress: Progress = iter,
) -> FunctionCounts:
    """Count what every head attends to. The batches are those of this worker, the counts those of all workers.

    Raises:
        ValueError: if trees or alignments do not match the corpus, or a dictionary has no counts
    """
    use_head_attention(model)
    counts = FunctionCounts(model, corpus, annotations)
    with evaluating(model), torch.no_grad(), hooked(model, counts.see, weights=True):
        for sample in progress(corpus.batches):
            counts.begin(sample)
            outputs(model, sample)
    counts.share()
    return counts


class FunctionCounts:
    """The counts of a model on a corpus.

    Attributes:
        heads: counts of every attention layer
        type_counts: counts of every attention type
        relations: names of the relations in both directions, and "alignment"
        trees: by side, the trees, with the numbers of those that fit
        links: the word alignments, None if they are not known
    """

    def __init__(self, model: nn.Module, corpus: Corpus, annotations: Annotations):
        self.corpus, self.annotations = corpus, annotations
        self.texts = {side: Side(corpus.task, side, annotations.subwords) for side in SELF_ATTENTION}
        modules = attention_modules(model)
        attention_types = dict.fromkeys(module.attention_type for module in modules)
        rare = annotations.rare and attention_types.keys() != {"dec-self"}  # which has no statistics of rare tokens
        self.ranks = frequency_ranks(corpus.task.source_dictionary, "source") if rare else None
        self.relations = [*directions(annotations.relations), "alignment"]
        self.trees = {side: MatchedTrees(trees, annotations.relations) for side, trees in annotations.trees.items()}
        self.links = None
        if annotations.links is not None:
            subwords = any(text.subwords != "none" for text in self.texts.values())
            self.links = Links(annotations.links, subwords, self.relations.index("alignment"))
            if "dec-enc" not in attention_types:
                raise ValueError("the model has no cross-attention: leave the word alignments out")
        for side in self.trees:
            if SELF_ATTENTION[side] not in attention_types:
                raise ValueError(
                    f"the model has no {SELF_ATTENTION[side]} heads: leave the trees of the {side} out (decoder "
                    "self-attention takes --target-conllu)"
                )
        self.longest = self._longest()
        span, number = 2 * self.longest + 1, len(self.relations)
        self.heads = {
            module: HeadCounts(*_zeros((heads, span), (len(STATISTICS), heads), (number, heads)))
            for module in modules
            for heads in [module.attention.num_heads]
        }
        self.type_counts = {
            attention_type: TypeCounts(*_zeros((len(STATISTICS),), (span,), (number,), (number, span)))
            for attention_type in attention_types
        }
        self.layouts: dict[str, Layout] = {}

    def _longest(self) -> int:
        """Return a bound of all offsets, those from one token before the first word to another, over all workers."""
        tokens = [s["net_input"]["src_tokens"].size(1) + s["target"].size(1) for s in self.corpus.batches]
        words = [len(tree.forms) for trees in self.annotations.trees.values() for tree in trees]
        return max(gather({max([1, *tokens, *words]): None}))

    def begin(self, sample: Sample) -> None:
        """Prepare a batch, and count what does not depend on a head."""
        self.layouts = layouts(sample, self.corpus, self.ranks)
        source, inputs = sides_of(sample, self.corpus)
        rows: dict[str, Any] = {"source": source, "target": inputs}
        for side, trees in self.trees.items():
            sentences, ids = self.texts[side].sentences(rows[side]), sample["id"].tolist()
            words = trees.words(sentences, ids, rows[side], causal=side == "target")
            self.layouts[SELF_ATTENTION[side]].pairs = words
        if self.links is not None:
            self.layouts["dec-enc"].pairs = self.links.words(self.texts, sample)
        for attention_type, counts in self.type_counts.items():
            self._count(counts, self.layouts[attention_type], attention_type)

    def _count(self, counts: TypeCounts, layout: Layout, attention_type: str) -> None:
        offset = layout.key_positions[:, None, :] - layout.query_positions[:, :, None]
        exists = layout.counted[:, :, None] & layout.real[:, None, :]
        if attention_type == "dec-self":
            exists &= offset.le(0)
        counts.exists += self._by_offset(offset[exists])[0]
        counts.statistics += layout.asked.sum((1, 2)).double().cpu()
        if layout.pairs is None:
            return
        _, query, key, relation = pairs = layout.pairs.pairs
        counts.offsets += self._by_offset(key - query, relation, len(self.relations))
        asked = pairs[[0, 1, 3]]
        if attention_type == "dec-enc":  # any of the words that a target word is aligned with is right
            asked = asked.unique(dim=1)
        counts.pairs += torch.bincount(asked[-1], minlength=len(self.relations)).cpu()

    def _by_offset(self, offsets: Tensor, rows: Tensor | int = 0, number: int = 1) -> Tensor:
        """Return how often each offset occurs in each of so many rows: [number, 2 M + 1]."""
        span = 2 * self.longest + 1
        places = rows * span + offsets + self.longest
        return torch.bincount(places, minlength=number * span).view(number, span).cpu()

    def see(self, module: AttentionModule, weights: Tensor | None, _: Tensor) -> None:
        """Hook on every attention layer: count what its heads [B, H, T, S] attend to."""
        assert weights is not None
        layout, counts = self.layouts[module.attention_type], self.heads[module]
        if weights.size(-1) != layout.real.size(1):
            raise ValueError("the functions of heads cannot be counted with --cross-self-attention")
        weights = at_least_single(weights)
        counted = layout.counted[:, None, :].expand(weights.shape[:3])
        best, heads = weights.argmax(-1), weights.size(1)
        positions = layout.key_positions[:, None, :].expand(-1, heads, -1).gather(2, best)
        rows = torch.arange(heads, device=best.device)[:, None].expand_as(best)
        offsets = positions - layout.query_positions[:, None, :]
        counts.offsets += self._by_offset(offsets[counted], rows[counted], heads)
        largest, best_word = weights.masked_fill(~layout.words[:, None, None, :], -1.0).max(-1)
        counts.sums += _statistics(layout, weights, largest.clamp_min(0), best_word).cpu()
        if layout.pairs is not None:
            _count_hits(counts.pairs, layout.pairs, weights)

    def share(self) -> None:
        """Add the counts of all workers. Raise ValueError for trees and alignments of other sentences."""
        for counts in (*self.heads.values(), *self.type_counts.values(), *self.trees.values(), self.links):
            for part in vars(counts).values() if counts else ():
                if isinstance(part, Tensor):
                    part.copy_(all_reduce(part))
        for side, trees in self.trees.items():
            wrong = sorted(gather(dict.fromkeys(trees.mismatched)))
            if len(wrong) > MISMATCHED * trees.counts[0]:
                first = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
                raise ValueError(
                    f"{len(wrong)} trees of the {side} are not those of its sentences (number {first}): "
                    "give the trees of the same text, one for every line"
                )
        if self.links is not None and (outside := gather(self.links.wrong)):
            number = min(outside)
            raise ValueError(
                f"the alignment of sentence {number} has {outside[number]}: align the text from before subword "
                "segmentation"
            )


def _count_hits(hits: Tensor, words: Words, weights: Tensor) -> None:
    """Add how often the maximum of a pair's query word is on its key word to `hits` [R, H].

    To a word the weights on its pieces are added, from a word those of its pieces averaged.
    """
    queries, keys = (part[:, None].to(weights) for part in (words.queries, words.keys))
    on_words = queries @ (weights @ keys)  # [B, H, W, W]
    exists = words.keys.any(1)[:, None, None, :]
    best = on_words.masked_fill(~exists, -1.0).argmax(-1)  # [B, H, W]
    sentence, query, key, relation = words.pairs
    hits.index_add_(0, relation.cpu(), best[sentence, :, query].eq(key[:, None]).cpu().double())


def _statistics(layout: Layout, weights: Tensor, largest: Tensor, best_word: Tensor) -> Tensor:
    """Return the sums of `STATISTICS`: [9, H]."""

    def on_keys(mask: Tensor) -> Tensor:
        return (weights * mask[:, None, None, :]).sum(-1)

    itself = same = torch.zeros_like(largest)
    if layout.earlier is not None:
        itself = weights.diagonal(dim1=2, dim2=3)
        same = weights.gather(-1, layout.earlier.clamp_min(0)[:, None, :, None].expand(*largest.shape, 1)).squeeze(-1)
    entropy = torch.special.entr(weights).sum(-1) / torch.log(torch.tensor(2.0))
    monotonic = nn.functional.pad(best_word.diff(dim=-1).ge(0), (1, 0)).to(weights)
    no_words = layout.real & ~layout.words  # EOS, and others
    rare = [
        on_token[:, None, :].expand_as(weights[:, :, 0]).gather(2, best_word).to(weights) for on_token in layout.rare
    ]
    rows = [entropy, largest, on_keys(no_words), on_keys(layout.first), itself, same, monotonic, *rare]
    sums = [(row * mask[:, None]).sum((0, 2)) for row, mask in zip(rows, layout.asked, strict=True)]
    return torch.stack(sums).double()
