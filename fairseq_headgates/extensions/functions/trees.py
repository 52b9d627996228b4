"""Dependency trees in CoNLL-U, and word alignments in the Pharaoh format (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import conllu

from fairseq_headgates.files import lines_of, read_text
from fairseq_headgates.messages import first_line, quoted

RELATIONS = ("nsubj", "obj", "iobj", "amod", "advmod", "det", "case")
LARGEST = 2**31  # bytes of the trees of a whole corpus
OLD_NAMES = {"dobj": "obj"}  # Stanford Dependencies, as in Voita et al. 2019


class Tree(NamedTuple):
    """A dependency tree. Words are counted from 0.

    Attributes:
        forms: text of every word; of a multiword token that its words do not spell (German "im": "in dem") the first
            word has the text
        heads: number of each word's head, -1 for the root
        relations: relation of each word to its head
        unspelled: the words of such multiword tokens, which cannot be found in a text
    """

    forms: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    unspelled: frozenset[int] = frozenset()


def read_trees(path: str) -> list[Tree]:
    """Read a CoNLL-U file, gzip-compressed if its name ends in .gz. Raise ValueError."""
    text = read_text(path, "the trees", "give a CoNLL-U file", LARGEST)
    try:
        trees = [_tree(sentence) for sentence in conllu.parse(text)]
    except Exception as error:  # conllu raises its own and others for broken lines
        raise ValueError(f"{path} is not CoNLL-U ({first_line(error)}): give trees in 10 columns") from None
    if not trees:
        raise ValueError(f"{path} has no trees: give a CoNLL-U file with one tree for every sentence")
    return trees


def _tree(sentence: Sequence[dict]) -> Tree:
    words = [token for token in sentence if isinstance(token["id"], int)]  # not 3-4 (multiword) and 5.1 (empty)
    text = " ".join(str(word["form"]) for word in words)[:60]
    if any(not isinstance(word["head"], int) or not 0 <= word["head"] <= len(words) for word in words):
        raise ValueError(f"the sentence {text!r} has a wrong HEAD")
    if [word["id"] for word in words] != list(range(1, len(words) + 1)):
        raise ValueError(f"the words of {text!r} have wrong IDs")
    forms, unspelled = [str(word["form"]) for word in words], set()
    for token in sentence:
        if not isinstance(token["id"], int) and token["id"][1] == "-":
            first, last = token["id"][0] - 1, token["id"][2]
            if not 0 <= first < last - 1 < len(words):
                raise ValueError(f"the multiword token {first + 1}-{last} has no such words")
            if "".join(forms[first:last]) != token["form"]:
                forms[first:last] = [str(token["form"])] + [""] * (last - first - 1)
                unspelled |= set(range(first, last))
    return Tree(
        tuple(forms),
        tuple(word["head"] - 1 for word in words),
        tuple(str(word["deprel"]) for word in words),
        frozenset(unspelled),
    )


def directions(relations: Sequence[str]) -> list[str]:
    """Return the names of the relations in both directions: 'nsubj to governor', 'nsubj to dependent', ..."""
    return [f"{relation} to {end}" for relation in relations for end in ("governor", "dependent")]


def pairs(tree: Tree, relations: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return the query word, the key word, and the number in `directions` of all pairs of words in the relations."""
    tree_pairs = []
    for word, (head, name) in enumerate(zip(tree.heads, tree.relations, strict=True)):
        for number, relation in enumerate(relations):
            if head >= 0 and relation in _names(name):
                tree_pairs += [(word, head, 2 * number), (head, word, 2 * number + 1)]
    return tree_pairs


def _names(relation: str) -> set[str]:
    """Return the names of a relation of a tree: its own, and that of the relation that it is a subtype of."""
    name = OLD_NAMES.get(relation, relation)
    return {name, name.partition(":")[0]}


def parse_relations(text: str | None, trees: Iterable[Tree]) -> tuple[str, ...]:
    """Parse relations separated by commas; without a text, return those of `RELATIONS` that the trees have.

    Raise ValueError for a relation that no tree has, or that is named twice.
    """
    known = {name for tree in trees for relation in tree.relations for name in _names(relation)}
    if text is None:
        return tuple(relation for relation in RELATIONS if relation in known)
    relations = [OLD_NAMES.get(name.strip(), name.strip()) for name in text.split(",")]
    for relation in relations:
        if relation not in known:
            raise ValueError(f"no tree has the relation {quoted(relation)}: choose from {', '.join(sorted(known))}")
        if relations.count(relation) > 1:
            raise ValueError(f"the relation {relation!r} is named twice: name each once")
    return tuple(relations)


def read_alignments(path: str) -> list[frozenset[tuple[int, int]]]:
    """Read word alignments: for every sentence the pairs 'source-target' of words counted from 0. Raise ValueError."""
    alignments = []
    text = read_text(path, "the word alignments", "give a line of pairs like 0-0 1-2 for every sentence", LARGEST)
    for number, line in enumerate(lines_of(text), start=1):
        links = line.split()
        wrong = next((link for link in links if not re.fullmatch(r"\d{1,6}-\d{1,6}", link)), None)
        if wrong is not None:
            raise ValueError(
                f"{path} line {number} has {quoted(wrong)}: it must have pairs like 0-0 1-2 (Pharaoh format)"
            )
        alignments.append(frozenset((int(a), int(b)) for a, b in (link.split("-") for link in links)))
    return alignments
