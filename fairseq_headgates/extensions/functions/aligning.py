"""Word alignments of a translation model: from the attention weights of heads, or from contributions of tokens.

Every target word is aligned with the source word that has the largest weight: the sum over the subwords of the source
word, the mean over those of the target word. EOS and language tags are no words.

Shapes: B sentences, T target length, S source length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_headgates.attention.anatomy import AttentionModule
from fairseq_headgates.attention.hooks import hooked
from fairseq_headgates.attention.modules import evaluating, head_counts
from fairseq_headgates.data.losses import Sample, at_least_single, outputs
from fairseq_headgates.data.workers import gather
from fairseq_headgates.extensions.functions.layout import SELF_ATTENTION, Side, averaging, membership
from fairseq_headgates.heads import HeadId, parse_heads
from fairseq_headgates.heads.functions import best_head
from fairseq_headgates.messages import Progress
from fairseq_headgates.scores.options import EXPLANATIONS
from fairseq_headgates.scores.relevance.explaining import explain

Alignment = list[tuple[int, int]]  # pairs of source and target word, counted from 0
Weights = Callable[[Sample], Tensor]


@dataclass(frozen=True)
class Alignments:
    """Word alignments of sentences, by their number from 0; None for those with unknown tokens.

    In a text of subwords, an unknown token does not tell where words begin and end.
    """

    of: Mapping[int, Alignment | None]

    def lines(self) -> str:
        """Return the alignments in the Pharaoh format: pairs source-target, a line for every sentence."""
        return "".join(" ".join(f"{a}-{b}" for a, b in self.of[i] or ()) + "\n" for i in sorted(self.of))


def align(
    model: nn.Module,
    task: Any,
    batches: Iterable[Sample],
    weights: Weights,
    subwords: str = "",
    progress: Progress = iter,
) -> Alignments:
    """Align the words of sentence pairs, of source and reference. The result is that of all workers.

    Args:
        model: a translation model
        task: the fairseq task of the model, which holds the dictionaries
        batches: samples of the task, those of this worker if several share the data
        weights: returns the weight of every source token for every target token of a batch [B, T, S]; see
            `attention_of` and `contributions_by`
        subwords: kind of subwords, an element of `symbols.SUBWORDS`; empty to read it off the dictionaries
        progress: wraps the iterable of batches
    """
    texts = [Side(task, side, subwords) for side in SELF_ATTENTION]
    whole = all(text.subwords == "none" for text in texts)  # words
    alignments: dict[int, Alignment | None] = {}
    with evaluating(model), torch.no_grad():
        for sample in progress(batches):
            rows = (sample["net_input"]["src_tokens"], sample["target"])
            sentences = [text.sentences(tokens) for text, tokens in zip(texts, rows, strict=True)]
            words = [[sentence.words() for sentence in side] for side in sentences]
            keys, queries = (of_side.cpu() for of_side in map(membership, words, sentences, rows))
            best = averaging(queries) @ (at_least_single(weights(sample)).cpu() @ keys)
            best = best.masked_fill(~keys.any(1)[:, None], -torch.inf).argmax(-1)
            for row, number in enumerate(sample["id"].tolist()):
                unknown = any(side[row].unknown for side in sentences)
                pairs = sorted((int(a), b) for b, a in enumerate(best[row, : len(words[1][row])]) if words[0][row])
                alignments[number] = None if unknown and not whole else pairs
    return Alignments(gather(alignments))


def attention_of(model: nn.Module, heads: Sequence[HeadId]) -> Weights:
    """Return a function from a batch to the mean attention weights of cross-attention heads: [B, T, S]."""

    def weights(sample: Sample) -> Tensor:
        per_head: list[Tensor] = []

        def see(module: AttentionModule, of_module: Tensor | None, _: Tensor) -> None:
            assert of_module is not None
            chosen = [module.attention.kept.index(head.head) for head in heads if head.layer == module.layer]
            per_head.extend(of_module[:, number] for number in chosen)

        with hooked(model, see, weights=True, types=("dec-enc",)):
            outputs(model, sample)
        return torch.stack(per_head).mean(0)

    return weights


def contributions_by(model: nn.Module, method: str) -> Weights:
    """Return a function from a batch to the contributions of source tokens to its targets [B, T, S]; see `explain`."""

    def weights(sample: Sample) -> Tensor:
        relevance = explain(model, sample["net_input"], method, sample["target"])
        return relevance.contributions()[..., : relevance.source.size(-1)]

    return weights


def weights_by(by: str, model: nn.Module, result: dict[str, Any]) -> tuple[str, Weights]:
    """Return what the weights of alignments are, and the function that computes them."""
    sizes = head_counts(model)
    if "dec-enc" not in sizes:
        raise ValueError("the model has no cross-attention: --write-alignments needs a translation model")
    if by in EXPLANATIONS:
        return by, contributions_by(model, by)
    heads = [best_head(result)] if by == "best" else []
    for part in by.split(",") if by != "best" else ():  # of an asterisk, the remaining heads
        named = parse_heads(part, {"dec-enc": sizes["dec-enc"]}, "--align-by")
        left = [head for head in named if result["heads"]["dec-enc"][head.layer][head.head] is not None]
        if not left:
            raise ValueError(f"--align-by has {part}, which is removed: name remaining heads")
        heads += [head for head in left if head not in heads]
    return ",".join(f"dec-enc:{head.layer}.{head.head}" for head in heads), attention_of(model, heads)
