"""What a batch looks like to the heads: tokens, positions, words and relations of each attention type.

Shapes: B batch, T target length (queries), S source length (keys), W words of a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.losses import Sample
from fairseq_headgates.data.symbols import no_words, subwords_of
from fairseq_headgates.extensions.functions.trees import Tree, pairs
from fairseq_headgates.extensions.functions.words import Piece, match, pieces

SELF_ATTENTION = {"source": "enc-self", "target": "dec-self"}  # the attention between words of one side
EQUAL = 0.95  # share of symbols with the same count from which on a dictionary has no counts
MATCHING = 0.5  # share of characters from which on a text and a tree are of the same sentence
FREQUENT = 500  # a token beyond the so many most frequent ones is rare (Voita et al. 2019, section 5.4)
# The last two: whether the maximum is on the rarest token, and on one of the two rarest.
STATISTICS = ("entropy", "confidence", "eos", "first", "itself", "same form", "monotonic", "rarest", "rare")


class Words(NamedTuple):
    """Words of a batch, and the pairs of words that are looked for.

    Attributes:
        keys: [B, S, W], 1 where a token is a piece of a word
        queries: [B, W, T], 1 / (number of its pieces) where a token is a piece of a word
        pairs: sentence, query word, key word and number of the relation of every pair, [4, N]
    """

    keys: Tensor
    queries: Tensor
    pairs: Tensor


@dataclass
class Layout:
    """The keys [B, S] and queries [B, T] of one attention type in a batch.

    Queries are tokens of the source (enc-self), input tokens of the decoder (dec-self) or, in dec-enc, the tokens that
    it predicts.

    Attributes:
        key_positions, query_positions: counted from 0, the first word
        counted: which queries are words: not padding, <s>, EOS or a token of a language
        asked: which queries each of `STATISTICS` is a mean over, [9, B, T]; confidence is one over those whose input
            tokens, which differ in dec-enc, are words
        real: which keys are not padding
        words: which keys are words
        rare: which keys have the form of the rarest token, and of one of the two rarest, [2, B, S]
        earlier: for self-attention, the last position before each query with the same token, -1 if there is none
        first: which key is the first word
        pairs: words, if trees or alignments are known
    """

    key_positions: Tensor
    query_positions: Tensor
    counted: Tensor
    asked: Tensor
    real: Tensor
    words: Tensor
    first: Tensor
    rare: Tensor
    earlier: Tensor | None = None
    pairs: Words | None = None


def positions(tokens: Tensor, words: Tensor, pad: int) -> Tensor:
    """Return the position of every token in its sentence, 0 for the first word, for padding on either side: [B, T]."""
    place = tokens.ne(pad).cumsum(1)
    return place - torch.where(words, place, place.amax(1, keepdim=True)).amin(1, keepdim=True)


def earlier_positions(tokens: Tensor, counted: Tensor) -> Tensor:
    """Return the index of the last earlier counted token with the same form, -1 where there is none: [B, T]."""
    same = tokens[:, :, None].eq(tokens[:, None, :]) & counted[:, None, :]
    same = same.tril(-1)
    last = torch.arange(tokens.size(1), device=tokens.device).expand_as(same)
    return torch.where(same, last, -1).amax(-1)


def rarest_two(rank: Tensor) -> Tensor:
    """Return the keys with the form of the rarest token, and of one of the two rarest, by their ranks: [2, B, S]."""
    one = rank.eq(rank.amax(1, keepdim=True))
    second = rank.masked_fill(one, -1)
    return torch.stack([one, one | (second.eq(second.amax(1, keepdim=True)) & second.ge(0))])


def layouts(sample: Sample, corpus: Corpus, ranks: Tensor | None) -> dict[str, Layout]:
    """Return the layout of each attention type of a batch, without words."""
    pad, unknown = corpus.pad, corpus.task.target_dictionary.unk()
    source, inputs = sides_of(sample, corpus)

    def layout(keys: Tensor, queries: Tensor, entering: Tensor, side: str, ranked: bool = False) -> Layout:
        words, counted = corpus.words(keys, "source" if ranked else side), corpus.words(queries, side)
        none, earlier = torch.zeros_like(counted), None
        if keys is queries:
            known = counted & queries.ne(unknown)
            earlier = torch.where(known, earlier_positions(queries, known), -1)
            asked = [counted, earlier.ge(0), none]
        else:
            asked = [none, none, counted & nn.functional.pad(counted[:, :-1], (1, 0))]
        rank = torch.where(words, ranks.to(keys.device)[keys], -1) if ranked and ranks is not None else None
        asked += 2 * [none if rank is None else counted & rank.amax(1, keepdim=True).ge(FREQUENT)]
        return Layout(
            key_positions=positions(keys, words, pad),
            query_positions=positions(queries, counted, pad),
            counted=counted,
            asked=torch.stack([counted, corpus.words(entering, side), counted, counted, *asked]),
            real=keys.ne(pad),
            words=words,
            first=words & words.cumsum(1).eq(1),
            rare=torch.stack([torch.zeros_like(words)] * 2) if rank is None else rarest_two(rank),
            earlier=earlier,
        )

    made = {}
    if inputs is not None:
        made["dec-self"] = layout(inputs, inputs, inputs, "target")
    if source is not None:
        made["enc-self"] = layout(source, source, source, "source", ranked=True)
    if source is not None and inputs is not None:
        made["dec-enc"] = layout(source, sample["target"], inputs, "target", ranked=True)
    return made


def sides_of(sample: Sample, corpus: Corpus) -> tuple[Tensor | None, Tensor | None]:
    """Return the tokens that the encoder reads and those that the decoder reads: [B, S], None where there is none."""
    net_input, stacks = sample["net_input"], corpus.objective.stacks
    decoder_input = net_input.get("prev_output_tokens", net_input["src_tokens"])
    return net_input["src_tokens"] if "encoder" in stacks else None, decoder_input if "decoder" in stacks else None


def frequency_ranks(dictionary: Any, side: str) -> Tensor:
    """Return the rank of every symbol of a dictionary by its count, 0 for the most frequent; special symbols are last.

    Raises:
        ValueError: if the dictionary has no counts
    """
    counts, special = dictionary.count, dictionary.nspecial
    pairs_of = zip(dictionary.symbols[special:], counts[special:], strict=True)
    known = Counter(count for symbol, count in pairs_of if count > 0 and not symbol.startswith("madeupword"))
    if not known or max(known.values()) > EQUAL * known.total():
        raise ValueError(
            f"the dictionary of the {side} has no counts, by which tokens are rare: write it with fairseq-preprocess, "
            "or pass --no-rare"
        )
    order = sorted(range(special, len(counts)), key=lambda symbol: -counts[symbol])
    ranks = torch.full((len(counts),), len(counts))
    ranks[torch.tensor(order)] = torch.arange(len(order))
    return ranks


class Sentence:
    """The tokens of one sentence as pieces, without those that are no words, and their positions in its row.

    Attributes:
        unknown: whether it has unknown tokens, of which subwords do not tell where words begin and end
    """

    def __init__(self, row: Sequence[int], side: Side):
        dictionary = side.dictionary
        self.places = [i for i, token in enumerate(row) if token not in side.no_words]
        tokens = [row[i] for i in self.places]
        symbols = [None if token == dictionary.unk() else dictionary.symbols[token] for token in tokens]
        self.pieces: list[Piece] = pieces(symbols, side.subwords)
        self.unknown = None in symbols

    def words(self) -> list[tuple[int, ...]]:
        """Return the pieces of each word of the text."""
        groups = groupby(range(len(self.pieces)), key=lambda i: self.pieces[i].word)
        return [tuple(of_word) for _, of_word in groups]


class Side:
    """The "source" or "target" of a task, whose rows of tokens it splits into pieces.

    Attributes:
        dictionary: its dictionary
        subwords: kind of subwords, an element of `symbols.SUBWORDS`
        no_words: symbols that are no words
    """

    def __init__(self, task: Any, side: str, subwords: str = ""):
        self.dictionary = getattr(task, f"{side}_dictionary")
        self.subwords = subwords or subwords_of(self.dictionary.symbols)
        self.no_words = frozenset(no_words(task, side))

    def sentences(self, tokens: Tensor) -> list[Sentence]:
        """Return the sentences of a batch [B, T]."""
        return [Sentence(row, self) for row in tokens.tolist()]


@dataclass
class MatchedTrees:
    """The trees of one side of a corpus, and how well they fit the text.

    Attributes:
        counts: sentences, words, and words found in the text so far; pairs, and pairs with both words found
        mismatched: numbers of the sentences, from 1, that are not those of the trees
    """

    trees: Sequence[Tree]
    relations: Sequence[str]
    counts: Tensor = field(default_factory=lambda: torch.zeros(5, dtype=torch.double))
    mismatched: list[int] = field(default_factory=list)

    def words(self, sentences: Sequence[Sentence], ids: Sequence[int], tokens: Tensor, causal: bool) -> Words:
        """Return the words and pairs of a batch of tokens [B, T]. With `causal` only pairs whose key is earlier count.

        Words that are not found in the text have no pieces; each of the other pieces is a word of its own at the end.
        """
        words, usable_pairs = [], []
        for row, (sentence, number) in enumerate(zip(sentences, ids, strict=True)):
            tree = self.trees[number]
            matched = match(sentence.pieces, tree.forms)
            if matched.share < MATCHING:
                self.mismatched.append(number + 1)
            pieces_of = [() if i in tree.unspelled else parts for i, parts in enumerate(matched.pieces)]
            tree_pairs = [pair for pair in pairs(tree, self.relations) if not causal or pair[1] < pair[0]]
            usable = [(row, *pair) for pair in tree_pairs if pieces_of[pair[0]] and pieces_of[pair[1]]]
            numbers = (1, len(pieces_of), sum(map(bool, pieces_of)), len(tree_pairs), len(usable))
            self.counts += torch.tensor(numbers).double()
            usable_pairs += usable
            rest = set(range(len(sentence.pieces))) - {piece for parts in pieces_of for piece in parts}
            words.append([*pieces_of, *((piece,) for piece in sorted(rest))])
        members = membership(words, sentences, tokens)
        return Words(members, averaging(members), _table(usable_pairs, tokens))

    def numbers(self) -> dict[str, int]:
        """Return `counts` by their names in the results."""
        names = ("sentences", "words", "matched_words", "pairs", "matched_pairs")
        return dict(zip(names, map(int, self.counts), strict=True))


def membership(words: Sequence[Sequence[tuple[int, ...]]], sentences: Sequence[Sentence], tokens: Tensor) -> Tensor:
    """Return [B, T, W] for tokens [B, T], 1 where a token is a piece of a word."""
    members = torch.zeros(*tokens.shape, max(1, *map(len, words)))
    for row, (pieces_of, sentence) in enumerate(zip(words, sentences, strict=True)):
        for word, parts in enumerate(pieces_of):
            for piece in parts:
                members[row, sentence.places[piece], word] = 1
    return members.to(tokens.device)


def averaging(members: Tensor) -> Tensor:
    """Return the weights [B, W, T] that average over the pieces of each word, from their membership [B, T, W]."""
    return (members / members.sum(1, keepdim=True).clamp_min(1)).transpose(1, 2)


def _table(rows: Sequence[tuple[int, ...]], tokens: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.long, device=tokens.device).view(-1, 4).T


@dataclass
class Links:
    """The word alignments of a corpus.

    Attributes:
        subwords: whether a side has subwords; sentences with unknown tokens are then left out
        relation: the number of the relation "alignment"
        counts: sentences so far, and those that are left out
        wrong: {number of a sentence, from 1: a link outside of it}
    """

    links: Sequence[frozenset[tuple[int, int]]]
    subwords: bool
    relation: int
    counts: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.double))
    wrong: dict[int, str] = field(default_factory=dict)

    def words(self, texts: Mapping[str, Side], sample: Sample) -> Words:
        """Return the words of a batch with their alignments."""
        rows, linked = (sample["net_input"]["src_tokens"], sample["target"]), []
        sides = [texts[side].sentences(tokens) for side, tokens in zip(("source", "target"), rows, strict=True)]
        words = [[sentence.words() for sentence in side] for side in sides]
        for row, number in enumerate(sample["id"].tolist()):
            left_out = self.subwords and any(side[row].unknown for side in sides)
            self.counts += torch.tensor([1, int(left_out)]).double()
            links = () if left_out else self.links[number]
            a_words, b_words = (len(side[row]) for side in words)
            outside = next((f"{a}-{b}" for a, b in links if a >= a_words or b >= b_words), None)
            if outside is None:
                linked += [(row, b, a, self.relation) for a, b in links]
            else:
                self.wrong[number + 1] = f"{outside}, but the sentence has {a_words} and {b_words} words"
        keys, queries = map(membership, words, sides, rows)
        return Words(keys, averaging(queries), _table(linked, rows[0]))

    def numbers(self) -> dict[str, int]:
        """Return `counts` by their names in the results."""
        return dict(zip(("sentences", "left_out"), map(int, self.counts), strict=True))
